/** A request as lines for a terminal or a program. */

import { copyText } from "./clipboard.js";
import { BASE, keys, settings } from "./session.js";
import { h, signal } from "./view.js";

const CHAT = "v1/chat/completions";
/** The forms of a request to the chat, by what they are called. */
export const FORMS = { curl: (body) => asCurl({ method: "POST", path: CHAT, text: JSON.stringify(body, null, 2) }), Python: asPython, JavaScript: asJavaScript };

const needsKey = () => settings.peek().needs_key || keys.client.peek() !== "";
const shellQuote = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** Return a request as a line of curl; its path is below the server's address. */
export function asCurl({ method, path, text }) {
  const way = method === (text ? "POST" : "GET") ? "" : ` -X ${method}`;
  const key = needsKey() ? ' \\\n  -H "Authorization: Bearer $UNILECT_API_KEY"' : "";
  const body = text ? ` \\\n  -H "Content-Type: application/json" \\\n  -d ${shellQuote(text)}` : "";
  return `curl${way} ${/^[\w./-]*$/.test(path) ? BASE + path : shellQuote(BASE + path)}${key}${body}`;
}

/** Return a request in Python, with OpenAI's library; parameters that it does not know are sent as `extra_body`. */
function asPython(body) {
  const known = new Set("model messages temperature top_p max_tokens seed stop frequency_penalty presence_penalty logprobs top_logprobs tools response_format reasoning_effort".split(" "));
  const given = Object.entries(body).filter(([name]) => known.has(name));
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => !known.has(name)));
  const lines = given.map(([name, value]) => `    ${name}=${literal(value)},`);
  if (Object.keys(extra).length) lines.push(`    extra_body=${literal(extra)},`);
  const key = needsKey() ? 'os.environ["UNILECT_API_KEY"]' : '"none"';
  return `${needsKey() ? "import os\n\n" : ""}from openai import OpenAI\n\nclient = OpenAI(base_url="${BASE}v1", api_key=${key})\nanswer = client.chat.completions.create(\n${lines.join("\n")}\n)\nprint(answer.choices[0].message.content)`;
}

/** Write a value of JSON as Python does. */
function literal(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${literal(one)}`).join(", ")}}`;
  return JSON.stringify(value);
}

/** Return a request in JavaScript, with what every browser and Node have. */
function asJavaScript(body) {
  const key = needsKey() ? "\n    Authorization: `Bearer ${process.env.UNILECT_API_KEY}`," : "";
  return `const response = await fetch("${BASE}${CHAT}", {\n  method: "POST",\n  headers: {\n    "Content-Type": "application/json",${key}\n  },\n  body: JSON.stringify(${JSON.stringify(body, null, 2).replaceAll("\n", "\n  ")}),\n});\nconsole.log((await response.json()).choices[0].message.content);`;
}

/** Show a request in each form. */
export function codeView(body) {
  const form = signal("curl");
  const text = () => FORMS[form.value](body);
  return h(
    "div",
    {},
    h(
      "div.row",
      { role: "group", "aria-label": "Form" },
      Object.keys(FORMS).map((one) => h("button.quiet.small", { type: "button", "aria-pressed": () => String(form.value === one), onclick: () => (form.value = one) }, one)),
      h("span.grow"),
      h("button.small", { type: "button", onclick: (event) => copyText(text(), event.currentTarget) }, "Copy"),
    ),
    h("pre", { tabindex: 0 }, text),
  );
}
