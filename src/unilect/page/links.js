/** Links to elsewhere, and text that cannot lie: the one place of the page where an anchor to another site is made. */

const SCHEMES = new Set(["http:", "https:", "mailto:"]);
/** Control characters, and those that turn the direction of the text around them. */
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;
/** Those, and what takes no room: in a link it only deceives. */
const DECEIVING = /[\u0000-\u001f\u007f-\u009f\u00ad\u200b\u200e\u200f\u202a-\u202e\u2028\u2029\u2060-\u206f\ufeff]/g;

const asCode = (character) => `\u27e8U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`;

/**
 * Text with its control and direction characters written out, and U+FFFD for half surrogates.
 * @param {string} text
 * @returns {string}
 */
export function visible(text) {
  return text.toWellFormed().replace(HIDDEN, asCode);
}

/**
 * The same for a link's text or address, where characters without a width are written out too.
 * @param {string} text
 * @returns {string}
 */
export function honest(text) {
  return text.toWellFormed().replace(DECEIVING, asCode);
}

/**
 * An empty anchor to another site, or a `span.md-refused` that says where it would have led.
 *
 * Only absolute addresses of the allowed schemes become anchors; the browser's own reader of addresses decides which these are.
 * @param {string} address
 * @param {string} [title] What is shown on hover beside the address.
 * @returns {HTMLElement}
 */
export function link(address, title = "") {
  const url = URL.canParse(address) ? new URL(address) : null;
  const allowed = url !== null && SCHEMES.has(url.protocol);
  const element = allowed ? anchor(url) : document.createElement("span");
  element.className = allowed ? "md-link" : "md-refused";
  const shown = honest(allowed ? url.href : address);
  element.title = title ? `${honest(title)} \u00b7 ${shown}` : shown;
  return element;
}

function anchor(url) {
  const element = document.createElement("a");
  element.href = url.href;
  element.rel = "noopener noreferrer";
  element.target = "_blank";
  return element;
}
