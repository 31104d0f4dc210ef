/** Blocks that hold text and grow: what is finished of them is drawn once, and only the open end again. */

import { appendInline } from "./markdown_inline.js";
import { visible } from "./links.js";

/** Characters after which text is cut at the next gap: no emphasis or link goes on behind it. */
const PART = 8192;

/** A paragraph's, a heading's, a cell's text. */
export class Leaf {
  text = "";
  lines = 0;
  /** Where the last line begins, and that line: cutting it out of a text that grows would copy all of it. */
  lineStart = 0;
  lastLine = "";
  /** How much of the text stays as it is: the end may belong to a line that turns out to be something else. */
  #sure = 0;
  #start = 0;
  #kept;
  #base;

  /** @param {Element} element Where its nodes go, after those that it has. */
  constructor(element) {
    this.element = element;
    this.#base = element.lastChild;
    this.#kept = this.#base;
  }

  /** Begin a new line. */
  line(text) {
    if (this.lines > 0) this.text += "\n";
    this.lineStart = this.text.length;
    this.lines += 1;
    this.text += text;
    this.lastLine = text;
  }

  /** Go on in the last line. */
  more(text) {
    this.text += text;
    this.lastLine += text;
    this.settle();
  }

  settle() {
    this.#sure = this.text.length;
  }

  /** Drop the text from here on, whatever of it is drawn. */
  cut(length) {
    this.text = this.text.slice(0, length);
    this.#sure = Math.min(this.#sure, length);
    this.#start = 0;
    this.#kept = this.#base;
  }

  /** Show the text as it is now. */
  draw() {
    while (this.element.lastChild !== this.#kept) this.element.lastChild.remove();
    for (let cut = this.#next(); cut > 0; cut = this.#next()) {
      this.append(this.text.slice(this.#start, cut), false);
      this.#kept = this.element.lastChild;
      this.#start = cut;
    }
    if (this.#start < this.text.length) this.append(this.text.slice(this.#start), true);
  }

  /** @protected */
  append(text, isLast) {
    appendInline(this.element, text, isLast);
  }

  /** Where a part that ends by a gap, or that is twice as long, ends; 0 where it is not known yet. */
  #next() {
    const soon = this.#start + PART;
    const late = soon + PART;
    if (this.#sure <= soon) return 0;
    const gap = this.text.slice(soon, Math.min(this.#sure, late)).search(this.gap);
    if (gap >= 0) return soon + gap + 1;
    if (this.#sure <= late) return 0;
    const code = this.text.charCodeAt(late);
    return code >= 0xdc00 && code <= 0xdfff ? late + 1 : late;
  }

  get gap() {
    return /\s/;
  }
}

/** The text of code. A part that ends with a line is a block, which the browser does not lay out again. */
export class CodeLeaf extends Leaf {
  append(text) {
    const part = document.createElement("span");
    part.className = text.endsWith("\n") ? "md-part" : "";
    part.append(visible(text));
    this.element.append(part);
  }

  get gap() {
    return /\n/;
  }
}
