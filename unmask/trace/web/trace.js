// The page of one trace, or of two.

import { byId, make } from "./dom.js";
import { replayed } from "./drafts.js";
import { Stage } from "./stage.js";
import { runOf } from "./traced.js";

const traces = JSON.parse(byId("traces").textContent);
const stage = new Stage(byId("stage"));
const received = "drafts" in traces[0]; // saved by the server's page
const rows = received ? 1 : Math.min(...traces.map((trace) => trace.header.canvas.length));
const abouts = traces.map((trace) => trace.header ?? trace);
const names = abouts.map((about) => about.sampler).join(" and ");

function showRow(row) {
  stage.show(traces.map((trace) => (received ? replayed(trace) : runOf(trace, row))));
}

document.title = `${names} · unmask trace`;
byId("subtitle").textContent = `${names} on ${abouts[0].model}`;
if (rows > 1) {
  const pick = make("select", {}, ...Array.from({ length: rows }, (_, row) => new Option(row, row)));
  pick.addEventListener("change", () => showRow(Number(pick.value)));
  byId("subtitle").after(make("label", { className: "row" }, "Row ", pick));
}
showRow(0);
const wanted = /^#(\d+)$/.exec(location.hash);
if (wanted) stage.player.seek(Number(wanted[1]));
