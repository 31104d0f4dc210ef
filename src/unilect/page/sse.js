/**
 * Server-sent events, out of a response that is read piece by piece: an EventSource can send no key.
 *
 * Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
 */

const MAX_LINE = 16 * 1024 * 1024;

/** Yield the events of a response as `{ id, name, data }`; comments are left out unless they are asked for (`name` is then ":"). */
export async function* readEvents(response, { comments = false } = {}) {
  let event = { id: null, name: "message", lines: [] };
  for await (const line of readLines(response)) {
    if (line === "") {
      if (event.lines.length) yield { id: event.id, name: event.name, data: event.lines.join("\n") };
      event = { id: event.id, name: "message", lines: [] };
      continue;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
    if (field === "data") event.lines.push(value);
    else if (field === "event") event.name = value;
    else if (field === "id") event.id = value;
    else if (field === "" && comments) yield { id: event.id, name: ":", data: value };
  }
}

/** Yield the lines of a response, however its pieces are cut. */
export async function* readLines(response) {
  let pieces = []; // of the line that has not ended: joined once, so that a long line costs no more than its length
  let length = 0;
  for await (const piece of readPieces(response)) {
    const lines = piece.split("\n");
    for (const [at, text] of lines.entries()) {
      pieces.push(text);
      length += text.length;
      if (length > MAX_LINE) throw new Error("The server has sent a line of more than 16 MB.");
      if (at === lines.length - 1) break;
      const line = pieces.join("");
      [pieces, length] = [[], 0];
      yield line.endsWith("\r") ? line.slice(0, -1) : line;
    }
  }
  if (length) yield pieces.join("");
}

/** Yield the text of a response as it comes; it is read no further once nobody asks for more. */
export async function* readPieces(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
