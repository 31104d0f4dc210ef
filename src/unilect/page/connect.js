/** Connect: what a client of this server needs. */

import { catalogue, loadCatalogue } from "./catalogue.js";
import { asCurl, asPython, asJavaScript } from "./code.js";
import { copyText } from "./clipboard.js";
import { BASE, settings } from "./session.js";
import { h } from "./view.js";

/** The clients whose lines `unilect connect` writes, by what they are. */
const CLIENTS = {
  Agents: ["codex", "claude", "opencode", "qwen", "aider", "pi", "copilot-cli"],
  Editors: ["zed", "vscode", "continue"],
  Pages: ["openwebui", "homeassistant"],
};

/** Show the view. */
export function show() {
  if (!catalogue.peek()) loadCatalogue().catch(() => {});
  const body = () => ({ model: catalogue.value?.[0]?.id ?? "MODEL", messages: [{ role: "user", content: "Hello!" }] });
  const line = (label, text) => h("div.card.line", {}, h("span.muted", {}, label), h("code.grow", {}, text), h("button.small", { onclick: (event) => copyText(typeof text === "function" ? text() : text, event.currentTarget) }, "Copy"));
  return h(
    "div.page",
    {},
    h("h1", {}, "Connect a client"),
    line("Base URL (OpenAI)", `${BASE}v1`),
    line("Base URL (Anthropic, Ollama)", BASE.replace(/\/$/, "")),
    line("API key", () => (settings.value.needs_key ? "one of the server's keys" : "any; this server asks for none")),
    line("Model", () => body().model),
    h("h2", {}, "From a terminal or a program"),
    [["curl", asCurl], ["Python", asPython], ["JavaScript", asJavaScript]].map(([name, write]) =>
      h("section", {}, h("div.row", {}, h("h3.grow", {}, name), h("button.small", { onclick: (event) => copyText(write(body()), event.currentTarget) }, "Copy")), h("pre", { tabindex: 0 }, () => write(body()))),
    ),
    h("h2", {}, "Agents, editors and pages"),
    h("p", {}, "On the machine of the client, this prints the lines that it needs, with this server's models; ", h("code", {}, "--write"), " writes them."),
    h("pre", { tabindex: 0 }, () => Object.entries(CLIENTS).map(([kind, names]) => `# ${kind}\n${names.map((name) => `unilect connect ${name} --url ${BASE}v1`).join("\n")}`).join("\n\n")),
  );
}
