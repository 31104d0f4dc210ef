/** The blocks of a text, line by line: CommonMark's without HTML, link definitions and underlined headings, and GFM's tables and tasks. */

import { Cursor, alignments, cells, closesFence, fence, heading, isRule, isSettled, marker, task } from "./markdown_lines.js";
import { CodeLeaf, Leaf } from "./markdown_leaves.js";
import { codeBox, element, fill, openSection, tableBox, tableRow, taskBox } from "./markdown_boxes.js";
import { Changes } from "./markdown_changes.js";

/** How many blocks stand in each other; what goes deeper is text. */
const MAX_DEPTH = 24;

/**
 * @typedef {object} Block
 * @property {"root" | "quote" | "list" | "item" | "paragraph" | "code" | "table"} kind
 * @property {Element} element Where what it holds goes.
 * @property {Leaf} [leaf]
 * @property {number} [width] Columns that an item's lines are indented by.
 * @property {string} [marker] What the items of a list have in common.
 * @property {string} [mark] What opened code; "" where it is indented.
 * @property {number} [indent] Columns before that mark.
 * @property {string} [blanks] Blank lines of indented code, which count if more of it follows.
 * @property {string[]} [aligns] How a table's columns are aligned.
 */

export class Blocks {
  /** @type {Block[]} */
  #stack;
  /** The last line was blank, within a list. */
  #wasBlank = false;
  /** What was before a line of which more may come. */
  #before = null;
  #changes = new Changes();

  /** @param {Element} root */
  constructor(root) {
    this.#stack = [{ kind: "root", element: root }];
  }

  /** Take a whole line. */
  take(line) {
    this.#takeBack();
    this.#add(line);
    this.#commit();
  }

  /**
   * Show a line whose end has not come; the next call takes its effects back.
   * @returns {Leaf | null} The leaf that all that is still to come of the line belongs to, once that is sure.
   */
  show(line) {
    this.#takeBack();
    this.#changes.draft();
    this.#before = { stack: [...this.#stack], wasBlank: this.#wasBlank, tip: { ...this.#tip }, leaf: { ...this.#tip.leaf } };
    const rest = this.#add(line);
    this.draw();
    if (rest === null || !isSettled(rest)) return null;
    this.#commit();
    return this.#tip.leaf;
  }

  draw() {
    this.#tip.leaf?.draw();
  }

  end() {
    this.#takeBack();
    this.#close(1);
  }

