// Where runs are watched: two panes, what came of them, and what can be taken away.

import { Compare } from "./compare.js";
import { calm, make, parts, stamp } from "./dom.js";
import { capital, gained, plural, seconds } from "./format.js";
import { Pane } from "./pane.js";
import { Keep } from "./keep.js";
import { kinds } from "./schedule.js";
import { CELLS, Tile } from "./tile.js";

const LONGEST = 8; // seconds of a replay
const PICTURES = {
  noun: "image",
  cells: CELLS,
  tile: ({ side, grid }, { caption, name }) => new Tile({ side, grid, caption, name }),
};

export class Stage {
  /** `kind` says what is watched: what it is called, what its tokens are, and what shows one. */
  constructor(place, prefix, about, { editing = false, edit = null, kind = PICTURES } = {}) {
    this.root = stamp("stage-template", prefix);
    place.replaceWith(this.root);
    this.part = parts(this.root);
    this.models = about.models;
    this.editing = editing;
    this.kind = kind;
    this.panes = new Map();
    this.compare = new Compare(this.part("compare"));
    this.keep = new Keep(this.root, kind.noun, edit);
    const cells = kind.cells.filter(({ name }) => editing || kind !== PICTURES || name !== "known");
    this.part("legend").append(...legend(cells));
    this.part("replay").addEventListener("click", () => this.replay());
    this.used = false; // whether a run was shown
    document.addEventListener("themechange", () => this.repaint());
    this.tell(null, editing ? "Paint over a part of a picture, then draw it anew twice." : "Ready: both runs start from the same seed.");
  }

  repaint() {
    for (const pane of this.panes.values()) for (const tile of pane.tiles) tile.paint();
  }

  /** The line above the panes: a figure if there is one, words, and small print. */
  tell(figure, words, about = "") {
    this.part("verdict-about").textContent = about;
    this.part("verdict-number").textContent = figure ?? "";
    this.part("verdict-text").textContent = words;
    this.part("verdict").classList.toggle("done", figure !== null);
  }

  colours(on) {
    this.root.classList.toggle("plainly", !on);
  }

  /** Before the first run: the panes as they will be. */
  preview(plan, model, images, more = {}) {
    if (this.used || !plan) return;
    const { full, local } = plan.schedule;
    const steps = full + local;
    const plain = { variant: "plain", evaluations: `${steps}`, kinds: Array(steps).fill("full"), tokens: null };
    const reused = { variant: "reused", evaluations: `${full}+${local}`, kinds: kinds(plan.groups), tokens: plan.groups.flat() };
    this.set(local ? [plain, reused] : [plain], { images, side: model.side, grid: model.grid, labels: null, ...more });
  }

  set(panes, run) {
    this.panes = new Map(panes.map((about) => [about.variant, new Pane(about, run, this.kind)]));
    this.part("panes").replaceChildren(...[...this.panes.values()].map((pane) => pane.root));
    this.part("panes").classList.toggle("one", panes.length === 1);
  }

  /** Makes room for a run that is about to start. */
  clear() {
    cancelAnimationFrame(this.playing);
    this.part("panes").removeAttribute("aria-busy");
  }

  begin(event) {
    this.used = true;
    this.part("replay").hidden = this.part("after").hidden = true;
    const { side, grid } = this.models.find(({ name }) => name === event.model);
    this.run = { ...event, side, grid };
    this.set(event.variants, this.run);
    this.part("panes").classList.add("live");
    if (innerWidth < 900) this.root.scrollIntoView({ behavior: calm() ? "auto" : "smooth", block: "start" });
  }

  frame(event) {
    const drawn = this.panes.get(event.variant).frame(event);
    this.tell(null, lead([...this.panes.values()]));
    return drawn;
  }

  final(event) {
    return this.panes.get(event.variant).final(event);
  }

  /** Ends a run that was stopped: what is there stays. */
  halt() {
    if (!this.part("panes").classList.contains("live")) return;
    this.part("panes").classList.remove("live");
    this.tell(null, "Stopped before the end.");
  }

  async finish(event) {
    this.part("panes").classList.remove("live");
    const [plain, reused] = ["plain", "reused"].map((name) => this.panes.get(name));
    const spent = event.seconds;
    const both = plain && reused && event.speedup;
    if (both) {
      const { figure, words, about } = gained(event.speedup);
      const more = this.run.images === 1 ? ` Several ${this.kind.noun}s show how much it varies.` : "";
      const took = `reused took ${seconds(spent.reused)}, plain ${seconds(spent.plain)}`;
      const apart = this.kind.apart?.(event.difference) ?? "";
      this.tell(figure, `${figure ? words : capital(words)}: ${took}`, about + more + apart);
    }
    else this.tell(seconds(Object.values(spent)[0]), `for ${this.run.images === 1 ? `the ${this.kind.noun}` : plural(this.run.images, this.kind.noun)}`);
    this.part("replay").hidden = this.part("after").hidden = false;
    this.part("compare").hidden = !both || this.kind !== PICTURES;
    this.keep.set(event, this.editing);
    if (both && this.kind === PICTURES) await this.compare.set(plain.finals, reused.finals, event.difference, this.run.side);
  }

  /** Both runs again, in the time of their clocks. */
  replay() {
    this.clear();
    this.part("panes").setAttribute("aria-busy", "true");
    const panes = [...this.panes.values()];
    const end = Math.max(...panes.map((pane) => pane.seconds));
    const pace = Math.max(1, end / LONGEST);
    const began = performance.now();
    for (const pane of panes) for (const tile of pane.tiles) tile.state = null;
    const step = (now) => {
      const at = (Math.max(0, now - began) / 1000) * pace;
      for (const pane of panes) pane.rewind(at);
      if (at < end) this.playing = requestAnimationFrame(step);
      else this.clear();
    };
    this.playing = requestAnimationFrame(step);
  }
}

/** Who is ahead, while both run. */
function lead(panes) {
  const shares = panes.map((pane) => Math.round(100 * pane.part("progress").value));
  if (panes.length < 2) return `${shares[0]} % decoded`;
  const [plain, reused] = shares;
  if (reused === 100) return `Reused has finished; plain is at ${plain} %`;
  return `Reused is at ${reused} %, plain at ${plain} %`;
}

function legend(cells) {
  return [
    ...cells.map(({ name, about }) => make("span", {}, make("i", { class: `cell ${name}` }), about)),
    make("span", {}, make("i", { class: "key full" }), "full evaluation"),
    make("span", {}, make("i", { class: "key local" }), "local evaluation"),
  ];
}
