// One of the two runs: its clock, its progress, its images or texts and its timeline.

import { parts, stamp } from "./dom.js";
import { capital, evaluations, plural } from "./format.js";
import { Timeline } from "./timeline.js";

export class Pane {
  /**
   * `about`: variant, evaluations, kinds and tokens as the server tells them; `run`: how many images and what is
   * known of them; `tile` makes what shows one of them, by its number, caption and name.
   */
  constructor(about, run, { noun, tile }) {
    this.name = about.variant;
    this.kinds = about.kinds;
    this.tokens = about.tokens;
    this.images = run.images;
    this.noun = noun;
    this.root = stamp("pane-template", this.name);
    this.root.classList.add(this.name);
    this.root.dataset.pane = this.name;
    this.part = parts(this.root);
    this.part("title").textContent = capital(this.name);
    this.part("evaluations").textContent = evaluations(about.evaluations);
    this.part("progress").setAttribute("aria-label", `Progress of the ${this.name} run`);
    this.part("clock-line").setAttribute("aria-label", `Clock of the ${this.name} run`);
    const caption = (index) => run.labels?.[index]?.name ?? (run.labels?.[index] ? `class ${run.labels[index].label}` : "");
    this.tiles = Array.from({ length: run.images }, (_, index) => {
      const name = `${capital(this.name)}: ${noun} ${index + 1} of ${run.images}${caption(index) && `, ${caption(index)}`}`;
      return tile(run, { index, caption: caption(index), name });
    });
    this.part("tiles").classList.toggle("several", run.images > 1);
    this.part("tiles").append(...this.tiles.map((tile) => tile.figure));
    this.frames = this.tiles.map(() => []); // of each image, by sub-step
    this.finals = this.tiles.map(() => null);
    this.seconds = 0;
    this.image = 0;
    this.finished = false;
    this.timeline = new Timeline(this.part("timeline"), this.part("readout"), {
      label: `Sub-steps of the ${this.name} run`,
      describe: (step) => this.describe(step),
      moved: (step) => this.finished && this.revisit(step),
    });
    this.timeline.plan(this.kinds);
  }

  describe(step) {
    if (!step) return this.kinds.length ? plural(this.kinds.length, "sub-step") : "";
    const frame = this.frames[this.image]?.[step - 1];
    const which = this.images > 1 && frame && !this.finished ? `${capital(this.noun)} ${this.image + 1}, step` : "Step";
    const words = [`${which} ${step} of ${this.kinds.length}`, this.kinds[step - 1]];
    if (this.tokens) words.push(plural(this.tokens[step - 1], "token"));
    if (frame) words.push(`${frame.decoded} decoded`);
    return words.join(" · ");
  }

  tick(seconds) {
    this.seconds = seconds;
    this.part("clock").textContent = seconds.toFixed(1);
  }

  frame(event) {
    const picture = this.tiles[event.image].read(event);
    this.image = event.image;
    this.frames[event.image][event.step - 1] = { ...event, picture };
    this.tick(event.seconds);
    this.part("progress").value = (event.image + event.step / event.steps) / this.images;
    this.timeline.reach(event.step);
    return this.tiles[event.image].show(picture, event.states);
  }

  /** The finished one, as the file that is written; the colours fade. */
  async final(event) {
    const tile = this.tiles[event.image];
    const picture = tile.read(event, "image/png");
    this.finals[event.image] = this.frames[event.image].at(-1).picture = picture;
    this.tick(event.seconds);
    await tile.show(picture, tile.cells.replaceAll("2", "3"));
    tile.fade(true);
    if (this.finals.every(Boolean)) this.end();
  }

  end() {
    this.finished = true;
    this.part("progress").value = 1;
    this.root.classList.add("finished");
  }

  /** Shows a sub-step again; null shows the finished images. */
  revisit(step) {
    this.tiles.forEach((tile, index) => this.show(tile, index, step));
  }

  show(tile, index, step) {
    const frames = this.frames[index];
    tile.fade(step === null);
    if (step === null) return tile.show(this.finals[index], frames.at(-1)?.states ?? tile.cells);
    if (!step) return tile.clear();
    let at = step - 1;
    while (at > 0 && !frames[at]?.picture) at--;
    return tile.show(frames[at]?.picture ?? null, frames[step - 1]?.states ?? tile.cells, frames[at]?.states);
  }

  /** The state at a time of its clock, for a replay. */
  rewind(seconds) {
    this.part("clock").textContent = Math.min(seconds, this.seconds).toFixed(1);
    let done = 0;
    this.tiles.forEach((tile, index) => {
      const frames = this.frames[index];
      const step = frames.filter((frame) => frame.seconds <= seconds).length;
      const state = seconds >= this.seconds || step === frames.length ? "end" : step;
      done += state === "end" ? this.kinds.length : step; // a text may end early
      if (tile.state === state) return;
      tile.state = state;
      if (state !== "end") this.timeline.reach(step);
      this.show(tile, index, state === "end" ? null : step);
    });
    const all = this.images * this.kinds.length;
    this.part("progress").value = done / all;
    if (done === all) this.timeline.reach(this.kinds.length);
  }
}
