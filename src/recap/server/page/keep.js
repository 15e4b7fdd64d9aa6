// What can be taken away from a finished run: files, and the command that draws the same.

import { file, get } from "./api.js";
import { make, parts, say } from "./dom.js";

const FILES = [
  { name: "images.zip", shown: "Images (ZIP)" },
  { name: "run.json", shown: "run.json" },
];

export class Keep {
  /** `edit`, where it is given, is told when the images are to be edited. */
  constructor(root, edit = null) {
    this.part = parts(root);
    this.edit = edit;
  }

  async set(run, editing) {
    this.part("downloads").replaceChildren(
      ...FILES.map(({ name, shown }) =>
        make(
          "a",
          { class: "button small", href: `/api/runs/${run}/${name}`, download: `recap-${run}-${name}`, onclick: (event) => this.fetch(event) },
          shown,
        ),
      ),
      ...(this.edit ? [make("button", { type: "button", class: "button small", onclick: this.edit }, "Edit")] : []),
    );
    this.run = run;
    say(this.part("download-error"), null);
    this.part("commands").hidden = true;
    try {
      const { commands } = await get(`/api/runs/${run}/run.json`);
      if (this.run !== run) return; // another one has finished meanwhile
      this.part("commands-list").replaceChildren(...Object.entries(commands).map(([pane, words]) => command(pane, words)));
      this.part("commands-about").textContent = editing
        ? "The same on the command line, with the picture and the mask that are in the ZIP:"
        : "The same images on the command line:";
      this.part("commands").hidden = false;
    } catch (error) {
      say(this.part("download-error"), error.message);
    }
  }

  /** Fetches a file before it is saved, so that what goes wrong can be told. */
  async fetch(event) {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const link = event.currentTarget;
    if (link.getAttribute("aria-busy") === "true") return;
    link.setAttribute("aria-busy", "true");
    say(this.part("download-error"), null);
    try {
      const address = URL.createObjectURL(await file(link.href));
      make("a", { href: address, download: link.download }).click();
      setTimeout(() => URL.revokeObjectURL(address), 60_000);
    } catch (error) {
      say(this.part("download-error"), error.message);
    } finally {
      link.removeAttribute("aria-busy");
    }
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
