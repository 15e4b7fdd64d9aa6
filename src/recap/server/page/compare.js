// Plain and reused images held against each other: side by side at a boundary, or their difference.

import { choice, make, parts } from "./dom.js";

const SLIDERS = {
  wipe: { label: "Boundary", min: 0, max: 100, step: 1, value: 50, shown: (value) => `${value} %` },
  difference: { label: "Amplified", min: 1, max: 16, step: 1, value: 2, shown: (value) => `${value}×` },
};

/** |a - b| of two pictures, times a factor, opaque. */
export function difference(a, b, factor) {
  const result = new ImageData(a.width, a.height);
  for (let i = 0; i < a.data.length; i++) {
    result.data[i] = i % 4 === 3 ? 255 : Math.abs(a.data[i] - b.data[i]) * factor; // clamped at 255
  }
  return result;
}

async function pixels(file, side) {
  const context = new OffscreenCanvas(side, side).getContext("2d", { willReadFrequently: true });
  context.drawImage(await createImageBitmap(file), 0, 0);
  return context.getImageData(0, 0, side, side);
}

export class Compare {
  constructor(root) {
    this.part = parts(root);
    this.mode = "wipe";
    this.values = { wipe: 50, difference: 2 };
    this.tiles = [];
    this.slider = this.part("amount").querySelector("input");
    this.slider.addEventListener("input", () => {
      this.values[this.mode] = Number(this.slider.value);
      this.draw();
    });
    choice(this.part("modes"), (button) => {
      this.mode = button.dataset.mode;
      this.adjust();
      this.draw();
    });
    this.adjust();
  }

  async set(plain, reused, differences, side) {
    const pairs = await Promise.all(
      plain.map(async (file, index) => Promise.all([pixels(file, side), pixels(reused[index], side)])),
    );
    this.tiles = pairs.map(([a, b], index) => {
      const canvas = make("canvas", { class: "picture", width: side, height: side, role: "img" });
      const divider = make("i", { class: "divider", "aria-hidden": "true" });
      const layers = make("div", { class: "layers" }, canvas, divider);
      layers.addEventListener("pointerdown", (event) => this.drag(layers, event));
      layers.addEventListener("pointermove", (event) => event.buttons && this.drag(layers, event));
      return { a, b, canvas, divider, index, figure: make("figure", {}, layers) };
    });
    this.part("compare-tiles").classList.toggle("several", pairs.length > 1);
    this.part("compare-tiles").replaceChildren(...this.tiles.map((tile) => tile.figure));
    const mean = differences?.map((value) => value.toFixed(1)).join(", ");
    this.part("difference-about").textContent = mean
      ? `Mean absolute difference of a pixel: ${mean} of 255. The two come from the same seed and part where reuse changes a draw.`
      : "";
    this.draw();
  }

  adjust() {
    const about = SLIDERS[this.mode];
    this.part("amount").hidden = !about;
    if (!about) return;
    for (const name of ["min", "max", "step"]) this.slider[name] = about[name];
    this.slider.value = this.values[this.mode];
    this.part("amount-label").textContent = about.label;
  }

  drag(layers, { clientX }) {
    if (this.mode !== "wipe") return;
    const { left, width } = layers.getBoundingClientRect();
    this.values.wipe = Math.round(Math.min(1, Math.max(0, (clientX - left) / width)) * 100);
    this.slider.value = this.values.wipe;
    this.draw();
  }

  draw() {
    const value = this.values[this.mode];
    const about = SLIDERS[this.mode];
    if (about) this.part("amount").querySelector("output").textContent = about.shown(value);
    for (const { a, b, canvas, divider, index } of this.tiles) {
      const context = canvas.getContext("2d");
      const shown = this.mode === "difference" ? difference(a, b, value) : this.mode === "reused" ? b : a;
      context.putImageData(shown, 0, 0);
      if (this.mode === "wipe") {
        const at = Math.round((canvas.width * value) / 100);
        context.putImageData(b, 0, 0, at, 0, canvas.width - at, canvas.height);
        divider.style.left = `${value}%`;
      }
      divider.hidden = this.mode !== "wipe";
      const words = { wipe: "plain at the left, reused at the right", plain: "plain", reused: "reused", difference: "difference of plain and reused" };
      canvas.setAttribute("aria-label", `Image ${index + 1}: ${words[this.mode]}`);
    }
  }
}
