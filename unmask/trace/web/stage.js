// One or two runs side by side, on one time line, and the place where they first disagree.

import { LOOKS, heldBy } from "./cells.js";
import { disagreement } from "./differ.js";
import { END, make } from "./dom.js";
import { Panel } from "./panel.js";
import { Player } from "./player.js";
import { cuesOf, reasonOf } from "./signals.js";
import { verdict } from "./verdict.js";

const touch = matchMedia("(pointer: coarse)");

export class Stage {
  constructor(root) {
    this.player = new Player((at) => this.#show(at));
    this.panels = [];
    this.verdict = make("p", { className: "verdict", role: "status", hidden: true });
    this.row = make("div", { className: "panels" });
    this.legend = make("ul", { className: "legend", "aria-label": "Legend" });
    this.view = make("div", { className: "view" }, this.row, this.legend);
    root.append(this.player.element, this.verdict, this.view);
    this.row.addEventListener("click", (event) => touch.matches && this.#reveal(event));
    this.view.addEventListener("keydown", (event) => event.key === "Escape" && this.#inspect(null));
  }

  #inspected = null;
  #marks = null;

  /** Show these runs from their first frame on; `live`: they will grow. */
  show(runs, { live = false, play = true } = {}) {
    const seek = (at) => this.player.seek(at);
    this.panels = runs.map((run) => new Panel(run, { inspect: (index) => this.#inspect(index), seek }));
    this.row.replaceChildren(...this.panels.map((panel) => panel.element));
    this.view.classList.toggle("two", runs.length > 1);
    this.#marks = null;
    if (play) this.#inspected = null;
    this.verdict.hidden = true;
    this.grow(live);
    this.player.seek(live && play ? 0 : this.player.last);
    if (live && play) this.player.play();
  }

  /** The runs have new frames, or are over. */
  grow(live, { jump = false } = {}) {
    for (const panel of this.panels) panel.grow();
    const runs = this.panels.map((panel) => panel.run);
    if (!live) this.#judge(runs);
    this.legend.replaceChildren(...legend(runs, this.#cues(), this.#marks?.columns.length));
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

  /** Bring the details of a tapped position into view: on a phone they may be below the screen. */
  #reveal(event) {
    const panel = this.panels.find((each) => each.cells.element.contains(event.target));
    panel?.inspector.element.scrollIntoView({ block: "nearest" });
  }

  #inspect(index) {
    this.#inspected = index;
    for (const panel of this.panels) panel.inspect(index);
  }

  #judge(runs) {
    this.#marks = disagreement(runs);
    this.verdict.hidden = runs.length < 2;
    this.verdict.className = `verdict ${this.#marks === null ? "open" : this.#marks.first === null ? "same" : ""}`;
    if (runs.length > 1) this.verdict.replaceChildren(...verdict(runs, this.#marks));
  }
}

/** Legend entries of the states that these runs have had. */
function legend(runs, cues, differ) {
  const seen = new Set(["idle", "rule", ...runs.flatMap((run) => [...run.seen])]);
  const looks = [
    ...Object.keys(LOOKS).filter((kind) => seen.has(kind) && kind !== "given").map((kind) => ({ kind, ...LOOKS[kind], name: LOOKS[kind].name.replace("committed ", "") })),
    { kind: "rule fresh", cue: "", name: "committed in this step" },
    ...[...cues.keys()].filter((name) => seen.has(name)).map((name) => held(name, cues)),
    ...(seen.has("end") ? [{ kind: "rule ends", cue: "", name: "end of text", text: END }] : []),
    ...(differ ? [{ kind: "rule differs first", cue: "≠", name: "the runs differ" }] : []),
  ];
  const entries = looks.map(({ kind, cue, name, text = "token" }) =>
    make("li", {}, make("span", { className: `cell ${kind}`, "aria-hidden": "true", "data-cue": cue }, kind === "idle" ? "·" : text), name));
  return [...entries, make("li", { className: "hint" }, "Point at a position to see why.")];
}

/** How a place looks that a signal holds back, and why where no threshold tells it. */
function held(name, cues) {
  const look = heldBy(name, cues), reason = reasonOf(name);
  return reason === null ? look : { ...look, name: `${look.name}: ${reason}` };
}
