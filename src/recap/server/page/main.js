// Starts the page: asks what the server has, and puts the views in their places.

import { get } from "./api.js";
import { say } from "./dom.js";
import { edit } from "./edit.js";
import { generate } from "./generate.js";
import { results } from "./results.js";
import * as tabs from "./tabs.js";
import { write } from "./write.js";

const at = (id) => document.getElementById(id);

async function start() {
  tabs.start();
  const about = await get("/v1/models");
  for (const model of about.models) Object.assign(model, { side: model.image_size, grid: Math.sqrt(model.tokens) });
  at("version").textContent = about.version;
  const of = (modality) => ({ ...about, models: about.models.filter((model) => model.modality === modality) });
  const views = { ...drawing(of("images")), ...writing(of("text")) };

  document.addEventListener("keydown", (event) => {
    const view = views[tabs.shown()];
    if (!view) return;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      view.run.start();
    } else if (event.key === "Escape" && !event.defaultPrevented) view.run.cancel();
  });

  results(about.models, (point) => {
    const { controls } = views.generate;
    controls.load(point);
    tabs.show("generate");
    controls.status(`${point.schedule} of ${point.model} is set. Generate to see it.`);
    controls.part("go").focus();
  });
  document.documentElement.dataset.ready = "yes";
}

/** The views of images, where there are models for them. */
function drawing(about) {
  if (!about.models.length) {
    for (const name of ["generate", "edit"]) tabs.drop(name);
    return {};
  }
  const editing = edit(at("view-edit"), about);
  const generating = generate(at("view-generate"), about, {
    finished: (stage) => editing.offer(stage),
    edit: (stage) => {
      editing.take([...stage.panes.values()].at(-1).finals[0]);
      tabs.show("edit", { focus: true });
    },
  });
  return { generate: generating, edit: editing };
}

/** The view of texts, likewise. */
function writing(about) {
  if (about.models.length) return { write: write(at("view-write"), about) };
  tabs.drop("write");
  return {};
}

start().catch((error) => {
  console.info(error);
  say(at("broken"), error.message);
});
