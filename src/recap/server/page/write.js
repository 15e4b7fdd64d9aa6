// Texts written from a prompt.

import { post, Problem, stopped } from "./api.js";
import { Controls } from "./controls.js";
import { Run } from "./run.js";
import { Stage } from "./stage.js";
import { WORDS, Words } from "./words.js";

const PAUSE = 150; // milliseconds without a change before the server is asked
const SHARE = 1 / 4; // of all evaluations that are full ones, where the model's own are more than the server allows

/** What a text is to be, in the form that images have too. */
class Writing extends Controls {
  constructor(place, prefix, about, options) {
    super(place, prefix, about, { ...options, noun: "text" });
    const { tokens, block, temperature } = this.form.elements;
    const range = this.form.querySelector('[data-range="tokens"]');
    this.part("num-label").textContent = "Texts";
    for (const name of ["writing", "drawing"]) this.part(name).hidden = false;
    for (const field of [tokens, range]) {
      field.addEventListener("input", () => {
        tokens.value = range.value = field.value;
        clearTimeout(this.timer);
        this.unsized = true;
        this.timer = setTimeout(() => this.resize(), PAUSE);
      });
    }
    for (const field of [block, temperature]) field.addEventListener("input", () => this.schedule.again());
    this.form.elements.prompt.addEventListener("input", () => options.changed(this.schedule.plan));
    this.schedule.always = true;
  }

  get length() {
    return this.form.elements.tokens.valueAsNumber;
  }

  get prompt() {
    return this.form.elements.prompt.value;
  }

  get more() {
    const { block, temperature } = this.form.elements;
    return { gen_length: this.length, block: number(block), temperature: number(temperature) };
  }

  take(model) {
    this.part("model-about").textContent = `At most ${model.tokens} tokens, with the prompt`;
    this.part("chat").hidden = !model.chat;
    this.part("guidance").hidden = true;
    this.classes.offer(model);
    const { tokens, temperature } = this.form.elements;
    const range = this.form.querySelector('[data-range="tokens"]');
    tokens.max = range.max = model.tokens;
    tokens.value = range.value = Math.min(tokens.valueAsNumber || model.gen_length, model.tokens);
    temperature.placeholder = model.sampling.temperature ?? "the model's own";
    this.resize();
  }

  /** Takes the model's own numbers of evaluations for the length that is asked for. */
  async resize() {
    const [model, tokens] = [this.model, this.length];
    clearTimeout(this.timer);
    if (!(tokens >= 1)) return;
    const most = Math.min(tokens, this.limits.max_steps);
    let schedule = { full: Math.ceil(most * SHARE), local: Math.floor(most * (1 - SHARE)), chain: 3 };
    try {
      schedule = (await post("/v1/plan", { model: model.name, gen_length: tokens })).schedule;
    } catch (error) {
      if (stopped(error) || error.code === "gone") return; // what is predicted next says so
    }
    if (this.model === model && this.length === tokens) {
      this.unsized = false;
      this.schedule.offer({ ...model, tokens, schedule }, this.limits.max_steps);
    }
  }

  get objection() {
    const { tokens, block, temperature } = this.form.elements;
    if (!tokens.checkValidity() || !tokens.value) {
      return `The number of tokens is ${tokens.value || "missing"}; give 1 to ${this.model.tokens}.`;
    }
    const wrong = [block, temperature].find((field) => field.validity.badInput);
    if (wrong) return `The ${wrong.name === "block" ? "number of tokens of a block" : "temperature"} is no number; give one, or leave it empty.`;
    return super.objection;
  }

  request() {
    const { seed, compare, chat } = this.form.elements;
    const said = this.model.chat && chat.checked ? { messages: [{ role: "user", content: this.prompt }] } : { prompt: this.prompt };
    return {
      model: this.model.name,
      ...(this.prompt ? said : {}),
      num: this.images,
      seed: seed.valueAsNumber,
      ...this.schedule.asked,
      ...this.more,
      compare: compare.checked,
    };
  }
}

/** What a field of numbers holds, null where it is empty. */
const number = (field) => (field.value === "" ? null : field.valueAsNumber);

/** How much the texts differ, in words. */
function apart(shares) {
  const each = shares?.map((share) => `${Math.round(100 * share)} %`).join(", ");
  return each ? ` ${each} of the tokens differ.` : "";
}

export function write(view, about) {
  const place = (name) => view.querySelector(`[data-place="${name}"]`);
  const kind = {
    noun: "text",
    cells: WORDS,
    apart,
    tile: ({ prompts, schedule }, { index, name }) => new Words({ prompt: prompts?.[index], tokens: schedule.tokens, name }),
  };
  const stage = new Stage(place("stage"), "write", about, { kind });
  let controls = null;
  const changed = (plan) => {
    if (!controls || !plan) return;
    const prompts = Array(controls.images).fill(controls.prompt);
    stage.preview(plan, controls.model, controls.images, { prompts, schedule: plan.schedule });
  };
  controls = new Writing(place("controls"), "write", about, {
    verb: "Write",
    changed,
    colours: (on) => stage.colours(on),
  });
  const request = async () => {
    if (controls.unsized) await controls.resize(); // the length has only just been changed
    if (controls.objection) throw new Problem(controls.objection);
    return controls.request();
  };
  const run = new Run(controls, stage, { request, path: "/api/write" });
  return { controls, run };
}
