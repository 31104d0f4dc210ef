/** The live view: models, requests, counters over time, failures and logs of the running server, and the ways to change them. */

import { elapsed, failures, heardAt, memoryBudget, requests, seconds, status, tens, useFeed } from "./feed.js";
import { logView } from "./log.js";
import { modelsView } from "./models.js";
import { growth, meanGrowth, plotsView } from "./plots.js";
import { json, keys, settings, wanted } from "./session.js";
import { clock, duration, short, size } from "./units.js";
import { computed, each, effect, h, signal, wide } from "./view.js";

const STATES = { off: "paused", connecting: "connecting", live: "live", lost: "the server does not answer; trying again", refused: "the key was refused" };

/** Show the view. */
export function show() {
  if (!settings.peek().steer) return h("div.page", {}, h("h1", {}, "Live"), h("p", {}, "This server's page does not steer it (`steer` in [page])."));
  return h("div.page", {}, () => (keys.operator.value ? liveView() : keyView()));
}

/** Say which key opens the operator's views, and ask for it. */
export function keyView() {
  return h(
    "section.card",
    {},
    h("h1", {}, "For the operator"),
    h("p", {}, "To see and steer this server, run ", h("code", {}, "unilect page"), " on its machine and open the address that it prints, or enter a key of ", h("code", {}, "[admin]"), "."),
    h("button.primary", { onclick: () => (wanted.value = { kind: "operator", message: "" }) }, "Enter a key"),
  );
}

function liveView() {
  useFeed();
  const trouble = signal("");
  return [
    h("div.row", {}, h("h1.grow", {}, "Live"), h("span", { role: "status", class: () => `tag ${status.value === "live" ? "good" : "warn"}` }, () => STATES[status.value])),
    () => trouble.value && h("p.notice.bad", { role: "alert" }, trouble.value),
    tiles(),
    h("h2.offscreen", {}, "Over time"),
    plotsView(seconds, tens),
    h("h2", {}, "Models"),
    modelsView(trouble),
    h("h2", {}, "Requests"),
    requestsView(trouble),
    h("h2", {}, "Failures"),
    failuresView(),
    h("h2", {}, "Logs of the engines"),
    logView(),
  ];
}

/** Show the counters of the last seconds as numbers. */
function tiles() {
  const rate = (name) => computed(() => growth(seconds.value.at(-11) ?? seconds.value[0], seconds.value.at(-1), name));
  const first = computed(() => meanGrowth(seconds.value[0], seconds.value.at(-1), "first_token_s", "first_tokens"));
  const now = (name) => seconds.value.at(-1)?.[name] ?? 0;
  const tile = (label, value) => h("div.tile", {}, h("span.muted.small", {}, label), h("strong", {}, value));
  const [asked, tokens] = [rate("requests"), rate("completion_tokens")];
  return h(
    "div.tiles",
    {},
    tile("requests/s", () => short(asked.value)),
    tile("tokens/s", () => short(tokens.value)),
    tile("first token", () => (first.value === null ? "–" : duration(first.value))),
    tile("in flight", () => String([...requests.value.values()].length)),
    tile("waiting", () => String(now("waiting"))),
    tile("memory of models", () => (memoryBudget.value ? `${size(now("memory"))} of ${size(memoryBudget.value)}` : size(now("memory")))),
    tile("free on the machine", () => (now("memory_free") ? size(now("memory_free")) : "–")),
  );
}

function requestsView(trouble) {
  const list = () => [...requests.value.values()].sort((one, other) => other.age_s - one.age_s);
  const cancel = async (id) => {
    try {
      await json(`admin/requests/${encodeURIComponent(id)}/cancel`, { method: "POST" });
      trouble.value = "";
    } catch (error) {
      trouble.value = error.message;
    }
  };
  const speeds = new Map();
  effect(() => measure(requests.value, heardAt.peek(), speeds));
  const row = (one) =>
    h(
      "tr",
      {},
      h("td", {}, () => one.value.caller || "anonymous"),
      h("td", {}, () => one.value.model),
      h("td", {}, () => phase(one.value)),
      h("td.number", {}, () => duration(one.value.age_s + elapsed(one.value))),
      h("td.number", {}, () => String(one.value.completion_tokens)),
      h("td.number", {}, () => (one.value, short(speeds.get(one.value.id)?.rate))),
      h("td", {}, h("button.small.danger", { onclick: () => cancel(one.peek().id) }, "Cancel")),
    );
  return wide(
    "Requests",
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, ["Who", "Model", "Phase"].map((name) => h("th", { scope: "col" }, name)), ["Age", "Tokens", "Tokens/s"].map((name) => h("th.number", { scope: "col" }, name)), h("th", { scope: "col" }, h("span.offscreen", {}, "Actions")))),
      h("tbody", {}, each(list, (one) => one.id, row)),
    ),
    () => !requests.value.size && h("p.muted", {}, "No request runs."),
  );
}

/** Say what a request does, and what it waits for. */
function phase(request) {
  if (request.state !== "queued") return request.state;
  const wait = request.wait_s === null ? "" : `, about ${duration(request.wait_s)}`;
  return `position ${request.position}${wait}`;
}

/** Keep the speed of each request, from the tokens of two events. */
function measure(all, at, speeds) {
  for (const id of speeds.keys()) if (!all.has(id)) speeds.delete(id);
  for (const [id, { completion_tokens: tokens }] of all) {
    const before = speeds.get(id);
    if (!before) speeds.set(id, { tokens, at, rate: null });
    else if (at > before.at) speeds.set(id, { tokens, at, rate: (1000 * (tokens - before.tokens)) / (at - before.at) });
  }
}

function failuresView() {
  const list = () => [...failures.value.values()].sort((one, other) => other.time - one.time).slice(0, 20);
  const row = (one) =>
    h(
      "tr",
      {},
      h("td", {}, clock(one.peek().time)),
      h("td", {}, h("span", { class: `tag ${one.peek().status >= 500 ? "bad" : "warn"}` }, String(one.peek().status))),
      h("td", {}, one.peek().model),
      h("td", {}, one.peek().reason || one.peek().ended, one.peek().attempts.map((attempt) => h("div.muted.small", {}, `${attempt.backend}: ${attempt.reason}`))),
      h("td", {}, one.peek().caller || one.peek().address),
      h("td.mono.small", {}, one.peek().request_id),
    );
  return wide(
    "Failures",
    () =>
      failures.value.size
        ? h("table", {}, h("thead", {}, h("tr", {}, ["When", "Status", "Model", "Why", "Who", "Request"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, each(list, (one) => one.request_id, row)))
        : h("p.muted", {}, "Nothing has failed."),
  );
}
