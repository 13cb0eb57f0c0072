// The page of a running server: ask, and watch the answer come.

import { Server, ServerError } from "./api.js";
import { byId, make, plural } from "./dom.js";
import { addDraft } from "./drafts.js";
import { EXAMPLES } from "./examples.js";
import { Run } from "./run.js";
import { Slot } from "./slot.js";
import { Stage } from "./stage.js";

const CANDIDATES = 6;
const QUIET = 200; // milliseconds without a move, after which a slider decodes again
const SETTINGS = ["max_tokens", "steps", "temperature", "seed"];

const server = new Server();
const stage = new Stage(byId("stage"));
const slots = [
  new Slot("Sampler", { optional: false, moved: () => again() }),
  new Slot("Compare with", { optional: true, moved: () => again() }),
];
let running = null; // an AbortController while something is decoded
let waiting = 0; // the timer of a slider that has just moved

async function connect() {
  try {
    const model = await server.model();
    const { sampler_fields: known, sampler, chat, new_tokens, max_new_tokens, max_steps } = model.unmask;
    slots[0].offer(known, sampler);
    slots[1].offer(known, "");
    byId("model").textContent = model.id;
    byId("max_tokens").value = Math.min(new_tokens, 64);
    byId("max_tokens").max = max_new_tokens;
    byId("steps").max = max_steps;
    byId("format").value = chat ? "chat" : "text";
    byId("decode").disabled = false;
    tell("");
  } catch (error) {
    fail(error);
  }
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
  byId("decode").textContent = "Stop";
  tell("");
  const chosen = slots.filter((slot) => slot.name);
  const runs = chosen.map((slot) => new Run({ sampler: slot.name, fields: slot.fields }));
  const shown = { done: false };
  if (!jump) show(runs, shown);
  const grew = oncePerFrame(() => running === mine && shown.done && stage.grow(true));
  try {
    await Promise.all(runs.map((run, index) => receive(run, request(prompt, chosen[index]), mine.signal, grew)));
    if (jump) show(runs, shown);
    stage.grow(false, { jump });
    note("done", runs.map((run) => `${run.sampler} took ${plural(run.facts.steps, "step")}.`).join(" "));
  } catch (error) {
    if (error.name !== "AbortError") mine.abort(); // one run alone is of no use
    if (running === mine) stopped(error, shown);
  }
  if (running === mine) {
    running = null;
    byId("decode").textContent = "Decode";
  }
}

function show(runs, shown) {
  shown.done = true;
  byId("empty").hidden = true;
  byId("stage").hidden = false;
  stage.show(runs, { live: true });
}

function stopped(error, shown) {
  if (shown.done) stage.grow(false);
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
      run.facts = data.unmask ?? run.facts;
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

/** Say what the page is doing, for styles and for screen readers. */
function note(state, sentence) {
  document.body.dataset.state = state;
  byId("status").textContent = sentence;
}

/** A function that acts when the next frame is drawn, however often it is called before. */
function oncePerFrame(act) {
  let due = false;
  return () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      act();
    });
  };
}

function tell(sentence) {
  byId("error").textContent = sentence;
  byId("error").hidden = !sentence;
}

for (const [name, prompt] of EXAMPLES) {
  const button = make("button", { type: "button", className: "chip", title: prompt }, name);
  button.addEventListener("click", () => {
    byId("prompt").value = prompt;
    if (!byId("decode").disabled) decode();
  });
  byId("examples").append(button);
}
byId("slots").append(...slots.map((slot) => slot.element));
byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) running.abort();
  else decode();
});
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !byId("decode").disabled) decode();
});
byId("key").addEventListener("change", () => {
  server.key = byId("key").value;
  connect();
});
connect();
