// FID against seconds an image: points that can be pointed at, focused and chosen.

import { draw, make } from "./dom.js";
import { seconds } from "./format.js";

const EDGE = { left: 54, right: 18, top: 16, bottom: 48 };
const MARKS = [1, 1.5, 2, 3, 5, 7, 10];

/** What is said of a point, for eyes and ears. */
export function words(point) {
  const kind = point.reused ? `reused, ${point.full} full + ${point.local} local` : `plain, ${point.full} full evaluations`;
  return `${point.schedule}: ${kind}, FID ${point.fid.toFixed(1)}, ${seconds(point.seconds)} an image${point.front ? ", on the front" : ""}`;
}

/** Round values of a logarithmic axis between two values. */
export function logMarks(low, high) {
  const marks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const mark of MARKS.slice(0, -1)) marks.push(mark * 10 ** power);
  }
  return marks.filter((mark) => mark >= low && mark <= high);
}

function linearMarks(low, high) {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const first = Math.ceil(low / step) * step;
  return Array.from({ length: Math.floor((high - first) / step + 1e-9) + 1 }, (_, index) => first + index * step);
}

export class Plot {
  /** `chosen` is told the point that is clicked, or entered by keyboard. */
  constructor(box, chosen) {
    this.box = box;
    this.chosen = chosen;
    this.points = [];
    this.tip = make("div", { class: "tip", "aria-hidden": "true", hidden: true });
    new ResizeObserver(() => this.draw()).observe(box);
    box.addEventListener("keydown", (event) => this.key(event));
  }

  set(points, name) {
    this.points = [...points].sort((a, b) => a.seconds - b.seconds);
    this.name = name;
    this.at = 0;
    this.draw();
  }

  draw() {
    const width = this.box.clientWidth;
    if (!width || !this.points.length || (this.drawn === width && this.shown === this.points)) return;
    [this.drawn, this.shown] = [width, this.points];
    const height = Math.max(300, Math.min(440, width * 0.6));
    const times = this.points.map((point) => point.seconds);
    const fids = this.points.map((point) => point.fid);
    const [low, high] = [Math.min(...times) / 1.12, Math.max(...times) * 1.12];
    const pad = (Math.max(...fids) - Math.min(...fids) || 1) * 0.08;
    const [bottom, top] = [Math.min(...fids) - pad, Math.max(...fids) + pad];
    const x = (value) => EDGE.left + (Math.log(value / low) / Math.log(high / low)) * (width - EDGE.left - EDGE.right);
    const y = (value) => height - EDGE.bottom - ((value - bottom) / (top - bottom)) * (height - EDGE.top - EDGE.bottom);
    const front = this.points.filter((point) => point.front);
    const held = this.box.contains(document.activeElement);
    this.marks = this.points.map((point, index) => this.mark(point, index, x(point.seconds), y(point.fid)));
    const svg = draw(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, width, height, class: "chart", role: "group", "aria-label": `${this.name}: FID against seconds an image. Arrow keys move from point to point.` },
      ...this.axes(width, height, x, y, [low, high], [bottom, top]),
      draw("polyline", { class: "front", points: front.map((point) => `${x(point.seconds)},${y(point.fid)}`).join(" ") }),
      ...this.marks,
    );
    this.box.replaceChildren(svg, this.tip);
    this.hide();
    if (held) this.marks[this.at].focus();
  }

  axes(width, height, x, y, xs, ys) {
    const base = height - EDGE.bottom;
    const across = linearMarks(...ys).map((mark) =>
      draw("g", {}, draw("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y(mark), y2: y(mark) }), draw("text", { x: EDGE.left - 8, y: y(mark) + 4, "text-anchor": "end" }, mark.toFixed(mark % 1 ? 1 : 0))),
    );
    const along = logMarks(...xs).map((mark) =>
      draw("g", {}, draw("line", { class: "grid", x1: x(mark), x2: x(mark), y1: EDGE.top, y2: base }), draw("text", { x: x(mark), y: base + 18, "text-anchor": "middle" }, Number((mark * 1000).toPrecision(2)))),
    );
    return [
      ...across,
      ...along,
      draw("text", { class: "axis", x: (EDGE.left + width - EDGE.right) / 2, y: height - 8, "text-anchor": "middle" }, "milliseconds an image (logarithmic)"),
      draw("text", { class: "axis", transform: `translate(13 ${base / 2}) rotate(-90)`, "text-anchor": "middle" }, "FID, lower is better"),
    ];
  }

  mark(point, index, x, y) {
    const shape = point.reused
      ? draw("circle", { cx: x, cy: y, r: 6 })
      : draw("rect", { x: x - 5.5, y: y - 5.5, width: 11, height: 11, rx: 1.5 });
    const kind = `point ${point.reused ? "reused" : "plain"}${point.front ? " best" : ""}${point.loadable ? "" : " hollow"}`;
    const label = words(point) + (point.loadable ? "" : ", cannot be set by the sliders");
    return draw(
      "g",
      {
        class: kind,
        role: "button",
        tabindex: index === this.at ? 0 : -1,
        "aria-label": label,
        "aria-disabled": point.loadable ? null : "true",
        onpointerenter: () => this.show(point, x, y),
        onpointerleave: () => this.hide(),
        onfocus: () => {
          this.at = index;
          this.show(point, x, y);
        },
        onblur: () => this.hide(),
        onclick: () => this.choose(point, x, y),
      },
      draw("circle", { class: "reach", cx: x, cy: y, r: 13 }),
      shape,
    );
  }

  choose(point, x, y) {
    if (point.loadable) this.chosen(point);
    else this.show(point, x, y);
  }

  show(point, x, y) {
    const action = point.loadable ? "Choose it to try it" : "Needs more than the sliders can say";
    this.tip.replaceChildren(
      make("strong", {}, point.schedule),
      make("span", {}, point.reused ? `${point.full} full + ${point.local} local` : `${point.full} full, plain`),
      make("span", {}, `FID ${point.fid.toFixed(1)} · ${seconds(point.seconds)} an image`),
      make("em", {}, action),
    );
    this.tip.hidden = false;
    const left = Math.min(this.box.clientWidth - this.tip.offsetWidth - 4, Math.max(4, x - this.tip.offsetWidth / 2));
    const above = y - this.tip.offsetHeight - 14;
    this.tip.style.left = `${left}px`;
    this.tip.style.top = `${above < 0 ? y + 16 : above}px`;
  }

  hide() {
    this.tip.hidden = true;
  }

  key(event) {
    const moves = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    const last = this.points.length - 1;
    if (event.key in moves || event.key === "Home" || event.key === "End") {
      event.preventDefault();
      this.marks[this.at].setAttribute("tabindex", "-1");
      this.at = event.key === "Home" ? 0 : event.key === "End" ? last : Math.min(last, Math.max(0, this.at + moves[event.key]));
      this.marks[this.at].setAttribute("tabindex", "0");
      this.marks[this.at].focus();
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.marks[this.at].dispatchEvent(new MouseEvent("click"));
    }
  }
}
