/**
 * The session with the server: its settings, the keys that a person has given, and requests.
 *
 * Keys stay in this tab (sessionStorage); another tab of this page may ask for them (`shareKeys`). The operator's may come in the
 * fragment of the address, from which it is taken away at once.
 */

import { signal } from "./view.js";

/** The server's address, which ends with a slash; the page may lie below a path. */
export const BASE = new URL(".", document.baseURI).href;

/** What the server says of itself: title, model, system, needs_key, steer, version. */
export const settings = signal({ title: "unilect", model: null, system: "", needs_key: false, steer: true, version: "" });

/** The keys: `client` to ask models, `operator` to see and steer the server. */
export const keys = { client: signal(read("client")), operator: signal(read("operator")) };

/** The key that is missing or wrong, as `{ kind, message }`; null while nothing is asked for. */
export const wanted = signal(null);

/** An error of the server, or of the way to it (status 0). */
export class Failure extends Error {
  constructor(status, message, details = {}) {
    super(message);
    this.status = status;
    this.code = details.code ?? "";
    this.param = details.param ?? "";
    this.retryAfter = details.retryAfter ?? null;
  }
}

function read(kind) {
  return sessionStorage.getItem(`unilect.key.${kind}`) ?? "";
}

/** Keep a key for this tab, and tell all views so; an empty one is forgotten. */
export function setKey(kind, key) {
  if (key) sessionStorage.setItem(`unilect.key.${kind}`, key);
  else sessionStorage.removeItem(`unilect.key.${kind}`);
  keys[kind].value = key;
  if (wanted.peek()?.kind === kind) wanted.value = null;
  dispatchEvent(new Event("unilect:key"));
}

/** Take the operator's key out of the address, if it is there. */
export function takeKeyFromAddress() {
  const found = /^#key=([\w~.-]{8,200})$/.exec(location.hash);
  if (!found) return;
  history.replaceState(null, "", `${location.pathname}${location.search}#live`);
  setKey("operator", found[1]);
}

/** Give other tabs of this page the keys of this one, and ask them for theirs. */
export function shareKeys() {
  if (!("BroadcastChannel" in window)) return;
  const channel = new BroadcastChannel("unilect.keys");
  channel.onmessage = ({ data }) => {
    if (data.asks) {
      const known = { client: keys.client.peek(), operator: keys.operator.peek() };
      if (known.client || known.operator) channel.postMessage({ known });
    } else if (data.known) {
      for (const kind of ["client", "operator"]) if (data.known[kind] && !keys[kind].peek()) setKey(kind, data.known[kind]);
    }
  };
  channel.postMessage({ asks: true });
}

let asked = null; // for the settings

/** Read the server's settings, once. */
export function loadSettings() {
  asked ??= json("page/settings").then(
    (found) => {
      settings.value = found;
    },
    (error) => {
      asked = null;
      throw error;
    },
  );
  return asked;
}

const kindOf = (path) => (path.startsWith("admin/") ? "operator" : "client");

/**
 * Send a request, and return the response once its head has come, whatever its status.
 *
 * A path is below the server's address, without a slash at its begin; those below `admin/` go with the operator's key.
 *
 * @param {string} path
 * @param {{ method?: string, text?: string, signal?: AbortSignal, headers?: Record<string, string> }} [options] `text` is its body, which is JSON; none where it is empty
 * @throws Failure the server cannot be reached
 */
export async function reach(path, { method = "GET", text = "", signal: abort, headers = {} } = {}) {
  const key = keys[kindOf(path)].peek();
  const all = { ...headers };
  if (key) all.Authorization = `Bearer ${key}`;
  if (text) all["Content-Type"] = "application/json";
  try {
    return await fetch(BASE + path, { method, headers: all, body: text || undefined, signal: abort, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(0, "The server cannot be reached.");
  }
}

/**
 * Send a request with a value as its body, and return the response of a request that succeeds; the rest is as in `reach`.
 *
 * @param {string} path
 * @param {{ body?: any, method?: string, signal?: AbortSignal, headers?: Record<string, string> }} [options]
 * @throws Failure the server refused it, or cannot be reached
 */
export async function send(path, { body, ...options } = {}) {
  const response = await reach(path, { ...options, text: body === undefined ? "" : JSON.stringify(body) });
  if (response.ok) return response;
  const failure = await readFailure(response);
  const kind = kindOf(path);
  if (response.status === 401) wanted.value = { kind, message: keys[kind].peek() ? failure.message : "" };
  throw failure;
}

async function readFailure(response) {
  let details = {};
  try {
    details = (await response.json()).error ?? {};
  } catch {
    // a proxy's page
  }
  const retryAfter = Number(response.headers.get("Retry-After")) || null;
  return new Failure(response.status, details.message || `The server answered with status ${response.status}.`, { ...details, retryAfter });
}

/** Send a request, and return the JSON of its answer; the arguments and errors are those of `send`. */
export async function json(path, options) {
  return (await send(path, options)).json();
}
