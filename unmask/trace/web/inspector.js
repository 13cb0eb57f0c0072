// One position at one step: its signals against their thresholds, and its candidates.

import { lookOf } from "./cells.js";
import { make, number, quoted } from "./dom.js";
import { onMeter, thresholdOf, valueText } from "./signals.js";

export class Inspector {
  constructor() {
    this.element = make("div", { className: "inspector", hidden: true });
  }

  /** Go away, as no position is chosen. */
  clear() {
    this.element.hidden = true;
  }

  /** Show a place; the sampler's `fields` hold the thresholds. */
  show(place, index, { fields, cues }) {
    const look = lookOf(place, cues);
    const title = make("p", { className: "place" },
      make("b", {}, `${index + 1}`), place.state === "idle" ? "" : make("code", {}, quoted(place.text)),
      make("span", { className: `tag ${look.kind}` }, `${look.name}${remarks(place)}`));
    const signals = Object.keys(place.signals ?? {}).length ? signalList(place.signals, fields) : null;
    const candidates = place.candidates ? candidateList(place.candidates) : null;
    this.element.hidden = false;
    this.element.replaceChildren(title, make("div", { className: candidates ? "details" : "details alone" }, signals, candidates));
  }
}

/** More about a state: when it began, and its other reasons. */
function remarks(place) {
  const { state, step, before, guess, revokedIn, reasons = [] } = place;
  if (state === "committed") return `${step ? ` in step ${step}` : ""}${before ? `, was ${quoted(before)}` : ""}`;
  if (state === "revoked") return ` in step ${step}, would now take ${quoted(guess)}`;
  const others = reasons.length > 1 ? ` (and by ${reasons.slice(1).join(" and ")})` : "";
  const accepted = state === "held" && place.eligible ? ": the rule accepts it, others go first" : "";
  return `${others}${accepted}${revokedIn ? `, revoked in step ${revokedIn}` : ""}`;
}

function signalList(signals, fields) {
  return make("dl", { className: "signals" }, ...Object.entries(signals).map(([name, value]) => {
    const threshold = thresholdOf(name, value, fields);
    const limit = threshold && threshold.limit !== null ? onMeter(threshold.limit, threshold) : null;
    return make("div", { "data-signal": name },
      make("dt", {}, make("span", {}, name), make("span", { className: "needs" }, threshold?.needs ?? "no threshold")),
      make("dd", {}, meter(onMeter(value, threshold), limit, threshold?.passes ?? null), make("span", { className: "value" }, valueText(value))));
  }));
}

function candidateList(candidates) {
  return make("ol", { className: "candidates", "aria-label": "Candidates" }, ...candidates.map(([, text, chance]) =>
    make("li", {}, make("code", {}, quoted(text)), meter(chance, null, null), make("span", { className: "value" }, number(chance, 3)))));
}

/** A bar from 0 to 1 with a mark where the threshold is, and a colour for whether it is met. */
function meter(value, limit, passes) {
  const fill = make("i", { className: "fill" });
  fill.style.width = `${100 * Math.min(Math.max(value ?? 0, 0), 1)}%`;
  const parts = [fill];
  if (limit !== null) {
    const mark = make("i", { className: "mark" });
    mark.style.left = `${100 * Math.min(Math.max(limit, 0), 1)}%`;
    parts.push(mark);
  }
  const sign = passes === null ? "" : passes ? " ok" : " short";
  return make("span", { className: `meter${sign}`, "aria-hidden": "true" }, ...parts);
}
