// From the server's answers to a run: a draft is a frame.

import { Run } from "./run.js";

/** A run from a record of it: { sampler, fields, lines, model, prompt, drafts, facts, text }. */
export function replayed({ drafts, facts, text, ...about }) {
  const run = new Run(about);
  for (const draft of drafts) addDraft(run, draft);
  finish(run, facts);
  run.text = text;
  return run;
}

/** The record of a run that was received; `replayed` reads it. */
export function record(run) {
  const { sampler, fields, lines, model, prompt, drafts, facts, text } = run;
  return { sampler, fields, lines, model, prompt, drafts, facts, text };
}

/** Take the cost of a run, which comes with its end; null if it has none. */
export function finish(run, facts) {
  run.facts = facts;
  run.complete = facts !== null;
}

/** Add a draft to a run; the first one also sets the width of the canvas. */
export function addDraft(run, draft) {
  if (!run.last.places.length) {
    run.begin(draft.positions.map(({ state, text }) => ({ given: state === "given", text: state === "given" ? text : "" })));
  }
  run.drafts.push(draft);
  run.add(draft, draft.positions.map(eventOf));
}

function eventOf(position) {
  const { state, text, token, eligible, signals, candidates } = position;
  if (state === "given") return null;
  if (candidates === undefined) return { kind: state === "masked" ? "idle" : "missed", text };
  return { kind: kindOf(position), text, token, eligible, signals, candidates };
}

function kindOf({ committed, revoked, rewritten }) {
  if (committed) return "committed";
  if (rewritten) return "rewritten";
  return revoked ? "revoked" : "held";
}
