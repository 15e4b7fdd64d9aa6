// Published results: a plot and a table whose schedules can be tried.

import { get } from "./api.js";
import { choice, make, say } from "./dom.js";
import { Plot } from "./plot.js";
import { table } from "./table.js";

const at = (id) => document.getElementById(id);

/** `load` is told the schedule to try. */
export async function results(models, load) {
  const offered = new Set(models.map(({ name }) => name));
  let shown = null;
  const plot = new Plot(at("plot"), (point) => take(point));

  function take(point) {
    const { full, local, chain, schedule } = point;
    load({ model: shown.name, full, local, chain, schedule });
  }

  function show(model) {
    shown = model;
    const known = offered.has(model.name);
    const points = model.points.map((point) => ({ ...point, loadable: point.loadable && known }));
    plot.set(points, model.name);
    at("results-caption").textContent = model.caption + (known ? "" : " This server does not have the model, so nothing can be tried.");
    table(at("results-table"), points, take);
  }

  const legend = [
    ["plain", "plain decoding"],
    ["reused", "with reuse"],
    ["hollow", "hollow: more than the sliders can set"],
    ["front", "front: nothing is both faster and better"],
  ];
  at("plot-legend").append(...legend.map(([kind, text]) => make("span", {}, make("i", { class: `mark ${kind}` }), text)));

  try {
    const found = (await get("/static/results.json")).models;
    const button = (model, index) =>
      make("button", { type: "button", "aria-pressed": String(index === 0), "data-model": model.name }, model.name);
    at("results-models").append(...found.map(button));
    choice(at("results-models"), ({ dataset }) => show(found.find(({ name }) => name === dataset.model)));
    if (found.length) show(found[0]);
    else say(at("results-status"), "This server has no published results.");
  } catch (error) {
    say(at("results-status"), error.message);
  }
}
