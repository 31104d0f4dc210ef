/** The API: the endpoints out of openapi.json, with their parameters; OpenAI's first. */

import { json } from "./session.js";
import { h, signal, wide } from "./view.js";

const FIRST = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models", "/v1/responses", "/v1/messages"];

/** Show the view. */
export function show() {
  const document = signal(null);
  const trouble = signal("");
  const query = signal("");
  json("openapi.json").then(
    (found) => (document.value = found),
    (error) => (trouble.value = error.message),
  );
  return h(
    "div.page",
    {},
    h("h1", {}, "API"),
    h("p", {}, "The same as a page without scripts: ", h("a", { href: "docs" }, "docs"), "; for programs: ", h("a", { href: "openapi.json" }, "openapi.json"), ". The chat shows each request as lines of code."),
    () => trouble.value && h("p.notice.bad", { role: "alert" }, trouble.value),
    h("input", { type: "search", placeholder: "Find an endpoint or a parameter", "aria-label": "Find an endpoint or a parameter", oninput: (event) => (query.value = event.target.value.toLowerCase()) }),
    () => document.value && listView(document.value, query.value),
  );
}

/** List the operations of a document, those that clients use most at the top. */
export function operations(document) {
  const all = Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ path, method: method.toUpperCase(), operation, schema: schemaOf(operation, document) })),
  );
  const place = (one) => (FIRST.includes(one.path) ? FIRST.indexOf(one.path) : FIRST.length + (one.path.startsWith("/v1/") ? 0 : 1));
  return all.sort((one, other) => place(one) - place(other) || (one.path < other.path ? -1 : 1));
}

function schemaOf(operation, document) {
  const found = operation.requestBody?.content?.["application/json"]?.schema;
  const name = found?.$ref?.split("/").at(-1);
  return name ? document.components.schemas[name] : found;
}

function listView(document, query) {
  const fits = (one) => `${one.method} ${one.path} ${one.operation.summary} ${Object.keys(one.schema?.properties ?? {}).join(" ")}`.toLowerCase().includes(query);
  const shown = operations(document).filter(fits);
  return h("div.operations", {}, shown.map(operationView), !shown.length && h("p.muted", {}, "There is no such endpoint."));
}

function operationView({ path, method, operation, schema }) {
  const fields = Object.entries(schema?.properties ?? {});
  const required = new Set(schema?.required ?? []);
  fields.sort(([one], [other]) => required.has(other) - required.has(one));
  return h(
    "details.operation",
    {},
    h("summary", {}, h("span.tag", {}, method), " ", h("code", {}, path), " ", h("span.muted", {}, operation.summary)),
    h("p", {}, operation.description),
    fields.length > 0 &&
      wide(
        `Parameters of ${path}`,
        h("table", {}, h("thead", {}, h("tr", {}, ["Parameter", "Type", "Needed"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, fields.map(([name, field]) => h("tr", {}, h("td", {}, h("code", {}, name)), h("td", {}, kindOf(field)), h("td", {}, required.has(name) ? "yes" : "no"))))),
      ),
  );
}

/** Write a JSON Schema in words: `integer or text`. */
function kindOf(field) {
  if (field.$ref) return field.$ref.split("/").at(-1);
  if (field.anyOf) return [...new Set(field.anyOf.filter((one) => one.type !== "null").map(kindOf))].join(" or ");
  if (field.enum) return field.enum.map((one) => JSON.stringify(one)).join(" or ");
  if (field.type === "array") return `list of ${kindOf(field.items ?? {})}`;
  return field.type ?? "any value";
}
