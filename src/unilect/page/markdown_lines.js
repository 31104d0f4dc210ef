/** One line of Markdown: where it stands in columns, and which block it begins. Every function is linear in the line. */

const MARKER = /(?:([-+*])|(\d{1,9})([.)]))(?=[ \t]|$)/y;
const HEADING = /(#{1,6})(?=[ \t]|$)/y;
const FENCE = /(`{3,}(?=[^`]*$)|~{3,}|\$\$(?=[ \t]*$)|\\\[(?=[ \t]*$))/y;
const TASK = /^\[([ xX])\][ \t]/;
const MAX_CELLS = 100;
/** A longer line of nothing but marks is text. */
const MAX_MARKS = 1000;

/** A place in a line. Tabs go to the next multiple of four columns, and may be taken in part. */
export class Cursor {
  #at = 0;
  #column = 0;
  #owed = 0;

  constructor(line) {
    this.line = line;
  }

  /** White space before the next character: its columns, and where that character is. */
  look() {
    let columns = this.#owed;
    let at = this.#at;
    for (; at < this.line.length; at += 1) {
      if (this.line[at] === " ") columns += 1;
      else if (this.line[at] === "\t") columns += 4 - ((this.#column + columns) % 4);
      else break;
    }
    return { columns, at, isBlank: at === this.line.length };
  }

  /** Take so many columns of white space, or fewer where there are fewer. */
  skip(columns) {
    while (columns > 0) {
      if (this.#owed === 0) {
        const next = this.line[this.#at];
        if (next !== " " && next !== "\t") return;
        this.#owed = next === " " ? 1 : 4 - (this.#column % 4);
        this.#at += 1;
      }
      const taken = Math.min(columns, this.#owed);
      this.#owed -= taken;
      this.#column += taken;
      columns -= taken;
    }
  }

  /** Take white space, and so many characters after it. */
  take(characters) {
    const { columns, at } = this.look();
    this.#column += columns + characters;
    this.#at = at + characters;
    this.#owed = 0;
  }

  rest() {
    return " ".repeat(this.#owed) + this.line.slice(this.#at);
  }
}

function match(expression, line, at) {
  expression.lastIndex = at;
  return expression.exec(line);
}

/** True for a thematic break: three or more of one of `*`, `-`, `_`, and white space. */
export function isRule(line, at) {
  const mark = line[at];
  if ((mark !== "*" && mark !== "-" && mark !== "_") || line.length - at > MAX_MARKS) return false;
  let count = 0;
  for (; at < line.length; at += 1) {
    if (line[at] === mark) count += 1;
    else if (line[at] !== " " && line[at] !== "\t") return false;
  }
  return count >= 3;
}

/** The level and the text of a heading, or null. */
export function heading(line, at) {
  const found = match(HEADING, line, at);
  if (!found) return null;
  const text = line.slice(at + found[0].length).trim();
  let end = text.length;
  while (text[end - 1] === "#") end -= 1;
  const isClosed = end === 0 || text[end - 1] === " " || text[end - 1] === "\t";
  return { level: found[0].length, text: isClosed ? text.slice(0, end).trimEnd() : text };
}

/** The line that opens code or a formula, or null: its mark, and what is written behind it. */
export function fence(line, at) {
  const found = match(FENCE, line, at);
  return found && { mark: found[0], info: line.slice(at + found[0].length).trim() };
}

/** True for the line that ends what this mark opened. */
export function closesFence(line, at, mark) {
  if (line.length - at > MAX_MARKS) return false;
  const rest = line.slice(at).trimEnd();
  if (mark === "$$") return rest === "$$";
  if (mark === "\\[") return rest === "\\]";
  if (rest.length < mark.length) return false;
  for (const character of rest) if (character !== mark[0]) return false;
  return true;
}

/** The marker of a list's item, or null: its kind (what a list has in common), number and length. */
export function marker(line, at) {
  const found = match(MARKER, line, at);
  if (!found) return null;
  return { kind: found[1] ?? found[3], number: found[2] === undefined ? null : Number(found[2]), length: found[0].length };
}

/** The state of a task at the start of an item, `" "` or `"x"`; null where there is none. */
export function task(text) {
  return text.length > 4 && TASK.test(text) ? text[1].toLowerCase() : null;
}

/** The cells of a table's row. */
export function cells(row) {
  row = row.trim();
  const found = [];
  let start = row[0] === "|" ? 1 : 0;
  for (let at = start; at < row.length; at += 1) {
    if (row[at] === "\\") at += 1;
    else if (row[at] === "|") {
      found.push(row.slice(start, at));
      start = at + 1;
    }
  }
  if (start < row.length) found.push(row.slice(start));
  return found.map((cell) => cell.trim().replaceAll("\\|", "|"));
}

/** How the columns below this header are aligned (`""`, `left`, `center`, `right`), or null where the row under it makes no table. */
export function alignments(header, row) {
  if (row.length > MAX_MARKS || !/^[|:\- \t]+$/.test(row) || !row.includes("-") || !header.includes("|")) return null;
  const parts = cells(row);
  if (parts.length > MAX_CELLS || !parts.every((part) => /^:?-+:?$/.test(part)) || cells(header).length !== parts.length) return null;
  return parts.map((part) => {
    if (part.endsWith(":")) return part.startsWith(":") ? "center" : "right";
    return part.startsWith(":") ? "left" : "";
  });
}

/** True where nothing that follows on a line changes what it is: more than marks is there. */
export function isSettled(rest) {
  const text = rest.trimStart();
  if (text.length > MAX_MARKS) return true;
  return /[^-*_+=|:#>`~$\\[\]\s\d.)(]/.test(text) && !/^(?:`{3}|~{3}|\[.{0,3}$)/.test(text);
}
