/** A plot of time series as SVG: lines that go on, with values by pointer and by keyboard. */

import { nearest, path, ticks, timeTicks } from "./plot_scales.js";

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { top: 10, right: 14, bottom: 24, left: 52 };
const DASHES = ["", "6 3", "2 3", "8 3 2 3"];

/**
 * @typedef {object} Series
 * @property {string} name
 * @property {(number | null)[]} values One for each time; null where there is none.
 */

/**
 * One plot, drawn again and again into the same elements.
 *
 * Lines differ by colour and by dashes, and the legend says each value in words. The arrow keys go from time to time. Nothing is
 * animated: a second later the line is redrawn.
 */
export class Plot {
  #element;
  #svg;
  #title;
  #parts = {};
  #lines = [];
  #format;
  #area;
  #width;
  #height;
  #times = [];
  /** @type {Series[]} */
  #series = [];
  /** The place in time that is read; -1 for the newest. */
  #at = -1;
  #scale = null;
  #observer;

  /**
   * @param {Element} element
   * @param {{title: string, format?: (value: number) => string, area?: boolean, height?: number}} options `format` writes a value with its unit.
   */
  constructor(element, { title, format = String, area = false, height = 160 }) {
    this.#element = element;
    this.#title = title;
    this.#format = format;
    this.#area = area;
    this.#height = height;
    this.#width = Math.max(200, element.clientWidth || 480);
    element.classList.add("plot");
    this.#build();
    this.#observer = new ResizeObserver(() => this.#resize());
    this.#observer.observe(element);
  }

  /**
   * Show these values.
   * @param {number[]} times Seconds since 1970, ascending.
   * @param {Series[]} series
   */
  draw(times, series) {
    if (series.length !== this.#lines.length) this.#makeLines(series.length);
    this.#times = times;
    this.#series = series;
    if (this.#at >= times.length) this.#at = -1;
    this.#redraw();
  }

  /** Let go of the element's size. */
  close() {
    this.#observer.disconnect();
  }

  #build() {
    const heading = document.createElement("h3");
    heading.className = "plot-title";
    this.#parts.moment = document.createElement("span");
    this.#parts.moment.className = "plot-moment";
    heading.append(this.#title, " ", this.#parts.moment);
    this.#parts.legend = document.createElement("ul");
    this.#parts.legend.className = "plot-legend";
    this.#svg = svg("svg", { class: "plot-svg", role: "slider", tabindex: 0, "aria-label": `${this.#title}: time`, "aria-valuemin": 0 });
    for (const name of ["grid", "labels", "lines", "cursor"]) this.#parts[name] = this.#svg.appendChild(svg("g", { class: `plot-${name}` }));
    this.#parts.rule = this.#parts.cursor.appendChild(svg("line", { class: "plot-rule" }));
    const head = document.createElement("div");
    head.className = "plot-head";
    head.append(heading, this.#parts.legend);
    this.#element.replaceChildren(head, this.#svg);
    this.#svg.addEventListener("pointermove", (event) => this.#point(event.clientX));
    this.#svg.addEventListener("pointerleave", () => this.#read(-1));
    this.#svg.addEventListener("blur", () => this.#read(-1));
    this.#svg.addEventListener("keydown", (event) => this.#press(event));
  }

  #makeLines(count) {
    this.#parts.lines.replaceChildren();
    this.#parts.legend.replaceChildren();
    this.#parts.cursor.replaceChildren(this.#parts.rule);
    this.#lines = Array.from({ length: count }, (_, index) => {
      const dash = DASHES[index % DASHES.length];
      const kind = `plot-${index % 4}`;
      const area = this.#area ? this.#parts.lines.appendChild(svg("path", { class: `plot-area ${kind}` })) : null;
      const line = this.#parts.lines.appendChild(svg("path", { class: `plot-line ${kind}`, "stroke-dasharray": dash }));
      const dot = this.#parts.cursor.appendChild(svg("circle", { class: `plot-dot ${kind}`, r: 3.5 }));
      const item = document.createElement("li");
      const sample = svg("svg", { class: "plot-sample", "aria-hidden": "true", viewBox: "0 0 22 8" });
      sample.append(svg("line", { class: `plot-line ${kind}`, x1: 0, x2: 22, y1: 4, y2: 4, "stroke-dasharray": dash }));
      const name = document.createElement("span");
      const value = document.createElement("output");
      item.append(sample, name, value);
      this.#parts.legend.append(item);
      return { area, line, dot, name, value };
    });
  }

