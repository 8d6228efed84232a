// The run as this browser knows it: a snapshot, and the updates since.

// Of each kind of items so many are kept, as the server does: a page may stay open for a week.
const MOST_ITEMS = 150;

export class Run {
  constructor() {
    this.parts = { run: {}, peers: [], membership: null, plan: null };
    this.forgetPoints();
    this.items = new Map();
  }

  /** Takes the whole; what was known before does not count. */
  replace(whole) {
    this.forgetPoints();
    this.items.clear();
    this.add(whole);
  }

  /** Takes what has changed: parts, points from a place on, and items by their ids. */
  add(update) {
    const { curves, items, ...parts } = update;
    Object.assign(this.parts, parts);
    if (curves) this.addPoints(curves);
    if (items) this.addItems(items);
  }

  addItems(items) {
    for (const item of items) this.items.set(item.id, item);
    for (const kind of new Set(items.map((item) => item.kind))) {
      for (const old of this.ofKind(kind).slice(MOST_ITEMS)) this.items.delete(old.id);
    }
  }

  /** Points are groups of steps, each with its first and its last step and the time of that one. */
  addPoints({ from, firsts, steps, times, curves }) {
    const joined = (known, added) => known.slice(0, from).concat(added);
    [this.firsts, this.steps, this.times] = [joined(this.firsts, firsts), joined(this.steps, steps), joined(this.times, times)];
    for (const { name, newest, note, ...added } of curves) {
      const known = this.curves.get(name);
      const before = (key) => known?.[key] ?? new Array(from).fill(null); // where it is new, the curve begins here
      const [low, values, high] = ["low", "values", "high"].map((key) => joined(before(key), added[key]));
      this.curves.set(name, { low, values, high, newest, note });
    }
  }

  forgetPoints() {
    [this.firsts, this.steps, this.times, this.curves] = [[], [], [], new Map()];
  }

  /** Seconds from the start of the job. */
  elapsed(time) {
    return time - (this.parts.run.began ?? this.times[0] ?? time);
  }

  ofKind(...kinds) {
    return [...this.items.values()].filter((item) => kinds.includes(item.kind)).sort((one, other) => other.id - one.id);
  }
}
