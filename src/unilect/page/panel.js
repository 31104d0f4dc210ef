/** The panel beside a thread: its settings, or what it is as a request. */

import { apiMessages, requestBody } from "./answer.js";
import { codeView } from "./code.js";
import { settingsView } from "./parameters.js";
import { h } from "./view.js";

/** Show the panel of `{ name, thread }`; it closes by an empty text. */
export function panelView(panel) {
  const { name, thread } = panel.value;
  const body = () => {
    try {
      return codeView(requestBody(thread.model.value, thread.messages(), thread.settings.value));
    } catch {
      return codeView({ model: thread.model.value, messages: apiMessages(thread.messages(), thread.settings.value.system) });
    }
  };
  return h(
    "aside.panel",
    { "aria-label": name === "code" ? "This conversation as a request" : "Settings", onkeydown: (event) => event.key === "Escape" && (panel.value = "") },
    h("div.row", {}, h("h2.grow", {}, name === "code" ? "As a request" : "Settings"), h("button.quiet", { "aria-label": "Close", onclick: () => (panel.value = "") }, "×")),
    name === "code" ? body : settingsView(thread),
  );
}
