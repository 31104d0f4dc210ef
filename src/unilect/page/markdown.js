/**
 * A reader of Markdown that appends nodes while text arrives.
 *
 * A finished block is never touched again. Of an open paragraph or piece of code only the last part is drawn again, once a frame, so that
 * the work grows with the text and not with its square. Nothing is ever parsed as HTML, and nothing is loaded from elsewhere.
 */

import { Blocks } from "./markdown_blocks.js";

export class Markdown {
  #blocks;
  /** What has come of a line whose end has not; all of it is still to be read, or none. */
  #line = "";
  /** The leaf that the rest of the line belongs to, where that is sure. */
  #leaf = null;
  #isReturn = false;
  #frame = 0;

  /** @param {Element} element Where the blocks are appended. */
  constructor(element) {
    element.classList.add("md");
    this.#blocks = new Blocks(element);
  }

  /**
   * Take a piece of text, of any length; it may end within a word, a line's end or a character.
   * @param {string} piece
   */
  push(piece) {
    if (this.#isReturn) piece = `\r${piece}`;
    this.#isReturn = piece.endsWith("\r"); // "\n" may follow
    if (this.#isReturn) piece = piece.slice(0, -1);
    const lines = piece.split(/\r\n|\r|\n/);
    const last = lines.pop();
    for (const line of lines) {
      this.#more(line);
      this.#endLine();
    }
    this.#more(last);
    this.#frame ||= requestAnimationFrame(() => this.draw());
  }

  /** Show all that has come. It is called once a frame by itself. */
  draw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    if (this.#leaf || !this.#line) return this.#blocks.draw();
    this.#leaf = this.#blocks.show(this.#line);
    if (this.#leaf) this.#line = "";
  }

  /** Take the end of the text, and finish its last block. */
  end() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#isReturn = false;
    if (this.#line || this.#leaf) this.#endLine();
    this.#blocks.end();
  }

  #more(text) {
    if (this.#leaf) this.#leaf.more(text);
    else this.#line += text;
  }

  #endLine() {
    if (!this.#leaf) this.#blocks.take(this.#line);
    this.#leaf = null;
    this.#line = "";
  }
}

/**
 * Append a whole text.
 * @param {Element} element
 * @param {string} text
 */
export function render(element, text) {
  const reader = new Markdown(element);
  reader.push(text);
  reader.end();
}
