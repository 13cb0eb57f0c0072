// The page of a running server: ask, and watch the answer come.

import { Server, ServerError, UNREACHABLE } from "./api.js";
import { Demo } from "./demo.js";
import { byId, make, oncePerFrame, plural, still } from "./dom.js";
import { addDraft, finish } from "./drafts.js";
import { Run } from "./run.js";
import { share } from "./share.js";
import { Slot } from "./slot.js";
import { Stage } from "./stage.js";

const CANDIDATES = 6;
const QUIET = 200; // milliseconds without a move, after which a slider decodes again
const SETTINGS = ["max_tokens", "steps", "temperature", "seed"];
const RIVAL = "base"; // the sampler to compare with
const narrow = matchMedia("(max-width: 860px)"); // as in style.css: the canvas is below the form

const server = new Server();
const stage = new Stage(byId("stage"));
const slots = [
  new Slot("Sampler", { optional: false, moved: () => again() }),
  new Slot("Compare with", { optional: true, moved: () => again() }),
];
const save = make("button", { type: "button", title: "Save this replay as one file that opens anywhere" }, "Share");
let running = null; // an AbortController while something is decoded
let waiting = 0; // the timer of a slider that has just moved
let demo = null; // the recorded run, until there is a real one

async function connect() {
  try {
    const model = await server.model();
    const { sampler_fields: known, sampler_words: words = {}, sampler } = model.unmask;
    slots[0].offer(known, words, sampler);
    slots[1].offer(known, words, RIVAL in known ? RIVAL : "");
    byId("model").textContent = model.id;
    limit(model.unmask);
    byId("decode").disabled = false;
    tell("");
  } catch (error) {
    fail(error);
  }
}

/** Take the server's limits and defaults into the form. */
function limit({ chat, new_tokens, max_new_tokens, max_steps }) {
  byId("max_tokens").value = Math.min(new_tokens, 64);
  byId("max_tokens").max = max_new_tokens;
  byId("steps").max = max_steps;
  byId("format").value = chat ? "chat" : "text";
}

/** Decode the prompt with every chosen sampler; `jump`: show the end at once. */
async function decode({ jump = false } = {}) {
  clearTimeout(waiting);
  running?.abort();
  const prompt = byId("prompt").value;
  if (!prompt.trim()) return fail(new ServerError("the prompt is empty; write one, or choose an example"));
  const mine = new AbortController();
  running = mine;
  note("decoding", "Decoding.");
  tell("");
  const chosen = slots.filter((slot) => slot.name);
  const model = byId("model").textContent;
  const runs = chosen.map((slot) => new Run({ sampler: slot.name, fields: slot.fields, lines: slot.lines, model }));
  const view = { runs, shown: false, jump };
  const grew = oncePerFrame(() => running === mine && grow(view));
  try {
    await Promise.all(runs.map((run, index) => receive(run, request(prompt, chosen[index]), mine.signal, grew)));
    if (!view.shown) show(view);
    stage.grow(false, { jump });
    note("done", runs.map((run) => `${run.sampler} took ${plural(run.facts.steps, "step")}.`).join(" "));
  } catch (error) {
    if (error.name !== "AbortError") mine.abort(); // one run alone is of no use
    if (running === mine) stopped(error, view);
  }
  for (const run of runs) run.prompt = prompt; // for a file that shows it
  if (running === mine) running = null;
}

/** Show new frames; before the first one, the earlier runs stay. */
function grow(view) {
  if (view.shown) stage.grow(true);
  else if (!view.jump && view.runs.some((run) => run.drafts.length)) show(view);
}

function show(view) {
  view.shown = true;
  demo?.pause();
  byId("empty").hidden = true;
  byId("stage").hidden = false;
  stage.show(view.runs, { live: true, play: !view.jump });
  if (narrow.matches && !view.jump) byId("stage").scrollIntoView({ behavior: still() ? "auto" : "smooth" });
}

function stopped(error, view) {
  if (view.shown) stage.grow(false);
  note("stopped", "Stopped.");
  if (error.name !== "AbortError") fail(error);
}

/** Take an answer into a run as it comes. */
async function receive(run, { path, body }, signal, grew) {
  const began = performance.now();
  for await (const { event, data } of server.decode(path, body, signal)) {
    if (event === "draft") addDraft(run, data);
    else {
      const [choice] = data.choices;
      run.text += choice?.delta?.content ?? choice?.text ?? "";
      finish(run, data.unmask ?? run.facts);
    }
    run.seconds = (performance.now() - began) / 1000;
    grew();
  }
}

function request(prompt, slot) {
  const chat = byId("format").value === "chat";
  const body = { stream: true, drafts: true, draft_candidates: CANDIDATES, sampler: slot.name, sampler_fields: slot.changes };
  for (const name of SETTINGS) {
    if (byId(name).value !== "") body[name] = Number(byId(name).value);
  }
  const length = byId("block_length").value.trim();
  if (length) body.block_length = /^\d+$/.test(length) ? Number(length) : length;
  if (byId("regex").value) body.regex = byId("regex").value;
  if (chat) return { path: "v1/chat/completions", body: { ...body, messages: [{ role: "user", content: prompt }] } };
  return { path: "v1/completions", body: { ...body, prompt } };
}

/** Decode once more when a slider rests. */
function again() {
  clearTimeout(waiting);
  if (byId("stage").hidden) return;
  waiting = setTimeout(() => decode({ jump: true }), QUIET);
}

function fail(error) {
  if (!(error instanceof ServerError)) console.error(error);
  tell(error instanceof ServerError ? error.message : `The page failed: ${error.message}.`);
  if (error.status === 401) {
    byId("access").open = true;
    byId("key").focus();
  }
}

/** Report that a file of the page did not come. */
function unreachable(error) {
  fail(error instanceof TypeError ? new ServerError(UNREACHABLE) : error);
}

/** Say what the page is doing, for styles and for screen readers. */
function note(state, sentence) {
  document.body.dataset.state = state;
  byId("status").textContent = sentence;
  byId("decode").textContent = state === "decoding" ? "Stop" : "Decode";
  save.disabled = state === "decoding";
}

function tell(sentence) {
  byId("error").textContent = sentence;
  byId("error").hidden = !sentence;
  if (sentence) byId("error").scrollIntoView({ block: "nearest" });
}

/** Take an error away when the user does something about it; one of the connection stays until there is one. */
function forgive() {
  if (!byId("decode").disabled) tell("");
}

function offerExamples(examples) {
  for (const { name, prompt } of examples) {
    const button = make("button", { type: "button", className: "chip", title: prompt }, name);
    button.addEventListener("click", () => {
      byId("prompt").value = prompt;
      if (!byId("decode").disabled) decode();
    });
    byId("examples").append(button);
  }
}

function startDemo(record) {
  demo = new Demo(record);
  byId("empty").append(demo.element);
  if (byId("empty").hidden) demo.pause();
}

/** Use a file of the page when it has come. */
async function use(name, act) {
  const response = await fetch(new URL(`page/${name}`, document.baseURI));
  act(await response.json());
}

byId("slots").append(...slots.map((slot) => slot.element));
stage.player.element.append(save);
save.addEventListener("click", () => share(stage.panels.map((panel) => panel.run)).catch(unreachable));
byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) running.abort();
  else decode();
});
for (const act of ["input", "invalid"]) byId("form").addEventListener(act, forgive, true);
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !byId("decode").disabled) decode();
});
byId("key").addEventListener("change", () => {
  server.key = byId("key").value;
  connect();
});
use("examples.json", offerExamples).catch(unreachable);
use("demo.json", startDemo).catch(unreachable);
connect();
