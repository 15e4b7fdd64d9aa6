// What can be taken away from a finished run: files, and the command that draws the same.

import { file } from "./api.js";
import { make, parts, say } from "./dom.js";

export class Keep {
  /** `edit`, where it is given, is told when the images are to be edited. */
  constructor(root, edit = null) {
    this.part = parts(root);
    this.edit = edit;
  }

  /** Offers the files of a run, of which `record` says how it was drawn. */
  set({ run, record }, editing) {
    const json = async () => new Blob([JSON.stringify(record, null, 2), "\n"], { type: "application/json" });
    this.part("downloads").replaceChildren(
      this.download("Images (ZIP)", `recap-${run}.zip`, () => file(`/api/runs/${run}.zip`)),
      this.download("run.json", `recap-${run}.json`, json),
      ...(this.edit ? [make("button", { type: "button", class: "button small", onclick: this.edit }, "Edit")] : []),
    );
    say(this.part("download-error"), null);
    this.part("commands-list").replaceChildren(...Object.entries(record.commands).map(([pane, words]) => command(pane, words)));
    this.part("commands-about").textContent = editing
      ? "The same on the command line, with the picture and the mask that are in the ZIP:"
      : "The same images on the command line:";
    this.part("commands").hidden = false;
  }

  /** A button that saves what `content` gives, so that what goes wrong can be told. */
  download(shown, name, content) {
    const save = async () => {
      button.disabled = true;
      say(this.part("download-error"), null);
      try {
        const address = URL.createObjectURL(await content());
        make("a", { href: address, download: name }).click();
        setTimeout(() => URL.revokeObjectURL(address), 60_000);
      } catch (error) {
        say(this.part("download-error"), error.message);
      } finally {
        button.disabled = false;
      }
    };
    const button = make("button", { type: "button", class: "button small", onclick: save }, shown);
    return button;
  }
}

/** A command line with a button that copies it. */
function command(pane, words) {
  const code = make("code", {}, words);
  const button = make("button", { type: "button", class: "button small", "aria-label": `Copy the command of the ${pane} run`, onclick: () => copy(code, button) }, "Copy");
  return make("div", { class: "command" }, make("pre", { tabindex: 0, "aria-label": `Command of the ${pane} run` }, code), button);
}

async function copy(code, button) {
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(code); // not allowed here: at least it is marked
    button.textContent = "Press Ctrl C";
  }
  setTimeout(() => (button.textContent = "Copy"), 2000);
}
