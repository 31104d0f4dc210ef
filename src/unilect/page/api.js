/** The API: the endpoints out of openapi.json, with their parameters as a model honours them, and each to be tried. */

import { catalogue, describeModel, loadCatalogue } from "./catalogue.js";
import { visible } from "./links.js";
import { WORDS } from "./parameters.js";
import { json } from "./session.js";
import { tryView } from "./try.js";
import { effect, h, onEnd, signal, untracked, wide } from "./view.js";

/** The ability that a model needs for an endpoint. */
const ABILITIES = { "/v1/chat/completions": "chat", "/v1/completions": "completions", "/v1/embeddings": "embeddings" };

/** Show the view. */
export function show() {
  const [document, trouble, query, model, facts] = [signal(null), signal(""), signal(""), signal(""), signal(null)];
  const load = async () => {
    try {
      const [found] = await Promise.all([document.peek() ?? json("openapi.json"), loadCatalogue()]);
      document.value = found;
      model.value ||= catalogue.peek()[0]?.id ?? "";
      trouble.value = "";
    } catch (error) {
      trouble.value = error.message;
    }
  };
  load();
  addEventListener("unilect:key", load);
  onEnd(() => removeEventListener("unilect:key", load));
  effect(() => {
    const name = model.value;
    facts.value = null;
    if (name) describeModel(name).then((found) => name === model.peek() && (facts.value = found), (error) => (trouble.value = error.message));
  });
  return h(
    "div.page",
    {},
    h("h1", {}, "API"),
    h("p", {}, "The same without scripts: ", h("a", { href: "docs" }, "docs"), "; for programs: ", h("a", { href: "openapi.json" }, "openapi.json"), "."),
    () => trouble.value && h("p.notice.bad", { role: "alert" }, trouble.value),
    h(
      "div.fields",
      {},
      h("label", {}, "Endpoint or parameter", h("input", { type: "search", oninput: (event) => (query.value = event.target.value.trim().toLowerCase()) })),
      h("label", {}, "Model", h("select", { onchange: (event) => (model.value = event.target.value) }, () => (catalogue.value ?? []).map((one) => h("option", { value: one.id, selected: one.id === model.peek() }, visible(one.id))))),
    ),
    () => document.value && untracked(() => listView(document.value, query, model, facts)),
  );
}

/** Group the operations of a document by API, in its order; an alias without /v1 is told beside its own. */
export function groupOperations(document) {
  const groups = new Map(document.tags.map(({ name }) => [name, []]));
  const known = new Map();
  const all = Object.entries(document.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, operation]) => ({ path, method: method.toUpperCase(), operation })));
  all.sort((one, other) => isAlias(one) - isAlias(other)); // aliases behind what they stand for
  for (const { path, method, operation } of all) {
    const id = operation.operationId.replace(/_unversioned$/, "");
    if (known.has(id)) {
      known.get(id).also.push(path);
      continue;
    }
    const media = operation.requestBody?.content?.["application/json"];
    const schema = document.components.schemas[media?.schema?.$ref?.split("/").at(-1)];
    const one = { path, method, operation, schema, example: media?.example, also: [] };
    known.set(id, one);
    groups.get(operation.tags[0])?.push(one);
  }
  return [...groups].filter(([, operations]) => operations.length);
}

const isAlias = (one) => one.operation.operationId.endsWith("_unversioned");

function listView(document, query, model, facts) {
  const fits = (one) => one.words.includes(query.value);
  const groups = groupOperations(document);
  for (const one of groups.flatMap(([, operations]) => operations)) {
    one.words = [one.method, one.path, ...one.also, one.operation.summary, ...Object.keys(one.schema?.properties ?? {})].join(" ").toLowerCase();
  }
  return [
    groups.map(([title, operations]) =>
      h("section", { hidden: () => !operations.some(fits) }, h("h2", {}, title), operations.map((one) => operationView(one, fits, model, facts))),
    ),
    () => !groups.some(([, operations]) => operations.some(fits)) && h("p.muted", {}, "There is no such endpoint."),
  ];
}

