// Drift over the sub-steps of a run, as a chart.

import { draw } from "./dom.js";

const [WIDTH, HEIGHT] = [520, 230];
const EDGE = { left: 58, right: 14, top: 12, bottom: 42 };

/** Round values for an axis from 0 to at least `top`. */
export function rounds(top, count = 4) {
  const rough = top / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough) * power;
  return Array.from({ length: Math.ceil(top / step - 1e-9) + 1 }, (_, index) => index * step);
}

/** Lines (one for each image) of [sub-step, drift] pairs. */
export function chart(lines, steps, unit) {
  const top = Math.max(1e-9, ...lines.flat().map(([, drift]) => drift));
  const marks = rounds(top);
  const high = marks.at(-1);
  const x = (step) => EDGE.left + ((step - 1) / Math.max(1, steps - 1)) * (WIDTH - EDGE.left - EDGE.right);
  const y = (drift) => HEIGHT - EDGE.bottom - (drift / high) * (HEIGHT - EDGE.top - EDGE.bottom);
  const digits = Math.max(0, Math.ceil(-Math.log10(marks[1] ?? 1) + (String(marks[1]).replace(/^[0.]+/, "").length > 1 ? 1 : 0)));
  const steps4 = [1, ...[0.25, 0.5, 0.75, 1].map((share) => Math.round(share * steps))].filter((step, index, all) => step && all.indexOf(step) === index);
  const last = lines.flat().at(-1);
  const name = `Drift of local evaluations over ${steps} sub-steps: at most ${top.toPrecision(2)}, ${last ? last[1].toPrecision(2) : "none"} at the last.`;
  return draw(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", "aria-label": name },
    ...marks.map((mark) =>
      draw(
        "g",
        {},
        draw("line", { class: "grid", x1: EDGE.left, x2: WIDTH - EDGE.right, y1: y(mark), y2: y(mark) }),
        draw("text", { x: EDGE.left - 8, y: y(mark) + 4, "text-anchor": "end" }, mark.toFixed(Math.min(6, digits))),
      ),
    ),
    ...steps4.map((step) => draw("text", { x: x(step), y: HEIGHT - EDGE.bottom + 18, "text-anchor": "middle" }, step)),
    draw("text", { class: "axis", x: (EDGE.left + WIDTH) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, "sub-step"),
    draw("text", { class: "axis", transform: `translate(12 ${(HEIGHT - EDGE.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, unit ?? "drift"),
    ...lines.map((line) => draw("polyline", { class: "line", points: line.map(([step, drift]) => `${x(step)},${y(drift)}`).join(" ") })),
    ...lines.flat().map(([step, drift]) =>
      draw("circle", { class: "dot", cx: x(step), cy: y(drift), r: 2.6 }, draw("title", {}, `sub-step ${step}: ${drift.toPrecision(3)}`)),
    ),
  );
}
