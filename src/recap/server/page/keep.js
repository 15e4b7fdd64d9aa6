// What can be taken away from a finished run: its files, and the command that draws the same.

import { blob } from "./api.js";
import { make, parts } from "./dom.js";
import { capital } from "./format.js";

export class Keep {
  /** `noun`: what a run makes; `edit`, where it is given, is told when the images are to be edited. */
  constructor(root, noun, edit = null) {
    this.part = parts(root);
    this.noun = noun;
    this.edit = edit;
  }

  /** Offers the archive of a run, and the commands that draw the same. */
  set({ commands, archive }, editing) {
    this.part("downloads").replaceChildren(
      download(`${capital(this.noun)}s (ZIP)`, "recap.zip", blob(archive, "application/zip")),
      ...(this.edit ? [make("button", { type: "button", class: "button small", onclick: this.edit }, "Edit")] : []),
    );
    this.part("commands-list").replaceChildren(...Object.entries(commands).map(([pane, words]) => command(pane, words)));
    this.part("commands-about").textContent = editing
      ? "The same on the command line, with the picture and the mask that are in the ZIP:"
      : `The same ${this.noun}s on the command line:`;
    this.part("commands").hidden = !Object.keys(commands).length;
  }
}

/** A button that saves a file. */
function download(shown, name, content) {
  const save = () => {
    const address = URL.createObjectURL(content);
    make("a", { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  };
  return make("button", { type: "button", class: "button small", onclick: save }, shown);
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
