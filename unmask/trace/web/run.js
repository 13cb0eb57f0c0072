// One decoding as the page shows it: a frame per step, a place per position. Knows nothing of where it came from.

import { missed, thresholdOf } from "./signals.js";

/** A decoding; `lines` explain the fields, `first` holds { given, text } of every position before the first step. */
export class Run {
  constructor({ sampler, fields = {}, lines = {}, model = "", prompt = "", first = [] }) {
    Object.assign(this, { sampler, fields, lines, model, prompt });
    this.facts = null; // its cost, once it is over
    this.complete = false; // it came to its end
    this.drafts = []; // as the server sent them
    this.text = "";
    this.traced = false; // read from a file, which has neither seconds nor an answer
    this.signals = []; // the names of all signals, in order of appearance
    this.reasons = []; // those that have a threshold
    this.seen = new Set(); // the states that some position had, or the signal that held it
    this.frames = [];
    this.begin(first);
  }

  /** The canvas before any step. */
  begin(first) {
    const places = first.map(({ given = false, text = "" }) => ({ state: given ? "given" : "idle", text }));
    const totals = { steps: 0, forwards: 0, forced: 0, revoked: 0, rewritten: 0 };
    this.frames = [{ step: 0, block: 0, places, commits: 0, revoked: 0, means: {}, kind: "rule", totals }];
  }

  /** The model's forwards, all of them once it is over. */
  get forwards() {
    return this.facts?.forwards ?? this.last.totals.forwards;
  }

  get last() {
    return this.frames[this.frames.length - 1];
  }

  /**
   * Add a step: { step, block, forward, forced, leftover } and an event per position. An event is null
   * for nothing, or { kind, text } where kind is committed, rewritten, held, revoked, idle (masked, not looked at)
   * or missed (written in a step that was not received); the first four also have token, eligible, signals and
   * perhaps candidates.
   */
  add(step, events) {
    const before = this.last;
    const kind = step.leftover ? "leftover" : step.forced ? "forced" : "rule";
    const frame = { step: step.step, block: step.block, kind };
    const count = (name) => events.filter((event) => event?.kind === name).length;
    this.#learn(events);
    frame.places = events.map((event, index) => this.#place(event, before.places[index], frame));
    for (const { state, by, text, reasons } of frame.places) {
      this.seen.add(state === "held" ? reasons[0] ?? "waiting" : by ?? state);
      if (text === "" && state !== "idle") this.seen.add("end");
    }
    frame.commits = count("committed");
    frame.revoked = count("revoked");
    frame.means = means(events);
    const { steps, forwards, forced, revoked, rewritten } = before.totals;
    frame.totals = {
      steps: steps + (step.leftover ? 0 : 1),
      forwards: forwards + (step.forward ? 1 : 0),
      forced: forced + (step.forced ? 1 : 0),
      revoked: revoked + frame.revoked,
      rewritten: rewritten + count("rewritten"),
    };
    this.frames.push(frame);
  }

  #place(event, was, frame) {
    if (was.state === "given") return was;
    if (!event) return was.state === "committed" ? was : { state: "idle", text: "" };
    const { kind, text } = event;
    if (kind === "idle") return { state: "idle", text: "" };
    if (kind === "missed") return was.state === "committed" && was.text === text ? was : { ...event, state: "committed", by: "missed", step: null };
    const place = { ...event, step: frame.step };
    if (kind === "held") return Object.assign(place, { state: "held", reasons: event.eligible ? [] : missed(event.signals, this.fields), revokedIn: revokedIn(was) });
    if (kind === "revoked") return Object.assign(place, { state: "revoked", text: was.text, guess: text });
    const by = kind === "rewritten" ? "rewritten" : frame.kind;
    return Object.assign(place, { state: "committed", by, frame, before: kind === "rewritten" ? was.text : null });
  }

  /** Take note of the names of new signals. */
  #learn(events) {
    for (const event of events) {
      for (const [name, value] of Object.entries(event?.signals ?? {})) {
        if (!this.signals.includes(name)) this.signals.push(name);
        if (!this.reasons.includes(name) && thresholdOf(name, value, this.fields)) this.reasons.push(name);
      }
    }
  }
}

/** The step that revoked a position which is still masked. */
const revokedIn = (was) => (was.state === "revoked" ? was.step : was.state === "held" ? was.revokedIn : null);

/** The mean of each signal over all positions that have a number of that name. */
function means(events) {
  const sums = {};
  for (const event of events) {
    for (const [name, value] of Object.entries(event?.signals ?? {})) {
      if (typeof value !== "number") continue;
      sums[name] ??= { sum: 0, count: 0 };
      sums[name].sum += value;
      sums[name].count += 1;
    }
  }
  return Object.fromEntries(Object.entries(sums).map(([name, { sum, count }]) => [name, sum / count]));
}