  #resize() {
    const width = Math.max(200, this.#element.clientWidth);
    if (width === this.#width) return;
    this.#width = width;
    this.#redraw();
  }

  #redraw() {
    const [width, height] = [this.#width, this.#height];
    const inner = { width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
    let most = 0;
    for (const { values } of this.#series) for (const value of values) if (value > most) most = value;
    const marks = ticks(0, most || 1, 4);
    const top = marks[marks.length - 1];
    const first = this.#times[0] ?? 0;
    const span = (this.#times[this.#times.length - 1] ?? 1) - first || 1;
    const x = (time) => MARGIN.left + ((time - first) / span) * inner.width;
    const y = (value) => MARGIN.top + (1 - value / top) * inner.height;
    this.#scale = { x, y, first, span, inner };
    attributes(this.#svg, { viewBox: `0 0 ${width} ${height}`, width, height, "aria-valuemax": Math.max(0, this.#times.length - 1) });
    this.#drawAxes(marks, timeTicks(first, first + span, Math.max(2, Math.floor(inner.width / 90))), x, y);
    const places = this.#times.map(x);
    for (const [index, { name, values }] of this.#series.entries()) {
      const { area, line, name: label } = this.#lines[index];
      const heights = values.map((value) => (value === null ? null : y(value)));
      line.setAttribute("d", path(places, heights));
      area?.setAttribute("d", path(places, heights, y(0)));
      if (label.textContent !== name) label.textContent = name;
    }
    this.#read(this.#at);
  }

  #drawAxes(values, moments, x, y) {
    const right = this.#width - MARGIN.right;
    const lines = values.map((value) => ({ x1: MARGIN.left, x2: right, y1: y(value), y2: y(value) }));
    reuse(this.#parts.grid, "line", lines, () => {});
    const texts = [
      ...values.map((value) => ({ x: MARGIN.left - 8, y: y(value), "text-anchor": "end", "dominant-baseline": "middle", text: this.#format(value) })),
      ...moments.map(({ time, text }) => ({ x: x(time), y: this.#height - 6, "text-anchor": "middle", "dominant-baseline": "auto", text })),
    ];
    reuse(this.#parts.labels, "text", texts, (node, text) => {
      if (node.textContent !== text) node.textContent = text;
    });
  }

  #point(clientX) {
    if (this.#times.length === 0) return;
    const box = this.#svg.getBoundingClientRect();
    const place = ((clientX - box.left) * this.#width) / (box.width || 1);
    const { first, span, inner } = this.#scale;
    this.#read(nearest(this.#times, first + ((place - MARGIN.left) / inner.width) * span));
  }

  #press(event) {
    const last = this.#times.length - 1;
    const now = this.#at < 0 ? last : this.#at;
    const places = { ArrowLeft: now - 1, ArrowRight: now + 1, PageDown: now - 10, PageUp: now + 10, Home: 0, End: last };
    if (event.key === "Escape") return this.#read(-1);
    if (last < 0 || !(event.key in places)) return;
    event.preventDefault();
    this.#read(Math.min(last, Math.max(0, places[event.key])));
  }

  /** Say the values at a place in time, and mark it unless it is the newest that goes on. */
  #read(at) {
    this.#at = at;
    const index = at < 0 ? this.#times.length - 1 : at;
    const isMarked = at >= 0;
    const moment = index < 0 ? "" : new Date(this.#times[index] * 1000).toLocaleTimeString();
    this.#parts.moment.textContent = isMarked ? moment : "";
    this.#parts.cursor.setAttribute("visibility", isMarked ? "visible" : "hidden");
    if (index < 0) return;
    const { x, y } = this.#scale;
    const place = x(this.#times[index]);
    if (isMarked) attributes(this.#parts.rule, { x1: place, x2: place, y1: MARGIN.top, y2: this.#height - MARGIN.bottom });
    const said = [];
    for (const [number, { name, values }] of this.#series.entries()) {
      const { dot, value: output } = this.#lines[number];
      const value = values[index];
      const text = value === null || value === undefined ? "none" : this.#format(value);
      if (output.textContent !== text) output.textContent = text;
      said.push(`${name} ${text}`);
      dot.setAttribute("visibility", isMarked && text !== "none" ? "inherit" : "hidden");
      if (isMarked && text !== "none") attributes(dot, { cx: place, cy: y(value) });
    }
    attributes(this.#svg, { "aria-valuenow": index, "aria-valuetext": `${moment}: ${said.join(", ")}` });
  }
}

function svg(name, values) {
  const node = document.createElementNS(SVG, name);
  attributes(node, values);
  return node;
}

function attributes(node, values) {
  for (const [name, value] of Object.entries(values)) {
    const text = typeof value === "number" ? String(Math.round(value * 10) / 10) : value;
    if (node.getAttribute(name) !== text) node.setAttribute(name, text);
  }
}

/** Have so many elements of a kind in a group, and give each its attributes and its text. */
function reuse(group, kind, all, write) {
  while (group.childNodes.length > all.length) group.lastChild.remove();
  while (group.childNodes.length < all.length) group.append(svg(kind, {}));
  for (const [index, { text, ...values }] of all.entries()) {
    attributes(group.childNodes[index], values);
    write(group.childNodes[index], text);
  }
}
