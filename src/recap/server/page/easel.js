// The picture to edit with its mask above it: painted with a pointer, or set by buttons and numbers.

import { choice } from "./dom.js";
import { Mask, shrink } from "./mask.js";

const at = (id) => document.getElementById(id);
const HALVES = { left: [0, 0, 0.5, 1], right: [0.5, 0, 1, 1], top: [0, 0, 1, 0.5], bottom: [0, 0.5, 1, 1] };

export class Easel {
  /** `shape()` tells side and grid of the model; `changed` is told the tokens to draw anew and all of them. */
  constructor({ shape, changed }) {
    this.shape = shape;
    this.changed = changed;
    this.mask = new Mask();
    this.picture = null;
    this.erasing = false;
    this.box = at("easel");
    this.cursor = at("easel-cursor");
    choice(at("paint").parentElement, (button) => (this.erasing = button.id === "erase"));
    at("brush-size").addEventListener("input", ({ target }) => (at("brush-size-shown").textContent = target.value));
    at("undo").addEventListener("click", () => this.after(this.mask.undo()));
    at("clear").addEventListener("click", () => this.after(this.mask.clear()));
    at("invert").addEventListener("click", () => this.after(this.mask.invert()));
    at("box").addEventListener("click", () => this.rectangle());
    for (const button of document.querySelectorAll("[data-half]")) {
      button.addEventListener("click", () => this.after(this.mask.box(...HALVES[button.dataset.half])));
    }
    this.box.addEventListener("pointerdown", (event) => this.press(event));
    this.box.addEventListener("pointermove", (event) => this.move(event));
    this.box.addEventListener("pointerup", () => (this.last = null));
    this.box.addEventListener("pointercancel", () => (this.last = null));
    this.box.addEventListener("pointerleave", () => (this.cursor.hidden = true));
    new ResizeObserver(() => this.paint()).observe(this.box);
    document.addEventListener("themechange", () => this.paint());
  }

  /** Takes a new picture (a square canvas); the mask starts anew. */
  set(picture) {
    this.picture = picture;
    this.mask.reset();
    at("drop").hidden = true;
    at("brush-tools").disabled = false;
    const shown = at("easel-picture");
    shown.width = shown.height = picture.width;
    shown.getContext("2d").drawImage(picture, 0, 0);
    this.box.classList.add("filled");
    this.paint();
  }

  /** The tokens to draw anew as flags in raster order, as the server will see them. */
  tokens() {
    const { side, grid } = this.shape();
    const sent = this.mask.at(this.picture.width);
    return shrink(shrink(sent, this.picture.width, side), side, grid);
  }

  where({ clientX, clientY }) {
    const { left, top, width, height } = this.box.getBoundingClientRect();
    return [(clientX - left) / width, (clientY - top) / height];
  }

  get size() {
    return at("brush-size").valueAsNumber / 512;
  }

  press(event) {
    if (!this.picture || event.button) return;
    event.preventDefault();
    this.box.setPointerCapture(event.pointerId);
    this.mask.keep();
    this.last = this.where(event);
    this.dab(this.last);
  }

  move(event) {
    if (!this.picture) return;
    const here = this.where(event);
    const width = this.box.clientWidth;
    this.cursor.hidden = event.pointerType === "touch";
    this.cursor.style.width = this.cursor.style.height = `${this.size * width}px`;
    this.cursor.style.left = `${here[0] * width}px`;
    this.cursor.style.top = `${here[1] * width}px`;
    if (this.last) {
      for (const point of event.getCoalescedEvents?.() ?? [event]) this.dab(this.where(point));
    }
  }

  dab(to) {
    this.mask.stroke(this.last, to, this.size, this.erasing);
    this.last = to;
    this.later();
  }

  rectangle() {
    const [left, top, right, bottom] = ["left", "top", "right", "bottom"].map((name) => at(`box-${name}`).valueAsNumber / 100);
    if (!(left >= 0 && left < right && right <= 1 && top >= 0 && top < bottom && bottom <= 1)) {
      at("mask-about").textContent = "That is no rectangle: left has to be less than right and top less than bottom, all from 0 to 100.";
      return;
    }
    this.after(this.mask.box(left, top, right, bottom));
  }

  after() {
    this.later();
  }

  /** Paints once for all that happens before the next frame. */
  later() {
    this.waiting ??= requestAnimationFrame(() => {
      this.waiting = null;
      this.paint();
    });
  }

  paint() {
    if (!this.picture) return;
    const { grid } = this.shape();
    const canvas = at("easel-mask");
    const size = Math.round(this.box.clientWidth * devicePixelRatio);
    if (!size) return;
    if (canvas.width !== size) canvas.width = canvas.height = size;
    const context = canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    context.clearRect(0, 0, size, size);
    context.drawImage(this.mask.canvas, 0, 0, size, size);
    context.globalCompositeOperation = "source-in";
    context.fillStyle = style.getPropertyValue("--mask-paint");
    context.fillRect(0, 0, size, size);
    context.globalCompositeOperation = "source-over";
    const tokens = this.tokens();
    context.strokeStyle = style.getPropertyValue("--mask-token");
    context.lineWidth = Math.max(1, devicePixelRatio);
    context.shadowColor = "black"; // so that the lines are seen on any picture
    context.shadowBlur = 2 * devicePixelRatio;
    const edge = (index) => Math.round((index * size) / grid) + 0.5;
    tokens.forEach((touched, index) => {
      if (!touched) return;
      const [column, row] = [index % grid, Math.floor(index / grid)];
      context.strokeRect(edge(column), edge(row), edge(column + 1) - edge(column) - 1, edge(row + 1) - edge(row) - 1);
    });
    context.shadowBlur = 0;
    this.changed(tokens.reduce((sum, touched) => sum + touched, 0), tokens.length);
  }
}
