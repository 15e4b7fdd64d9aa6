// Full, local and chain: sliders with numbers beside them, and what the server predicts they cost.

import { post, stopped } from "./api.js";
import { parts, say } from "./dom.js";
import { bytes, evaluations, times } from "./format.js";
import { strip } from "./ticks.js";

const NAMES = ["full", "local", "chain"];
const PAUSE = 150; // milliseconds without a change before the server is asked
const CHAIN = 16;
const REACH = 4; // times the model's own number that a slider goes to; the numbers go further

export class Schedule {
  /** `changed` is told every new plan, and null while there is none. */
  constructor(form, { changed, more }) {
    this.more = more; // gives what a request has beside: the guidance, for instance
    this.form = form;
    this.part = parts(form);
    this.changed = changed;
    this.plan = null;
    this.always = false; // whether the model's own numbers are asked for as well
    for (const name of NAMES) {
      this.slider(name).addEventListener("input", () => this.take(name, this.slider(name).value));
      this.number(name).addEventListener("input", () => this.take(name, this.number(name).value));
    }
    this.part("reset").addEventListener("click", () => this.reset());
  }

  slider(name) {
    return this.form.querySelector(`[data-range="${name}"]`);
  }

  number(name) {
    return this.form.elements[name];
  }

  /** Takes a model's ranges and its own numbers. */
  offer(model, steps) {
    this.model = model;
    const most = Math.min(model.tokens, steps);
    for (const name of NAMES) {
      const top = name === "chain" ? Math.min(CHAIN, most) : name === "local" ? most - 1 : most;
      this.number(name).max = top;
      this.slider(name).max = Math.min(top, Math.max(REACH * (model.schedule[name] || 1), 16));
    }
    this.reset();
  }

  reset() {
    this.set(this.model.schedule);
  }

  set(values) {
    for (const name of NAMES) this.slider(name).value = this.number(name).value = values[name];
    this.ask(0);
  }

  take(name, value) {
    this.slider(name).value = value;
    this.number(name).value = value;
    this.ask(PAUSE);
  }

  get values() {
    return Object.fromEntries(NAMES.map((name) => [name, this.number(name).valueAsNumber]));
  }

  /** What is asked for: nothing where these are the model's own numbers, which shrink where tokens are known. */
  get asked() {
    return !this.always && NAMES.every((name) => this.values[name] === this.model.schedule[name]) ? {} : this.values;
  }

  /** What stands in the way of a run, in words; null if nothing does. */
  get objection() {
    const empty = NAMES.find((name) => !Number.isInteger(this.values[name]));
    if (empty) return `The number of ${empty === "chain" ? "local evaluations in a row" : `${empty} evaluations`} is missing; give a whole number.`;
    return this.refused;
  }

  ask(pause) {
    clearTimeout(this.timer);
    this.asking?.abort();
    this.asking = new AbortController();
    const { signal } = this.asking;
    this.refused = null;
    this.timer = setTimeout(() => this.predict(signal), pause);
  }

  /** Asks anew, because something else has changed. */
  again() {
    this.ask(PAUSE);
  }

  async predict(signal) {
    if (this.objection) return this.refuse(this.objection);
    try {
      const plan = await post("/v1/plan", { model: this.model.name, ...this.asked, ...this.more() }, signal);
      if (!signal.aborted) this.show(plan);
    } catch (error) {
      if (stopped(error) || signal.aborted) return;
      this.refuse(error.message);
      if (error.code === "gone") this.refused = null; // nothing is wrong with the schedule, so a run may try
    }
  }

  refuse(message) {
    this.refused = message;
    this.plan = null;
    say(this.part("plan-error"), message);
    for (const name of NAMES) this.number(name).setAttribute("aria-invalid", "true");
    this.part("plan").classList.add("stale");
    this.changed(null);
  }

  show(plan) {
    this.plan = plan;
    say(this.part("plan-error"), null);
    for (const name of NAMES) this.number(name).removeAttribute("aria-invalid");
    this.part("plan").classList.remove("stale");
    this.part("gain").textContent = times(plan.speedup);
    this.part("plan-evaluations").textContent = evaluations(`${plan.schedule.full}+${plan.schedule.local}`);
    this.part("plan-cache").textContent = bytes(plan.cache_bytes);
    strip(this.part("strip"), kinds(plan.groups));
    this.changed(plan);
  }
}

/** What every sub-step draws from: the first of a group from a full evaluation, the others from local ones. */
export const kinds = (groups) => groups.flatMap((group) => group.map((_, index) => (index ? "local" : "full")));
