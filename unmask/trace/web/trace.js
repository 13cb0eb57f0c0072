// The page of one trace, or of two.

import { byId, make } from "./dom.js";
import { Stage } from "./stage.js";
import { runOf } from "./traced.js";

const traces = JSON.parse(byId("traces").textContent);
const stage = new Stage(byId("stage"));
const rows = Math.min(...traces.map((trace) => trace.header.canvas.length));
const names = traces.map(({ header }) => header.sampler).join(" and ");

function showRow(row) {
  stage.show(traces.map((trace) => runOf(trace, row)));
}

document.title = `${names} · unmask trace`;
byId("subtitle").textContent = `${names} on ${traces[0].header.model}`;
if (rows > 1) {
  const pick = make("select", {}, ...Array.from({ length: rows }, (_, row) => new Option(row, row)));
  pick.addEventListener("change", () => showRow(Number(pick.value)));
  byId("subtitle").after(make("label", { className: "row" }, "Row ", pick));
}
showRow(0);
const wanted = /^#(\d+)$/.exec(location.hash);
if (wanted) stage.player.seek(Number(wanted[1]));
