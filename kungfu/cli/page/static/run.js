// The run as this browser knows it: a snapshot, and the updates since.

// Of each kind of items so many are kept, as the server does: a page may stay open for a week.
const MOST_ITEMS = 150;

export class Run {
  constructor() {
    this.parts = { run: {}, peers: [], membership: null, plan: null };
    this.steps = [];
    this.times = [];
    this.curves = new Map();
    this.items = new Map();
  }

  /** Takes the whole; what was known before does not count. */
  replace(whole) {
    this.curves.clear();
    this.items.clear();
    this.steps = [];
    this.times = [];
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

  addPoints({ from, steps, times, curves }) {
    this.steps = this.steps.slice(0, from).concat(steps);
    this.times = this.times.slice(0, from).concat(times);
    for (const { name, values } of curves) {
      const known = (this.curves.get(name) ?? []).slice(0, from);
      while (known.length < from) known.push(null); // the curve begins here
      this.curves.set(name, known.concat(values));
    }
    for (const [name, values] of this.curves) {
      const known = values.slice(0, this.steps.length);
      while (known.length < this.steps.length) known.push(null);
      this.curves.set(name, known);
    }
  }

  /** Seconds from the start of the job. */
  elapsed(time) {
    return time - (this.parts.run.began ?? this.times[0] ?? time);
  }

  ofKind(...kinds) {
    return [...this.items.values()].filter((item) => kinds.includes(item.kind)).sort((one, other) => other.id - one.id);
  }
}
