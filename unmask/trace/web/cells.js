// The canvas: one cell per position, in reading order. One stop for Tab; the arrow keys walk over the cells.

import { END, make, quoted, visible } from "./dom.js";

/** How a state is shown besides its colour, and its name. */
export const LOOKS = {
  rule: { cue: "", name: "committed by the rule" },
  forced: { cue: "F", name: "committed by force" },
  leftover: { cue: "L", name: "left over, filled at the end" },
  rewritten: { cue: "R", name: "rewritten" },
  missed: { cue: "?", name: "committed in a step that was not received" },
  revoked: { cue: "×", name: "revoked: masked again" },
  waiting: { cue: "", name: "waits its turn" },
  idle: { cue: "", name: "mask" },
  given: { cue: "", name: "given" },
};

/** How a place looks: { kind, cue, name }. `cues` has a colour and a letter for each signal that can hold it. */
export function lookOf(place, cues) {
  if (place.state === "held" && place.reasons.length) return heldBy(place.reasons[0], cues);
  const kind = place.state === "committed" ? place.by : place.state === "held" ? "waiting" : place.state;
  return { kind, ...LOOKS[kind] };
}

/** How a place looks that a signal holds back. */
export function heldBy(name, cues) {
  const { tone, cue } = cues.get(name);
  return { kind: `held ${tone}`, cue, name: `held by ${name}`, reason: name };
}

export class Cells {
  constructor(label, inspect) {
    this.element = make("div", { className: "canvas", role: "listbox", "aria-label": label });
    this.cells = [];
    this.element.addEventListener("pointerover", (event) => this.#at(event, inspect));
    this.element.addEventListener("focusin", (event) => this.#at(event, inspect));
    this.element.addEventListener("click", (event) => this.#at(event, (index) => this.focus(index)));
    this.element.addEventListener("keydown", (event) => this.#walk(event));
  }

  /** Show a frame; `marks` holds the positions that differ from the other run's. */
  show(frame, marks, cues) {
    while (this.cells.length < frame.places.length) this.#append();
    while (this.cells.length > frame.places.length) this.cells.pop().remove();
    frame.places.forEach((place, index) => this.#paint(this.cells[index], place, index, { frame, marks, cues }));
  }

  /** Mark the position that is inspected. */
  select(index) {
    this.cells.forEach((cell, at) => {
      const chosen = String(at === index);
      if (cell.getAttribute("aria-selected") !== chosen) cell.setAttribute("aria-selected", chosen);
    });
  }

  focus(index) {
    const cell = this.cells[index];
    if (!cell) return;
    for (const other of this.cells) other.tabIndex = -1;
    cell.tabIndex = 0;
    cell.focus();
  }

  #append() {
    const index = this.cells.length;
    const cell = make("span", { className: "cell", role: "option", "aria-selected": "false", tabIndex: index ? -1 : 0 });
    this.cells.push(cell);
    this.element.append(cell);
  }

  #paint(cell, place, index, { frame, marks, cues }) {
    const look = lookOf(place, cues);
    const idle = place.state === "idle";
    const differs = Boolean(marks) && place.state === "committed" && marks.columns.includes(index);
    const first = differs && (index === marks.first || index === marks.earliest);
    const fresh = place.frame === frame;
    const text = idle ? "·" : visible(place.text);
    const marked = { fresh, differs, first, ends: text === END, breaks: text.includes("\n") };
    cell.className = ["cell", look.kind, ...Object.keys(marked).filter((name) => marked[name])].join(" ");
    if (cell.textContent !== text) cell.textContent = text;
    cell.dataset.cue = first ? "≠" : look.cue;
    cell.dataset.reason = look.reason ?? "";
    const token = idle ? "" : ` ${quoted(place.text)},`;
    cell.setAttribute("aria-label", `${index + 1}:${token} ${look.name}${differs ? ", the runs differ" : ""}`);
  }

  #at(event, act) {
    const index = this.cells.indexOf(event.target.closest(".cell"));
    if (index >= 0) act(index);
  }

  #walk(event) {
    const at = this.cells.indexOf(document.activeElement);
    const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: this.cells.length - 1 };
    const to = event.key === "ArrowUp" || event.key === "ArrowDown" ? this.#line(at, event.key === "ArrowDown") : moves[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    this.focus(Math.min(Math.max(to, 0), this.cells.length - 1));
  }

  /** The cell nearest above or below another. */
  #line(at, down) {
    const middle = (cell) => { const box = cell.getBoundingClientRect(); return { x: (box.left + box.right) / 2, y: box.bottom }; };
    const from = middle(this.cells[at]);
    let best = at, least = Infinity;
    this.cells.forEach((cell, index) => {
      const to = middle(cell), rise = down ? to.y - from.y : from.y - to.y;
      const cost = 8 * rise + Math.abs(to.x - from.x);
      if (rise > 4 && cost < least) [best, least] = [index, cost];
    });
    return best;
  }
}
