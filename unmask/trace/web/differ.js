// Where two decodings of the same prompt disagree.

/** The positions that both have committed, to different tokens; null if there are fewer than two runs. */
export function disagreement(runs) {
  if (runs.length < 2) return null;
  const [left, right] = runs.map((run) => run.last.places);
  const columns = [];
  for (let index = 0; index < Math.min(left.length, right.length); index++) {
    if (differ(left[index], right[index])) columns.push(index);
  }
  const step = (index) => Math.max(left[index].step ?? 0, right[index].step ?? 0);
  const earliest = columns.reduce((best, index) => (best === null || step(index) < step(best) ? index : best), null);
  return { columns, first: columns[0] ?? null, earliest, step: earliest === null ? null : step(earliest) };
}

function differ(left, right) {
  if (left.state !== "committed" || right.state !== "committed") return false;
  const named = left.token !== undefined && right.token !== undefined;
  return named ? left.token !== right.token : left.text !== right.text;
}
