// One text of a pane: its words as they appear, each in the colour of what it is.

import { make } from "./dom.js";

const [MASKED, TARGET, DRAWN, CONTEXT, KNOWN] = [0, 1, 2, 3, 4];
export const WORDS = [
  { cell: MASKED, name: "unwritten", about: "not written yet" },
  { cell: TARGET, name: "target", about: "in the target set" },
  { cell: DRAWN, name: "drawn", about: "just written" },
  { cell: KNOWN, name: "given", about: "given" },
];
const NAMES = { [DRAWN]: "drawn", [CONTEXT]: "context", [KNOWN]: "known" };
const HOLE = "░";

export class Words {
  constructor({ prompt, tokens, name }) {
    this.first = [...(prompt ? [[prompt, KNOWN]] : []), [HOLE.repeat(tokens), MASKED]];
    this.words = make("p", { class: "words", dir: "auto" });
    this.box = make("div", { class: "leaf", tabindex: 0, role: "region", "aria-label": name }, this.words);
    this.figure = make("figure", {}, this.box);
    this.cells = "";
    this.clear();
  }

  /** The pieces of the text in an event, if there are any. */
  read({ pieces }) {
    return pieces;
  }

  /** Shows pieces of the text; null keeps those before. */
  show(pieces) {
    if (pieces) this.words.replaceChildren(...pieces.flatMap(([words, state]) => piece(words, state)));
  }

  /** Back to the start: nothing is written. */
  clear() {
    this.show(this.first);
  }

  /** Nothing to paint again: colours are the style's. */
  paint() {}

  /** Takes the colours away, or brings them back. */
  fade(faded) {
    this.box.classList.toggle("faded", faded);
  }
}

/** A run of tokens that are alike: words, or a hole for each. */
function piece(words, state) {
  if (state > TARGET) return [make("span", { class: NAMES[state] }, words)];
  return [...words].map(() => make("i", { class: state === TARGET ? "hole target" : "hole" }));
}
