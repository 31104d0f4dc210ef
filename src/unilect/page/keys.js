/** Keys and usage, for the operator: keys are made, limited, rotated, revoked and deleted; what was used, by key, model and day. */

import { copyText } from "./clipboard.js";
import { keyView } from "./live.js";
import { json, keys as own, settings } from "./session.js";
import { usageView } from "./usage.js";
import { each, effect, h, signal, wide } from "./view.js";

/** The limits of a key. */
const LIMITS = ["requests_per_minute", "tokens_per_minute", "tokens_per_day", "tokens_per_month", "parallel", "money_per_day", "money_per_month"];

/** Show the view. */
export function show() {
  if (!settings.peek().steer) return h("div.page", {}, h("h1", {}, "Keys & usage"), h("p", {}, "This server's page does not steer it (`steer` in [page])."));
  return h("div.page", {}, () => (own.operator.value ? keysView() : keyView()));
}

function keysView() {
  const list = signal([]);
  const trouble = signal("");
  const secret = signal(null); // of a key that was just made: { name, key }
  const run = async (work) => {
    try {
      const answer = await work();
      trouble.value = "";
      if (answer?.key) secret.value = { name: answer.name, key: answer.key };
      list.value = (await json("admin/keys")).keys;
    } catch (error) {
      trouble.value = error.message;
    }
  };
  effect(() => {
    run(async () => null);
  });
  return [
    h("h1", {}, "Keys"),
    () => trouble.value && h("p.notice.bad", { role: "alert" }, trouble.value),
    () => secret.value && secretView(secret),
    newKeyView(run),
    wide(
      "Keys",
      () =>
        list.value.length
          ? h(
              "table",
              {},
              h("thead", {}, h("tr", {}, ["Name", "State", "Owner", "Models", "Limits", "Made", ""].map((name) => h("th", { scope: "col" }, name || h("span.offscreen", {}, "Actions"))))),
              h("tbody", {}, each(() => list.value, (one) => one.id, (one) => keyRow(one, run))),
            )
          : h("p.muted", {}, "The store has no keys."),
    ),
    h("h1", {}, "Usage"),
    usageView(),
  ];
}

function secretView(secret) {
  const { name, key } = secret.value;
  return h(
    "div.notice",
    { role: "status" },
    h("p", {}, "The key of ", h("strong", {}, name), ". It is not shown again."),
    h("div.row", {}, h("code.grow", {}, key), h("button.small", { onclick: (event) => copyText(key, event.currentTarget) }, "Copy"), h("button.small.quiet", { onclick: () => (secret.value = null) }, "Done")),
  );
}

function newKeyView(run) {
  const field = (name, label, properties = {}) => h("label", {}, label, h("input", { name, ...properties }));
  const make = (event) => {
    event.preventDefault();
    const form = event.currentTarget;
    const fields = new FormData(form);
    const given = { get: (name) => String(fields.get(name) ?? "") };
    const models = given.get("models").split(",").map((one) => one.trim()).filter(Boolean);
    const body = { name: given.get("name").trim(), require: given.get("require") === "on" };
    if (given.get("owner").trim()) body.owner = given.get("owner").trim();
    if (models.length) body.models = models;
    if (given.get("days")) body.expires_in_s = Number(given.get("days")) * 86_400;
    const limits = readLimits(given);
    if (Object.keys(limits).length) body.limits = limits;
    run(async () => {
      const made = await json("admin/keys", { method: "POST", body });
      form.reset();
      return made;
    });
  };
  return h(
    "details.card",
    {},
    h("summary", {}, "Make a key"),
    h(
      "form.fields",
      { onsubmit: make },
      field("name", "Name", { required: true, maxlength: 100 }),
      field("owner", "Owner", { maxlength: 100 }),
      field("models", "Models, with commas between them (all)"),
      field("days", "Ends after days (never)", { type: "number", min: 1, step: 1 }),
      LIMITS.map((name) => field(name, name.replaceAll("_", " "), { type: "number", min: 0, step: "any" })),
      h("label.check", {}, h("input", { type: "checkbox", name: "require" }), " Ask every client for a key from now on"),
      h("div.row.end", {}, h("button.primary", {}, "Make the key")),
    ),
  );
}

function readLimits(given) {
  return Object.fromEntries(LIMITS.filter((name) => given.get(name)).map((name) => [name, Number(given.get(name))]));
}

function keyRow(one, run) {
  const path = (what = "") => `admin/keys/${encodeURIComponent(one.peek().id)}${what}`;
  const editing = signal(false);
  const isActive = () => one.value.state === "active";
  const change = (event) => {
    event.preventDefault();
    const given = new FormData(event.currentTarget);
    const limits = Object.fromEntries(LIMITS.map((name) => [name, given.get(name) ? Number(given.get(name)) : null]));
    editing.value = false;
    run(async () => (await json(path(), { method: "PATCH", body: { limits } }), null));
  };
  const form = () =>
    h(
      "form.fields",
      { onsubmit: change },
      LIMITS.map((name) => h("label", {}, name.replaceAll("_", " "), h("input", { name, type: "number", min: 0, step: "any", value: one.value.limits[name] ?? "" }))),
      h("div.row.end", {}, h("button.quiet", { type: "button", onclick: () => (editing.value = false) }, "Cancel"), h("button.primary", {}, "Set")),
    );
  return h(
    "tr",
    {},
    h("td", {}, h("strong", {}, () => one.value.name), h("div.mono.small.muted", {}, () => one.value.id)),
    h("td", {}, h("span", { class: () => `tag ${isActive() ? "good" : ""}` }, () => one.value.state)),
    h("td", {}, () => one.value.owner),
    h("td", {}, () => one.value.models?.join(", ") ?? "all"),
    h("td", {}, () => (editing.value ? form() : limitsText(one.value.limits))),
    h("td", {}, () => one.value.created_at.slice(0, 10)),
    h(
      "td",
      {},
      h(
        "div.row",
        {},
        () => isActive() && h("button.small", { onclick: () => (editing.value = !editing.peek()) }, "Limits"),
        () => isActive() && h("button.small", { onclick: () => run(() => json(path("/rotate"), { method: "POST", body: {} })) }, "Rotate"),
        () => isActive() && h("button.small.danger", { onclick: () => run(async () => (await json(path("/revoke"), { method: "POST" }), null)) }, "Revoke"),
        () => !isActive() && h("button.small.danger", { onclick: () => run(async () => (await json(path(), { method: "DELETE" }), null)) }, "Delete"),
      ),
    ),
  );
}

function limitsText(limits) {
  const all = Object.entries(limits);
  return all.length ? all.map(([name, most]) => h("div.small", {}, `${most.toLocaleString("en")} ${name.replaceAll("_", " ")}`)) : "none of its own";
}
