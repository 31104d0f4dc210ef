/** The plots of the live view: counters of the last minute or of the last hour. */

import { Plot } from "./plot.js";
import { duration, short } from "./units.js";
import { effect, h, onEnd, signal } from "./view.js";

/** Return what a counter grew a second, between each two samples. */
export function rates(samples, name) {
  return between(samples, (one, other, seconds) => (other[name] - one[name]) / seconds);
}

/** Return the mean of a sum by its count, between each two samples; null where nothing was counted. */
export function means(samples, sum, count) {
  return between(samples, (one, other) => (other[count] > one[count] ? (other[sum] - one[sum]) / (other[count] - one[count]) : null));
}

/** Return points between each two samples; a counter that falls was begun anew. */
function between(samples, compute) {
  return samples.slice(1).map((other, at) => {
    const one = samples[at];
    const fell = other.requests < one.requests || other.at <= one.at;
    return [other.at, fell ? null : compute(one, other, other.at - one.at)];
  });
}

const levels = (samples, name) => samples.slice(1).map((one) => [one.at, one[name]]);

/** Show the plots; the arguments are signals of samples, a second and ten seconds apart. */
export function plotsView(seconds, tens) {
  const span = signal("minute");
  const samples = () => (span.value === "minute" ? seconds.value : tens.value);
  const line = (name, points) => ({ name, points });
  const choose = (name) => h("button.quiet.small", { "aria-pressed": () => String(span.value === name), onclick: () => (span.value = name) }, `The last ${name}`);
  return h(
    "section",
    { "aria-label": "Plots" },
    h("div.row", {}, choose("minute"), choose("hour")),
    h(
      "div.plots",
      {},
      plotView("Tokens a second", () => [line("answers", rates(samples(), "completion_tokens")), line("prompts", rates(samples(), "prompt_tokens"))]),
      plotView("Requests a second", () => [line("answered", rates(samples(), "requests")), line("failed", rates(samples(), "failed"))]),
      plotView("Time to first token", () => [line("mean", means(samples(), "first_token_s", "first_tokens"))], duration),
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
