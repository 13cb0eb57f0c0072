// From a trace, as a file holds it, to a run.

import { Run } from "./run.js";

/** One row of a trace as a run. */
export function runOf({ header, texts, changes, complete }, row) {
  const canvas = header.canvas[row];
  const first = canvas.indexOf(header.mask_id);
  const begin = first < 0 ? canvas.length : first;
  const end = canvas.lastIndexOf(header.mask_id) + 1;
  const spell = (token) => spelled(texts, token);
  const given = (from, to) => canvas.slice(from, to).map((token) => texts[token] ?? `<${token}>`).join("");
  const run = new Run({
    sampler: header.sampler,
    fields: header.fields,
    model: header.model,
    prompt: given(header.padding[row], begin),
    first: canvas.slice(begin, end).map((token) => (token === header.mask_id ? {} : { given: true, text: spell(token) })),
  });
  run.traced = true;
  run.complete = complete;
  run.notes = [`seed ${header.seeds[row]}`, `unmask ${header.version}`];
  for (const change of changes) {
    if (change.running[row] || change.leftover) addChange(run, change, row, begin, spell);
  }
  return run;
}

function addChange(run, change, row, begin, spell) {
  const events = run.last.places.map(() => null);
  const note = (kind) => ([column, token, eligible, signals]) => {
    if (column - begin in events) events[column - begin] = { kind, text: spell(token), token, eligible, signals };
  };
  change.held[row].forEach(note("held"));
  change.commit[row].forEach(note("committed"));
  change.rewritten[row].forEach(note("rewritten"));
  for (const column of change.revoked[row]) {
    if (column - begin in events) events[column - begin] = { text: "", ...events[column - begin], kind: "revoked" };
  }
  const { step, block, leftover } = change;
  run.add({ step, block, leftover, forced: change.forced[row], forward: change.fresh[row] }, events);
}

/** The text of a token; special ones have none. */
function spelled(texts, token) {
  const text = texts[token] ?? `<${token}>`;
  return /^<\|[\w ]+\|>$|^<\/?s>$/.test(text) ? "" : text;
}
