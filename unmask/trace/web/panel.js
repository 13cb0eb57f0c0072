// One run: its settings, its counters, its canvas, its chart, and one position in detail.

import { Cells } from "./cells.js";
import { Chart } from "./chart.js";
import { make, number, prose } from "./dom.js";
import { Inspector } from "./inspector.js";

const COUNTERS = [["steps", "Steps"], ["forwards", "Forwards"], ["forced", "Forced share"], ["revoked", "Revoked"], ["seconds", "Seconds"]];

export class Panel {
  constructor(run, { inspect, seek }) {
    this.run = run;
    this.frame = run.last;
    this.cues = new Map();
    this.cells = new Cells(`Canvas of ${run.sampler}`, inspect);
    this.chart = new Chart(seek);
    this.inspector = new Inspector();
    this.answer = make("p", { "data-part": "answer" });
    this.plain = make("details", {}, make("summary", {}, "Plain text"), this.answer);
    this.counters = Object.fromEntries(COUNTERS.map(([name]) => [name, make("dd", { "data-counter": name })]));
    this.element = make("section", { className: "panel", "aria-label": `Run of ${run.sampler}` },
      make("h2", {}, run.sampler),
      make("dl", { className: "counters" }, ...COUNTERS.filter(([name]) => name !== "seconds" || !run.traced).map(([name, label]) => make("div", {}, make("dt", {}, label), this.counters[name]))),
      run.prompt ? make("p", { className: "given-prompt" }, run.prompt) : null,
      this.cells.element, this.inspector.element, this.chart.element,
      make("div", { className: "more" }, this.plain, settingsOf(run)));
    this.grow();
  }

  /** The run has a new frame, or is over. */
  grow() {
    this.chart.draw(this.run);
    this.answer.textContent = this.run.text;
    this.plain.hidden = this.run.traced || this.run.text === "";
  }

  /** Show frame number `at`, or the last one before it; `cues` tell signals apart. */
  show(at, marks, cues) {
    this.cues = cues;
    const index = Math.min(at, this.run.frames.length - 1);
    this.frame = this.run.frames[index];
    this.cells.show(this.frame, marks, cues);
    this.chart.show(index);
    this.#count(this.frame.totals, index === this.run.frames.length - 1);
  }

  /** Show one position in detail, or none if it is null. */
  inspect(index) {
    const place = index === null ? undefined : this.frame.places[index];
    this.cells.select(place ? index : null);
    if (place) this.inspector.show(place, index, { fields: this.run.fields, cues: this.cues });
    else this.inspector.clear();
  }

  #count(totals, ended) {
    const facts = ended ? this.run.facts : null;
    const share = facts ? facts.forced_share : totals.steps ? totals.forced / totals.steps : 0;
    this.counters.steps.textContent = facts ? facts.steps : totals.steps;
    this.counters.forwards.textContent = facts ? facts.forwards : totals.forwards;
    this.counters.forced.textContent = `${Math.round(100 * share)} %`;
    this.counters.revoked.textContent = totals.revoked + totals.rewritten;
    this.counters.revoked.parentElement.hidden = !(this.run.last.totals.revoked + this.run.last.totals.rewritten);
    this.counters.seconds.textContent = number(this.run.facts?.seconds ?? this.run.seconds, 2);
  }
}

/** The fields of a sampler, folded away. */
function settingsOf(run) {
  const shown = (value) => (typeof value === "object" && value !== null ? JSON.stringify(value) : String(value));
  const fields = Object.entries(run.fields).map(([name, value]) =>
    make("li", {}, make("b", {}, `${name} ${shown(value)}`), ...prose(run.lines[name] ? ` ${run.lines[name]}` : "")));
  return make("details", {}, make("summary", {}, `Settings of ${run.sampler}`),
    make("ul", { className: "fields" }, ...fields, ...(run.notes ?? []).map((note) => make("li", {}, note))));
}
