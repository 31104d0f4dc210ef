/** The models as clients see them: their list, and what each honours. */

import { json } from "./session.js";
import { signal } from "./view.js";

/** The models of the server; null until they are known. */
export const catalogue = signal(null);
const details = new Map();
let early = null; // the list that was asked for before the view that shows it was there

/** Read the list. */
export function loadCatalogue() {
  const asked = early ?? read();
  early = null;
  return asked;
}

/** Ask for the list, for a view that is still on its way. */
export function askEarly() {
  early = read();
  early.catch(() => {}); // told by who takes it
  addEventListener("unilect:key", () => (early = null), { once: true });
}

async function read() {
  const { data } = await json("v1/models");
  catalogue.value = data;
  details.clear();
}

/** Return the name of a model as a part of an address; its slashes stay. */
export function modelPath(name) {
  return encodeURIComponent(name.toWellFormed()).replaceAll("%2F", "/");
}

/** Return what a model is and honours (`unilect` in GET /v1/models/{model}); it is asked for once. */
export function describeModel(name) {
  if (!details.has(name)) {
    const asked = json(`v1/models/${modelPath(name)}`).then((found) => found.unilect ?? {});
    asked.catch(() => details.delete(name));
    details.set(name, asked);
  }
  return details.get(name);
}
