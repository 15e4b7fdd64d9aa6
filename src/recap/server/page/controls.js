// What a run is to be: model, classes, seed, schedule and options, in a form.

import { Classes } from "./classes.js";
import { parts, say, stamp } from "./dom.js";
import { Schedule } from "./schedule.js";

const FIRST = "sunflower"; // to begin with, where a model knows it
const KEYS = /Mac|iPhone|iPad/.test(navigator.userAgent) ? "⌘ ↵" : "Ctrl ↵";
const FAMILIES = { maskgit: "MaskGIT", mage: "MAGE", mar: "MAR" };

export class Controls {
  /** `changed` is told of every new plan, number of images or model; `colours` of the switch for colours. */
  constructor(place, prefix, about, { verb, single = false, changed, colours, noun = "image" }) {
    this.form = stamp("controls-template", prefix);
    place.replaceWith(this.form);
    this.part = parts(this.form);
    this.models = about.models;
    this.limits = about.limits;
    this.verb = verb;
    this.noun = noun;
    const { model, num, seed } = this.form.elements;
    this.classes = new Classes(this.form, prefix, { single, count: () => num.valueAsNumber || 1 });
    if (single) this.part("classes-label").textContent = "Class of what is drawn";
    this.schedule = new Schedule(this.form, { changed: (plan) => changed(plan), more: () => this.more });
    this.form.elements.guidance.addEventListener("input", () => this.schedule.again());
    model.append(...about.models.map(({ name }) => new Option(name, name, name === about.default)));
    model.addEventListener("change", () => this.take(this.model));
    num.max = about.limits.max_images;
    num.addEventListener("input", () => changed(this.schedule.plan));
    this.part("dice").addEventListener("click", () => (seed.value = Math.floor(Math.random() * 100_000)));
    this.form.elements.colours.addEventListener("change", ({ target }) => colours(target.checked));
    this.part("go-text").textContent = verb;
    this.part("go-key").textContent = KEYS;
    this.take(this.model);
    this.classes.choose([this.classes.names.indexOf(FIRST)].filter((label) => label >= 0));
  }

  get model() {
    return this.models.find(({ name }) => name === this.form.elements.model.value);
  }

  get images() {
    const wanted = this.form.elements.num.valueAsNumber || 1;
    return Math.min(this.limits.max_images, Math.max(1, wanted));
  }

  /** The guidance that is asked for; null is the model's own. */
  get scale() {
    const { guidance } = this.form.elements;
    return this.model.classes && guidance.value !== "" ? guidance.valueAsNumber : null;
  }

  /** What a schedule's cost depends on beside its numbers. */
  get more() {
    return { guidance: this.scale };
  }

  take(model) {
    const classes = model.classes ? `${model.classes} classes` : "unconditional";
    this.part("model-about").textContent =
      `${FAMILIES[model.family] ?? model.family} · ${classes} · ${model.tokens} tokens · ${model.side} px`;
    this.classes.offer(model);
    this.part("guidance").hidden = !model.classes;
    const own = model.sampling.guidance;
    this.form.elements.guidance.value = "";
    this.form.elements.guidance.placeholder = own === undefined ? "the model's own" : `the model's own: ${[own].flat().join(" to ")}`;
    this.schedule.offer(model, this.limits.max_steps);
  }

  /** Takes a model and a schedule from elsewhere. */
  load({ model, ...numbers }) {
    this.form.elements.model.value = model;
    this.take(this.model);
    this.schedule.set(numbers);
  }

  /** What stands in the way of a run, in words; null if nothing does. */
  get objection() {
    const { seed, num, guidance } = this.form.elements;
    if (!Number.isSafeInteger(seed.valueAsNumber)) return "The seed is missing; give a whole number.";
    if (!num.checkValidity() || !num.value) return `The number of ${this.noun}s is ${num.value || "missing"}; give 1 to ${this.limits.max_images}.`;
    if (guidance.validity.badInput) return "The guidance is no number; give one, or leave it empty for the model's own.";
    return this.schedule.objection;
  }

  /** The request that the form means. */
  request() {
    const { seed, compare } = this.form.elements;
    return {
      model: this.model.name,
      labels: this.model.classes ? this.classes.labels : null,
      num: this.images,
      seed: seed.valueAsNumber,
      ...this.schedule.asked,
      guidance: this.scale,
      compare: compare.checked,
    };
  }

  problem(text) {
    say(this.part("problem"), text);
  }

  status(text) {
    this.part("status").textContent = text;
  }

  /** Turns the button into one that cancels, and back. */
  running(on) {
    this.part("go-text").textContent = on ? "Cancel" : this.verb;
    this.part("go-key").textContent = on ? "Esc" : KEYS;
    this.part("go").classList.toggle("cancel", on);
  }
}
