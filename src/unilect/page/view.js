/**
 * Views: signals, elements that follow them, and keyed lists.
 *
 * An effect runs again when a signal that it has read changes, once for all changes of a task. What was begun inside of an effect
 * (effects, `onEnd`) ends before it runs again, and when its owner ends.
 */

let running = null; // the effect that runs: what is begun belongs to it
let tracks = true; // signals note that it reads them
let dirty = new Set();

/** Make a value that effects follow: `value` reads or sets it, `peek()` reads it unnoticed. */
export function signal(value) {
  const readers = new Set();
  return {
    get value() {
      if (running && tracks) {
        readers.add(running);
        running.sources.add(readers);
      }
      return value;
    },
    set value(next) {
      if (Object.is(next, value)) return;
      value = next;
      for (const reader of readers) schedule(reader);
    },
    peek: () => value,
    /** Tell the readers that what the value holds has changed. */
    touch() {
      for (const reader of readers) schedule(reader);
    },
  };
}

/** Make a signal whose value is computed from others. */
export function computed(compute) {
  const result = signal(undefined);
  effect(() => {
    result.value = compute();
  });
  return result;
}

/** Run a function now, and again whenever a signal that it has read changes; returns what ends that. */
export function effect(run) {
  const one = { run, sources: new Set(), inner: [] };
  running?.inner.push(() => end(one));
  execute(one);
  return () => end(one);
}

/** Have a function run when the effect that runs now ends, or before it runs again. */
export function onEnd(run) {
  running?.inner.push(run);
}

function execute(one) {
  clear(one);
  const before = [running, tracks];
  [running, tracks] = [one, true];
  try {
    one.run();
  } finally {
    [running, tracks] = before;
  }
}

function clear(one) {
  for (const sources of one.sources) sources.delete(one);
  one.sources.clear();
  for (const run of one.inner.splice(0)) run();
}

function end(one) {
  clear(one);
  one.run = null;
  dirty.delete(one);
}

function schedule(one) {
  if (!dirty.size) queueMicrotask(flush);
  dirty.add(one);
}

/** Run the effects whose signals have changed; those that their changes concern, too. */
export function flush() {
  for (let rounds = 0; dirty.size && rounds < 100; rounds++) {
    const now = dirty;
    dirty = new Set();
    for (const one of now) if (one.run) execute(one);
  }
}

/** Run a function without noting what it reads. */
export function untracked(run) {
  const before = tracks;
  tracks = false;
  try {
    return run();
  } finally {
    tracks = before;
  }
}

/**
 * Make an element: `h("button", { class: "primary", onclick: save, disabled: () => busy.value }, "Save")`.
 *
 * A property that is a function follows the signals that it reads, but for `on...` and `ref`; so does a child. A child is a text, a
 * number, a node, a list of children, or nothing (null, undefined, false).
 */
export function h(tag, properties = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  return fill(document.createElement(name || "div"), classes, properties, children);
}

/** Make an element of SVG, as `h` does. */
export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), [], properties, children);
}

function fill(element, classes, properties, children) {
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name === "ref") value(element);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (typeof value === "function") effect(() => set(element, classes, name, value()));
    else set(element, classes, name, value);
  }
  append(element, children);
  return element;
}

const OWN = /^(#\S*|[\w.-]+(\/[\w.-]+)*\/?)$/;
const PROPERTIES = new Set(["value", "checked", "disabled", "open", "selected", "indeterminate", "hidden", "textContent"]);

function set(element, classes, name, value) {
  if (name === "class") element.setAttribute("class", [...classes, value].filter(Boolean).join(" "));
  else if (name === "href") setHref(element, value);
  else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
  else if (PROPERTIES.has(name)) {
    if (element[name] !== value) element[name] = value ?? "";
  } else if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else element.setAttribute(name, value === true ? "" : String(value));
}

/** Set a link within this server; one to elsewhere is made in links.js alone. */
function setHref(element, value) {
  if (OWN.test(value)) element.setAttribute("href", value);
  else element.removeAttribute("href");
}

/** Make a place for a table that may be wider than the screen: it is scrolled by itself, by the keyboard, too. */
export function wide(label, ...children) {
  return h("div.wide", { role: "group", tabindex: 0, "aria-label": label }, children);
}

/** Append children, as `h` takes them. */
export function append(element, children) {
  for (const child of [children].flat(Infinity)) {
    if (typeof child === "function") element.append(dynamic(child));
    else if (isShown(child)) element.append(child instanceof Node ? child : String(child));
  }
}

const isShown = (child) => child !== null && child !== undefined && child !== false && child !== true;

/** Make the nodes of a child that follows signals: all that lies between two marks is replaced. */
function dynamic(make) {
  const begin = document.createComment("");
  const close = document.createComment("");
  const fragment = document.createDocumentFragment();
  fragment.append(begin, close);
  effect(() => {
    const made = document.createDocumentFragment();
    append(made, [make()]);
    while (begin.nextSibling !== close) begin.nextSibling.remove();
    close.before(made);
  });
  return fragment;
}

/**
 * Make the elements of a list, which stay while their keys do.
 *
 * @param items gives the list; it follows the signals that it reads
 * @param key gives the key of an item
 * @param render makes the element of an item, out of a signal that holds it
 */
export function each(items, key, render) {
  const close = document.createComment("");
  const fragment = document.createDocumentFragment();
  fragment.append(close);
  let rows = new Map();
  onEnd(() => rows.forEach((row) => row.end()));
  effect(() => {
    const list = items();
    untracked(() => {
      const next = new Map();
      for (const item of list) {
        const name = key(item);
        const row = rows.get(name) ?? begin(item, render);
        row.item.value = item;
        next.set(name, row);
      }
      for (const [name, row] of rows) if (next.get(name) !== row) row.remove();
      let after = close;
      for (const row of [...next.values()].reverse()) {
        if (row.element.nextSibling !== after) after.before(row.element);
        after = row.element;
      }
      rows = next;
    });
  });
  return fragment;
}

/** Begin a row of a list, which has effects of its own. */
function begin(item, render) {
  const row = { item: signal(item), element: null };
  const before = running;
  running = null;
  const finish = effect(() => {
    row.element ??= untracked(() => render(row.item));
  });
  running = before;
  row.end = finish;
  row.remove = () => {
    finish();
    row.element.remove();
  };
  return row;
}

/** Add a style sheet of the page, once; returns when it is read. */
export function addStyles(name) {
  const href = `page/${name}`;
  if (document.querySelector(`link[href="${href}"]`)) return;
  const sheet = h("link", { rel: "stylesheet", href });
  document.head.append(sheet);
  return new Promise((done, fail) => {
    sheet.onload = done;
    sheet.onerror = () => {
      sheet.remove(); // and asked for again with the next view
      fail(new Error(`${name} could not be read.`));
    };
  });
}

/** Show a view in an element, in place of what is there; returns what ends it. */
export function mount(element, make) {
  const before = running;
  running = null;
  const finish = effect(() => {
    const made = untracked(make);
    element.replaceChildren();
    append(element, [made]);
  });
  running = before;
  return () => {
    finish();
    element.replaceChildren();
  };
}
