// The choice of one sampler: its name, and the two thresholds c and d where it has them.

import { make } from "./dom.js";

const SLIDERS = [
  { field: "min_confidence", name: "confidence c", max: 1, step: 0.01, digits: 2 },
  { field: "max_jsd", name: "JSD d", max: 0.2, step: 0.005, digits: 3 },
];

export class Slot {
  constructor(title, { optional, moved }) {
    this.known = {};
    this.select = make("select", { "aria-label": title });
    this.select.addEventListener("change", () => this.#reset());
    this.sliders = SLIDERS.map((about) => new Slider(title, about, moved));
    this.optional = optional;
    this.element = make("fieldset", { className: "slot" }, make("legend", {}, title), this.select, ...this.sliders.map((slider) => slider.element));
    this.#reset();
  }

  /** Offer these samplers, name -> fields. */
  offer(known, chosen) {
    this.known = known;
    const none = this.optional ? [new Option("none", "")] : [];
    this.select.replaceChildren(...none, ...Object.keys(known).map((name) => new Option(name, name)));
    this.select.value = chosen;
    this.#reset();
  }

  get name() {
    return this.select.value;
  }

  /** The fields that the sliders change. */
  get changes() {
    return Object.assign({}, ...this.sliders.map((slider) => slider.change));
  }

  /** All fields, as changed. */
  get fields() {
    return { ...this.known[this.name], ...this.changes };
  }

  #reset() {
    for (const slider of this.sliders) {
      slider.reset(this.known[this.name] ?? {});
      slider.element.hidden = !this.name;
    }
  }
}

class Slider {
  constructor(title, about, moved) {
    this.about = about;
    this.start = null;
    this.input = make("input", { type: "range", min: 0, max: about.max, step: about.step, "aria-label": `${title}: ${about.name}` });
    this.output = make("output");
    this.input.addEventListener("input", () => {
      this.#tell();
      moved();
    });
    this.element = make("label", { className: "threshold" }, make("span", {}, about.name), this.input, this.output);
  }

  /** Take the value of a sampler's field; without one there is nothing to move. */
  reset(fields) {
    const value = fields[this.about.field];
    this.start = typeof value === "number" ? value : null;
    this.input.disabled = this.start === null;
    this.input.value = this.start ?? 0;
    this.#tell();
  }

  get change() {
    const value = Number(this.input.value);
    return this.start === null || value === this.start ? {} : { [this.about.field]: value };
  }

  #tell() {
    this.output.textContent = this.start === null ? "not used" : Number(this.input.value).toFixed(this.about.digits);
    this.input.setAttribute("aria-valuetext", this.output.textContent);
  }
}
