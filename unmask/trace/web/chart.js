// Commits per step as bars, the mean JSD as a line: one small SVG.

import { draw, make, number } from "./dom.js";

const WIDTH = 600, HEIGHT = 96, FOOT = 4;

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
    const most = Math.max(1, ...steps.map((frame) => frame.commits));
    const drifts = steps.map((frame) => frame.jsd).filter((value) => value !== null);
    const top = Math.max(...drifts, 1e-9);
    const wide = WIDTH / this.#count();
    const high = HEIGHT - FOOT - 6;
    this.cursor = draw("rect", { class: "cursor", y: 0, width: wide, height: HEIGHT, x: -wide });
    const bars = steps.map((frame, index) => {
      const tall = frame.commits ? Math.max(3, high * (frame.commits / most)) : 1;
      const gap = Math.min(wide * 0.18, 3);
      return draw("rect", { class: `bar ${frame.commits ? frame.kind : "none"}`, x: index * wide + gap / 2, width: wide - gap, y: HEIGHT - FOOT - tall, height: tall });
    });
    const points = steps.map((frame, index) => frame.jsd === null ? null : `${(index + 0.5) * wide},${HEIGHT - FOOT - high * (frame.jsd / top)}`);
    const line = draw("polyline", { class: "drift", points: points.filter(Boolean).join(" ") });
    this.svg.replaceChildren(this.cursor, ...bars, ...(drifts.length ? [line] : []));
    const commits = `commits per step, at most ${most}`;
    const drift = drifts.length ? `mean JSD, at most ${number(top, 3)}` : "JSD is not known";
    this.svg.setAttribute("aria-label", `${commits}; ${drift}`);
    this.caption.replaceChildren(
      make("span", { className: "key bars" }, commits), make("span", { className: "key line" }, drift));
  }

  /** Put the cursor on a frame. */
  show(at) {
    this.cursor?.setAttribute("x", String((at - 1) * (WIDTH / this.#count())));
  }
}
