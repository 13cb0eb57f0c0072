// One decoding as the page shows it: a frame per step, a place per position. Knows nothing of where it came from.

/** What holds a position back, in the order in which the page names one. */
export const REASONS = ["confidence", "persistence", "jsd"];

/** The thresholds that a sampler's fields set; null where it has none. */
export function barsOf(fields) {
  const on = (value, off) => (typeof value === "number" && value !== off ? value : null);
  const persistence = on(fields.persistence, 1);
  // the released LESS counts earlier looks alone
  const earlier = persistence !== null && "end_bar" in fields ? 1 : 0;
  return {
    confidence: on(fields.min_confidence, 0),
    persistence: persistence === null ? null : persistence + earlier,
    jsd: on(fields.max_jsd, null),
  };
}

/** A decoding; `first` holds { given, text } of every position before the first step. */
export class Run {
  constructor({ sampler, fields = {}, model = "", prompt = "", first = [] }) {
    Object.assign(this, { sampler, fields, model, prompt });
    this.bars = barsOf(fields);
    this.facts = null; // what it took, once it is over
    this.text = "";
    this.traced = false; // read from a file, which knows neither seconds nor an answer
    this.frames = [];
    this.begin(first);
  }

  /** The canvas before any step. */
  begin(first) {
    const places = first.map(({ given = false, text = "" }) => ({ state: given ? "given" : "idle", text }));
    const none = { steps: 0, forwards: 0, forced: 0 };
    this.frames = [{ step: 0, block: 0, places, commits: 0, jsd: null, kind: "rule", so: none }];
  }

  get last() {
    return this.frames[this.frames.length - 1];
  }

  /** One more step: { step, block, forward, forced, leftover } and, per position, what it saw (or null). */
  add(told, looks) {
    const before = this.last;
    const kind = told.leftover ? "leftover" : told.forced ? "forced" : "rule";
    const frame = { step: told.step, block: told.block, kind };
    frame.places = looks.map((look, index) => this.#place(look, before.places[index], frame, before));
    frame.commits = frame.places.filter((place) => place.frame === frame).length;
    frame.jsd = mean(looks.map((look) => look?.jsd).filter((value) => typeof value === "number"));
    const { steps, forwards, forced } = before.so;
    frame.so = {
      steps: steps + (told.leftover ? 0 : 1),
      forwards: forwards + (told.forward ? 1 : 0),
      forced: forced + (told.forced ? 1 : 0),
    };
    this.frames.push(frame);
  }

  #place(look, was, frame, before) {
    if (!look) return was.state === "held" ? { state: "idle", text: "" } : was;
    if (was.state === "committed" || was.state === "given") return was;
    if (look.missed) return { ...look, state: "committed", by: null, step: null };
    const same = was.state === "held" && was.top === look.top && before.block === frame.block;
    const place = { ...look, looks: same ? was.looks + 1 : 1, step: frame.step };
    if (look.committed) return Object.assign(place, { state: "committed", by: frame.kind, frame });
    return Object.assign(place, { state: "held", reasons: this.#reasons(look) });
  }

  #reasons(look) {
    if (look.eligible) return [];
    const { confidence, persistence, jsd } = this.bars;
    const fails = {
      confidence: confidence !== null && typeof look.confidence === "number" && look.confidence < confidence,
      persistence: persistence !== null && look.persists === false,
      jsd: jsd !== null && !(typeof look.jsd === "number" && look.jsd <= jsd),
    };
    return REASONS.filter((reason) => fails[reason]);
  }
}

const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
