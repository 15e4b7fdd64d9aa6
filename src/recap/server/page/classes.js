// Classes by name: a field that searches, a list to choose from, and chips for what is chosen.

import { make, parts } from "./dom.js";

const SHOWN = 120; // options at a time; typing narrows them down

export class Classes {
  constructor(root, prefix, { single = false, count = () => 1 } = {}) {
    this.part = parts(root);
    this.box = this.part("combo");
    this.input = this.box.querySelector("input");
    this.list = this.box.querySelector(".options");
    this.single = single;
    this.count = count; // how many a surprise brings
    this.prefix = prefix;
    this.input.setAttribute("aria-controls", this.list.id);
    this.names = [];
    this.chosen = [];
    this.active = -1;
    this.input.addEventListener("input", () => this.open());
    this.input.addEventListener("click", () => this.open());
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.box.addEventListener("focusout", ({ relatedTarget }) => this.box.contains(relatedTarget) || this.close());
    this.box.addEventListener("pointerdown", (event) => {
      if (event.target === this.box || event.target === this.part("chips")) {
        event.preventDefault();
        this.input.focus();
        this.open();
      }
    });
    this.list.addEventListener("pointerdown", (event) => event.preventDefault()); // the field keeps the focus
    this.list.addEventListener("click", ({ target }) => {
      const option = target.closest("[role=option]");
      if (option?.dataset.label) this.toggle(Number(option.dataset.label));
    });
    this.part("surprise").addEventListener("click", () => this.surprise());
  }

  /** Takes the classes of a model; without classes there is nothing to choose. */
  offer(model) {
    const named = this.chosen.map((label) => this.names[label]);
    this.names = model.classes ? (model.class_names ?? Array.from({ length: model.classes }, (_, i) => `class ${i}`)) : [];
    this.part("classes").hidden = !this.names.length;
    this.choose(named.map((name) => this.names.indexOf(name)).filter((label) => label >= 0));
  }

  get labels() {
    return this.chosen.length ? [...this.chosen] : null;
  }

  choose(labels) {
    this.chosen = labels;
    const chip = (label) =>
      make(
        "li",
        {},
        make("span", {}, this.names[label]),
        make("button", { type: "button", "aria-label": `Remove ${this.names[label]}`, onclick: () => this.drop(label) }, "×"),
      );
    this.part("chips").replaceChildren(...labels.map(chip));
    this.input.placeholder = labels.length ? (this.single ? "" : "Add another") : `Any of ${this.names.length}; type to search`;
  }

  drop(label) {
    this.choose(this.chosen.filter((other) => other !== label));
    this.input.focus();
    this.close();
  }

  toggle(label) {
    const without = this.chosen.filter((other) => other !== label);
    if (without.length < this.chosen.length) this.choose(without);
    else this.choose(this.single ? [label] : [...this.chosen, label]);
    this.input.value = "";
    if (this.single) this.close();
    else this.open(label);
  }

  surprise() {
    const labels = new Set();
    const wanted = Math.min(this.single ? 1 : this.count(), this.names.length);
    while (labels.size < wanted) labels.add(Math.floor(Math.random() * this.names.length));
    this.choose([...labels]);
  }

  found() {
    const wanted = this.input.value.trim().toLowerCase();
    const all = this.names.map((name, label) => ({ name, label, at: name.toLowerCase().indexOf(wanted) }));
    const exact = all.filter(({ label }) => wanted && String(label) === wanted);
    const rest = all.filter(({ at, label }) => at >= 0 && String(label) !== wanted);
    const order = wanted ? rest.sort((a, b) => (a.at > 0) - (b.at > 0) || a.name.localeCompare(b.name)) : rest;
    return [...exact, ...order];
  }

  open(keep = null) {
    const found = this.found();
    const options = found.slice(0, SHOWN).map(({ name, label }) =>
      make(
        "li",
        { role: "option", id: `${this.prefix}-option-${label}`, "data-label": label, "aria-selected": String(this.chosen.includes(label)) },
        make("span", {}, name),
        make("small", { "aria-hidden": "true" }, `${label}`),
      ),
    );
    const more = found.length - options.length;
    const note = !found.length ? "No class is called that" : more > 0 ? `${more} more: keep typing` : null;
    if (note) options.push(make("li", { role: "option", "aria-disabled": "true", "aria-selected": "false", class: "note" }, note));
    this.list.replaceChildren(...options);
    this.list.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
    this.point(keep === null ? (this.input.value && found.length ? 0 : -1) : found.findIndex(({ label }) => label === keep));
  }

  close() {
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
    this.active = -1;
  }

  point(at) {
    const options = this.list.querySelectorAll("[data-label]");
    this.active = options.length ? Math.min(at, options.length - 1) : -1;
    options.forEach((option, index) => option.classList.toggle("active", index === this.active));
    const option = options[this.active];
    if (option) {
      this.input.setAttribute("aria-activedescendant", option.id);
      option.scrollIntoView({ block: "nearest" });
    } else this.input.removeAttribute("aria-activedescendant");
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const open = !this.list.hidden;
    const options = this.list.querySelectorAll("[data-label]");
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (!open) this.open();
      else if (event.key === "ArrowDown") this.point((this.active + 1) % Math.max(1, options.length));
      else this.point(this.active <= 0 ? options.length - 1 : this.active - 1);
    } else if (event.key === "Enter") {
      if (open && options[this.active]) this.toggle(Number(options[this.active].dataset.label));
    } else if (event.key === "Escape" && (open || this.input.value)) {
      this.input.value = "";
      this.close();
    } else if (event.key === "Backspace" && !this.input.value && this.chosen.length) {
      this.choose(this.chosen.slice(0, -1));
    } else return;
    event.preventDefault();
  }
}
