// From the server's draft events to frames of a run.

/** Add a draft to a run; the first one also tells how wide the canvas is. */
export function addDraft(run, draft) {
  if (!run.last.places.length) {
    run.begin(draft.positions.map(({ state, text }) => ({ given: state === "given", text: state === "given" ? text : "" })));
  }
  run.add(draft, draft.positions.map(lookOf));
}

function lookOf(position) {
  const { state, text, token, committed, eligible, confidence, persistence, jsd, candidates } = position;
  if (state === "given") return null;
  if (candidates === undefined) return state === "masked" ? null : { text, missed: true };
  const persists = persistence;
  return { text, token, committed, eligible, confidence, persists, jsd, candidates, top: candidates[0][0] };
}
