/** The models in the live view: what each does, why, on what, and how it is loaded, stopped and drained. */

import { elapsed, memoryBudget, models, seconds } from "./feed.js";
import { json } from "./session.js";
import { clock, duration, short, size } from "./units.js";
import { computed, each, h, signal } from "./view.js";

const COLOURS = { ready: "good", loading: "warn", stopping: "warn", draining: "warn", failed: "bad", out: "bad" };

const BUSY = new Set(["loading", "stopping", "draining", "failed", "out"]);
/** As many are shown at once: each is some thirty elements. */
const MOST = 50;
/** The effect that a load would have now: a word, and its colour. */
const FITS = { now: ["fits", "good"], evicts: ["fits instead of others", "warn"], waits: ["does not fit now", "warn"], never: ["never fits", "bad"] };

/** Show the models; what goes wrong with a change is told in `trouble`. */
export function modelsView(trouble) {
  const wanted = signal("");
  const found = computed(() => choose([...models.value.values()], wanted.value.trim().toLowerCase()));
  const isFew = () => models.value.size <= MOST;
  return [
    h("div.row", { hidden: isFew }, h("input", { type: "search", placeholder: "Find a model", "aria-label": "Find a model", oninput: (event) => (wanted.value = event.target.value) }), h("span.muted.small", {}, () => `${Math.min(MOST, found.value.length)} of ${models.value.size.toLocaleString("en")} models are shown`)),
    h("div.models", {}, each(() => found.value.slice(0, MOST), (one) => one.name, (one) => modelView(one, trouble))),
  ];
}

/** Return the models with a text in a name, those first that something happens to where not all can be shown. */
export function choose(all, text) {
  const found = all.filter((one) => [one.name, ...one.aliases].some((name) => name.toLowerCase().includes(text)));
  return found.length <= MOST ? found : found.toSorted((one, other) => Number(isBusy(other)) - Number(isBusy(one)));
}

const isBusy = (one) => Boolean(one.requests || one.queued || one.waits_for || one.reason || BUSY.has(one.state));

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
    loadView(one),
    h("p.muted.small", {}, () => facts(one.value).join(" · ")),
    memoryBar(one),
    () => one.value.fit && h("p.small", {}, h("span", { class: `tag ${FITS[one.value.fit][1]}` }, FITS[one.value.fit][0]), " ", () => fitText(one.value, seconds.value.at(-1))),
    h("ul.backends", {}, each(() => one.value.backends, (backend) => backend.source, (backend) => backendView(backend, one))),
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
  if (model.stops_in_s !== null) list.push(`stops in ${duration(Math.max(0, model.stops_in_s - elapsed(model)))} without requests`);
  if (model.aliases.length) list.push(`also ${model.aliases.join(", ")}`);
  if (model.presets.length) list.push(`presets ${model.presets.join(", ")}`);
  return list;
}

/** Show how far a load is, and the seconds that it still takes. */
function loadView(one) {
  const step = () => one.value.loading;
  return () =>
    (step() || one.value.load_left_s !== null) &&
    h("p.memory.small", {}, () => step() && progressView(one.value), h("span", {}, () => loadText(one.value)));
}

function progressView({ name, loading: { part } }) {
  const known = part === null ? {} : { value: part }; // without a value it is one of which nobody knows how far it is
  return h("progress", { "aria-label": `Load of ${name}`, ...known });
}

/** Say how far a load is: "loading: 42 %, about 3 s left". */
export function loadText(model) {
  const { step = "waiting for memory", part = null, size_bytes: bytes = null } = model.loading ?? {};
  const left = model.load_left_s === null ? null : model.load_left_s - elapsed(model);
  const told = [part !== null && (part < 1 ? `${Math.floor(100 * part)} %` : "all read") + (bytes ? ` of ${size(bytes)}` : ""), left !== null && (left > 0.1 ? `about ${duration(left)} left` : "takes longer than expected")];
  return [step, told.filter(Boolean).join(", ")].filter(Boolean).join(": ");
}

/** Say whether a model fits into memory now, in numbers; `sample` has what is taken and free. */
export function fitText({ fit, evicts, memory_need_bytes: need }, sample) {
  const [taken, machine] = [sample?.memory ?? 0, sample?.memory_free ?? 0];
  if (!need) return "What it takes is known after its first load.";
  if (fit === "never") return `It needs ${size(need)}; all models together may take ${size(memoryBudget.value)}.`;
  const told = `It needs ${size(need)}, ${size(Math.max(0, memoryBudget.value - taken))} are free`;
  const short = machine && machine < need ? `, and ${size(machine)} on the machine` : "";
  const rest = evicts.length > 5 ? ` and ${evicts.length - 5} more` : "";
  if (fit === "evicts") return `${told}${short}: ${evicts.slice(0, 5).join(", ")}${rest} would leave for it.`;
  return `${told}${short}${fit === "waits" ? ", and no model can leave now" : ""}.`;
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
      h("div.meter", {
        role: "meter",
        "aria-label": () => `Memory of ${one.value.name}`,
        "aria-valuenow": () => one.value.memory_bytes,
        "aria-valuemin": 0,
        "aria-valuemax": () => most(),
        "aria-valuetext": () => size(one.value.memory_bytes),
        style: () => ({ "--part": String(Math.min(1, one.value.memory_bytes / most())) }),
      }),
      h("span.muted.small", {}, told),
    );
}

function backendView(backend, model) {
  return h(
    "li",
    {},
    h("code", {}, () => backend.value.source),
    " ",
    () => backend.value.out && [h("span.tag.bad", {}, "left out"), " "],
    h("span.muted.small", {}, () => `${backend.value.requests} running, ${backend.value.served.toLocaleString("en")} served`),
    () => backend.value.processes.map((one) => h("span.muted.small", {}, ` · pid ${one.pid}${one.starts > 1 ? `, started ${one.starts} times` : ""}`)),
    () => backend.value.reason && h("div.small", {}, backend.value.reason, backend.value.next_look_in_s !== null && ` Looked at again in ${duration(Math.max(0, backend.value.next_look_in_s - elapsed(model.value)))}.`),
  );
}

function eventsView(events) {
  if (!events.length) return h("p.muted", {}, "Nothing has happened to it since the server started.");
  return h("ol.events", { reversed: true }, events.toReversed().map((one) => h("li", {}, h("span.muted.small", {}, `${clock(one.time)} `), one.reason)));
}
