/** A message as it is shown, while it comes and afterwards. */

import { describeSpeed } from "./answer.js";
import { describeModel } from "./catalogue.js";
import { siblings } from "./conversation.js";
import { copyText } from "./clipboard.js";
import { Markdown, render } from "./markdown.js";
import { checkAnswer } from "./schema.js";
import { h, signal } from "./view.js";

const ROLES = { user: "You", tool: "Result", system: "System" };

/** The texts of answers that have just ended, as they were drawn while they came: to draw a long one again holds the page. */
const drawn = new WeakMap();

/** Show a message of a thread. */
export function messageView(message, thread) {
  const isRunning = thread.running.peek() === message;
  const raw = signal(message.role !== "assistant");
  const editing = signal(false);
  return h(
    `article.message.${message.role}`,
    { "aria-label": `${ROLES[message.role] ?? message.model} said`, "aria-busy": isRunning ? "true" : null },
    h("header", {}, h("strong", {}, message.role === "tool" ? `Result of ${message.name}` : (ROLES[message.role] ?? message.model)), branchesView(message, thread)),
    message.role === "assistant" ? answerView(message, thread, isRunning, raw) : () => (editing.value ? editor(message, thread, editing) : textView(message, raw.value)),
    message.images?.map((url) => h("img.attached", { src: url, alt: "An attached image" })),
    !isRunning && actions(message, thread, raw, editing),
  );
}

function textView(message, isRaw) {
  if (isRaw) return h("div.plain", {}, message.content);
  const element = drawn.get(message) ?? h("div");
  if (!drawn.delete(message)) render(element, message.content);
  return element;
}

/** The body of an answer: thoughts, text, calls, what went wrong. */
function answerView(message, thread, isRunning, raw) {
  if (!isRunning) {
    return [
      message.thoughts && thoughtsView(message.thoughts, message.thoughtsEnded !== undefined),
      () => (raw.value ? rawView(message) : textView(message, false)),
      message.calls?.length ? callsView(message, thread) : null,
      message.schema && message.state === "done" && !message.calls?.length && schemaView(message),
      message.error && h("p.notice.bad", { role: "alert" }, message.error.message),
      message.state === "stopped" && h("p.muted.small", {}, "Stopped."),
    ];
  }
  const text = h("div");
  const reader = new Markdown(text);
  const wait = h("p.muted.waiting", { role: "status" }, () => thread.stage.value || "Waiting for the first token");
  const thoughts = h("div");
  const parts = h("div", {}, wait, thoughts, text);
  let thinking = null;
  const canEnd = signal(false);
  describeModel(message.model).then((found) => (canEnd.value = found.continues === true && found.parameters?.continue_final_message === "native"), () => {});
  for (const [kind, piece] of [["thoughts", message.thoughts], ["content", message.content]]) if (piece) take(kind, piece);
  thread.listen(message, take);
  function take(kind, piece) {
    if (kind === "state") {
      reader.end();
      drawn.set(message, text);
    }
    if (kind !== "content" && kind !== "thoughts") return;
    wait.remove();
    if (kind === "content") {
      if (thinking) thinking.open = canEnd.value = false;
      reader.push(piece);
    } else {
      if (!thinking) thoughts.append((thinking = runningThoughts(thread, canEnd)));
      thinking.children[1].append(piece);
    }
  }
  return parts;
}

/** Say if an answer follows the schema that it was asked for. */
function schemaView(message) {
  const { ok, reason, unknown } = checkAnswer(message.content, JSON.parse(message.schema));
  const rest = unknown.length ? ` Not looked at: ${unknown.join(", ")}.` : "";
  return h("p.small", {}, h("span", { class: `tag ${ok ? "good" : "bad"}` }, ok ? "follows the schema" : "does not follow the schema"), ` ${reason}${rest}`);
}

function thoughtsView(text, wereEnded) {
  return h("details.thoughts", {}, h("summary", {}, wereEnded ? "Thoughts, ended by hand" : "Thoughts"), h("div.plain", {}, text));
}

/** Show thoughts that are on their way, with a button that ends them where the model can go on behind them. */
function runningThoughts(thread, canEnd) {
  const end = () => {
    canEnd.value = false;
    thread.endThoughts();
  };
  return h("details.thoughts", { open: true }, h("summary", {}, "Thoughts"), h("div.plain"), () => canEnd.value && h("button.small", { onclick: end }, "Answer now"));
}

/** The text as the model wrote it; with log probabilities, each token with its own. */
function rawView(message) {
  if (!message.tokens?.length) return h("div.plain", {}, message.content);
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
  const field = h("textarea", { rows: Math.min(12, message.content.split("\n").length + 1), value: message.content, "aria-label": "Your message" });
  queueMicrotask(() => field.focus());
  const save = (event) => {
    event.preventDefault();
    editing.value = false;
    thread.edit(message, field.value);
  };
  return h("form", { onsubmit: save }, field, h("div.row.end", {}, h("button.quiet", { type: "button", onclick: () => (editing.value = false) }, "Cancel"), h("button.primary", {}, "Send as another branch")));
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
