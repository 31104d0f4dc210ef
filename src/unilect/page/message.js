/** A message as it is shown, while it comes and afterwards. */

import { grouped } from "./answer.js";
import { describeModel } from "./catalogue.js";
import { parts, siblings, wasLeft } from "./conversation.js";
import { copyText } from "./clipboard.js";
import { Markdown, render } from "./markdown.js";
import { checkAnswer } from "./schema.js";
import { computed, h, signal } from "./view.js";

const ROLES = { user: "You", tool: "Result", system: "System" };

/** Texts of old messages that are not drawn yet, the last one first; so much of a frame is given to them. */
const waiting = [];
const SLICE_MS = 10;
/** Characters of a part of a long text. */
const PART = 8192;

/** Show a message of a thread; what is drawn of an answer that comes stays when it ends. */
export function messageView(message, thread) {
  const live = thread.running.peek() === message ? computed(() => thread.running.value === message) : signal(false);
  const raw = signal(message.role !== "assistant");
  const editing = signal(false);
  return h(
    `article.message.${message.role}`,
    { "aria-label": `${ROLES[message.role] ?? message.model} said`, "aria-busy": () => (live.value ? "true" : null) },
    h("header", {}, h("strong", {}, message.role === "tool" ? `Result of ${message.name}` : (ROLES[message.role] ?? message.model)), branchesView(message, thread)),
    message.role === "assistant" ? answerView(message, thread, live, raw) : () => (editing.value ? editor(message, thread, editing) : textView(message, raw.value)),
    message.images?.map((url) => h("img.attached", { src: url, alt: "An attached image" })),
    () => !live.value && actions(message, thread, raw, editing),
  );
}

function textView(message, isRaw) {
  if (isRaw) {
    const [typed, pasted] = parts(message);
    return [(typed || !pasted) && plainView(typed), pasted && pastedView(pasted)];
  }
  const element = h("div");
  if (!waiting.length) requestAnimationFrame(drawWaiting);
  waiting.push([element, message.content]);
  return element;
}

/** Show a text that was pasted, folded. */
function pastedView(text) {
  const ontoggle = ({ target }) => target.childElementCount === 1 && target.append(plainView(text));
  return h("details", { ontoggle }, h("summary", {}, `Pasted: ${grouped(text.length)} characters`));
}

/** Show a text as it stands; a long one in parts, of which the browser passes over those out of sight. */
function plainView(text) {
  const view = h("div.plain");
  for (let at = 0; at < text.length; ) {
    const end = partEnd(text, at);
    view.append(end === text.length && at === 0 ? text : h("div.part", {}, text.slice(at, end)));
    at = end;
  }
  return view;
}

/** Return where the part of a text ends that begins at a place: behind a line, a word, or a character. */
function partEnd(text, at) {
  if (text.length - at < 2 * PART) return text.length;
  for (const gap of ["\n", " "]) {
    const found = text.slice(at + PART, at + 2 * PART).indexOf(gap);
    if (found >= 0) return at + PART + found + 1;
  }
  const low = text.charCodeAt(at + PART);
  return at + PART + (low >= 0xdc00 && low <= 0xdfff ? 1 : 0);
}

/** Draw texts as long as there is time in this frame: a long conversation is there at once, and its end first. */
function drawWaiting() {
  const end = performance.now() + SLICE_MS;
  try {
    while (waiting.length && performance.now() < end) {
      const [element, text] = waiting.pop();
      if (element.isConnected) render(element, text);
    }
  } finally {
    if (waiting.length) requestAnimationFrame(drawWaiting);
  }
}

/** The body of an answer: thoughts, text, and what comes behind it. */
function answerView(message, thread, live, raw) {
  if (!live.peek()) {
    return [
      message.thoughts && thoughtsView(message.thoughts, message, thread, live, signal(false)),
      () => (raw.value ? rawView(message) : textView(message, false)),
      endView(message, thread),
    ];
  }
  const [thoughts, text] = [h("div"), h("div")];
  const reader = new Markdown(text);
  const wait = h("p.muted.waiting", { role: "status" }, () => thread.stage.value || "Waiting for the first token");
  const canEnd = signal(false);
  describeModel(message.model).then((found) => (canEnd.value = found.continues === true && found.parameters?.continue_final_message === "native"), () => {});
  let thinking = null;
  const take = (kind, piece) => {
    if (kind === "state" && piece !== "answering") {
      wait.remove();
      reader.end();
    }
    if (kind !== "content" && kind !== "thoughts") return;
    wait.remove();
    if (kind === "content") {
      if (thinking) thinking.open = canEnd.value = false;
      reader.push(piece);
    } else if (thinking) thinking.lastChild.append(piece);
    else thoughts.append((thinking = thoughtsView(piece, message, thread, live, canEnd)));
  };
  for (const [kind, piece] of [["thoughts", message.thoughts], ["content", message.content]]) if (piece) take(kind, piece);
  thread.listen(message, take);
  return [wait, thoughts, () => (raw.value ? rawView(message) : text), () => !live.value && endView(message, thread)];
}

/** What stands behind an answer that has ended: its calls, how it follows its schema, what went wrong. */
function endView(message, thread) {
  return [
    message.calls?.length ? callsView(message, thread) : null,
    message.schema && message.state === "done" && !message.calls?.length && schemaView(message),
    message.error && h("p.notice.bad", { role: "alert" }, message.error.message),
    message.state === "stopped" && h("p.muted.small", {}, "Stopped."),
    wasLeft(message) && h("p.muted.small", {}, "The page was left while this came. Again asks once more."),
  ];
}

