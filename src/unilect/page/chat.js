/** The chat: conversations on the left, one or two threads beside each other, and the composer below them. */

import { catalogue, loadCatalogue } from "./catalogue.js";
import { composerView } from "./composer.js";
import { newConversation } from "./conversation.js";
import { exportAll, forget, importText, listHeads, load, unkept } from "./history.js";
import { loadSettings, settings } from "./session.js";
import { Thread } from "./thread.js";
import { addStyles, computed, each, effect, h, onEnd, signal } from "./view.js";

const heads = signal([]);
const threads = signal([]); // one, or two that are asked the same
const panel = signal("");
const trouble = signal("");
let behind = []; // threads whose answers go on while other conversations are shown
/** The modules that a first visit does not wait for: they are read behind the list of models. */
const [message, panels] = [signal(null), signal(null)];

async function refresh() {
  heads.value = await listHeads().catch(() => []);
}

/** Read the models, and begin with the one that the server names. */
async function begin() {
  trouble.value = "";
  const [known] = await Promise.allSettled([loadCatalogue(), loadSettings()]);
  requestAnimationFrame(() => setTimeout(loadRest)); // behind the frame that shows the models
  if (known.status === "rejected") {
    trouble.value = known.reason.message;
    return;
  }
  const names = catalogue.peek().map((one) => one.id);
  const wanted = settings.peek().model;
  const first = names.includes(wanted) ? wanted : (names[0] ?? "");
  if (!threads.peek().length) threads.value = [new Thread(first)];
  for (const thread of threads.peek()) if (!thread.model.peek()) thread.model.value = first;
}

/** Read what shows messages, and what is beside them. */
async function loadRest() {
  try {
    [message.value, panels.value] = await Promise.all([import("./message.js"), import("./panel.js"), addStyles("markdown.css"), import("./sse.js")]);
  } catch (error) {
    trouble.value = `A part of the page could not be loaded: ${error.message}`;
  }
}

/** Show the chat; `rest` is the id of a conversation, or empty for a new one. */
export function show(rest) {
  refresh();
  if (rest.peek()) loadRest();
  begin();
  addEventListener("unilect:key", begin);
  addEventListener("focus", refresh); // another tab may have said something
  onEnd(() => {
    removeEventListener("unilect:key", begin);
    removeEventListener("focus", refresh);
  });
  effect(() => {
    if (threads.value.length) openConversation(rest.value, rest);
  });
  return h(
    "div.chat",
    {},
    sidebar(rest),
    h(
      "section.threads",
      { "aria-label": "Conversation" },
      h("h1.offscreen", {}, () => `Chat with ${settings.value.title}`),
      () => trouble.value && h("div.notice.bad", { role: "alert" }, trouble.value, " ", h("button.small", { onclick: begin }, "Try again")),
      () => unkept.value && h("p.notice", { role: "status" }, unkept.value),
      h("div.columns", {}, each(() => threads.value, (one) => one, (one) => threadView(one.peek()))),
      composerView(isRunning, say, () => threads.peek().forEach((one) => one.stop())),
    ),
    () => panel.value && panels.value?.panelView(panel),
  );
}

const isRunning = () => threads.value.some((one) => one.running.value !== null);

async function openConversation(id, rest) {
  const [thread] = threads.peek();
  if (thread.conversation.peek().id === id) return;
  if (!id) {
    if (thread.conversation.peek().leaf) put(new Thread(thread.model.peek()));
    return;
  }
  const isIt = (one) => one.running.peek() && one.conversation.peek().id === id;
  const goesOn = behind.find(isIt);
  const found = goesOn ? null : await load(id).catch(() => undefined);
  if (rest.peek() !== id) return; // another one was opened meanwhile
  if (found === undefined) location.replace("#chat");
  else put(goesOn ?? new Thread(thread.model.peek(), found));
}

/** Show another thread in the first place; the answer of the one that was there goes on. */
function put(thread) {
  const [old, ...others] = threads.peek();
  behind = [...behind, old].filter((one) => one !== thread && one.running.peek());
  if (panel.peek()?.thread === old) panel.value = { ...panel.peek(), thread };
  threads.value = [thread, ...others];
}

async function say(message) {
  const all = threads.peek();
  const answers = all.map((one) => one.say(message));
  nameAddress(all[0]);
  refresh();
  await Promise.all(answers);
  refresh();
}

/** Have the address name the conversation of a thread. */
function nameAddress(thread) {
  const { id, leaf } = thread.conversation.peek();
  history.replaceState(null, "", leaf ? `#chat/${id}` : "#chat");
  dispatchEvent(new Event("hashchange"));
}

