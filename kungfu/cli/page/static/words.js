// Numbers and times in a person's words, and elements made of texts: nothing of a record is ever markup.

const UNKNOWN = "–";

/** A number with three or four digits that matter, as `kungfu why` writes it. */
export function figure(value) {
  if (typeof value === "string") return value; // NaN and infinities stand by name
  if (typeof value !== "number" || !Number.isFinite(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size >= 1e15 || (size > 0 && size < 1e-3)) return value.toExponential(2);
  if (Number.isInteger(value) || size >= 99.95) return Math.round(value).toLocaleString("en-US");
  return value.toPrecision(3);
}

/** A number short enough for an axis. */
export function short(value) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  if (size >= 1e9) return trimmed(value / 1e9) + "G";
  if (size >= 1e6) return trimmed(value / 1e6) + "M";
  if (size >= 1e4) return trimmed(value / 1e3) + "k";
  if (size !== 0 && size < 1e-3) return Number(value.toPrecision(3)).toExponential();
  return trimmed(value);
}

function trimmed(value) {
  return String(Number(value.toPrecision(4)));
}

/** Seconds in the unit that a person would use. */
export function duration(seconds) {
  if (typeof seconds !== "number" || !Number.isFinite(seconds)) return UNKNOWN;
  if (seconds < 0.9995) return seconds < 0.00995 ? `${Number((seconds * 1000).toPrecision(2))} ms` : `${Math.round(seconds * 1000)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60)];
  return hours ? `${hours.toLocaleString("en-US")} h ${minutes} min` : `${minutes} min ${whole % 60} s`;
}

/** A time of day, with the date where it is not today. */
export function moment(seconds) {
  if (typeof seconds !== "number") return UNKNOWN;
  const when = new Date(seconds * 1000);
  const today = when.toDateString() === new Date().toDateString();
  const clock = when.toLocaleTimeString([], { hour12: false });
  return today ? clock : `${when.toLocaleDateString([], { day: "numeric", month: "short" })}, ${clock}`;
}

/** A number of bytes in the unit that a person would use. */
export function bytes(value) {
  const [unit, least] = value >= 1e9 ? ["GB", 1e9] : ["MB", 1e6];
  return `${Number((value / least).toPrecision(2))} ${unit}`;
}

export function label(name) {
  return name === "samples_per_s" ? "samples/s" : name.replaceAll("_", " ");
}

export function counted(value, noun) {
  return `${figure(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** An element with attributes and with children that are texts or elements. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Sets a text, and leaves the document alone where it is the same. */
export function setText(id, text) {
  const target = document.getElementById(id);
  if (target.textContent !== text) target.textContent = text;
}

/** The state of a run in a few words, with its tone: green is for what has gone well to its end. */
export function stateOf(run) {
  if (run.state === "running") return [run.ended ? "training is over" : "running", "live"];
  // A record that was copied without the job's file.
  if (run.state !== "over") return run.is_failed ? ["failed", "bad"] : run.ended ? ["over", "good"] : ["state not known", "calm"];
  if (run.code === 0) return ["over", "good"];
  return [run.code === null ? "ended without a word" : `ended with exit code ${run.code}`, "bad"];
}
