/** Numbers as people read them. */

/** Write bytes: `4.1 GB`, `62 MB`. */
export function size(bytes) {
  if (bytes >= 1e9) return `${(bytes / 1e9).toFixed(1)} GB`;
  return `${Math.round(bytes / 1e6)} MB`;
}

/** @type {[number, number, string][]} Up to so many seconds, in units of so many. */
const UNITS = [[120, 1, "s"], [7200, 60, "min"], [172_800, 3600, "h"]];

/** Write seconds: `0.42 s`, `12 s`, `3 min`, `5 h`, `2 d`. */
export function duration(seconds) {
  if (seconds < 10) return `${seconds.toFixed(seconds < 1 ? 2 : 1)} s`;
  for (const [most, unit, name] of UNITS) if (seconds < most) return `${Math.round(seconds / unit)} ${name}`;
  return `${Math.round(seconds / 86_400)} d`;
}

/** Write a number in at most four characters or so: `0.25`, `12.5`, `1,200`, `34 k`, `5.6 M`. */
export function short(number) {
  if (number === null || number === undefined || !Number.isFinite(number)) return "–";
  if (number >= 1e6) return `${(number / 1e6).toFixed(1)} M`;
  if (number >= 1e4) return `${Math.round(number / 1e3)} k`;
  if (number >= 100) return Math.round(number).toLocaleString("en");
  return String(Number(number.toFixed(number < 10 ? 2 : 1)));
}

/** Write a time of day, out of seconds since 1970. */
export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });
}
