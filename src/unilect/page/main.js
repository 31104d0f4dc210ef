/** The shell: the views by their names in the address, the keys that are asked for, light or dark. */

import { askEarly } from "./catalogue.js";
import { loadSettings, setKey, settings, shareKeys, takeKeyFromAddress, wanted } from "./session.js";
import { addStyles, computed, effect, h, mount, signal } from "./view.js";

/** The views: a name in the address, what followed it last, a title, the module whose `show(rest)` makes it, and its styles beside those of the chat. */
const VIEWS = [
  { name: "chat", rest: signal(""), title: "Chat", load: () => import("./chat.js"), styles: [] },
  { name: "live", rest: signal(""), title: "Live", load: () => import("./live.js"), styles: ["live.css", "plot.css"] },
  { name: "keys", rest: signal(""), title: "Keys & usage", load: () => import("./keys.js"), styles: ["live.css"] },
  { name: "connect", rest: signal(""), title: "Connect", load: () => import("./connect.js"), styles: ["live.css"] },
  { name: "api", rest: signal(""), title: "API", load: () => import("./api.js"), styles: ["live.css"] },
];
const THEMES = ["auto", "light", "dark"];

const address = signal(location.hash);
const view = computed(() => VIEWS.find((one) => one.name === place(address.value)[0]) ?? VIEWS[0]);
const theme = signal(localStorage.getItem("unilect.theme") ?? "auto");
let endView = () => {};

/** Return the name of the view in an address, and what follows it: `#chat/ID`. */
function place(hash) {
  const [name, ...rest] = hash.replace(/^#/, "").split("/");
  return [name, rest.join("/")];
}

async function showView(main) {
  const one = view.value;
  endView();
  endView = () => {};
  main.setAttribute("aria-busy", "true");
  try {
    const [module] = await Promise.all([one.load(), ...one.styles.map(addStyles)]);
    if (one !== view.peek()) return;
    endView = mount(main, () => module.show(one.rest));
    document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  } catch (error) {
    endView = mount(main, () => h("p.notice.bad", { role: "alert" }, `This part of the page could not be loaded: ${error.message}`));
  } finally {
    main.removeAttribute("aria-busy");
  }
}

function header() {
  return h(
    "header.top",
    {},
    h("strong.brand", {}, h("img", { src: "page/icon.svg", alt: "", width: 22, height: 22 }), () => settings.value.title),
    h(
      "nav",
      { "aria-label": "Views" },
      VIEWS.map((one) =>
        h("a", { href: () => `#${one.name}${one.rest.value && "/"}${one.rest.value}`, "aria-current": () => (view.value === one ? "page" : null) }, one.title),
      ),
    ),
    h(
      "button.quiet",
      {
        onclick: () => (theme.value = THEMES[(THEMES.indexOf(theme.peek()) + 1) % THEMES.length]),
        title: "Light, dark, or as the system has it",
        "aria-label": () => `Colours: ${theme.value}`,
      },
      () => ({ auto: "◐", light: "☀", dark: "☾" })[theme.value],
    ),
  );
}

/** Ask for a key where the server wants one. */
function keyDialog() {
  const input = h("input", { type: "password", id: "key-input", autocomplete: "off", required: true });
  const dialog = h(
    "dialog.card",
    { "aria-labelledby": "key-title", onclose: () => (wanted.value = null) },
    () => wanted.value && form(wanted.value),
  );
  const form = ({ kind, message }) =>
    h(
      "form",
      {
        onsubmit: (event) => {
          event.preventDefault();
          setKey(kind, input.value.trim());
          input.value = "";
          dialog.close();
        },
      },
      h("h2", { id: "key-title" }, kind === "operator" ? "The operator's key" : "An API key"),
      h(
        "p",
        {},
        kind === "operator"
          ? "To see and steer the server, run `unilect page` on its machine and open the address that it prints, or enter a key of [admin]."
          : "This server asks for an API key. It stays in this tab, and is sent to this server only.",
      ),
      message && h("p.notice.bad", { role: "alert" }, message),
      h("label", { for: "key-input" }, "Key"),
      input,
      h("div.row.end", {}, h("button.quiet", { type: "button", onclick: () => dialog.close() }, "Cancel"), h("button.primary", {}, "Use it")),
    );
  effect(() => {
    if (wanted.value && !dialog.open) queueMicrotask(() => dialog.isConnected && !dialog.open && dialog.showModal());
    if (!wanted.value && dialog.open) dialog.close();
  });
  return dialog;
}

function start() {
  takeKeyFromAddress();
  shareKeys();
  const main = h("main", { id: "view", tabindex: -1 });
  document.body.replaceChildren();
  document.body.append(h("a.skip", { href: "#view", onclick: (event) => (event.preventDefault(), main.focus()) }, "Skip to the view"), header(), main, keyDialog());
  addEventListener("hashchange", () => (address.value = location.hash));
  address.value = location.hash;
  effect(() => {
    view.value.rest.value = place(address.value)[1];
  });
  effect(() => {
    localStorage.setItem("unilect.theme", theme.value);
    document.documentElement.dataset.theme = theme.value;
  });
  effect(() => {
    document.title = view.value === VIEWS[0] ? settings.value.title : `${view.value.title} · ${settings.value.title}`;
  });
  loadSettings().catch(() => {});
  if (view.peek() === VIEWS[0]) askEarly();
  effect(() => {
    showView(main);
  });
}

start();