function sidebar(rest) {
  const query = signal("");
  const shown = () => {
    const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
    return heads.value.filter((one) => words.every((word) => one.text.includes(word) || one.title.toLowerCase().includes(word)));
  };
  const picker = h("input", { type: "file", accept: ".json,application/json", hidden: true, "aria-label": "A file to import", onchange: () => bring(picker) });
  const isOpen = signal(false); // on a narrow screen
  effect(() => {
    rest.value;
    isOpen.value = false;
  });
  return h(
    "aside.history",
    { "aria-label": "Conversations", class: () => (isOpen.value ? "open" : "") },
    h(
      "div.row",
      {},
      h("a.button.grow", { href: "#chat", onclick: () => (isOpen.value = false) }, "New conversation"),
      h("button.narrow", { "aria-expanded": () => String(isOpen.value), onclick: () => (isOpen.value = !isOpen.peek()) }, "Conversations"),
    ),
    h("input", { type: "search", placeholder: "Search", "aria-label": "Search in conversations", oninput: (event) => (query.value = event.target.value) }),
    h("ul", {}, each(shown, (one) => one.id, (one) => headView(one, rest))),
    h(
      "div.row.small.files",
      {},
      h("button.quiet.small", { onclick: save }, "Export"),
      h("button.quiet.small", { onclick: () => picker.click() }, "Import"),
      picker,
    ),
  );
}

async function save() {
  try {
    const { saveFile } = await import("./clipboard.js");
    saveFile("unilect-conversations.json", await exportAll());
  } catch (error) {
    trouble.value = `Nothing was exported: ${error.message}`;
  }
}

async function bring(picker) {
  try {
    for (const file of picker.files) await importText(await file.text());
    trouble.value = "";
  } catch (error) {
    trouble.value = error.message;
  }
  picker.value = "";
  refresh();
}

function headView(head, rest) {
  const erase = async () => {
    const { id } = head.peek();
    for (const one of [...threads.peek(), ...behind]) if (one.conversation.peek().id === id) one.discard();
    await forget(id);
    if (rest.peek() === id) location.replace("#chat");
    refresh();
  };
  return h(
    "li",
    {},
    h("a", { href: () => `#chat/${head.value.id}`, "aria-current": () => (rest.value === head.value.id ? "page" : null) }, () => head.value.title),
    h("button.quiet.small", { "aria-label": () => `Delete ${head.value.title}`, onclick: erase }, "×"),
  );
}

/** List the models, and the one of a conversation, which may be served no longer. */
function namesWith(own) {
  const names = (catalogue.value ?? []).map((one) => one.id);
  return own && !names.includes(own) ? [...names, own] : names;
}

function threadView(thread) {
  const list = h("div.messages", { role: "log", "aria-label": "Messages", tabindex: 0 });
  let [follows, last] = [true, 0];
  list.addEventListener("scroll", () => {
    const isNear = list.scrollTop + list.clientHeight > list.scrollHeight - 60;
    if (isNear || list.scrollTop < last) follows = isNear; // text that has come meanwhile is no scrolling
    last = list.scrollTop;
    list.classList.toggle("reads", !follows); // what is read stays where it is, whatever becomes of what is above
  });
  const follow = () => {
    follows = true;
    list.scrollTop = list.scrollHeight;
    last = list.scrollTop; // an answer that becomes shorter is no scrolling, either
  };
  const opened = computed(() => thread.conversation.value);
  effect(() => opened.value && follow());
  effect(() => thread.running.value && follow()); // what one says is seen, and its answer
  const watcher = new ResizeObserver(() => follows && follow());
  const inner = h("div", {}, each(() => (message.value ? thread.messages() : []), (one) => one.id, (one) => message.peek().messageView(one.peek(), thread)), () => !thread.messages().length && emptyView());
  watcher.observe(inner);
  onEnd(() => watcher.disconnect());
  list.append(inner);
  const toggle = (name) => () => (panel.value = panel.peek()?.name === name && panel.peek().thread === thread ? "" : { name, thread });
  return h(
    "div.thread",
    {},
    h(
      "div.row.bar",
      {},
      h(
        "select.model",
        { "aria-label": "Model", onchange: (event) => (thread.model.value = event.target.value) },
        () => namesWith(thread.model.value).map((one) => h("option", { value: one, selected: one === thread.model.value }, one)),
      ),
      h("span.grow"),
      h("button.quiet.small", { onclick: toggle("settings") }, "Settings"),
      h("button.quiet.small", { onclick: toggle("code") }, "Code"),
      () => (threads.value.length === 1 ? h("button.quiet.small", { onclick: () => compare(thread) }, "Compare") : h("button.quiet.small", { onclick: () => close(thread) }, "Close")),
    ),
    () => thread.trouble.value && h("p.notice.bad", { role: "alert" }, thread.trouble.value),
    list,
  );
}

function compare(thread) {
  const names = catalogue.peek().map((one) => one.id);
  const other = new Thread(names.find((one) => one !== thread.model.peek()) ?? thread.model.peek());
  threads.value = [...threads.peek(), other];
}

function close(thread) {
  thread.stop();
  const left = threads.peek().filter((one) => one !== thread);
  nameAddress(left[0]); // before, or the conversation that it names would be opened
  threads.value = left;
}

function emptyView() {
  return h("div.empty", {}, h("strong.title", {}, settings.value.title), h("p.muted", {}, "Conversations stay in this browser."));
}
