// Commits and revocations per step as bars, the mean of one signal as a line: one small SVG.

import { draw, make } from "./dom.js";
import { valueText } from "./signals.js";

const WIDTH = 600, HEIGHT = 96, FOOT = 4, HIGH = HEIGHT - FOOT - 6;

export class Chart {
  constructor(seek) {
    this.svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", class: "chart" });
    this.caption = make("figcaption");
    this.element = make("figure", {}, this.caption, this.svg);
    this.cursor = null;
    this.run = null;
    this.svg.addEventListener("click", (event) => {
      const box = this.svg.getBoundingClientRect();
      seek(Math.ceil(((event.clientX - box.left) / box.width) * this.#count()));
    });
  }

  #count() {
    return Math.max(1, (this.run?.frames.length ?? 1) - 1);
  }

  /** Draw a run; needed once per new frame. */
  draw(run) {
    this.run = run;
    const steps = run.frames.slice(1);
    const most = Math.max(1, ...steps.map((frame) => Math.max(frame.commits, frame.revoked)));
    const wide = WIDTH / this.#count();
    this.cursor = draw("rect", { class: "cursor", y: 0, width: wide, height: HEIGHT, x: -wide });
    const bar = (kind, count, index, width) => {
      const tall = count ? Math.max(3, HIGH * (count / most)) : 1;
      const gap = Math.min(wide * 0.18, 3);
      return draw("rect", { class: kind, x: index * wide + gap / 2, width: width - gap, y: HEIGHT - FOOT - tall, height: tall });
    };
    const bars = steps.map((frame, index) => bar(`bar ${frame.commits ? frame.kind : "none"}`, frame.commits, index, wide));
    const undone = steps.flatMap((frame, index) => (frame.revoked ? [bar("undone", frame.revoked, index, Math.max(wide / 2, 4))] : []));
    const { line, text } = meanLine(run, steps, wide);
    this.svg.replaceChildren(this.cursor, ...bars, ...undone, ...(line ? [line] : []));
    const commits = `commits per step, at most ${most}`;
    const keys = [["bars", commits], ...(undone.length ? [["revoked", "revoked per step"]] : []), ["line", text]];
    this.svg.setAttribute("aria-label", keys.map(([, words]) => words).join("; "));
    this.caption.replaceChildren(...keys.map(([kind, words]) => make("span", { className: `key ${kind}` }, words)));
  }

  /** Put the cursor on a frame. */
  show(at) {
    this.cursor?.setAttribute("x", String((at - 1) * (WIDTH / this.#count())));
  }
}

/** The mean of one signal per step as a line, and its caption. */
function meanLine(run, steps, wide) {
  const numeric = run.signals.filter((name) => steps.some((frame) => name in frame.means));
  const limited = numeric.filter((each) => run.reasons.includes(each));
  const name = limited.includes("jsd") ? "jsd" : limited[0] ?? numeric[0];
  if (name === undefined) return { line: null, text: "no signal has a number" };
  const values = steps.map((frame) => frame.means[name]);
  const known = values.filter((value) => value !== undefined);
  const top = Math.max(...known, 1e-9), floor = Math.min(...known, 0);
  const high = (value) => HEIGHT - FOOT - HIGH * ((value - floor) / (top - floor));
  const points = values.map((value, index) => (value === undefined ? null : `${(index + 0.5) * wide},${high(value)}`));
  const line = draw("polyline", { class: "drift", points: points.filter(Boolean).join(" ") });
  return { line, text: `mean ${name}, at most ${valueText(Math.max(...known))}` };
}
