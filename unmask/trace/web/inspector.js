// What one position looks like at one step: its signals against their thresholds, and its candidates.

import { LOOKS, lookName } from "./cells.js";
import { make, number, plural, quoted } from "./dom.js";

const LN2 = Math.log(2); // the largest JSD

export class Inspector {
  constructor() {
    this.element = make("div", { className: "inspector" });
  }

  /** Nothing is looked at. */
  clear() {
    this.element.replaceChildren(
      make("p", { className: "hint" }, "Point at a position, or focus the canvas and use the arrow keys, to see its signals."),
    );
  }

  /** Show a place; `bars` are the thresholds of its sampler. */
  show(place, index, bars) {
    const look = lookName(place);
    const step = place.state === "committed" && place.step ? ` in step ${place.step}` : "";
    const also = place.state === "held" && place.reasons.length > 1 ? ` (and by ${place.reasons.slice(1).map(label).join(" and ")})` : "";
    const title = make("p", { className: "place" },
      make("b", {}, `${index + 1}`), look === "idle" ? "" : make("code", {}, quoted(place.text)),
      make("span", { className: `tag ${look}` }, `${LOOKS[look].name}${step}${also}`));
    const parts = typeof place.confidence === "number" || place.candidates ? [this.#signals(place, bars), this.#candidates(place)] : [];
    this.element.replaceChildren(title, make("div", { className: place.candidates ? "details" : "details alone" }, ...parts));
  }

  #signals(place, bars) {
    const list = make("dl", { className: "signals" });
    const add = (name, value, text, limit, said, ok) => list.append(make("div", {},
      make("dt", {}, make("span", {}, name), make("span", { className: "needs" }, said)),
      make("dd", {}, meter(value, limit, ok), make("span", { className: "value" }, text))));
    const { confidence, jsd, looks, persists } = place;
    add("confidence", confidence, number(confidence, 3), bars.confidence,
      bars.confidence === null ? "no threshold" : `needs ≥ ${bars.confidence}`,
      bars.confidence === null || typeof confidence !== "number" ? null : confidence >= bars.confidence);
    const needed = bars.persistence;
    add("persistence", needed === null ? null : Math.min(1, looks / (2 * needed)), plural(looks, "look"), needed === null ? null : 0.5,
      needed === null ? "no threshold" : `needs ${needed} alike`,
      needed === null ? null : persists ?? looks >= needed);
    const root = (value) => (typeof value === "number" ? Math.sqrt(Math.min(value, LN2) / LN2) : null); // small ones matter
    add("JSD", root(jsd), typeof jsd === "number" ? number(jsd, 4) : bars.jsd === null ? "not known" : "first look", root(bars.jsd),
      bars.jsd === null ? "no threshold" : `needs ≤ ${bars.jsd}`,
      bars.jsd === null ? null : typeof jsd === "number" && jsd <= bars.jsd);
    return list;
  }

  #candidates(place) {
    if (!place.candidates) return null;
    const list = make("ol", { className: "candidates", "aria-label": "Candidates" });
    for (const [, text, chance] of place.candidates) {
      list.append(make("li", {}, make("code", {}, quoted(text)), meter(chance, null, null), make("span", { className: "value" }, number(chance, 3))));
    }
    return list;
  }
}

const label = (reason) => (reason === "jsd" ? "JSD" : reason);

/** A bar from 0 to 1 with a mark where the threshold is, and a sign whether it is met. */
function meter(value, limit, ok) {
  const fill = make("i", { className: "fill" });
  fill.style.width = `${100 * Math.min(Math.max(value ?? 0, 0), 1)}%`;
  const parts = [fill];
  if (limit !== null && limit !== undefined) {
    const mark = make("i", { className: "mark" });
    mark.style.left = `${100 * Math.min(limit, 1)}%`;
    parts.push(mark);
  }
  const sign = ok === null ? "" : ok ? " ok" : " short";
  return make("span", { className: `meter${sign}`, "aria-hidden": "true" }, ...parts);
}
