// Where two decodings of the same prompt disagree.

/** The positions that both have committed, to different tokens; null unless there are two finished runs. */
export function disagreement(runs) {
  if (runs.length < 2 || !runs.every((run) => run.complete)) return null;
  const [left, right] = runs.map((run) => run.last.places);
  const length = Math.min(left.length, right.length, Math.max(lengthOf(left), lengthOf(right)));
  const columns = [];
  for (let index = 0; index < length; index++) {
    if (differ(left[index], right[index])) columns.push(index);
  }
  const step = (index) => Math.max(left[index].step ?? 0, right[index].step ?? 0);
  const earliest = columns.reduce((best, index) => (best === null || step(index) < step(best) ? index : best), null);
  return { columns, first: columns[0] ?? null, earliest, step: earliest === null ? null : step(earliest) };
}

/** The number of positions up to the first end of text; all of them if given text stands between gaps. */
function lengthOf(places) {
  const end = places.findIndex((place) => place.state === "committed" && place.text === "");
  return end < 0 || places.some((place) => place.state === "given") ? places.length : end + 1;
}

function differ(left, right) {
  if (left.state !== "committed" || right.state !== "committed") return false;
  const named = left.token !== undefined && right.token !== undefined;
  return named ? left.token !== right.token : left.text !== right.text;
}
