/**
 * The feed: all that an operator sees of the running server, from one stream of events for all tabs together.
 *
 * The tab that has the lock "unilect.feed" reads the stream and tells the others; it lets go of it when it is hidden, and no stream is
 * open while all are. Where a browser has no locks (a page that came by plain HTTP from another machine) each tab has a stream.
 */

import { keys, send } from "./session.js";
import { readEvents } from "./sse.js";
import { onEnd, signal } from "./view.js";

const AGAIN_MS = [500, 1000, 2000, 4000];
const SECONDS = 60;
const TENS = 360;

/** The state of the stream: `off`, `connecting`, `live`, `lost` (and tried again) or `refused`. */
export const status = signal("off");
/** What runs, by its kind: Maps of descriptions by name, touched with each event. */
export const models = signal(new Map());
export const requests = signal(new Map());
export const failures = signal(new Map());
/** Samples of the counters: of the last minute, a second apart, and of the last hour. */
export const seconds = signal([]);
export const tens = signal([]);
/** The memory for all models in bytes; null where there is no budget. */
export const memoryBudget = signal(null);
/** The time of the last event, in ms since 1970. */
export const heardAt = signal(0);

/** @type {Record<string, [{ peek(): Map<string, any>, touch(): void }, string]>} */
const KINDS = { models: [models, "name"], requests: [requests, "id"], failures: [failures, "request_id"] };
let users = 0;
let lastId = "";
let stopReading = null;
const channel = "BroadcastChannel" in window ? new BroadcastChannel("unilect.feed") : null;

/** Return the seconds since the server has told of one of these last: it tells nothing of what only time changes. */
export function elapsed(one) {
  return Math.max(0, heardAt.value - one.heardAt) / 1000;
}

/** Follow the server while the view that calls this is shown. */
export function useFeed() {
  users += 1;
  update();
  onEnd(() => {
    users -= 1;
    update();
  });
}

/** Begin or end reading, as who looks, and whether this tab is seen, demand. */
function update() {
  const wants = users > 0 && document.visibilityState === "visible" && keys.operator.peek() !== "";
  if (wants && !stopReading) stopReading = begin();
  else if (!wants && stopReading) {
    stopReading();
    stopReading = null;
    status.value = "off";
  }
}

/** Read the stream again, as after a key was given. */
function restart() {
  stopReading?.();
  stopReading = null;
  lastId = "";
  update();
}

document.addEventListener("visibilitychange", update);
addEventListener("unilect:key", restart);
if (channel) channel.onmessage = ({ data }) => hear(data);

function begin() {
  const abort = new AbortController();
  status.value = "connecting";
  if (!navigator.locks || !channel) {
    read(abort.signal);
    return () => abort.abort();
  }
  channel.postMessage({ asks: lock() });
  navigator.locks
    .request(`unilect.feed.${lock()}`, { signal: abort.signal }, () => read(abort.signal))
    .catch((error) => {
      if (error.name !== "AbortError") throw error;
    });
  return () => abort.abort();
}

/** Name the streams of a key, without it. */
function lock() {
  let hash = 2166136261;
  for (const one of keys.operator.peek()) hash = Math.imul(hash ^ one.codePointAt(0), 16777619);
  return (hash >>> 0).toString(36);
}

/** Take part in what other tabs say. */
function hear({ asks, of, event, whole }) {
  if (asks === lock() && status.peek() === "live" && lastId) channel.postMessage({ of: lock(), whole: snapshot() });
  if (of !== lock() || !stopReading) return;
  if (whole) take({ id: whole.id, name: "whole" }, whole.body);
  else if (event) take(event, event.body);
}

function snapshot() {
  const body = { memory_budget: memoryBudget.peek(), seconds: seconds.peek(), tens: tens.peek() };
  for (const [kind, [shown]] of Object.entries(KINDS)) body[kind] = [...shown.peek().values()];
  return { id: lastId, body };
}

/** Read the stream until it is aborted; a stream that breaks is opened again, from where it was. */
async function read(abort) {
  for (let tries = 0; !abort.aborted; tries++) {
    try {
      const response = await send("admin/events", { signal: abort, headers: lastId ? { "Last-Event-ID": lastId } : {} });
      for await (const { id, name, data } of readEvents(response)) {
        const body = JSON.parse(data);
        take({ id, name }, body);
        channel?.postMessage({ of: lock(), event: { id, name, body } });
        tries = 0;
      }
    } catch (error) {
      if (abort.aborted) return;
      if ([401, 403, 404].includes(error.status)) {
        status.value = "refused";
        return;
      }
    }
    if (abort.aborted) return;
    status.value = "lost";
    await new Promise((done) => setTimeout(done, AGAIN_MS[Math.min(tries, AGAIN_MS.length - 1)]));
  }
}

/** Take an event into the state. */
function take({ id, name }, body) {
  lastId = id ?? lastId;
  const isWhole = name === "whole";
  const now = Date.now();
  for (const [kind, [shown, key]] of Object.entries(KINDS)) {
    if (isWhole) shown.peek().clear();
    for (const gone of body[`gone_${kind}`] ?? []) shown.peek().delete(gone);
    for (const one of body[kind] ?? []) shown.peek().set(one[key], { heardAt: now, ...one }); // of another tab's it is known
    if (isWhole || body[kind] || body[`gone_${kind}`]) shown.touch();
  }
  if (isWhole) {
    memoryBudget.value = body.memory_budget;
    [seconds.value, tens.value] = [body.seconds, body.tens];
  } else if (body.point) {
    seconds.value = [...seconds.peek(), body.point].slice(-SECONDS);
    const last = tens.peek().at(-1);
    if (!last || body.point.at - last.at >= 10) tens.value = [...tens.peek(), body.point].slice(-TENS);
  }
  heardAt.value = now;
  status.value = "live";
}
