// Signals by name: their thresholds, their texts, and a colour and a letter for those that hold a position back.

const TONES = 5; // colours in style.css
const TAKEN = "FLR"; // letters of other states
// true: a rule around the sampler holds a position back, for this reason
const FILTERS = new Map([
  ["end_waits", "an end of text comes after the masks before it"],
  ["too_close", "another token of this step is too close"],
  ["constraint", "the text would not fit its pattern"],
]);

/**
 * Return the threshold of a signal by the sampler's fields, or null: at least min_NAME, at most max_NAME,
 * or true if the signal is a yes or no and the sampler has a field of its name; false for the signal of a filter.
 */
export function thresholdOf(name, value, fields) {
  const limit = (field) => (typeof fields[field] === "number" ? fields[field] : null);
  const least = limit(`min_${name}`), most = limit(`max_${name}`);
  if (typeof value === "boolean") {
    if (FILTERS.has(name)) return { limit: null, needs: "needs no", passes: !value };
    return limit(name) === null ? null : { limit: null, needs: "needs yes", passes: value };
  }
  // null stands for a number that is not finite: it meets no threshold
  if (least !== null) return { limit: least, needs: `needs ≥ ${least}`, passes: value !== null && value >= least };
  if (most !== null) return { limit: most, most: true, needs: `needs ≤ ${most}`, passes: value !== null && value <= most };
  return null;
}

/** Why a signal holds a position back, or null if its threshold says so. */
export const reasonOf = (name) => FILTERS.get(name) ?? null;

/** The signals of a position that miss their thresholds. */
export function missed(signals, fields) {
  return Object.entries(signals).filter(([name, value]) => thresholdOf(name, value, fields)?.passes === false).map(([name]) => name);
}

/** A value of a signal as text. */
export function valueText(value) {
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return "–";
  if (Number.isInteger(value)) return String(value);
  return Math.abs(value) < 0.1 ? value.toPrecision(2) : value.toFixed(3);
}

/**
 * Where a value lies on a meter from 0 to 1, or null if it has no place there. Thresholds above 1 and those that
 * a value must not exceed stand in the middle.
 */
export function onMeter(value, threshold) {
  if (typeof value === "boolean") return value ? 1 : 0;
  if (typeof value !== "number") return null;
  if (!threshold) return value >= 0 && value <= 1 ? value : null;
  const { limit, most } = threshold;
  return limit > 0 && (most || limit > 1) ? value / (2 * limit) : value;
}

/** A colour and a letter for each of these signals, by name. */
export function cuesOf(names) {
  const used = new Set(TAKEN);
  const cues = new Map();
  names.forEach((name, index) => {
    const letters = [...name.toUpperCase()].filter((letter) => /\p{L}/u.test(letter));
    const cue = letters.find((letter) => !used.has(letter)) ?? String(index + 1);
    used.add(cue);
    cues.set(name, { tone: `tone-${index % TONES}`, cue });
  });
  return cues;
}
