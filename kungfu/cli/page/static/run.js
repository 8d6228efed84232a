// The run as this browser knows it: a snapshot, and the updates since.

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
    for (const item of items ?? []) this.items.set(item.id, item);
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
