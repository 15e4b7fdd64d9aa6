// The sub-steps of a pane in a row: how far it is, and what each of them did. Moving along it shows them again.

import { strip } from "./ticks.js";

export class Timeline {
  /** `describe(step)` gives the words for a sub-step; `moved(step)` is told where one looks, null for nowhere. */
  constructor(box, readout, { label, describe, moved }) {
    this.box = box;
    this.readout = readout;
    this.describe = describe;
    this.moved = moved;
    this.box.setAttribute("aria-label", label);
    this.ticks = [];
    this.at = 0; // sub-steps done
    this.looking = null;
    box.addEventListener("pointermove", (event) => this.look(this.under(event)));
    box.addEventListener("pointerdown", (event) => this.look(this.under(event)));
    box.addEventListener("pointerleave", () => this.look(null));
    box.addEventListener("pointercancel", () => this.look(null));
    box.addEventListener("focus", () => box.matches(":focus-visible") && this.look(Math.max(1, this.at)));
    box.addEventListener("blur", () => this.look(null));
    box.addEventListener("keydown", (event) => this.key(event));
  }

  plan(kinds) {
    this.ticks = strip(this.box.querySelector("svg"), kinds);
    this.box.setAttribute("aria-valuemax", kinds.length);
    this.reach(0);
  }

  /** Marks the sub-steps done so far. */
  reach(step) {
    this.at = step;
    this.ticks.forEach((tick, index) => {
      tick.classList.toggle("done", index < step);
      tick.classList.toggle("now", index === step - 1);
    });
    this.tell();
  }

  under({ clientX }) {
    const { left, width } = this.box.getBoundingClientRect();
    const step = Math.ceil(((clientX - left) / width) * this.ticks.length);
    return Math.min(this.ticks.length, Math.max(1, step));
  }

  look(step) {
    if (step === this.looking) return;
    this.looking = this.ticks.length ? step : null;
    this.ticks.forEach((tick, index) => tick.classList.toggle("looked", index + 1 === this.looking));
    this.tell();
    this.moved(this.looking);
  }

  tell() {
    const step = this.looking ?? this.at;
    const words = this.ticks.length ? this.describe(step) : "";
    this.readout.textContent = words;
    this.box.setAttribute("aria-valuenow", Math.max(1, step));
    this.box.setAttribute("aria-valuetext", words || "nothing yet");
  }

  key(event) {
    const from = this.looking ?? this.at;
    const last = this.ticks.length;
    const steps = { ArrowRight: from + 1, ArrowUp: from + 1, ArrowLeft: from - 1, ArrowDown: from - 1 };
    const leaps = { PageUp: from + 10, PageDown: from - 10, Home: 1, End: last };
    const to = steps[event.key] ?? leaps[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.look(Math.min(last, Math.max(1, to)));
  }
}
