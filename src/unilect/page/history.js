/**
 * The history: conversations in this browser's IndexedDB.
 *
 * A list of heads (`{ id, title, at, text }`; `text` is what a search looks at) is read at once; the messages of one when it is opened.
 */

import { branch, join, titleOf } from "./conversation.js";
import { signal } from "./view.js";

const NAME = "unilect";
const SEARCHED = 4000; // characters of a conversation that a search looks at
let opening = null;

/** Why the conversation of this tab is not kept; empty while it is. */
export const unkept = signal("");

function open() {
  opening ??= new Promise((done, fail) => {
    const asked = indexedDB.open(NAME, 1);
    asked.onupgradeneeded = () => {
      asked.result.createObjectStore("heads", { keyPath: "id" });
      asked.result.createObjectStore("conversations", { keyPath: "id" });
    };
    asked.onsuccess = () => done(asked.result);
    asked.onerror = () => fail(asked.error);
  });
  opening.catch(() => (opening = null)); // it may be there later
  return opening;
}

/** Run requests in one transaction over both stores, and return the result of the last. */
async function within(mode, run) {
  const database = await open();
  return new Promise((done, fail) => {
    const transaction = database.transaction(["heads", "conversations"], mode);
    const asked = run(transaction.objectStore("heads"), transaction.objectStore("conversations"));
    transaction.oncomplete = () => done(asked?.result);
    transaction.onerror = transaction.onabort = () => fail(transaction.error);
  });
}

/** List the heads of all conversations, the latest first. */
export async function listHeads() {
  const heads = await within("readonly", (store) => store.getAll());
  return heads.sort((one, other) => other.at - one.at);
}

/** Return a conversation; undefined where there is none of this id. */
export function load(id) {
  return within("readonly", (_, store) => store.get(id));
}

/**
 * Keep a conversation, with what another tab has said and removed in it meanwhile; one without messages is not kept.
 *
 * @param isWhole true for one of a file, whose messages come back if they were removed
 */
export async function save(conversation, isWhole = false) {
  if (!conversation.leaf) return;
  try {
    await within("readwrite", (heads, store) => {
      store.get(conversation.id).onsuccess = ({ target }) => {
        join(conversation, isWhole ? { ...target.result, removed: [] } : target.result);
        heads.put(headOf(conversation));
        store.put(conversation);
      };
    });
    unkept.value = "";
  } catch (error) {
    const isFull = error?.name === "QuotaExceededError";
    const why = isFull ? "There is no more room for conversations in this browser. Export them, and delete some." : "This browser keeps no conversations for this page, as in a private window.";
    unkept.value = `${why} This conversation ends with its tab.`;
  }
}

function headOf(conversation) {
  const text = branch(conversation)
    .map((one) => one.content)
    .join("\n")
    .slice(0, SEARCHED);
  return { id: conversation.id, title: titleOf(conversation), at: conversation.at, text: text.toLowerCase() };
}

/** Delete a conversation, or all of them. */
export function forget(id) {
  return within("readwrite", (heads, store) => {
    if (id === undefined) {
      heads.clear();
      return store.clear();
    }
    heads.delete(id);
    return store.delete(id);
  });
}

/** Return all conversations as one text of JSON. */
export async function exportAll() {
  const all = await within("readonly", (_, store) => store.getAll());
  return JSON.stringify({ unilect: 1, conversations: all });
}

/**
 * Keep the conversations of an exported text: of this page (one or all), or of llama-server's.
 *
 * @returns how many there were
 * @throws Error it is no such text
 */
export async function importText(text) {
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    throw new Error("This file holds no JSON.");
  }
  const list = Array.isArray(found) ? found : (found?.conversations ?? [found]);
  const { readExport } = await import("./exports.js"); // a first visit does not wait for it
  const known = list.map(readExport).filter(Boolean);
  if (!known.length) throw new Error("This file holds no conversation of this page or of llama-server's.");
  for (const one of known) await save(one, true);
  if (unkept.peek()) throw new Error(unkept.peek());
  return known.length;
}
