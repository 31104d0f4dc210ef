/** The plots of the live view: counters of the last minute or of the last hour. */

import { Plot } from "./plot.js";
import { duration, short } from "./units.js";
import { effect, h, onEnd, signal } from "./view.js";

/** Return what a counter grew a second from one sample to a later one; null where that is not known: a counter that falls was begun anew. */
export function growth(one, other, name) {
  return isLater(one, other) ? (other[name] - one[name]) / (other.at - one.at) : null;
}

/** Return the mean of what was summed and counted from one sample to a later one; null where nothing was. */
export function meanGrowth(one, other, sum, count) {
  return isLater(one, other) && other[count] > one[count] ? (other[sum] - one[sum]) / (other[count] - one[count]) : null;
}

const isLater = (one, other) => one !== undefined && other.at > one.at && other.requests >= one.requests;

/** Return the points of a value between each two samples. */
export function between(samples, compute) {
  return samples.slice(1).map((other, at) => [other.at, compute(samples[at], other)]);
}

const levels = (samples, name) => samples.slice(1).map((one) => [one.at, one[name]]);

/** Show the plots; the arguments are signals of samples, a second and ten seconds apart. */
export function plotsView(seconds, tens) {
  const span = signal("minute");
  const samples = () => (span.value === "minute" ? seconds.value : tens.value);
  const line = (name, points) => ({ name, points });
  const rates = (name) => between(samples(), (one, other) => growth(one, other, name));
  const means = (sum, count) => between(samples(), (one, other) => meanGrowth(one, other, sum, count));
  const choose = (name) => h("button.quiet.small", { "aria-pressed": () => String(span.value === name), onclick: () => (span.value = name) }, `The last ${name}`);
  return h(
    "section",
    { "aria-label": "Plots" },
    h("div.row", {}, choose("minute"), choose("hour")),
    h(
      "div.plots",
      {},
      plotView("Tokens a second", () => [line("answers", rates("completion_tokens")), line("prompts", rates("prompt_tokens"))]),
      plotView("Requests a second", () => [line("answered", rates("requests")), line("failed", rates("failed"))]),
      plotView("Time to first token", () => [line("mean", means("first_token_s", "first_tokens"))], duration),
      plotView("Requests in flight", () => [line("running", levels(samples(), "running")), line("waiting", levels(samples(), "waiting"))]),
    ),
  );
}

/** Show a plot of lines, each of points `[seconds since 1970, value or null]`, which are at the same times. */
function plotView(title, lines, format = short) {
  const element = h("div.card");
  const plot = new Plot(element, { title, format, height: 130 });
  effect(() => {
    const series = lines();
    const times = series[0].points.map(([at]) => at);
    plot.draw(times, series.map(({ name, points }) => ({ name, values: points.map(([, value]) => value) })));
  });
  onEnd(() => plot.close());
  return element;
}
