/** Where addresses end in a text. */

const MAX_ADDRESS = 2000;
const MAX_PARENTHESES = 32;
const ESCAPABLE = /[!-/:-@[-`{-~]/;

/** Where an address without angle brackets ends: at white space, or at a parenthesis that it has not opened. */
export function addressEnd(text, start) {
  let depth = 0;
  for (let at = start; at < text.length && at - start <= MAX_ADDRESS; at += 1) {
    const code = text.charCodeAt(at);
    if (code <= 32 || code === 127) return depth ? -1 : at;
    if (text[at] === "\\" && ESCAPABLE.test(text[at + 1] ?? "")) at += 1;
    else if (text[at] === "(" && (depth += 1) > MAX_PARENTHESES) return -1;
    else if (text[at] === ")" && (depth -= 1) < 0) return at;
  }
  return -1;
}

/** A bare address without what more likely ends the sentence. */
export function withoutEnd(address) {
  let end = address.length;
  let surplus = 0;
  for (const character of address) surplus += character === ")" ? 1 : character === "(" ? -1 : 0;
  for (; end > 0; end -= 1) {
    const last = address[end - 1];
    if (last === ")" && surplus > 0) surplus -= 1;
    else if (!"?!.,:;*_~'|]".includes(last)) break;
  }
  return address.slice(0, end);
}
