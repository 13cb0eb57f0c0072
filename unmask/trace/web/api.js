// The server: its model, and answers as they are decoded. The key stays in this object.

export const UNREACHABLE = "the server cannot be reached; is it still running?";

/** An answer that is an error, as a sentence. */
export class ServerError extends Error {
  constructor(message, status = 0) {
    super(sentence(message));
    this.status = status;
  }
}

export class Server {
  key = "";

  /** The model, with its samplers and limits. */
  async model() {
    const list = await (await this.#call("v1/models")).json();
    const name = list.data[0].id;
    return (await this.#call(`v1/models/${name.split("/").map(encodeURIComponent).join("/")}`)).json();
  }

  /** The events of an answer: { event, data }. */
  async *decode(path, body, signal) {
    const response = await this.#call(path, { method: "POST", body: JSON.stringify(body), signal });
    for await (const event of events(response.body)) {
      if (event.data.error) throw new ServerError(event.data.error.message);
      yield event;
    }
  }

  async #call(path, options = {}) {
    const headers = { "Content-Type": "application/json", ...(this.key ? { Authorization: `Bearer ${this.key}` } : {}) };
    let response;
    try {
      response = await fetch(new URL(path, document.baseURI), { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ServerError(UNREACHABLE);
    }
    if (!response.ok) throw new ServerError(await reason(response), response.status);
    return response;
  }
}

async function reason(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered with status ${response.status}`;
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await read(reader);
    if (done) throw new ServerError("the answer broke off before its end; is the server still running?");
    const pieces = (rest + value).split("\n\n");
    rest = pieces.pop();
    for (const piece of pieces) {
      const found = parse(piece);
      if (found === "over") return;
      if (found) yield found;
    }
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return { done: true };
  }
}

function parse(piece) {
  const lines = piece.split("\n");
  const field = (name) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
  const data = field("data");
  if (data === undefined) return null; // a comment that keeps the line open
  return data === "[DONE]" ? "over" : { event: field("event") ?? "message", data: JSON.parse(data) };
}

/** With a capital and a full stop. */
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.?!]$/.test(text) ? "" : ".");
