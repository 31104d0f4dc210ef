/** Try it: a request that a person edits, sent with the key of this tab, and its answer as it comes. */

import { modelPath } from "./catalogue.js";
import { copyText } from "./clipboard.js";
import { asCurl } from "./code.js";
import { visible } from "./links.js";
import { BASE, reach, wanted } from "./session.js";
import { readPieces } from "./sse.js";
import { effect, h, onEnd, signal } from "./view.js";

/** The characters of an answer that stay in sight, of each of its pieces, and of all that is read. */
const SHOWN = 200_000;
const BLOCK = 4000;
const MOST = 16 * 1024 * 1024;
/** The headers that say something of an answer. */
const HEADERS = /^(x-(?!content-type-options|frame-options|accel)|openai-|request-id|retry-after|content-type)/;
/** The placeholder of a model in the examples of openapi.json. */
const MODEL = "MODEL";

/**
 * Show a form for a request to an endpoint, with an example in it.
 *
 * @param one `{ path, method, schema, example }` of an operation
 * @param model a signal with the name of the model that is asked
 */
export function tryView({ path, method, schema, example }, model) {
  const place = signal(path.slice(1));
  const text = signal(example ? JSON.stringify(example, null, 2) : "");
  const answer = answerView();
  let before = MODEL;
  effect(() => {
    const after = model.value || MODEL;
    const placeOf = (name) => path.slice(1).replace("{model}", modelPath(name));
    if ([path.slice(1), placeOf(before)].includes(place.peek())) place.value = placeOf(after);
    text.value = rewrite(text.peek(), (key, value) => (key === "model" && value === before ? after : value));
    before = after;
  });
  const hasBody = !["GET", "DELETE"].includes(method);
  const request = () => ({ method, path: place.peek().trim().replace(/^\/+/, ""), text: hasBody ? text.peek() : "" });
  return h(
    "form.try",
    { "aria-label": `Try ${path}`, onsubmit: (event) => (event.preventDefault(), answer.ask(request())) },
    h("label", {}, `${method} ${BASE}`, h("input.mono", { value: () => place.value, spellcheck: false, autocomplete: "off", oninput: (event) => (place.value = event.target.value) })),
    hasBody && h("label", {}, "Body", h("textarea.mono", { rows: example ? 9 : 2, spellcheck: false, value: () => text.value, oninput: (event) => (text.value = event.target.value) })),
    h(
      "div.row",
      {},
      h("button.primary", { disabled: () => answer.running.value !== null }, "Send"),
      h("button.stop", { type: "button", hidden: () => answer.running.value === null, onclick: () => answer.running.peek()?.abort() }, "Stop"),
      schema?.properties.stream && streamBox(text),
      h("span.grow"),
      h("button.small.quiet", { type: "button", onclick: (event) => copyText(asCurl(request()), event.currentTarget) }, "Copy as curl"),
    ),
    answer.element,
  );
}

/** Change values within a text of JSON; one that is none stays. */
function rewrite(text, revive) {
  try {
    return JSON.stringify(JSON.parse(text, revive), null, 2);
  } catch {
    return text;
  }
}

/** Show if the answer is asked for as a stream, and change that. */
function streamBox(text) {
  const streams = () => {
    try {
      return JSON.parse(text.value)?.stream === true;
    } catch {
      return false;
    }
  };
  const put = (on) => (text.value = rewrite(text.peek(), (key, value) => (key === "" && value instanceof Object ? { ...value, stream: on || undefined } : value)));
  return h("label.check", {}, h("input", { type: "checkbox", checked: streams, onchange: (event) => put(event.target.checked) }), "Stream");
}

/** Make the place of an answer: `ask(request)` sends one and shows what comes, `running` has what stops it. */
function answerView() {
  const running = signal(null);
  const head = signal(null); // of the response: its headers
  const status = signal("");
  const shown = h("pre", { tabindex: 0, "aria-label": "Answer" });
  let whole = [];
  onEnd(() => running.peek()?.abort());
  const ask = async ({ method, path, text }) => {
    const abort = new AbortController();
    const began = performance.now();
    [running.value, head.value, status.value, whole] = [abort, null, "Sent", []];
    shown.replaceChildren();
    const tell = (word) => (status.value = `${word} after ${((performance.now() - began) / 1000).toFixed(2)} s`);
    let told = "";
    try {
      const response = await reach(path, { method, text, signal: abort.signal });
      told = `${response.status} ${response.statusText}`.trim();
      status.value = told;
      head.value = [...response.headers].filter(([name]) => HEADERS.test(name));
      if (response.status === 401) wanted.value = { kind: "client", message: "" };
      await show(response, shown, whole);
      tell(told);
    } catch (error) {
      tell([told, error.name === "AbortError" ? "stopped" : error.message.replace(/\.$/, "")].filter(Boolean).join(", "));
    } finally {
      running.value = null;
    }
  };
  const element = h(
    "div.answer",
    { hidden: () => status.value === "" },
    h("div.row", {}, h("strong.grow", { role: "status" }, () => status.value), h("button.small", { type: "button", onclick: (event) => copyText(whole.join(""), event.currentTarget) }, "Copy")),
    () => head.value && h("dl", {}, head.value.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, visible(value))))),
    shown,
  );
  return { ask, running, element };
}

/** Show the text of a response as it comes, its end where it is long; JSON that came whole is set out. */
async function show(response, shown, whole) {
  let [read, waiting, due] = [0, "", 0];
  const draw = () => {
    if (waiting) appendEnd(shown, waiting);
    [waiting, due] = ["", 0];
  };
  try {
    for await (const piece of response.body ? readPieces(response) : []) {
      whole.push(piece);
      read += piece.length;
      if (read > MOST) throw new Error(`The answer is longer than ${MOST.toLocaleString("en")} characters: it was stopped`);
      waiting += piece;
      due ||= requestAnimationFrame(draw);
    }
  } finally {
    cancelAnimationFrame(due);
    draw();
  }
  if (read <= SHOWN && response.headers.get("Content-Type")?.startsWith("application/json")) {
    shown.replaceChildren(visible(rewrite(whole.join(""), (key, value) => value)));
    shown.scrollTop = 0;
  }
}

/** Append text in blocks, of which the last one alone is laid out again; the first ones leave. */
function appendEnd(shown, text) {
  const follows = shown.scrollTop + shown.clientHeight > shown.scrollHeight - 40;
  const last = shown.lastChild?.textContent;
  const isFull = last === undefined || last.length > SHOWN / 4 || (last.length > BLOCK && last.endsWith("\n"));
  (isFull ? shown.appendChild(h("span")) : shown.lastChild).append(visible(text.slice(-SHOWN)));
  while (shown.childNodes.length > 1 && shown.textContent.length > SHOWN) shown.firstChild.remove();
  if (follows) shown.scrollTop = shown.scrollHeight;
}
