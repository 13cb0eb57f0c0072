// Save the runs of this page as one file that opens without a server.

import { make } from "./dom.js";
import { record } from "./drafts.js";

const TEMPLATE = "page/trace.html";
const DATA = "{{data}}";

/** Download a page that replays these runs. */
export async function share(runs) {
  const template = await (await fetch(new URL(TEMPLATE, document.baseURI))).text();
  const url = URL.createObjectURL(new Blob([filled(template, runs.map(record))], { type: "text/html" }));
  make("a", { href: url, download: `unmask-${runs.map((run) => run.sampler).join("-")}.html` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // the browser may still read it
}

/** The template with its data, as JSON in which no text can end the script element. */
function filled(template, data) {
  return template.replace(DATA, () => JSON.stringify(data).replaceAll("<", "\\u003c"));
}
