/** What was used: sums by key, model and day, as a table, as bars, and as CSV. */

import { saveFile } from "./clipboard.js";
import { json } from "./session.js";
import { short } from "./units.js";
import { computed, effect, h, signal, wide } from "./view.js";

const SINCE = { "7d": "7 days", "30d": "30 days", "90d": "90 days" };
const BY = { key: "Key", model: "Model", day: "Day" };
const COLUMNS = ["requests", "prompt_tokens", "completion_tokens", "cost"];

/** Show what was used. */
export function usageView() {
  const since = signal("30d");
  const by = signal(["key", "model"]);
  const rows = signal([]);
  const days = signal([]);
  const trouble = signal("");
  effect(() => {
    const query = (names) => `admin/usage?since=${since.value}&by=${names.join(",")}`;
    Promise.all([json(query(by.value.length ? by.value : ["key"])), json(query(["day"]))]).then(
      ([sums, daily]) => {
        trouble.value = "";
        rows.value = sums.data;
        days.value = daily.data;
      },
      (error) => (trouble.value = error.message),
    );
  });
  const toggle = (name) => (by.value = by.peek().includes(name) ? by.peek().filter((one) => one !== name) : [...by.peek(), name]);
  const heads = computed(() => Object.keys(BY).filter((name) => by.value.includes(name)));
  return h(
    "section",
    {},
    h(
      "div.row",
      {},
      h("label.check", {}, "Since ", h("select", { "aria-label": "Since", onchange: (event) => (since.value = event.target.value) }, Object.entries(SINCE).map(([value, label]) => h("option", { value, selected: value === "30d" }, label)))),
      Object.entries(BY).map(([name, label]) => h("label.check", {}, h("input", { type: "checkbox", checked: by.peek().includes(name), onchange: () => toggle(name) }), ` by ${label.toLowerCase()}`)),
      h("span.grow"),
      h("button.small", { onclick: () => saveFile("unilect-usage.csv", asCsv(heads.peek(), rows.peek()), "text/csv") }, "CSV"),
    ),
    () => trouble.value && h("p.notice", {}, trouble.value),
    () => days.value.length > 0 && barsView(days.value),
    () =>
      rows.value.length > 0 &&
      wide(
        "Usage",
        h(
          "table",
          {},
          h("thead", {}, h("tr", {}, heads.value.map((name) => h("th", { scope: "col" }, BY[name])), COLUMNS.map((name) => h("th.number", { scope: "col" }, name.replaceAll("_", " "))))),
          h("tbody", {}, rows.value.map((row) => h("tr", {}, heads.value.map((name) => h("td", {}, String(row[name] ?? ""))), COLUMNS.map((name) => h("td.number", {}, name === "cost" ? short(row.cost) : row[name].toLocaleString("en")))))),
        ),
      ),
    () => !rows.value.length && !trouble.value && h("p.muted", {}, "Nothing was used."),
  );
}

/** Show the tokens of each day as bars. */
function barsView(days) {
  const sorted = days.toSorted((one, other) => (one.day < other.day ? -1 : 1));
  const most = Math.max(...sorted.map((one) => one.total_tokens), 1);
  return h(
    "ol.bars",
    { "aria-label": "Tokens by day" },
    sorted.map((one) => h("li", { title: `${one.day}: ${one.total_tokens.toLocaleString("en")} tokens, ${one.requests} requests`, style: { "--part": String(one.total_tokens / most) } }, h("span.offscreen", {}, `${one.day}: ${one.total_tokens} tokens`))),
  );
}

/** Write rows as CSV; a text that a spreadsheet would take for a formula is quoted as text. */
export function asCsv(heads, rows) {
  const cell = (value) => {
    const text = String(value ?? "");
    const plain = /^[=+\-@\t\r]/.test(text) && typeof value === "string" ? `'${text}` : text;
    return /[",\n\r]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
  };
  const columns = [...heads, ...COLUMNS];
  return [columns, ...rows.map((row) => columns.map((name) => row[name]))].map((line) => line.map(cell).join(",")).join("\r\n");
}
