// From the server's draft events to frames of a run.

/** Add a draft to a run; the first one also sets the width of the canvas. */
export function addDraft(run, draft) {
  if (!run.last.places.length) {
    run.begin(draft.positions.map(({ state, text }) => ({ given: state === "given", text: state === "given" ? text : "" })));
  }
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
