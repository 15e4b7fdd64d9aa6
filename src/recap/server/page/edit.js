// A picture of which a part is drawn anew.

import { base64, Problem } from "./api.js";
import { Controls } from "./controls.js";
import { make, say } from "./dom.js";
import { Easel } from "./easel.js";
import { carried, square } from "./picture.js";
import { Run } from "./run.js";
import { Stage } from "./stage.js";
import { shown } from "./tabs.js";

const at = (id) => document.getElementById(id);

export function edit(view, about) {
  const place = (name) => view.querySelector(`[data-place="${name}"]`);
  const stage = new Stage(place("stage"), "edit", about, { editing: true });
  stage.root.hidden = true;
  let controls = null;
  const easel = new Easel({ shape: () => controls.model, changed: tell });
  controls = new Controls(place("controls"), "edit", about, {
    verb: "Draw anew",
    single: true,
    changed: () => easel.paint(),
    colours: (on) => stage.colours(on),
  });

  controls.part("gain-about").textContent = "for a whole image, by operations";

  function tell(touched, all) {
    at("mask-about").textContent = touched
      ? `${touched} of ${all} tokens are drawn anew, the others stay as they are.`
      : "Nothing is masked yet: paint over what is to be drawn anew.";
  }

  async function take(file) {
    if (!file) return;
    try {
      easel.set(await square(file, about.limits));
      say(at("picture-error"), null);
    } catch (error) {
      say(at("picture-error"), error.message); // the picture before and its mask stay
    }
  }

  async function request() {
    stage.root.hidden = false;
    if (!easel.picture) throw new Problem("There is no picture yet; choose one, drop one, paste one, or take one that was generated.");
    if (!easel.tokens().some(Boolean)) throw new Problem("Nothing is masked; paint over what is to be drawn anew.");
    if (controls.model.classes && !controls.classes.labels) throw new Problem("Choose the class of what is drawn anew.");
    if (controls.objection) throw new Problem(controls.objection);
    const picture = await easel.picture.convertToBlob({ type: "image/png" });
    const mask = await easel.mask.file(easel.picture.width);
    const [image, white] = await Promise.all([base64(picture), base64(mask)]);
    return { ...controls.request(), image, mask: white, fit: true, paste: at("paste").checked };
  }

  at("choose").addEventListener("click", () => at("file").click());
  at("drop").addEventListener("click", () => at("file").click());
  at("file").addEventListener("change", async ({ target }) => {
    await take(target.files[0]);
    target.value = ""; // so that the same file can be chosen again
  });
  at("easel").addEventListener("dragover", (event) => {
    event.preventDefault();
    at("easel").classList.add("over");
  });
  at("easel").addEventListener("dragleave", () => at("easel").classList.remove("over"));
  at("easel").addEventListener("drop", (event) => {
    event.preventDefault();
    at("easel").classList.remove("over");
    take(carried(event.dataTransfer));
  });
  document.addEventListener("paste", (event) => {
    if (shown() === "edit" && carried(event.clipboardData)) take(carried(event.clipboardData));
  });

  const run = new Run(controls, stage, { request });

  /** Offers finished images, the newest first. */
  function offer(finished) {
    const pane = finished.panes.get("reused") ?? finished.panes.get("plain");
    const buttons = pane.finals.map((file, index) => {
      const image = make("img", { src: URL.createObjectURL(file), alt: `Image ${index + 1}` });
      const name = finished.run.labels?.[index]?.name;
      return make("button", { type: "button", title: name, "aria-label": `Edit image ${index + 1}${name ? `, ${name}` : ""}`, onclick: () => take(file) }, image);
    });
    at("shelf").prepend(...buttons);
    for (const old of [...at("shelf").children].slice(12)) {
      URL.revokeObjectURL(old.firstElementChild.src);
      old.remove();
    }
    at("shelf-part").hidden = false;
  }

  return { controls, run, offer, take };
}
