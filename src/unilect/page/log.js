/** The logs of the engines, followed while they are shown. */

import { send } from "./session.js";
import { readLines } from "./sse.js";
import { h, onEnd, signal } from "./view.js";

const KEPT = 1000;

/** Show the logs, once they are asked for. */
export function logView() {
  const isOpen = signal(false);
  return h("details.log", { ontoggle: (event) => (isOpen.value = event.target.open) }, h("summary", {}, "Follow"), () => isOpen.value && followView());
}

function followView() {
  const abort = new AbortController();
  onEnd(() => abort.abort());
  const list = h("pre", { tabindex: 0, role: "log", "aria-label": "Logs" });
  follow(list, abort.signal);
  return list;
}

async function follow(list, signal) {
  try {
    const response = await send("admin/logs?follow=true&lines=200", { signal });
    for await (const line of readLines(response)) {
      const follows = list.scrollTop + list.clientHeight > list.scrollHeight - 40;
      list.append(`${line}\n`);
      while (list.childNodes.length > KEPT) list.firstChild.remove();
      if (follows) list.scrollTop = list.scrollHeight;
    }
  } catch (error) {
    if (error.name !== "AbortError") list.append(`${error.message}\n`);
  }
}
