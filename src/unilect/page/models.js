/** The models in the live view: what each does, why, on what, and how it is loaded, stopped and drained. */

import { memoryBudget, models } from "./feed.js";
import { json } from "./session.js";
import { clock, duration, short, size } from "./units.js";
import { each, h, signal } from "./view.js";

const COLOURS = { ready: "good", loading: "warn", stopping: "warn", draining: "warn", failed: "bad", out: "bad" };

/** Show the models; what goes wrong with a change is told in `trouble`. */
export function modelsView(trouble) {
  const list = () => [...models.value.values()];
  return h("div.models", {}, each(list, (one) => one.name, (one) => modelView(one, trouble)));
}

function modelView(one, trouble) {
  const busy = signal(false);
  const events = signal(null);
  const path = (what) => `admin/models/${encodeURI(one.peek().name)}/${what}`;
  const act = async (what) => {
    busy.value = true;
    try {
      await json(path(what), { method: "POST" });
      trouble.value = "";
    } catch (error) {
      trouble.value = error.message;
    }
    busy.value = false;
  };
  const why = async () => {
    if (events.peek()) return (events.value = null);
    try {
      events.value = (await json(path("events"))).events;
    } catch (error) {
      trouble.value = error.message;
    }
  };
  const isLoaded = () => ["ready", "draining", "loading"].includes(one.value.state);
  return h(
    "article.card.model-card",
    {},
    h(
      "div.row",
      {},
      h("h3.grow", {}, () => one.value.name),
      h("span", { class: () => `tag ${COLOURS[one.value.state] ?? ""}` }, () => one.value.state),
      () => one.value.pinned && h("span.tag", {}, "pinned"),
    ),
    () => one.value.reason && h("p.notice.bad", {}, one.value.reason),
    () => one.value.waits_for && h("p.notice", {}, one.value.waits_for),
    h("p.muted.small", {}, () => facts(one.value).join(" · ")),
    memoryBar(one),
    h("ul.backends", {}, each(() => one.value.backends, (backend) => backend.source, backendView)),
    h(
      "div.row",
      {},
      h("button.small", { disabled: () => busy.value || one.value.state === "ready", onclick: () => act("load") }, () => (busy.value ? "Working" : "Load")),
      h("button.small", { disabled: () => busy.value || !isLoaded(), onclick: () => act("stop") }, "Stop"),
      h("button.small", { disabled: () => busy.value || one.value.state === "draining", onclick: () => act("drain") }, "Drain"),
      h("button.small.quiet", { "aria-expanded": () => String(events.value !== null), onclick: why }, "Why"),
    ),
    () => events.value && eventsView(events.value),
  );
}

/** List what is known of a model in a few words. */
function facts(model) {
  const list = [];
  if (model.device) list.push(model.device);
  if (model.context) list.push(`context ${model.context.toLocaleString("en")}`);
  if (model.slots) list.push(`${model.slots_used} of ${model.slots} slots`);
  if (model.queued) list.push(`${model.queued} queued${model.queue_wait_s ? `, about ${duration(model.queue_wait_s)}` : ""}`);
  if (model.requests) list.push(`${model.requests} running`);
  if (model.tokens_per_s) list.push(`${short(model.tokens_per_s)} tokens/s an answer`);
  if (model.load_s) list.push(`loads in ${duration(model.load_s)}`);
  if (model.stops_in_s !== null) list.push(`stops in ${duration(model.stops_in_s)} without requests`);
  if (model.aliases.length) list.push(`also ${model.aliases.join(", ")}`);
  if (model.presets.length) list.push(`presets ${model.presets.join(", ")}`);
  return list;
}

/** Show the memory of a model, of what it may take, of what all may. */
function memoryBar(one) {
  const most = () => memoryBudget.value || Math.max(one.value.memory_need_bytes ?? 0, one.value.memory_bytes, 1);
  const told = () => {
    const { memory_bytes: now, memory_need_bytes: need } = one.value;
    if (!now && !need) return "";
    return `${size(now)} in memory${need ? `, at most ${size(need)}` : ""}`;
  };
  return () =>
    told() &&
    h(
      "div.memory",
      {},
      h("meter", { min: 0, max: () => most(), value: () => one.value.memory_bytes, "aria-label": () => `Memory of ${one.value.name}` }),
      h("span.muted.small", {}, told),
    );
}

function backendView(backend) {
  return h(
    "li",
    {},
    h("code", {}, () => backend.value.source),
    " ",
    () => backend.value.out && [h("span.tag.bad", {}, "left out"), " "],
    h("span.muted.small", {}, () => `${backend.value.requests} running, ${backend.value.served.toLocaleString("en")} served`),
    () => backend.value.processes.map((one) => h("span.muted.small", {}, ` · pid ${one.pid}${one.starts > 1 ? `, started ${one.starts} times` : ""}`)),
    () => backend.value.reason && h("div.small", {}, backend.value.reason, backend.value.next_look_in_s !== null && ` Looked at again in ${duration(backend.value.next_look_in_s)}.`),
  );
}

function eventsView(events) {
  if (!events.length) return h("p.muted", {}, "Nothing has happened to it since the server started.");
  return h("ol.events", { reversed: true }, events.toReversed().map((one) => h("li", {}, h("span.muted.small", {}, `${clock(one.time)} `), one.reason)));
}