  get #tip() {
    return this.#stack[this.#stack.length - 1];
  }

  #commit() {
    this.#tip.leaf?.settle();
    this.#before = null;
    this.#changes.keep();
  }

  #takeBack() {
    if (this.#before === null) return;
    this.#changes.takeBack();
    this.#stack = this.#before.stack;
    this.#wasBlank = this.#before.wasBlank;
    Object.assign(this.#tip, this.#before.tip);
    if (this.#tip.leaf) Object.assign(this.#tip.leaf, this.#before.leaf);
    this.#commit();
  }

  /** Close all blocks but the first so many. */
  #close(depth) {
    while (this.#stack.length > depth) this.#stack.pop().leaf?.draw();
  }

  /** Add a line; returns the text that a paragraph or code has got of it, or null. */
  #add(line) {
    const cursor = new Cursor(line);
    let depth = 1;
    while (depth < this.#stack.length && this.#continues(this.#stack[depth], cursor)) depth += 1;
    const block = this.#stack[depth - 1];
    if (block.kind === "code") return this.#code(block, cursor, depth);
    if (cursor.look().isBlank) {
      this.#close(depth);
      this.#wasBlank = block.kind !== "quote";
      return null;
    }
    const before = this.#stack.length;
    const started = this.#start(cursor, depth);
    if (started === "whole") return null;
    if (started === "code") return this.#text(cursor);
    const isStarted = started === "container";
    const isLazy = !isStarted && depth < before && this.#tip.kind === "paragraph";
    if (!isStarted && !isLazy) this.#close(this.#stack[depth - 1].kind === "list" ? depth - 1 : depth);
    if (!isLazy && this.#row(cursor)) return null;
    return this.#text(cursor);
  }

  /** True where a line goes on in a block; what it takes for that is skipped. */
  #continues(block, cursor) {
    const { columns, isBlank, at } = cursor.look();
    switch (block.kind) {
      case "quote":
        if (columns > 3 || cursor.line[at] !== ">") return false;
        cursor.take(1);
        cursor.skip(1);
        return true;
      case "item":
        if (isBlank ? block.element.firstChild === null : columns < block.width) return false;
        cursor.skip(block.width);
        return true;
      case "code":
        if (!block.mark && columns < 4 && !isBlank) return false;
        cursor.skip(block.indent);
        return true;
      case "list":
        return true;
      default:
        return !isBlank;
    }
  }

  #code(block, cursor, depth) {
    const { columns, at, isBlank } = cursor.look();
    if (block.mark && columns < 4 && closesFence(cursor.line, at, block.mark)) {
      this.#close(depth - 1);
      this.#wasBlank = false;
      return null;
    }
    if (!block.mark && isBlank) {
      block.blanks += `${cursor.rest()}\n`;
      this.#wasBlank = true;
      return null;
    }
    return this.#text(cursor);
  }

  /** Open what the line begins: containers, indented code, a block that takes the whole line, or nothing. */
  #start(cursor, depth) {
    let isStarted = false;
    const open = () => isStarted || this.#open(depth);
    for (;;) {
      const { columns, at, isBlank } = cursor.look();
      const top = isStarted ? this.#tip : this.#stack[depth - 1];
      if (isBlank) return "whole";
      if (columns > 3) {
        if (this.#tip.kind === "paragraph") return "nothing";
        open();
        cursor.skip(4);
        this.#openCode({ mark: "", indent: 4, blanks: "" }, "");
        return "code";
      }
      const isDeep = (isStarted ? this.#stack.length : depth) >= MAX_DEPTH;
      if (!isDeep && cursor.line[at] === ">") {
        open();
        cursor.take(1);
        cursor.skip(1);
        this.#container("quote", element("blockquote", "md-quote"));
      } else if (this.#whole(cursor, columns, at, open)) return "whole";
      else if (isDeep || !this.#item(cursor, at, top, open)) return isStarted ? "container" : "nothing";
      isStarted = true;
    }
  }

  /** Close what a new block ends: the blocks that the line does not go on in, and a paragraph or a table that it does. */
  #open(depth) {
    const { kind } = this.#stack[depth - 1];
    this.#close(kind === "paragraph" || kind === "table" ? depth - 1 : depth);
  }

  /** The element that a new block goes into: a list takes only items, and the whole text only sections. */
  #parent() {
    if (this.#tip.kind === "list") this.#close(this.#stack.length - 1);
    const { element: parent, kind } = this.#tip;
    if (this.#wasBlank && kind === "item" && parent.firstChild) this.#changes.addClass(parent.parentNode, "md-loose");
    this.#wasBlank = false;
    return kind === "root" ? openSection(parent, this.#changes) : parent;
  }

  #container(kind, node, more = {}) {
    this.#changes.append(this.#parent(), node);
    this.#stack.push({ kind, element: node, ...more });
  }

  /** A heading, a thematic break or the first line of code. */
  #whole(cursor, columns, at, open) {
    const title = heading(cursor.line, at);
    const isBreak = !title && isRule(cursor.line, at);
    const code = title || isBreak ? null : fence(cursor.line, at);
    if (!title && !isBreak && !code) return false;
    open();
    if (code) this.#openCode({ mark: code.mark, indent: columns }, code.info);
    else if (isBreak) this.#changes.append(this.#parent(), element("hr", "md-rule"));
    else this.#changes.append(this.#parent(), fill(element(/** @type {"h1"} */ (`h${title.level}`), "md-heading"), title.text));
    return true;
  }

  #openCode(block, info) {
    const box = codeBox(block.mark === "$$" || block.mark === "\\[" ? "math" : info);
    this.#changes.append(this.#parent(), box.element);
    const leaf = new CodeLeaf(box.text);
    box.copies(() => leaf.text);
    this.#stack.push({ kind: "code", element: box.element, leaf, ...block });
  }

  #item(cursor, at, top, open) {
    const found = marker(cursor.line, at);
    if (!found) return false;
    const isEmpty = cursor.line.slice(at + found.length).trim() === "";
    if (top.kind === "paragraph" && (isEmpty || (found.number ?? 1) !== 1)) return false;
    open();
    const { columns } = cursor.look();
    cursor.take(found.length);
    const gap = cursor.look().columns;
    const taken = isEmpty || gap > 4 ? 1 : gap;
    cursor.skip(taken);
    if (this.#tip.kind !== "list" || this.#tip.marker !== found.kind) this.#list(found);
    else if (this.#wasBlank) this.#changes.addClass(this.#tip.element, "md-loose");
    const node = element("li", "");
    this.#changes.append(this.#tip.element, node);
    this.#stack.push({ kind: "item", element: node, width: columns + found.length + taken });
    this.#wasBlank = false;
    return true;
  }

  #list({ kind, number }) {
    const node = element(number === null ? "ul" : "ol", "md-list");
    if (node instanceof HTMLOListElement && number !== 1) node.start = number;
    this.#container("list", node, { marker: kind });
  }

  #text(cursor) {
    const tip = this.#tip;
    if (tip.kind === "code") {
      this.#wasBlank = false;
      if (tip.blanks) for (const blank of tip.blanks.split("\n").slice(0, -1)) tip.leaf.line(blank);
      tip.blanks = "";
      const rest = cursor.rest();
      tip.leaf.line(rest);
      return rest;
    }
    const rest = cursor.rest().trimStart();
    if (tip.kind === "paragraph") tip.leaf.line(rest);
    else this.#paragraph(rest);
    return rest;
  }

  #paragraph(rest) {
    const parent = this.#parent();
    const node = element("p", "");
    const state = this.#tip.kind === "item" && parent.firstChild === null ? task(rest) : null;
    if (state !== null) node.append(taskBox(state === "x"), " ");
    this.#changes.append(parent, node);
    const leaf = new Leaf(node);
    leaf.line(state === null ? rest : rest.slice(4).trimStart());
    this.#stack.push({ kind: "paragraph", element: node, leaf });
  }

  /** Take a line as a row of the open table, or as the row that makes a table of the line before it. */
  #row(cursor) {
    const tip = this.#tip;
    if (tip.kind === "table") {
      this.#changes.append(tip.element, tableRow("td", cells(cursor.rest()), tip.aligns));
      return true;
    }
    if (tip.kind !== "paragraph") return false;
    const { lineStart, lastLine: header } = tip.leaf;
    const aligns = alignments(header, cursor.rest());
    if (aligns === null) return false;
    const table = tableBox(cells(header), aligns);
    this.#stack.pop();
    if (lineStart === 0) this.#changes.replace(tip.element, table.element);
    else {
      tip.leaf.cut(lineStart - 1);
      tip.leaf.draw();
      this.#changes.append(tip.element.parentNode, table.element);
    }
    this.#stack.push({ kind: "table", element: table.body, aligns });
    return true;
  }
}
