// A row of ticks, one for every sub-step: tall for full evaluations, short for local ones.

import { draw } from "./dom.js";

const TALL = 24;
const SHORT = 11;

/** Draws the ticks into an SVG, which stretches to the width there is. */
export function strip(svg, kinds) {
  svg.setAttribute("viewBox", `0 0 ${kinds.length} ${TALL}`);
  const gap = kinds.length > 128 ? 0.2 : 0.3;
  const ticks = kinds.map((kind, index) => {
    const height = kind === "full" ? TALL : SHORT;
    return draw("rect", { class: `tick ${kind}`, x: index + gap / 2, y: TALL - height, width: 1 - gap, height });
  });
  svg.replaceChildren(...ticks);
  return ticks;
}
