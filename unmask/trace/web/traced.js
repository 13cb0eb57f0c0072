// From a trace, as a file holds it, to a run.

import { Run } from "./run.js";

/** One row of a trace as a run. */
export function runOf({ header, texts, changes }, row) {
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
  run.notes = [`seed ${header.seeds[row]}`, `unmask ${header.version}`];
  for (const change of changes) {
    if (change.running[row] || change.leftover) addChange(run, change, row, begin, spell);
  }
  return run;
}

function addChange(run, change, row, begin, spell) {
  const looks = run.last.places.map(() => null);
  const note = (committed) => ([column, token, confidence, jsd, persists]) => {
    looks[column - begin] = { text: spell(token), token, top: token, committed, confidence, jsd, persists };
  };
  (change.held[row] ?? []).forEach(note(false));
  change.commit[row].forEach(note(true));
  const { step, block, leftover } = change;
  run.add({ step, block, leftover, forced: change.forced[row], forward: change.fresh[row] }, looks);
}

/** The text of a token; special ones have none. */
function spelled(texts, token) {
  const text = texts[token] ?? `<${token}>`;
  return /^<\|[\w ]+\|>$|^<\/?s>$/.test(text) ? "" : text;
}
