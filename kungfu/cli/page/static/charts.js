// The curves, drawn by uPlot: one figure for each, with a sentence that says what it shows.

import uPlot from "./vendor/uPlot.esm.js";
import { captionOf, chartsOf, isFlat, lonely, namesOf, pointsOf, range, readoutOf } from "./points.js";
import { counted, duration, element, figure, setText, short } from "./words.js";

const HEIGHT = 190;
// Values that span more than this factor are drawn on a logarithmic axis.
const DECADES = 30;
const PALE = "4d"; // the opacity of a colour, in hexadecimal
// What the marks on the first chart mean.
const MARKS = [["change", "peers joined or left"], ["loss", "peers were lost"], ["asked", "size that was asked for"]];

export class Charts {
  constructor(run) {
    this.run = run;
    [this.container, this.folded] = ["charts", "flat-charts"].map((id) => document.getElementById(id));
    this.charts = new Map();
    this.over = "steps";
  }

  listen() {
    for (const id of ["over-steps", "over-time"]) {
      document.getElementById(id).addEventListener("change", (event) => {
        this.over = event.target.value;
        this.charts.forEach((chart) => chart.redraw());
        this.paint();
      });
    }
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.charts.forEach((chart) => chart.redraw());
      this.paint();
    });
    const observer = new ResizeObserver(() => this.charts.forEach((chart) => chart.resize()));
    [this.container, this.folded].forEach((container) => observer.observe(container));
  }

  paint() {
    document.getElementById("no-curves").hidden = this.run.steps.length > 0;
    const [shown, flat] = [[], []];
    for (const one of chartsOf(this.run)) {
      if (!this.charts.has(one.key)) this.charts.set(one.key, new Chart(this.run, one, this));
      (isFlat(this.run, one) ? flat : shown).push(this.charts.get(one.key));
    }
    place(this.container, shown);
    place(this.folded, flat);
    document.getElementById("flat").hidden = flat.length === 0;
    const names = flat.map(({ shown: { key, title } }) => `${title} ${figure(this.run.curves.get(key).newest?.[1])}`).join(", ");
    setText("flat-names", `${counted(flat.length, "signal")} with one value all the time: ${names}`);
    [...shown, ...flat].forEach((chart) => chart.paint());
  }
}

/** Shows charts in their order; those that are there already stay as they are. */
function place(container, charts) {
  const wanted = charts.map((chart) => chart.figure);
  if (wanted.length !== container.children.length || wanted.some((one, at) => container.children[at] !== one)) container.replaceChildren(...wanted);
}

class Chart {
  constructor(run, shown, charts) {
    this.run = run;
    this.shown = shown;
    this.charts = charts;
    this.plot = null;
    this.isLogarithmic = false;
    this.readout = element("span", { class: "readout" });
    this.area = element("div", { class: "plot", tabindex: "0", role: "img" });
    this.caption = element("figcaption", {});
    this.marks = shown.key === "size" ? element("p", { class: "marks" }, ...MARKS.map(([mark, word]) => element("span", { "data-mark": mark }, word))) : null;
    const words = (shown.words ?? []).map((word, at) => element("span", { class: "key", "data-nth": at }, word));
    const title = element("h3", {}, ...(words.length ? words : [shown.title]));
    this.figure = element("figure", { class: "chart" }, element("div", { class: "bar" }, title, this.readout), this.marks, this.area, this.caption);
    this.figure.dataset.curve = shown.key;
    this.area.addEventListener("keydown", (event) => this.move(event));
    this.area.addEventListener("focus", () => this.readout.setAttribute("aria-live", "polite"));
    this.area.addEventListener("blur", () => {
      this.readout.removeAttribute("aria-live");
      this.plot?.setCursor({ left: -10, top: -10 });
    });
  }

  paint() {
    const data = pointsOf(this.run, this.shown, this.charts.over);
    const logarithmic = this.spansDecades(data);
    if (this.plot && logarithmic !== this.isLogarithmic) this.redraw();
    this.isLogarithmic = logarithmic;
    if (this.plot) this.plot.setData(data);
    else if (this.width() > 0) this.plot = new uPlot(this.options(), data, this.area);
    const words = captionOf(this.run, this.shown);
    this.caption.textContent = words;
    this.area.setAttribute("aria-label", `${this.shown.title} over ${this.charts.over}: ${words}`);
  }

  /** Has the next painting begin anew, as where colours or axes are others. */
  redraw() {
    this.plot?.destroy();
    this.plot = null;
  }

  resize() {
    if (this.plot && this.width() > 0) this.plot.setSize({ width: this.width(), height: HEIGHT });
    else if (!this.plot) this.paint();
  }

  width() {
    return this.area.clientWidth;
  }

  /** Whether the line needs a logarithmic axis, which only values above zero can have. */
  spansDecades([, , lows, line]) {
    if (this.shown.stepped) return false;
    const [low, high] = range(line);
    return range(lows)[0] > 0 && high / low > DECADES;
  }

