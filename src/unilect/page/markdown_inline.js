/** The content of a paragraph: emphasis, code, links, breaks. Every step looks at a character a bounded number of times. */

import { addressEnd, withoutEnd } from "./markdown_addresses.js";
import { Emphasis, between } from "./markdown_emphasis.js";
import { REFERENCE, resolve, unescape } from "./markdown_entities.js";
import { honest, link, visible } from "./links.js";

const SPECIAL = /[\\`*_~[\]!<&\n$]|\bhttps?:\/\/|\bwww\./gi;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const SPACE = /\s/u;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const ADDRESS = /<([a-z][a-z0-9+.-]{1,31}:[^\s<>\p{Cc}]{0,2000})>/iuy;
const EMAIL = /<([\w.!#$%&'*+/=?^`{|}~-]{1,64}@[a-z0-9](?:[a-z0-9.-]{0,253}[a-z0-9])?)>/iy;
const BREAK = /<br ?\/?>/iy;
const BARE = /(?:https?:\/\/|www\.)[^\s<>`"[\]\p{Cc}]{1,2000}/iuy;
const GAP = /[ \t]*\n?[ \t]*/y;
const POINTED = /<((?:[^<>\n\\]|\\.){0,2000})>/y;
const TITLE = /"((?:[^"\\]|\\[^]){0,1000})"|'((?:[^'\\]|\\[^]){0,1000})'|\(((?:[^()\\]|\\[^]){0,1000})\)/y;

/**
 * Append the nodes of a piece of text.
 * @param {Element} parent
 * @param {string} text
 * @param {boolean} [isLast] White space at the end does not count.
 */
export function appendInline(parent, text, isLast = true) {
  parent.append(new Inline(isLast ? text.trimEnd() : text).read());
}

class Inline {
  #text;
  #at = 0;
  #plain = "";
  #nodes = document.createDocumentFragment();
  #emphasis = new Emphasis();
  #brackets = [];
  #backticks = null;
  #missing = new Set();
  /** Where the last thing stands that may end a link's text. */
  #lastLink;

  constructor(text) {
    this.#text = text;
    this.#lastLink = text.lastIndexOf("](");
  }

  read() {
    const text = this.#text;
    while (this.#at < text.length) {
      SPECIAL.lastIndex = this.#at;
      const found = SPECIAL.exec(text);
      const next = found ? found.index : text.length;
      this.#plain += text.slice(this.#at, next);
      this.#at = next;
      if (found) this.#special(found[0]);
    }
    this.#flush();
    this.#emphasis.settle(null);
    this.#nodes.normalize(); // fewer nodes to lay out
    return this.#nodes;
  }

  #special(what) {
    switch (what) {
      case "\\": return this.#escape();
      case "`": return this.#code();
      case "*": case "_": case "~": return this.#run(what);
      case "[": return this.#bracket("[");
      case "!": return this.#text[this.#at + 1] === "[" ? this.#bracket("![") : this.#take(1);
      case "]": return this.#closeBracket();
      case "<": return this.#pointed();
      case "&": return this.#reference();
      case "\n": return this.#newline();
      case "$": return this.#text.startsWith("$$", this.#at) ? this.#math("$$", "$$") : this.#take(1);
      default: return this.#bare();
    }
  }

  /** Take characters as they are. */
  #take(count) {
    this.#plain += this.#text.slice(this.#at, this.#at + count);
    this.#at += count;
  }

  #flush() {
    if (this.#plain) this.#nodes.append(visible(this.#plain));
    this.#plain = "";
  }

  #append(node) {
    this.#flush();
    this.#nodes.append(node);
  }

  #match(expression, at = this.#at) {
    expression.lastIndex = at;
    return expression.exec(this.#text);
  }

  #escape() {
    const next = this.#text[this.#at + 1] ?? "";
    if (next === "(") return this.#math("\\(", "\\)");
    if (next === "[") return this.#math("\\[", "\\]");
    this.#skipEscape(next);
  }

  #skipEscape(next) {
    if (next === "\n") {
      this.#append(document.createElement("br"));
      this.#at += 1;
      this.#newline();
    } else if (ESCAPABLE.test(next)) {
      this.#plain += next;
      this.#at += 2;
    } else this.#take(1);
  }

  #math(opens, closes) {
    const start = this.#at + 2;
    const end = this.#missing.has(closes) ? -1 : this.#text.indexOf(closes, start);
    if (end < 0) this.#missing.add(closes);
    if (end > start) {
      this.#appendCode(this.#text.slice(start, end).trim(), "md-math");
      this.#at = end + 2;
    } else if (opens === "$$") this.#take(2);
    else this.#skipEscape(opens[1]);
  }

  #code() {
    const text = this.#text;
    let end = this.#at;
    while (text[end] === "`") end += 1;
    const length = end - this.#at;
    const close = this.#closingBackticks(length, end);
    if (close < 0) return this.#take(length);
    let inside = text.slice(end, close).replaceAll("\n", " ");
    if (inside.startsWith(" ") && inside.endsWith(" ") && inside.trim()) inside = inside.slice(1, -1);
    this.#appendCode(inside, "");
    this.#at = close + length;
  }

  #appendCode(text, name) {
    const code = document.createElement("code");
    if (name) code.className = name;
    code.append(visible(text));
    this.#append(code);
  }

  /** Where the next run of so many backticks begins; all runs are found once, and each is passed once. */
  #closingBackticks(length, from) {
    if (this.#backticks === null) {
      this.#backticks = new Map();
      for (const run of this.#text.matchAll(/`+/g)) {
        const known = this.#backticks.get(run[0].length);
        if (known) known.places.push(run.index);
        else this.#backticks.set(run[0].length, { places: [run.index], next: 0 });
      }
    }
    const runs = this.#backticks.get(length);
    if (runs === undefined) return -1;
    while (runs.next < runs.places.length && runs.places[runs.next] < from) runs.next += 1;
    return runs.places[runs.next] ?? -1;
  }

  #newline() {
    const isHard = this.#plain.endsWith("  ");
    this.#plain = this.#plain.trimEnd();
    if (isHard) this.#append(document.createElement("br"));
    this.#plain += "\n";
    this.#at += 1;
    while (this.#text[this.#at] === " ") this.#at += 1;
  }

  #reference() {
    const found = this.#match(REFERENCE);
    const character = found && resolve(found[1], found[2], found[3]);
    if (character === null) return this.#take(1);
    this.#plain += character;
    this.#at += found[0].length;
  }

  #pointed() {
    const found = this.#match(ADDRESS) ?? this.#match(EMAIL);
    if (found) {
      this.#append(written(found[1], found[1].includes(":") ? found[1] : `mailto:${found[1]}`));
      this.#at += found[0].length;
    } else if (this.#match(BREAK)) {
      this.#append(document.createElement("br"));
      this.#at += this.#match(BREAK)[0].length;
    } else this.#take(1);
  }

  #bare() {
    const found = this.#match(BARE);
    const address = found ? withoutEnd(found[0]) : "";
    const whole = address.toLowerCase().startsWith("www.") ? `http://${address}` : address;
    if (!/^https?:\/\/[^/?#]*[a-z0-9\u0080-\uffff]/i.test(whole)) return this.#take(1);
    this.#append(written(address, whole));
    this.#at += address.length;
  }

  #run(character) {
    const text = this.#text;
    const start = this.#at;
    let end = start;
    while (text[end] === character) end += 1;
    const before = start ? previousCharacter(text, start) : "\n";
    const after = end < text.length ? String.fromCodePoint(text.codePointAt(end)) : "\n";
    const [gapBefore, gapAfter] = [SPACE.test(before), SPACE.test(after)];
    const [markBefore, markAfter] = [PUNCTUATION.test(before), PUNCTUATION.test(after)];
    const left = !gapAfter && (!markAfter || gapBefore || markBefore);
    const right = !gapBefore && (!markBefore || gapAfter || markAfter);
    const opens = left && (character !== "_" || !right || markBefore);
    const closes = right && (character !== "_" || !left || markAfter);
    const length = end - start;
    if ((!opens && !closes) || (character === "~" && length !== 2)) return this.#take(length);
    const node = document.createTextNode(text.slice(start, end));
    this.#append(node);
    this.#emphasis.add(node, character, opens, closes);
    this.#at = end;
  }

  #bracket(written) {
    if (this.#at > this.#lastLink) return this.#take(written.length);
    const node = document.createTextNode(written);
    this.#append(node);
    this.#brackets.push({ node, isImage: written === "![", before: this.#emphasis.last });
    this.#at += written.length;
  }

  #closeBracket() {
    const opener = this.#brackets.pop();
    const tail = opener && this.#tail();
    if (!tail) return this.#take(1);
    this.#flush();
    this.#emphasis.settle(opener.before);
    const element = link(unescape(tail.address), unescape(tail.title));
    const inside = between(opener.node, null);
    if (opener.isImage) {
      element.classList.add("md-image");
      element.append(honest(inside.map((node) => node.textContent).join("")) || "image");
      for (const node of inside) node.remove();
    } else {
      this.#emphasis.nest(element, inside);
      for (const inner of element.querySelectorAll("a, .md-refused")) inner.replaceWith(...inner.childNodes);
      beHonest(element);
      this.#brackets.length = 0; // a link has no link in it
    }
    opener.node.replaceWith(element);
    this.#at = tail.end;
  }

  /** The `(address "title")` after a closing bracket, or null. */
  #tail() {
    const text = this.#text;
    if (text[this.#at + 1] !== "(") return null;
    let at = this.#gap(this.#at + 2);
    const pointed = this.#match(POINTED, at);
    const end = pointed ? at + pointed[0].length : addressEnd(text, at);
    if (end < 0 || (!pointed && text[at] === "<")) return null;
    const address = pointed ? pointed[1] : text.slice(at, end);
    at = this.#gap(end);
    const titled = at > end ? this.#match(TITLE, at) : null;
    if (titled) at = this.#gap(at + titled[0].length);
    if (text[at] !== ")") return null;
    return { address, title: titled ? (titled[1] ?? titled[2] ?? titled[3]) : "", end: at + 1 };
  }

  #gap(at) {
    return at + this.#match(GAP, at)[0].length;
  }
}

function previousCharacter(text, at) {
  const low = text.charCodeAt(at - 1);
  const isPair = low >= 0xdc00 && low <= 0xdfff && at > 1;
  return isPair ? String.fromCodePoint(text.codePointAt(at - 2)) : text[at - 1];
}

function written(text, address) {
  const element = link(address);
  element.append(honest(text));
  return element;
}

function beHonest(element) {
  if (honest(element.textContent) === element.textContent) return;
  const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = /** @type {Text} */ (texts.currentNode);
    text.data = honest(text.data.replaceAll("\n", " "));
  }
}
