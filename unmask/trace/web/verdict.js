// What a comparison of two runs shows, in words.

import { make, plural, quoted } from "./dom.js";

/** The parts of a sentence on two runs; `marks` says where they part, null if one of them did not finish. */
export function verdict(runs, marks) {
  if (marks === null) return [unfinished(runs)];
  const same = marks.first === null;
  return [make("strong", {}, `${cost(runs)}${same ? ", the same text" : ""}.`), same ? "" : ` ${parting(runs, marks)}`];
}

function unfinished(runs) {
  const names = runs.filter((run) => !run.complete).map((run) => run.sampler);
  return `${names.join(" and ")} did not finish, so the two are not compared.`;
}

function cost([left, right]) {
  const [own, other] = [left.forwards, right.forwards];
  if (own === other) return `${plural(own, "forward")} each`;
  return own < other ? `${plural(own, "forward")} instead of ${other}` : `${plural(own, "forward")} where ${right.sampler} takes ${other}`;
}

function parting([left, right], { columns, first, earliest, step }) {
  const wrote = (run) => `${run.sampler} wrote ${quoted(run.last.places[first].text)}`;
  const where = `The texts part at position ${first + 1}: ${wrote(left)}, ${wrote(right)}.`;
  const when = earliest === first ? `This shows from step ${step} on.` : `In time, position ${earliest + 1} is the first to differ, from step ${step} on.`;
  return `${where} ${when} ${plural(columns.length, "position")} differ${columns.length === 1 ? "s" : ""} in all.`;
}
