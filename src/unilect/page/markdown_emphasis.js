/** Emphasis as CommonMark finds it: runs of `*`, `_`, `~` are kept until their text, or the link that they stand in, is over. */

const MAX_NESTING = 32;
const TAGS = { "*": ["em", "strong"], _: ["em", "strong"], "~": ["del", "del"] };

/**
 * @typedef {object} Run
 * @property {Text} node
 * @property {string} character
 * @property {number} count How many are left to use.
 * @property {number} length How many there were.
 * @property {boolean} opens
 * @property {boolean} closes
 * @property {number} order
 * @property {Run | null} previous
 * @property {Run | null} next
 */

/** The runs of one text that may still become emphasis. */
export class Emphasis {
  /** @type {Run | null} */
  last = null;
  #order = 0;
  #depths = new Map();

  /** Keep a run, whose characters are a text node of their own. */
  add(node, character, opens, closes) {
    const length = node.data.length;
    this.#order += 1;
    const run = { node, character, count: length, length, opens, closes, order: this.#order, previous: this.last, next: null };
    if (this.last) this.last.next = run;
    this.last = run;
  }

  /** Make elements of the runs after this one (of all, without one), and forget them. */
  settle(bottom) {
    let floor = bottom?.order ?? 0;
    const floors = new Map();
    let closer = this.last;
    while (closer?.previous && closer.previous.order > floor) closer = closer.previous;
    while (closer && closer.order > floor) {
      const key = `${closer.character}${closer.opens}${closer.length % 3}`;
      const opener = closer.closes ? opening(closer, Math.max(floor, floors.get(key) ?? 0)) : null;
      if (opener) {
        const inside = between(opener.node, closer.node);
        // what would stand around something too deep is too deep itself
        if (this.#depth(inside) > MAX_NESTING) floor = opener.order;
        else closer = this.#wrap(opener, closer, inside);
      } else {
        if (closer.closes) floors.set(key, closer.previous?.order ?? 0);
        const next = closer.next;
        if (closer.closes && !closer.opens) this.#drop(closer);
        closer = next;
      }
    }
    if (bottom) bottom.next = null;
    this.last = bottom;
  }

  /** Put nodes into an element, and know how deep it is then. */
  nest(element, nodes) {
    this.#depths.set(element, this.#depth(nodes));
    element.append(...nodes);
  }

  #depth(nodes) {
    let depth = 0;
    for (const node of nodes) depth = Math.max(depth, this.#depths.get(node) ?? 0);
    return depth + 1;
  }

  /** Put what stands between two runs into an element; returns the run to look at next. */
  #wrap(opener, closer, inside) {
    const used = opener.count >= 2 && closer.count >= 2 ? 2 : 1;
    while (closer.previous !== opener) this.#drop(closer.previous);
    const element = document.createElement(TAGS[opener.character][used - 1]);
    closer.node.before(element);
    this.nest(element, inside);
    for (const run of [opener, closer]) {
      run.count -= used;
      run.node.data = run.node.data.slice(used);
    }
    if (opener.count === 0) this.#drop(opener);
    if (closer.count > 0) return closer;
    const next = closer.next;
    this.#drop(closer);
    return next;
  }

  #drop(run) {
    if (run.previous) run.previous.next = run.next;
    if (run.next) run.next.previous = run.previous;
    else this.last = run.previous;
  }
}

/**
 * The nodes after one, up to another or to the last.
 * @param {Node} first
 * @param {Node | null} last
 * @returns {(Text | Element)[]}
 */
export function between(first, last) {
  const nodes = [];
  for (let node = first.nextSibling; node !== last; node = node.nextSibling) nodes.push(node);
  return nodes;
}

function opening(closer, floor) {
  let one = closer.previous;
  while (one && one.order > floor && !matches(one, closer)) one = one.previous;
  return one && one.order > floor ? one : null;
}

/** True where two runs can stand around emphasis: CommonMark's rule of three. */
function matches(opener, closer) {
  if (!opener.opens || opener.character !== closer.character) return false;
  if (!opener.closes && !closer.opens) return true;
  return (opener.length + closer.length) % 3 !== 0 || (opener.length % 3 === 0 && closer.length % 3 === 0);
}