/** Say if an answer follows the schema that it was asked for. */
function schemaView(message) {
  const { ok, reason, unknown } = checkAnswer(message.content, JSON.parse(message.schema));
  const rest = unknown.length ? ` Not looked at: ${unknown.join(", ")}.` : "";
  return h("p.small", {}, h("span", { class: `tag ${ok ? "good" : "bad"}` }, ok ? "follows the schema" : "does not follow the schema"), ` ${reason}${rest}`);
}

/** Show thoughts; those on their way have a button that ends them where the model can go on behind them. */
function thoughtsView(text, message, thread, live, canEnd) {
  const end = () => {
    canEnd.value = false;
    thread.endThoughts();
  };
  const title = () => (live.value || message.thoughtsEnded === undefined ? "Thoughts" : "Thoughts, ended by hand");
  return h("details.thoughts", { open: live.peek() }, h("summary", {}, title), () => canEnd.value && h("button.small", { onclick: end }, "Answer now"), h("div.plain", {}, text));
}

/** The text as the model wrote it; with log probabilities, each token with its own. */
function rawView(message) {
  if (!message.tokens?.length) return plainView(message.content);
  return h(
    "div.plain",
    {},
    message.tokens.map(([token, logprob, others]) =>
      h("span.token", { style: { "--doubt": String(Math.min(1, -logprob / 4)) }, title: [[token, logprob], ...others].map(percent).join("\n"), tabindex: 0 }, token),
    ),
  );
}

const percent = ([token, logprob]) => `${(100 * Math.exp(logprob)).toFixed(1)} %  ${JSON.stringify(token)}`;

/** Calls of tools, with a place for the result of each, where they are the last that was said. */
function callsView(message, thread) {
  const isLast = () => thread.conversation.value.leaf === message.id;
  const fields = message.calls.map((call) => h("textarea", { rows: 2, "aria-label": `Result of ${call.name}`, placeholder: "The result, as the model shall read it" }));
  const calls = message.calls.map((call, at) =>
    h("div.call", {}, h("code", {}, call.name), h("pre", {}, pretty(call.arguments)), () => isLast() && fields[at]),
  );
  const answer = () => thread.giveResults(message.calls, fields.map((one) => one.value));
  return h("div.calls", {}, calls, () => isLast() && h("button.primary", { onclick: answer }, message.calls.length > 1 ? "Give the results" : "Give the result"));
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** Which of several branches is shown, and the way to the others. */
function branchesView(message, thread) {
  const all = siblings(thread.conversation.peek(), message);
  if (all.length < 2) return null;
  const at = all.indexOf(message);
  const go = (step) => () => thread.show(all[at + step]);
  return h(
    "span.branches",
    {},
    h("button.quiet.small", { onclick: go(-1), disabled: at === 0, "aria-label": "Earlier version" }, "‹"),
    `${at + 1} / ${all.length}`,
    h("button.quiet.small", { onclick: go(1), disabled: at === all.length - 1, "aria-label": "Later version" }, "›"),
  );
}

function editor(message, thread, editing) {
  const [typed, pasted] = parts(message);
  const field = h("textarea", { rows: Math.min(12, typed.split("\n").length + 1), value: typed, "aria-label": "Your message" });
  queueMicrotask(() => field.focus());
  const save = (event) => {
    event.preventDefault();
    editing.value = false;
    thread.edit(message, field.value);
  };
  return h("form", { onsubmit: save, onkeydown: (event) => event.key === "Escape" && (editing.value = false) }, field, pasted && pastedView(pasted), h("div.row.end", {}, h("button.quiet", { type: "button", onclick: () => (editing.value = false) }, "Cancel"), h("button.primary", {}, "Send as another branch")));
}

/** Describe how fast an answer came: "12.3 tokens/s, first after 0.2 s, 85 of 2,048 tokens". */
export function describeSpeed(message, context) {
  const facts = [];
  const both = message.thoughtsTokens !== undefined; // the tokens of both parts of an answer whose thoughts were ended
  const made = message.usage?.completion_tokens + (message.thoughtsTokens ?? 0);
  const writing = message.seconds - (both ? message.firstToken : (message.thoughtsEnded ?? message.firstToken));
  // an answer that came in one piece says nothing of the time between its tokens
  const speed = writing > 0.1 ? (made - 1) / writing : made / message.seconds;
  if (made > 1) facts.push(`${speed.toFixed(1)} tokens/s`);
  if (message.firstToken !== undefined) facts.push(`first after ${message.firstToken.toFixed(2)} s`);
  if (message.usage) facts.push(`${grouped(message.usage.total_tokens)}${context ? ` of ${grouped(context)}` : ""} tokens`);
  if (message.finish && !["stop", "tool_calls"].includes(message.finish)) facts.push(`ended by ${message.finish}`);
  return facts.join(", ");
}

function actions(message, thread, raw, editing) {
  const context = signal(null);
  if (message.role === "assistant" && message.usage) describeModel(message.model).then((found) => (context.value = found.context ?? null), () => {});
  const isText = message.role !== "tool";
  return h(
    "footer.row.small",
    {},
    h("button.quiet.small", { onclick: (event) => copyText(message.content, event.currentTarget) }, "Copy"),
    message.role === "assistant" && h("button.quiet.small", { onclick: () => thread.again(message) }, "Again"),
    message.role === "user" && h("button.quiet.small", { onclick: () => (editing.value = true) }, "Edit"),
    isText && h("button.quiet.small", { onclick: () => (raw.value = !raw.value), "aria-pressed": () => String(raw.value) }, message.tokens?.length ? "Tokens" : "Raw"),
    h("button.quiet.small", { onclick: () => thread.remove(message) }, "Delete"),
    message.role === "assistant" && h("span.muted", {}, () => describeSpeed(message, context.value)),
  );
}
