// A recorded run that plays until there is a real one: the same prompt under two samplers.

import { make, plural, still, visible } from "./dom.js";

const PACE = 6; // steps in a second
const REST = 3 * PACE; // ticks at the end, before it begins again

export class Demo {
  constructor({ prompt, runs }) {
    this.runs = runs.map((run) => new DemoRun(run));
    this.last = Math.max(...runs.map((run) => run.forwards));
    this.button = make("button", { type: "button" }, "Pause");
    this.button.addEventListener("click", () => (this.timer ? this.pause() : this.play()));
    this.element = make("figure", { className: "demo" },
      make("figcaption", {}, make("b", {}, "A recorded run"), make("span", {}, prompt), this.button),
      make("div", { className: "demo-runs" }, ...this.runs.map((run) => run.element)));
    this.show(this.last);
    if (still()) this.pause();
    else this.play();
  }

  play() {
    let at = 0;
    this.timer = setInterval(() => this.show(Math.min(at++ % (this.last + REST), this.last)), 1000 / PACE);
    this.button.textContent = "Pause";
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.show(this.last);
    this.button.textContent = "Play";
  }

  show(at) {
    for (const run of this.runs) run.show(at);
  }
}

/** One sampler of the recorded run; `positions` hold a text, the step that wrote it, and what let it. */
class DemoRun {
  constructor({ sampler, forwards, positions }) {
    Object.assign(this, { forwards, positions });
    this.count = make("span", { className: "demo-count" });
    this.cells = positions.map(() => make("span"));
    const words = `${sampler} fills the canvas in ${plural(forwards, "forward")}`;
    this.element = make("section", {}, make("h3", {}, sampler, this.count),
      make("div", { className: "canvas", role: "img", "aria-label": words }, ...this.cells));
  }

  show(at) {
    const step = Math.min(at, this.forwards);
    this.count.textContent = plural(step, "forward");
    this.element.classList.toggle("over", step === this.forwards);
    this.positions.forEach(([text, wrote, by], index) => {
      const kind = wrote > step ? "idle" : `${by}${text === "" ? " ends" : ""}${wrote === at ? " fresh" : ""}`;
      this.cells[index].className = `cell ${kind}`;
      this.cells[index].textContent = wrote > step ? "·" : visible(text);
    });
  }
}