function operationView(one, fits, model, facts) {
  const wasOpened = signal(false);
  const { path, method, operation, also } = one;
  return h(
    "details.operation",
    { hidden: () => !fits(one), ontoggle: (event) => event.target.open && (wasOpened.value = true) },
    h("summary", {}, h("span.tag", {}, method), " ", h("code", {}, path), " ", h("span.muted", {}, operation.summary)),
    () => wasOpened.value && [
      also.length > 0 && h("p.muted", {}, "also ", also.map((other) => [h("code", {}, other), " "])),
      () => lacksAbility(path, facts.value) && h("p.notice", {}, `${visible(model.peek())} does not answer this endpoint.`),
      tryView(one, model),
      one.schema && h("h3", {}, "Parameters"),
      one.schema && (() => parametersView(one, model.peek(), facts.value)),
    ],
  );
}

const lacksAbility = (path, facts) => facts !== null && facts[ABILITIES[path]] === false;

const CHAT = "/v1/chat/completions";

/**
 * List the parameters of an operation as `{ name, field, title, why, support }`: those of another API by what they become in a chat.
 *
 * `why` says what becomes of one that the model does not honour; it and `support` are undefined where nothing is known of it.
 */
export function listParameters({ path, operation, schema }, facts) {
  const words = operation["x-chat-parameters"];
  const unhonoured = facts?.not_honoured?.[words ? CHAT : path];
  const look = (chatName) => {
    const why = words?.optional.includes(chatName) ? unhonoured[chatName]?.replace(/^refused: .*/, "ignored, and named in X-Unilect-Ignored") : unhonoured[chatName];
    return { why, support: facts.parameters[chatName] };
  };
  const rows = [];
  const required = new Set(schema.required ?? []);
  const fields = Object.entries(schema.properties).sort(([one], [other]) => Number(required.has(other)) - Number(required.has(one)));
  for (const [name, field] of fields) {
    const inside = Object.entries(words?.names ?? {}).filter(([, own]) => own === name || own.startsWith(`${name}.`));
    const [chatName] = inside.find(([, own]) => own === name) ?? [name];
    const isKnown = unhonoured && (!words || (facts.endpoints[CHAT].includes(chatName) && words.names[name] !== ""));
    rows.push({ name, field, isRequired: required.has(name), ...(isKnown && look(chatName)), isKnown });
    for (const [other, own] of inside) if (own !== name) rows.push({ name: own, field: {}, isRequired: false, ...(unhonoured && look(other)), isKnown: Boolean(unhonoured) });
  }
  return { rows, isTold: Boolean(unhonoured) };
}

function parametersView(one, model, facts) {
  const { rows, isTold } = listParameters(one, facts);
  const columns = ["Parameter", ...(isTold ? [`With ${visible(model)}`] : []), "Type"];
  const row = ({ name, field, isRequired, isKnown, why, support }) =>
    h(
      "tr",
      {},
      h("td", {}, h("code", {}, name), isRequired && [" ", h("span.tag", {}, "required")]),
      isTold && h("td", {}, isKnown && supportView(why, support)),
      h("td", {}, Object.keys(field).length ? kindOf(field) : ""),
    );
  return wide(
    `Parameters of ${one.path}`,
    h("table", {}, h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows.map(row))),
  );
}

/** Tell what becomes of a parameter: that it is honoured and how, or why it is not. */
function supportView(why, support) {
  if (!why && support === "accepted") return h("span.muted.small", {}, WORDS.accepted);
  if (!why) return [h("span.tag.good", {}, "honoured"), " ", h("span.muted.small", {}, WORDS[support] ?? "")];
  const [word, reason] = why.split(/(?<=^\w+)\W+/, 2);
  return [h(word === "refused" ? "span.tag.bad" : "span.tag.warn", {}, word), " ", h("span.muted.small", {}, reason)];
}

/** Write a JSON Schema in words: `integer, 1 to 16 or text`. */
function kindOf(field) {
  if (field.$ref) return field.$ref.split(/[/.]/).at(-1);
  if (field.anyOf) return [...new Set(field.anyOf.filter((one) => one.type !== "null").map(kindOf))].join(" or ");
  if (field.enum) return field.enum.map((one) => JSON.stringify(one)).join(" or ");
  if (field.type === "array") return `list of ${kindOf(field.items ?? {})}`;
  return `${field.type ?? "any value"}${rangeOf(field)}`;
}

function rangeOf(field) {
  const [low, high] = [field.minimum ?? field.exclusiveMinimum, field.maximum ?? field.exclusiveMaximum].map((end) => (Math.abs(end) < 2 ** 31 - 1 ? end.toLocaleString("en") : undefined));
  if (low === undefined) return high === undefined ? "" : `, at most ${high}`;
  return high === undefined ? `, at least ${low}` : `, ${low} to ${high}`;
}
