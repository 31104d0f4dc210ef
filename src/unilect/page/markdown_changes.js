/** Changes of the document, which can be taken back as long as they are a draft. */

export class Changes {
  /** @type {(() => void)[] | null} */
  #steps = null;

  /** What follows is a draft. */
  draft() {
    this.#steps = [];
  }

  keep() {
    this.#steps = null;
  }

  takeBack() {
    for (const step of this.#steps.reverse()) step();
    this.#steps = null;
  }

  append(parent, node) {
    parent.append(node);
    this.#steps?.push(() => node.remove());
  }

  replace(old, node) {
    old.replaceWith(node);
    this.#steps?.push(() => node.replaceWith(old));
  }

  addClass(element, name) {
    if (element.classList.contains(name)) return;
    element.classList.add(name);
    this.#steps?.push(() => element.classList.remove(name));
  }
}
