// The way through the steps: a slider, a play button, a pace.

import { make, still } from "./dom.js";

const PACES = [["live", "as decoded"], ["4", "4 / s"], ["12", "12 / s"], ["30", "30 / s"]];
const USUAL = "4";

export class Player {
  constructor(show) {
    this.at = 0;
    this.last = 0;
    this.#show = show;
    this.slider = make("input", { type: "range", min: 0, max: 0, value: 0, id: "step", "aria-label": "Step" });
    this.button = make("button", { type: "button", className: "play" }, "Play");
    this.now = make("output", { className: "now", htmlFor: "step" });
    this.pace = make("select", { "aria-label": "Pace" }, ...PACES.map(([value, name]) => new Option(name, value)));
    this.pace.value = still() ? "live" : USUAL;
    const back = make("button", { type: "button", "aria-label": "One step back" }, "◀");
    const on = make("button", { type: "button", "aria-label": "One step on" }, "▶");
    this.element = make("div", { className: "player" }, this.button, back, this.slider, on, this.now, this.pace);
    this.slider.addEventListener("input", () => this.seek(Number(this.slider.value)));
    this.button.addEventListener("click", () => (this.playing ? this.pause() : this.play(this.at >= this.last)));
    this.pace.addEventListener("change", () => this.playing && this.play());
    back.addEventListener("click", () => this.seek(this.at - 1));
    on.addEventListener("click", () => this.seek(this.at + 1));
  }

  #show;
  #timer = null;

  get playing() {
    return this.#timer !== null;
  }

  /** Set the number of frames; `live`: more will come. */
  grow(last, live) {
    this.last = last;
    this.live = live;
    this.slider.max = last;
    if (this.playing && this.pace.value === "live") this.#go(last);
    else this.#tell();
  }

  /** Play on, or once more from the start. */
  play(again = false) {
    this.pause();
    if (again) this.#go(0);
    const pace = this.pace.value === "live" && !this.live ? USUAL : this.pace.value;
    this.#timer = setInterval(() => this.#tick(), pace === "live" ? 40 : 1000 / Number(pace));
    this.button.textContent = "Pause";
  }

  pause() {
    clearInterval(this.#timer);
    this.#timer = null;
    this.button.textContent = "Play";
  }

  /** Stop at a frame. */
  seek(at) {
    this.pause();
    this.#go(at);
  }

  #tick() {
    if (this.at < this.last) this.#go(this.pace.value === "live" && this.live ? this.last : this.at + 1);
    else if (!this.live) this.pause();
  }

  #go(at) {
    this.at = Math.min(Math.max(at, 0), this.last);
    this.#tell();
    this.#show(this.at);
  }

  #tell() {
    this.slider.value = this.at;
    this.now.value = `${this.at} / ${this.last}`;
    this.slider.setAttribute("aria-valuetext", `step ${this.at} of ${this.last}`);
  }
}
