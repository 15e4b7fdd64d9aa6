// One image of a pane: its picture pixel by pixel, and above it the tokens in colours.

import { blob } from "./api.js";
import { make } from "./dom.js";

const [MASKED, TARGET, DRAWN, CONTEXT, KNOWN] = [0, 1, 2, 3, 4];
export const CELLS = [
  { cell: MASKED, name: "masked", about: "still masked" },
  { cell: TARGET, name: "target", about: "in the target set" },
  { cell: DRAWN, name: "drawn", about: "just decoded" },
  { cell: CONTEXT, name: "context", about: "context" },
  { cell: KNOWN, name: "known", about: "known before" },
];

const colours = () => {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--cell-${name}`).trim();
  return { of: CELLS.map(({ name }) => colour(name)), gap: colour("gap") };
};

export class Tile {
  constructor({ side, grid, caption, name }) {
    this.side = side;
    this.grid = grid;
    this.picture = make("canvas", { class: "picture", width: side, height: side, role: "img", "aria-label": name });
    this.cover = make("canvas", { class: "cells", "aria-hidden": "true" });
    this.box = make("div", { class: "layers" }, this.picture, this.cover);
    this.figure = make("figure", {}, this.box, ...(caption ? [make("figcaption", {}, caption)] : []));
    this.asked = this.drawn = 0;
    this.cells = this.seen = "0".repeat(grid * grid); // now, and when the picture on show was taken
    new ResizeObserver(() => this.paint()).observe(this.box);
  }

  /** The picture in an event, if there is one. */
  read({ picture }, type = "image/webp") {
    return picture && blob(picture, type);
  }

  /**
   * Shows a picture (a file; null keeps the one before) and cells; `seen` are those of the picture, if it is older.
   * What was asked for earlier never comes later.
   */
  async show(file, cells, seen = cells) {
    const turn = ++this.asked;
    const bitmap = file && (await createImageBitmap(file));
    if (turn < this.drawn) return;
    this.drawn = turn;
    if (bitmap) {
      this.put(bitmap);
      this.seen = seen;
    }
    this.cells = cells;
    this.paint();
  }

  put(bitmap) {
    const context = this.picture.getContext("2d");
    context.clearRect(0, 0, this.side, this.side);
    context.drawImage(bitmap, 0, 0, this.side, this.side);
    bitmap.close();
  }

  /** Back to the start: nothing is decoded. */
  clear() {
    this.drawn = ++this.asked;
    this.picture.getContext("2d").clearRect(0, 0, this.side, this.side);
    this.cells = this.seen = this.cells.replaceAll(/[^4]/g, "0");
    this.paint();
  }

  /** Draws the cells at the resolution of the screen. */
  paint() {
    const size = Math.round(this.box.clientWidth * devicePixelRatio);
    if (!size) return;
    if (this.cover.width !== size) this.cover.width = this.cover.height = size;
    const context = this.cover.getContext("2d");
    context.clearRect(0, 0, size, size);
    const { of, gap: between } = colours();
    const edge = (at) => Math.round((at * size) / this.grid);
    const gap = size / this.grid > 9 ? Math.max(1, Math.round(devicePixelRatio)) : 0;
    for (let at = 0; at < this.cells.length; at++) {
      const cell = Number(this.cells[at]);
      if (cell === CONTEXT && this.seen[at] > TARGET) continue;
      const [column, row] = [at % this.grid, Math.floor(at / this.grid)];
      const [left, top, right, bottom] = [edge(column), edge(row), edge(column + 1), edge(row + 1)];
      if (this.seen[at] <= TARGET) {
        context.fillStyle = between; // the picture has nothing here
        context.fillRect(left - 1, top - 1, right - left + 1, bottom - top + 1); // 1: edges of pixels are rounded too
      }
      context.fillStyle = of[cell === CONTEXT ? DRAWN : cell]; // decoded since the picture was taken
      context.globalAlpha = cell === CONTEXT ? 0.5 : 1;
      if (cell === KNOWN) {
        const corner = Math.max(2, (right - left) / 4);
        context.beginPath();
        context.moveTo(left, top);
        context.lineTo(left + corner, top);
        context.lineTo(left, top + corner);
        context.fill();
      } else context.fillRect(left, top, right - left - gap, bottom - top - gap);
      context.globalAlpha = 1;
    }
  }

  /** Takes the colours away, or brings them back. */
  fade(faded) {
    this.box.classList.toggle("faded", faded);
  }
}
