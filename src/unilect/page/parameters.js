/** The settings of a thread: the system prompt, the parameters that its model honours, tools, and a schema for the answer. */

import { describeModel } from "./catalogue.js";
import { computed, effect, h, signal } from "./view.js";

/** The parameters that have a field: name, kind, a hint, and bounds. */
const FIELDS = [
  { name: "temperature", kind: "number", hint: "0 always takes the likeliest token", min: 0, max: 2, step: 0.1 },
  { name: "max_tokens", kind: "number", hint: "the longest answer", min: 1, step: 1 },
  { name: "top_p", kind: "number", hint: "from the likeliest tokens that make so much together", min: 0, max: 1, step: 0.05 },
  { name: "top_k", kind: "number", hint: "from so many of the likeliest tokens", min: 0, step: 1 },
  { name: "min_p", kind: "number", hint: "from tokens at least so likely, of the likeliest", min: 0, max: 1, step: 0.01 },
  { name: "seed", kind: "number", hint: "the same seed gives the same answer", step: 1 },
  { name: "frequency_penalty", kind: "number", hint: "against words that came often", min: -2, max: 2, step: 0.1 },
  { name: "presence_penalty", kind: "number", hint: "against words that came", min: -2, max: 2, step: 0.1 },
  { name: "repeat_penalty", kind: "number", hint: "above 1 against repetition", min: 0, step: 0.05 },
  { name: "stop", kind: "lines", hint: "texts that end the answer, one a line" },
  { name: "enable_thinking", kind: "flag", hint: "think before the answer" },
  { name: "reasoning_effort", kind: "choice", hint: "how long to think", options: ["none", "minimal", "low", "medium", "high"] },
  { name: "logprobs", kind: "flag", hint: "show how likely each token was (Tokens)" },
];
/** The words for a parameter, by how a model honours it. */
export const WORDS = { native: "", emulated: "made by unilect", accepted: "accepted, without an effect", refused: "this model does not support it" };

/** Show the settings of a thread. */
export function settingsView(thread) {
  const facts = signal(null);
  effect(() => {
    const model = thread.model.value;
    facts.value = null;
    if (model) describeModel(model).then((found) => model === thread.model.peek() && (facts.value = found), () => {});
  });
  const opened = computed(() => thread.conversation.value);
  const text = (name, label, rows, hint) =>
    h(
      "label",
      {},
      label,
      h("textarea", { rows, spellcheck: name === "system", placeholder: hint, value: () => thread.settings.value[name] ?? "", oninput: (event) => thread.change({ [name]: event.target.value }) }),
    );
  return h(
    "div.settings",
    {},
    text("system", "System prompt", 4, ""),
    h("h3", {}, "Parameters"),
    () => opened.value && FIELDS.map((field) => fieldView(field, thread, facts.value)),
    h("h3", {}, "Tools"),
    text("tools", "A list of functions as JSON; their calls are answered by hand", 4, '[{"type": "function", "function": {"name": "...", "parameters": {}}}]'),
    h("h3", {}, "Schema"),
    text("schema", "A JSON Schema that the answer has to follow", 4, '{"type": "object", "properties": {}}'),
  );
}

function fieldView(field, thread, facts) {
  const support = facts?.parameters?.[field.name === "reasoning_effort" ? "enable_thinking" : field.name];
  const isRefused = support === "refused";
  const value = thread.settings.peek().parameters?.[field.name];
  const id = `parameter-${field.name}`;
  const change = (next) => {
    const parameters = { ...thread.settings.peek().parameters };
    if (next === undefined) delete parameters[field.name];
    else parameters[field.name] = next;
    if (field.name === "logprobs") next ? (parameters.top_logprobs = 5) : delete parameters.top_logprobs;
    thread.change({ parameters });
  };
  const common = { id, disabled: isRefused, "aria-describedby": `${id}-hint` };
  const fallback = facts?.defaults?.[field.name];
  return h(
    "div.field",
    {},
    h("label", { for: id }, h("code", {}, field.name)),
    input(field, common, isRefused ? undefined : value, fallback, change),
    h("span.muted.small", { id: `${id}-hint` }, WORDS[support] || field.hint),
  );
}

function input(field, common, value, fallback, change) {
  if (field.kind === "flag") {
    return h("input", { ...common, type: "checkbox", checked: value === true, onchange: (event) => change(event.target.checked || undefined) });
  }
  if (field.kind === "choice") {
    const options = ["", ...field.options].map((one) => h("option", { value: one, selected: one === (value ?? "") }, one || "default"));
    return h("select", { ...common, onchange: (event) => change(event.target.value || undefined) }, options);
  }
  if (field.kind === "lines") {
    const read = (event) => change(event.target.value.split("\n").filter(Boolean));
    return h("textarea", { ...common, rows: 1, value: (value ?? []).join("\n"), oninput: read });
  }
  const read = (event) => change(event.target.value === "" || !event.target.validity.valid ? undefined : Number(event.target.value));
  const { min, max, step } = field;
  return h("input", { ...common, type: "number", min, max, step, value: value ?? "", placeholder: fallback ?? "default", oninput: read });
}
