// One or two runs side by side, on one time line, and the place where they first disagree.

import { LOOKS, heldBy } from "./cells.js";
import { disagreement } from "./differ.js";
import { make, plural, quoted } from "./dom.js";
import { Panel } from "./panel.js";
import { Player } from "./player.js";
import { cuesOf } from "./signals.js";

export class Stage {
  constructor(root) {
    this.player = new Player((at) => this.#show(at));
    this.panels = [];
    this.verdict = make("p", { className: "verdict", role: "status", hidden: true });
    this.row = make("div", { className: "panels" });
    this.legend = make("ul", { className: "legend", "aria-label": "Legend" });
    root.append(this.player.element, this.verdict, this.row, this.legend);
  }

  #inspected = null;
  #marks = null;

  /** Show these runs from their first frame on; `live`: they will grow. */
  show(runs, { live = false, play = true } = {}) {
    const act = { inspect: (index) => this.#inspect(index), seek: (at) => this.player.seek(at) };
    this.panels = runs.map((run) => new Panel(run, act));
    this.row.replaceChildren(...this.panels.map((panel) => panel.element));
    this.row.classList.toggle("two", runs.length > 1);
    this.#marks = null;
    this.verdict.hidden = true;
    this.grow(live);
    this.player.seek(live && play ? 0 : this.player.last);
    if (live && play) this.player.play();
  }

  /** The runs have new frames, or are over. */
  grow(live, { jump = false } = {}) {
    for (const panel of this.panels) panel.grow();
    const runs = this.panels.map((panel) => panel.run);
    this.legend.replaceChildren(...legend(runs, this.#cues()));
    if (!live) this.#judge();
    this.player.grow(Math.max(...this.panels.map((panel) => panel.run.frames.length - 1)), live);
    if (jump) this.player.seek(this.player.last);
    else this.#show(this.player.at);
  }

  /** How to tell apart the signals that hold positions back, the same in all runs. */
  #cues() {
    return cuesOf([...new Set(this.panels.flatMap((panel) => panel.run.reasons))]);
  }

  #show(at) {
    const cues = this.#cues();
    for (const panel of this.panels) panel.show(at, this.#marks, cues);
    this.#inspect(this.#inspected);
  }

  #inspect(index) {
    this.#inspected = index;
    for (const panel of this.panels) panel.inspect(index);
  }

  #judge() {
    this.#marks = disagreement(this.panels.map((panel) => panel.run));
    this.verdict.hidden = this.#marks === null;
    this.verdict.classList.toggle("same", this.#marks?.first === null);
    if (this.#marks !== null) this.verdict.textContent = this.#sentence(this.#marks);
  }

  #sentence({ columns, first, earliest, step }) {
    const [left, right] = this.panels.map((panel) => panel.run);
    if (first === null) return "Both runs wrote the same tokens.";
    const wrote = (run, index) => `${run.sampler} wrote ${quoted(run.last.places[index].text)}`;
    const where = `They first disagree at position ${first + 1}: ${wrote(left, first)}, ${wrote(right, first)}.`;
    const when = earliest === first ? `This shows from step ${step} on.` : `In time, position ${earliest + 1} is the first to differ, from step ${step} on.`;
    return `${where} ${when} ${plural(columns.length, "position")} differ${columns.length === 1 ? "s" : ""} in all.`;
  }
}

/** Legend entries of all states that these runs can have. */
function legend(runs, cues) {
  const some = (name) => runs.some((run) => run.last.totals[name] > 0);
  const plain = (kind) => ({ kind, ...LOOKS[kind] });
  const looks = [
    plain("rule"), plain("forced"), plain("leftover"), ...(some("rewritten") ? [plain("rewritten")] : []),
    ...[...cues.keys()].map((name) => heldBy(name, cues)), plain("waiting"),
    ...(some("revoked") ? [plain("revoked")] : []), plain("idle"),
    { kind: "rule differs first", cue: "≠", name: "the runs differ" },
  ];
  return looks.map(({ kind, cue, name }) =>
    make("li", {}, make("span", { className: `cell ${kind}`, "aria-hidden": "true", "data-cue": cue }, kind === "idle" ? "·" : "token"), name));
}
