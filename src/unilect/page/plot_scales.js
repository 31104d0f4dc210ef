/** Scales of plots: round marks, moments, and paths. Pure functions. */

/** Seconds between the marks of time. */
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

/**
 * Round numbers from the first at or below `low` to the first at or above `high`: 1, 2 or 5 times a power of ten apart.
 * @param {number} low
 * @param {number} high
 * @param {number} most How many steps there are at most.
 * @returns {number[]}
 */
export function ticks(low, high, most) {
  const rough = (high > low ? high - low : Math.abs(low) || 1) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((one) => one >= rough * (1 - 1e-9));
  const start = Math.floor(low / step + 1e-9);
  const end = Math.max(start + 1, Math.ceil(high / step - 1e-9));
  return Array.from({ length: end - start + 1 }, (_, index) => Number(((start + index) * step).toPrecision(12)));
}

/**
 * Moments between two times in seconds, at round local times of day, and how they are written.
 * @param {number} first
 * @param {number} last
 * @param {number} most
 * @returns {{time: number, text: string}[]}
 */
export function timeTicks(first, last, most) {
  const rough = (last - first) / most;
  const step = STEPS.find((one) => one >= rough) ?? Math.ceil(rough / 86400) * 86400;
  const offset = new Date(first * 1000).getTimezoneOffset() * 60;
  const found = [];
  for (let time = Math.ceil((first - offset) / step) * step + offset; time <= last; time += step) found.push({ time, text: clock(time, step) });
  return found;
}

function clock(time, step) {
  const date = new Date(time * 1000);
  const two = (number) => String(number).padStart(2, "0");
  if (step >= 86400) return `${date.getMonth() + 1}/${date.getDate()}`;
  return `${two(date.getHours())}:${two(date.getMinutes())}${step < 60 ? `:${two(date.getSeconds())}` : ""}`;
}

/**
 * The place of the time that is nearest; -1 where there is none.
 * @param {number[]} times Ascending.
 * @param {number} time
 * @returns {number}
 */
export function nearest(times, time) {
  let low = 0;
  let high = times.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] < time) low = middle + 1;
    else high = middle;
  }
  return low > 0 && time - times[low - 1] <= times[low] - time ? low - 1 : Math.min(low, times.length - 1);
}

/**
 * The `d` of a line through points, with a gap where a height is null; with a floor, of the area between them.
 * @param {number[]} places
 * @param {(number | null)[]} heights
 * @param {number} [floor]
 * @returns {string}
 */
export function path(places, heights, floor) {
  const round = (number) => Math.round(number * 10) / 10;
  const runs = [];
  let run = null;
  for (const [index, height] of heights.entries()) {
    if (height === null || !Number.isFinite(height)) run = null;
    else {
      if (run === null) runs.push((run = []));
      run.push([round(places[index]), round(height)]);
    }
  }
  return runs.map((points) => (floor === undefined ? line(points) : area(points, round(floor)))).join("");
}

function line(points) {
  return `M${points.map((point) => point.join(" ")).join("L")}${points.length === 1 ? "h0.1" : ""}`;
}

function area(points, floor) {
  return `${line(points)}L${points[points.length - 1][0]} ${floor}L${points[0][0]} ${floor}Z`;
}
