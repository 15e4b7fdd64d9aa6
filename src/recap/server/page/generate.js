// Images drawn from nothing.

import { Problem } from "./api.js";
import { Controls } from "./controls.js";
import { Run } from "./run.js";
import { Stage } from "./stage.js";

export function generate(view, about, { finished, edit }) {
  const place = (name) => view.querySelector(`[data-place="${name}"]`);
  const stage = new Stage(place("stage"), "generate", about, { edit: () => edit(stage) });
  let controls = null;
  const changed = (plan) => controls && stage.preview(plan, controls.model, controls.images);
  controls = new Controls(place("controls"), "generate", about, {
    verb: "Generate",
    changed,
    colours: (on) => stage.colours(on),
  });
  const request = () => {
    if (controls.objection) throw new Problem(controls.objection);
    return controls.request();
  };
  const run = new Run(controls, stage, {
    request,
    finished: () => finished(stage),
  });
  return { controls, run };
}
