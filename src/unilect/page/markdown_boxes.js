/** The elements around code, tables and tasks. */

import { Leaf } from "./markdown_leaves.js";
import { unescape } from "./markdown_entities.js";
import { visible } from "./links.js";

/**
 * An element of a class.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {string} name
 * @returns {HTMLElementTagNameMap[T]}
 */
export function element(tag, name) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  return node;
}

/** How many blocks a section has. */
const SECTION = 16;

/**
 * The section that the next block of a text goes into: the browser passes over those that are out of sight.
 * @param {Element} root
 * @param {import("./markdown_changes.js").Changes} changes Takes a new section.
 */
export function openSection(root, changes) {
  const last = root.lastElementChild;
  if (last && last.childElementCount < SECTION) return last;
  const next = element("div", "md-section");
  changes.append(root, next);
  return next;
}

/** Put a line of text into an element. */
export function fill(node, text) {
  const leaf = new Leaf(node);
  leaf.line(text);
  leaf.settle();
  leaf.draw();
  return node;
}

/**
 * A box of code with its language and a button that copies it.
 * @param {string} info What is written behind the fence; its first word is the language.
 */
export function codeBox(info) {
  const box = element("div", "md-code");
  const head = element("div", "md-code-head");
  const language = element("span", "md-language");
  const copy = element("button", "md-copy");
  const block = element("pre", "");
  const text = element("code", "");
  language.append(visible(unescape(info.slice(0, 200)).split(/\s/, 1)[0].slice(0, 40)));
  copy.type = "button";
  copy.append("Copy");
  block.tabIndex = 0; // what is wider than the screen is scrolled by keyboard too
  block.append(text);
  head.append(language, copy);
  box.append(head, block);
  const copies = (written) => copy.addEventListener("click", () => copyText(written(), copy));
  return { element: box, text, copies };
}

/** Copy text, and say on the button that it is done. */
async function copyText(text, button) {
  const isCopied = await toClipboard(text);
  button.textContent = isCopied ? "Copied" : "Not copied";
  setTimeout(() => (button.textContent = "Copy"), 2000);
}

async function toClipboard(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // not allowed here: the older way may be
    }
  }
  const field = element("textarea", "md-copied");
  field.value = text;
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  return isCopied;
}

/**
 * A table with its header.
 * @param {string[]} header
 * @param {string[]} aligns
 */
export function tableBox(header, aligns) {
  const box = element("div", "md-table");
  const table = element("table", "");
  const head = element("thead", "");
  const body = element("tbody", "");
  box.tabIndex = 0;
  head.append(tableRow("th", header, aligns));
  table.append(head, body);
  box.append(table);
  return { element: box, body };
}

/** A row of cells: `th` or `td`. */
export function tableRow(tag, texts, aligns) {
  const row = element("tr", "");
  for (const [column, text] of texts.entries()) {
    if (column === aligns.length) break;
    row.append(fill(element(tag, aligns[column] ? `md-${aligns[column]}` : ""), text));
  }
  return row;
}

/** The box of a task, which nobody can tick here. */
export function taskBox(isDone) {
  const box = element("input", "md-task");
  box.type = "checkbox";
  box.checked = isDone;
  box.disabled = true;
  box.ariaLabel = isDone ? "done" : "open";
  return box;
}
