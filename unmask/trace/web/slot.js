// The choice of one sampler: its name, and a slider for each of its thresholds.

import { make, prose, unquoted } from "./dom.js";

export class Slot {
  constructor(title, { optional, moved }) {
    this.title = title;
    this.moved = moved;
    this.known = {};
    this.words = {};
    this.select = make("select", { "aria-label": title });
    this.select.addEventListener("change", () => this.#reset());
    this.sliders = [];
    this.optional = optional;
    this.summary = make("p", { className: "summary" });
    this.element = make("fieldset", { className: "slot" }, make("legend", {}, title), this.select, this.summary);
  }

  /** Offer these samplers, name -> fields; `words` has the group, summary, use and field lines of each. */
  offer(known, words, chosen) {
    this.known = known;
    this.words = words;
    const none = this.optional ? [new Option("none", "")] : [];
    this.select.replaceChildren(...none, ...grouped(known, words));
    this.select.value = chosen;
    this.#reset();
  }

  get name() {
    return this.select.value;
  }

  /** A line on each field, as far as there are some. */
  get lines() {
    return this.words[this.name]?.fields ?? {};
  }

  /** The fields that the sliders change. */
  get changes() {
    return Object.assign({}, ...this.sliders.map((slider) => slider.change));
  }

  /** All fields, as changed. */
  get fields() {
    return { ...this.known[this.name], ...this.changes };
  }

  /** Replace the sliders by those of the chosen sampler. */
  #reset() {
    for (const slider of this.sliders) slider.element.remove();
    const thresholds = Object.entries(this.known[this.name] ?? {}).filter(([field, value]) => /^(min|max)_/.test(field) && typeof value === "number");
    const { summary = "", use = "" } = this.words[this.name] ?? {};
    this.sliders = thresholds.map(([field, value]) => new Slider(this.title, field, { value, line: this.lines[field], moved: this.moved }));
    this.element.append(...this.sliders.map((slider) => slider.element));
    this.summary.replaceChildren(...prose(`${summary} ${use}`.trim()));
    this.summary.hidden = !summary;
  }
}

/** The options of all samplers, in the groups that `words` names. */
function grouped(known, words) {
  const groups = new Map();
  for (const name of Object.keys(known)) {
    const label = words[name]?.group ?? "";
    if (!groups.has(label)) groups.set(label, label ? make("optgroup", { label }) : new DocumentFragment());
    groups.get(label).append(new Option(name, name));
  }
  return groups.values();
}

/** Moves one threshold: a lower bound up to 1, an upper bound up to five times its value. */
class Slider {
  constructor(title, field, { value, line = "", moved }) {
    this.field = field;
    this.start = value;
    const name = field.slice(4).replaceAll("_", " "), sign = field.startsWith("min_") ? "≥" : "≤";
    const [max, step] = field.startsWith("max_") && value > 0 ? [5 * value, value / 8] : [Math.max(1, 2 * value), 0.01];
    this.input = make("input", { type: "range", min: 0, max, step, value, "aria-label": `${title}: ${name}` });
    this.output = make("output");
    this.input.addEventListener("input", () => {
      this.#show();
      moved();
    });
    this.element = make("label", { className: "threshold", title: unquoted(line) }, make("span", {}, `${name} ${sign}`), this.input, this.output);
    this.#show();
  }

  /** The value, without the digits that a fraction of a step leaves behind. */
  get #value() {
    return Number(Number(this.input.value).toPrecision(6));
  }

  get change() {
    return this.#value === this.start ? {} : { [this.field]: this.#value };
  }

  #show() {
    this.output.textContent = String(Number(this.#value.toPrecision(3)));
    this.input.setAttribute("aria-valuetext", this.output.textContent);
  }
}
