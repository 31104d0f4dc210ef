/** Connect: what a client of this server needs, as `unilect connect` says it. */

import { copyText } from "./clipboard.js";
import { FORMS } from "./code.js";
import { visible } from "./links.js";
import { BASE, json, settings } from "./session.js";
import { effect, h, onEnd, signal } from "./view.js";

/** Show the view; `rest` is the name of a client. */
export function show(rest) {
  const [models, clients, lines, model, trouble] = [signal(null), signal([]), signal(null), signal(""), signal("")];
  const chosen = () => rest.value || "curl";
  let last = 0;
  const load = async () => {
    const number = ++last;
    const query = new URLSearchParams({ url: `${BASE}v1` });
    if (model.peek()) query.set("model", model.peek());
    if (clients.peek().some((one) => one.name === chosen())) query.set("client", chosen());
    try {
      const found = await json(`page/clients?${query}`);
      if (number !== last) return;
      if (models.peek()?.join() !== found.models.join()) models.value = found.models;
      if (clients.peek().length !== found.clients.length) clients.value = found.clients;
      [lines.value, trouble.value] = [found.lines, ""];
    } catch (error) {
      if (number === last) trouble.value = error.message;
    }
  };
  effect(() => {
    [model.value, rest.value, clients.value]; // what the lines are of
    load();
  });
  addEventListener("unilect:key", load);
  onEnd(() => removeEventListener("unilect:key", load));
  return h(
    "div.page",
    {},
    h("h1", {}, "Connect a client"),
    valueView("Base URL (OpenAI)", `${BASE}v1`),
    valueView("Base URL (Anthropic, Ollama)", BASE.replace(/\/$/, "")),
    h("div.card.line", {}, h("span.muted", {}, "API key"), h("span.grow", {}, () => (settings.value.needs_key ? "one of the server's keys" : "any; this server asks for none"))),
    () => trouble.value && h("p.notice.bad", { role: "alert" }, trouble.value),
    () => models.value && modelView(models.value, model),
    () => clients.value.length > 0 && chips(clients.value, rest),
    () => clients.value.length > 0 && linesOf(chosen(), clients.value, lines.value, model.value || models.peek()[0]),
  );
}

function valueView(label, text) {
  return h("div.card.line", {}, h("span.muted", {}, label), h("code.grow", {}, text), copyButton(() => text));
}

function modelView(models, model) {
  if (!models.length) return h("p.notice", {}, "No model of this server chats now.");
  const options = models.map((name) => h("option", { value: name, selected: name === model.peek() }, visible(name)));
  return h(
    "div.card.line",
    {},
    h("label.muted", { for: "connect-model" }, "Model"),
    h("select.grow", { id: "connect-model", onchange: (event) => (model.value = event.target.value) }, options),
    copyButton(() => model.peek() || models[0]),
  );
}

/** List the clients, each as a link to its lines. */
function chips(clients, rest) {
  const chip = ({ name, title }) => h("a.button.small", { href: `#connect/${name}`, "aria-current": () => (name === (rest.value || "curl") ? "true" : null) }, title);
  return h("nav.chips", { "aria-label": "Clients" }, Object.keys(FORMS).map((name) => chip({ name, title: name })), clients.map(chip));
}

function linesOf(name, clients, lines, model) {
  if (Object.hasOwn(FORMS, name)) {
    const text = FORMS[name]({ model, messages: [{ role: "user", content: "Hello!" }] });
    return h("section", {}, h("h2", {}, name), blockView(name === "curl" ? "In the shell" : "In a program", text));
  }
  const client = clients.find((one) => one.name === name);
  if (!client) return h("p.muted", {}, "There is no such client.");
  if (lines?.name !== name) return null; // on their way
  return h(
    "section",
    {},
    h("h2", {}, client.title),
    lines.blocks.map((one) => blockView(one.heading, one.text)),
    lines.notes.map((note) => h("p.notice", {}, visible(note))),
    h("p.muted.small", {}, lines.writes ? "On the machine of the client, this writes the lines into its files, beside what is there:" : "In a terminal, this prints the same:"),
    h("pre", { tabindex: 0 }, `unilect connect ${name} --url ${BASE}v1${lines.writes ? " --write" : ""}`),
  );
}

/** Show lines under where they go. */
function blockView(heading, text) {
  return [h("div.row.heading", {}, h("h3.grow", {}, heading), copyButton(() => text)), h("pre", { tabindex: 0, "aria-label": heading }, visible(text))];
}

function copyButton(text) {
  return h("button.small", { onclick: (event) => copyText(text(), event.currentTarget) }, "Copy");
}
