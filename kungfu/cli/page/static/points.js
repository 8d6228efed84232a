// The points of a chart, and its words: plain values of a run, without a document.

import { figure, label } from "./words.js";

// What is drawn first, and what beside it; every other number of a step gets a figure of its own.
const FIRST = [
  { key: "size", title: "peers and batch", curves: ["size", "batch"], stepped: true, words: ["peers", "batch"] },
  { key: "loss", title: "loss", curves: ["loss"], noisy: true },
  { key: "samples_per_s", title: "samples/s", curves: ["samples_per_s"], noisy: true },
  { key: "noise_scale", title: "noise scale", curves: ["noise_scale"] },
];
const NOT_DRAWN = ["epoch", "view"];
// Points around each one, on either side, whose median is the line of a curve that jumps from step to step.
const [AROUND, AROUND_BATCH] = [12, 2];

/** The charts of a run. */
export function* chartsOf({ curves }) {
  yield* FIRST.filter((shown) => curves.has(shown.key));
  const taken = new Set([...FIRST.flatMap((shown) => shown.curves), ...NOT_DRAWN]);
  for (const name of curves.keys()) if (!taken.has(name)) yield { key: name, title: label(name), curves: [name] };
}

/** Whether a signal of a policy has had one value all the time: its chart is folded. */
export function isFlat(run, shown) {
  const { low, high } = run.curves.get(shown.key);
  return !FIRST.includes(shown) && range(low)[0] >= range(high)[1];
}

/** The names of the curves of a chart that the run has. */
export function namesOf(run, shown) {
  return shown.curves.filter((name) => run.curves.has(name));
}

/** What a chart draws: its axis, then of each curve the highest value of each group of steps, the lowest one and the line. */
export function pointsOf(run, shown, over) {
  const x = over === "steps" ? run.steps : run.times.map((time) => run.elapsed(time));
  return [x, ...namesOf(run, shown).flatMap((name) => {
    const curve = run.curves.get(name);
    return [curve.high, curve.low, lineOf(name, shown, curve)];
  })];
}

function lineOf(name, shown, curve) {
  // The last batch of an epoch is smaller; that is no change of the batch.
  if (name === "batch") return typical(curve.values, AROUND_BATCH);
  return shown.noisy || (!shown.stepped && jumps(curve)) ? typical(curve.values, AROUND) : curve.values;
}

/** Whether a curve has different values within most groups of steps. */
function jumps({ low, high }) {
  return 2 * low.filter((one, at) => one !== high[at]).length > low.length;
}

/** The sentence below a chart: the newest values, each with its step, the extremes so far, and how often there is none. */
export function captionOf(run, shown) {
  const names = namesOf(run, shown);
  return names.map((name) => {
    const { low, high, newest, note } = run.curves.get(name);
    if (!newest) return `${label(name)} is not known`;
    const [[lowest], [, highest]] = [range(low), range(high)];
    const span = lowest === highest ? "all the time" : `from ${figure(lowest)} to ${figure(highest)} so far`;
    return `${names.length > 1 ? `${label(name)} ` : ""}${figure(newest[1])} at step ${figure(newest[0])}, ${span}${note && `, ${note}`}`;
  }).join("; ");
}

/** The values of a point: those of its step, or of its steps the median and the extremes. */
export function readoutOf(run, shown, at) {
  const values = namesOf(run, shown).map((name) => {
    const { low, values, high } = run.curves.get(name);
    const span = low[at] === high[at] ? "" : ` (${figure(low[at])} to ${figure(high[at])})`;
    return `${label(name)} ${figure(values[at])}${span}`;
  });
  const [first, last] = [run.firsts[at], run.steps[at]];
  return `${first === last ? "step" : `steps ${figure(first)} to`} ${figure(last)}: ${values.join(", ")}`;
}

/** The places of known values between unknown ones: no line leads to them. */
export function lonely(values) {
  const isKnown = (at) => (values[at] ?? null) !== null;
  return [...values.keys()].filter((at) => isKnown(at) && !isKnown(at - 1) && !isKnown(at + 1));
}

/** The lowest and the highest known value. */
export function range(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value === null) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

/**
 * The median of the known values around each point; a jump stays one, and a single odd value leaves no trace.
 * Near an end it is that of fewer, so that what came last is not drawn late.
 */
function typical(values, reach) {
  return values.map((value, at) => {
    if (value === null) return null;
    const near = Math.max(2, Math.min(reach, at, values.length - 1 - at));
    const around = values.slice(Math.max(0, at - near), at + near + 1).filter((one) => one !== null);
    return around.sort((one, other) => one - other)[around.length >> 1];
  });
}