  options() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const [ink, grid] = [colour("--muted"), colour("--line")];
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: "12px system-ui" };
    const overTime = this.charts.over === "time";
    // A point stands at the last step of its group, and holds for those before it.
    const paths = this.shown.stepped ? uPlot.paths.stepped({ align: -1 }) : uPlot.paths.linear();
    const [series, bands] = [[{}], []];
    namesOf(this.run, this.shown).forEach((name, at) => {
      const stroke = colour(at ? "--second" : "--first");
      // What was no number in some steps is not drawn there; the speed alone is unknown by design, after a barrier.
      // uPlot would fill points with white, which stands out in the dark.
      const points = (fill) => ({ show: false, size: 4, fill, stroke: fill, filter: (plot, nth) => lonely(plot.data[nth]) });
      const drawn = { scale: at ? "z" : "y", paths, spanGaps: name === "samples_per_s" };
      // What is extreme stands back behind the line.
      const pale = `${stroke}${PALE}`;
      bands.push({ series: [series.length, series.length + 1], fill: pale });
      series.push({ ...drawn, points: points(pale), stroke: pale, width: 1 }, { ...drawn, points: points(pale), width: 0 });
      series.push({ ...drawn, points: points(stroke), stroke, width: at ? 1.5 : 2 });
    });
    const y = { distr: this.isLogarithmic ? 3 : 1, range: this.isLogarithmic ? undefined : (_, low, high) => padded(_, low, this.highest(high)) };
    const upright = { ...axis, size: 52, values: (_, ticks) => ticks.map(short) };
    const decades = { ...upright, filter: powersOfTen, grid: { ...axis.grid, filter: powersOfTen }, ticks: { ...axis.ticks, filter: powersOfTen } };
    const axes = [
      { ...axis, values: (_, ticks) => ticks.map(overTime ? duration : short) },
      this.isLogarithmic ? decades : upright,
    ];
    if (bands.length > 1) axes.push({ ...upright, scale: "z", side: 1, grid: { show: false } });
    return {
      width: this.width(), height: HEIGHT, axes, series, bands, legend: { show: false },
      scales: { x: { time: false }, y, z: { range: lower } },
      cursor: { sync: { key: "run" }, drag: { x: true, y: false }, y: false },
      hooks: { draw: this.marks ? [(plot) => this.drawMarks(plot, colour)] : [], setCursor: [(plot) => this.tell(plot)] },
    };
  }

  /** The highest value that is drawn: a size that was asked for may be above those that came about. */
  highest(high) {
    if (this.shown.key !== "size" || high === null) return high;
    return Math.max(high, ...this.run.ofKind("decision").map((item) => item.size ?? 0));
  }

  /** A line at each change of the membership, and a mark at each decision beside the size. */
  drawMarks(plot, colour) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const item of this.run.ofKind("change")) {
      const x = this.placeOf(item, plot);
      ctx.strokeStyle = colour(item.is_loss ? "--bad" : "--mark");
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
    this.drawDecisions(plot, colour);
  }

  /** A diamond at each size that was asked for. */
  drawDecisions(plot, colour) {
    const { ctx } = plot;
    const reach = 5 * devicePixelRatio;
    ctx.save();
    [ctx.strokeStyle, ctx.fillStyle, ctx.lineWidth] = [colour("--bad"), colour("--raised"), 1.5 * devicePixelRatio];
    for (const item of this.run.ofKind("decision").filter((one) => typeof one.size === "number")) {
      const [x, y] = [this.placeOf(item, plot), plot.valToPos(item.size, "y", true)];
      ctx.beginPath();
      for (const [dx, dy] of [[0, -reach], [reach, 0], [0, reach], [-reach, 0]]) ctx.lineTo(x + dx, y + dy);
      ctx.closePath();
      ctx.fill();
      ctx.stroke();
    }
    ctx.restore();
  }

  placeOf(item, plot) {
    const x = this.charts.over === "steps" ? item.step : this.run.elapsed(item.time);
    return plot.valToPos(x, "x", true);
  }

  /** Tells the values under the cursor. */
  tell(plot) {
    const at = plot.cursor.idx;
    if (at === null || at === undefined || plot.cursor.left < 0) {
      this.readout.textContent = "";
      return;
    }
    this.readout.textContent = readoutOf(this.run, this.shown, at);
  }

  /** Arrow keys move the cursor from point to point. */
  move(event) {
    const jump = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity }[event.key];
    if (jump === undefined || !this.plot) return;
    event.preventDefault();
    const { idx, left } = this.plot.cursor;
    const last = this.plot.data[0].length - 1;
    const from = idx === null || idx === undefined || left < 0 ? (jump < 0 ? last + 1 : -1) : idx;
    const to = Math.max(0, Math.min(last, from + jump));
    this.plot.setCursor({ left: this.plot.valToPos(this.plot.data[0][to], "x"), top: 20 });
  }
}

/** The range of an axis: from zero where values are near it, with some room above. */
function padded(_, low, high) {
  if (low === null || high === null) return [0, 1];
  const bottom = low >= 0 && low < high * 0.7 ? 0 : low - (high - low || Math.abs(low) || 1) * 0.1;
  const top = high + (high - bottom || 1) * 0.1;
  return [bottom, top];
}

/** Of the marks of a logarithmic axis those that are read: at most six powers of ten; all of them are a grey band. */
function powersOfTen(_, marks) {
  const powers = marks.map((mark) => Math.log10(mark)).map((power) => (Math.abs(power - Math.round(power)) < 1e-9 ? Math.round(power) : null));
  const every = Math.ceil(powers.filter((power) => power !== null).length / 6);
  return marks.map((mark, at) => (powers[at] !== null && powers[at] % every === 0 ? mark : null));
}

/** The range of a second axis, whose curve runs below the first one instead of hiding it. */
function lower(plot, low, high) {
  const [bottom, top] = padded(plot, low, high);
  return [bottom, bottom + (top - bottom) * 1.7];
}
