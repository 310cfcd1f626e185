// Charts drawn as SVG: axes with units, labels at the lines' ends, and a table for each.

const NS = "http://www.w3.org/2000/svg";

/** Make an element; attributes only, since the page's policy forbids inline styles. */
export function make(name, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "rect", "text"].includes(name);
  const element = svg ? document.createElementNS(NS, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Say a number as people read it: three digits that matter, thousands apart. */
export function say(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "—";
  const digits = Math.abs(value) >= 100 || Number.isInteger(value) ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** Return round numbers from 0 to just over the largest value, four or five of them. */
export function ticks(largest, least = 1) {
  const top = Math.max(largest, least);
  const rough = top / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 2.5, 5, 10].find((each) => each * power >= rough) * power;
  if (least >= 4) step = Math.max(1, Math.ceil(step));
  const all = [];
  for (let at = 0; at < top + step * 0.999; at += step) all.push(Number(at.toPrecision(6)));
  return all;
}

/** The frame of a chart: title, figure of the moment, drawing, table. */
class Chart {
  constructor(figure, { title, unit, height = 190, columns, now = true }) {
    Object.assign(this, { figure, title, unit, height, columns });
    this.now = make("output", {}, "—");
    this.svg = make("svg", { role: "img", height, "aria-label": `${title}: nothing yet` });
    this.body = make("tbody");
    const head = make("tr", {}, ...columns.map((name) => make("th", { scope: "col" }, name)));
    this.details = make(
      "details", {}, make("summary", {}, "As a table"),
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${title}, as a table` },
        make("table", {}, make("thead", {}, head), this.body)),
    );
    const caption = make("figcaption", {}, make("h3", {}, title));
    if (now) caption.append(this.now);
    figure.replaceChildren(caption, this.svg, this.details);
    this.details.addEventListener("toggle", () => this.draw());
    // Text keeps its size whatever the width: the drawing has as many units as pixels.
    new ResizeObserver(() => this.draw()).observe(figure);
  }

  get width() { return Math.max(240, this.svg.clientWidth || 240); }

  tabulate(rows) {
    if (!this.details.open) return;
    this.body.replaceChildren(...rows.map((row) => make("tr", {}, ...row.map((cell, index) =>
      make(index ? "td" : "th", index ? {} : { scope: "row" }, cell)))));
  }

  paint(parts, words) {
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.setAttribute("aria-label", `${this.title}. ${words}`);
    this.svg.replaceChildren(...parts);
  }
}

/** Values over the last seconds, one line each, named at its end. */
export class Lines extends Chart {
  constructor(figure, options) {
    super(figure, { ...options, columns: ["Seconds ago", ...options.series.map((each) => each.name)] });
    this.series = options.series;
    this.seconds = options.seconds ?? 60;
    this.least = options.least ?? 1;
    this.points = [];
    this.bands = [];
    this.draw();
  }

  /** Add values, one for each series, at a time in seconds; null where there is none. */
  add(at, values) {
    this.points.push({ at, values });
    while (this.points.length && at - this.points[0].at > this.seconds + 2) this.points.shift();
    this.draw();
  }

  draw() {
    if (!this.points) return;
    const right = this.series.length > 1 ? 104 : 16;
    const box = { left: 44, right: this.width - right, top: 24, bottom: this.height - 28 };
    const end = this.points.at(-1)?.at ?? 0;
    const known = this.points.flatMap((point) => point.values).filter((value) => value !== null);
    const scale = ticks(Math.max(0, ...known), this.least);
    const x = (at) => box.right - ((end - at) / this.seconds) * (box.right - box.left);
    const y = (value) => box.bottom - (value / scale.at(-1)) * (box.bottom - box.top);
    const shades = this.bands.filter((band) => (band.to ?? end) > end - this.seconds)
      .map((band) => shade(band, box, x, end));
    const parts = [...shades.flat(), ...axisY(scale, y, box, this.unit), ...this.axisX(box, x, end)];
    const ends = [];
    this.series.forEach((series, index) => {
      const runs = unbroken(this.points, index, end - this.seconds);
      for (const run of runs) {
        const path = run.map(([at, value], step) => `${step ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
        if (series.area) {
          parts.push(make("path", { class: "area", d: `${path}L${x(run.at(-1)[0])} ${box.bottom}L${x(run[0][0])} ${box.bottom}Z` }));
        }
        parts.push(make("path", { class: `curve ${series.mark ?? ""}`, d: run.length > 1 ? path : `${path}h0.1` }));
      }
      const last = runs.at(-1)?.at(-1);
      if (last && this.series.length > 1) ends.push({ y: y(last[1]), text: `${series.name} ${say(last[1])}` });
    });
    parts.push(...endLabels(ends, box));
    const newest = this.points.at(-1)?.values ?? [];
    const words = this.series.map((series, index) =>
      `${series.name} ${say(newest[index])} ${this.unit}`).join(", ");
    this.paint(parts, `Now ${words}; at most ${say(known.length ? Math.max(...known) : null)} in the last minute.`);
    this.tabulate([...this.points].reverse().map((point) =>
      [say(Math.round(end - point.at)), ...point.values.map(say)]));
  }

  axisX(box, x, end) {
    const parts = [make("line", { class: "base", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom })];
    const step = box.right - box.left < 180 ? this.seconds : box.right - box.left < 300 ? this.seconds / 2 : this.seconds / 4;
    for (let back = 0; back <= this.seconds; back += step) {
      const at = x(end - back);
      const anchor = back === 0 ? "end" : back === this.seconds ? "start" : "middle";
      const text = back === 0 ? "now" : back === this.seconds ? `${back} s ago` : String(back);
      parts.push(make("text", { x: at, y: box.bottom + 18, "text-anchor": anchor }, text));
    }
    return parts;
  }
}

/** A value for each of some classes, said on top of its bar. */
export class Bars extends Chart {
  constructor(figure, options) {
    super(figure, options);
    this.across = options.across;
    this.bars = [];
    this.draw();
  }

  /** Show bars: {name, value, row} each. */
  show(bars, words) {
    this.bars = bars;
    this.words = words;
    this.draw();
  }

  draw() {
    if (!this.bars) return;
    const box = { left: 44, right: this.width - 4, top: 24, bottom: this.height - 44 };
    const scale = ticks(Math.max(0, ...this.bars.map((bar) => bar.value)), 4);
    const y = (value) => box.bottom - (value / scale.at(-1)) * (box.bottom - box.top);
    const step = (box.right - box.left) / Math.max(this.bars.length, 1);
    const parts = axisY(scale, y, box, this.unit);
    this.bars.forEach((bar, index) => {
      const middle = box.left + (index + 0.5) * step;
      const wide = Math.min(step * 0.7, 56);
      const small = step < 44 ? " small" : "";
      parts.push(make("rect", { class: "bar", x: middle - wide / 2, width: wide, y: y(bar.value), height: box.bottom - y(bar.value), rx: 2 }));
      if (bar.value) parts.push(make("text", { class: "label", x: middle, y: y(bar.value) - 5, "text-anchor": "middle" }, say(bar.value)));
      parts.push(make("text", { class: small, x: middle, y: box.bottom + 18, "text-anchor": "middle" }, bar.name));
    });
    parts.push(make("line", { class: "base", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
    parts.push(make("text", { x: (box.left + box.right) / 2, y: this.height - 8, "text-anchor": "middle" }, this.across));
    this.paint(parts, this.words ?? "Nothing yet.");
    this.tabulate(this.bars.map((bar) => bar.row));
  }
}

/** Percentiles on one ruler each: a span from p50 to p99, with marks that say their values. */
export class Rulers extends Chart {
  constructor(figure, options) {
    super(figure, { height: 176, now: false, ...options, columns: ["Way", "p50", "p95", "p99"] });
    this.rows = [];
    this.draw();
  }

  /** Show rulers: {name, kind, values: [p50, p95, p99]} each; values null if unknown. */
  show(rows) {
    this.rows = rows;
    this.draw();
  }

  draw() {
    if (!this.rows) return;
    const box = { left: 4, right: this.width - 16, top: 8, bottom: this.height - 42 };
    const known = this.rows.flatMap((row) => row.values ?? []);
    const scale = ticks(Math.max(0, ...known), 4);
    const x = (value) => box.left + (value / scale.at(-1)) * (box.right - box.left);
    const parts = [];
    for (const tick of scale) {
      parts.push(make("line", { class: "grid", x1: x(tick), x2: x(tick), y1: box.top, y2: box.bottom }));
      parts.push(make("text", { x: x(tick), y: box.bottom + 17, "text-anchor": tick ? "middle" : "start" }, say(tick)));
    }
    parts.push(make("text", { x: box.right, y: this.height - 6, "text-anchor": "end" }, `${this.unit} from sending a request to its answer`));
    const high = (box.bottom - box.top) / Math.max(this.rows.length, 1);
    this.rows.forEach((row, index) => parts.push(ruler(row, box.top + index * high, high, x, box)));
    const words = this.rows.filter((row) => row.values).map((row) =>
      `${row.name}: p50 ${say(row.values[0])}, p95 ${say(row.values[1])}, p99 ${say(row.values[2])} ${this.unit}`);
    this.paint(parts, words.join("; ") || "Nothing measured yet.");
    this.tabulate(this.rows.map((row) => [row.name, ...(row.values ?? [null, null, null]).map(say)]));
  }
}

function ruler(row, top, high, x, box) {
  const group = make("g", { class: row.kind });
  const middle = top + high * 0.68;
  group.append(make("text", { class: "label", x: box.left, y: top + 15 }, row.name));
  if (!row.values) {
    group.append(make("text", { x: box.left, y: middle + 4 }, "not measured yet"));
    return group;
  }
  const [p50, p95, p99] = row.values;
  group.append(make("rect", { class: "span", x: x(p50), width: Math.max(1, x(p99) - x(p50)), y: middle - 5, height: 10, rx: 2 }));
  for (const value of row.values) {
    group.append(make("line", { class: "mark", x1: x(value), x2: x(value), y1: middle - 9, y2: middle + 9 }));
  }
  const words = `p50 ${say(p50)}, p95 ${say(p95)}, p99 ${say(p99)} ms`;
  group.append(make("text", { class: "label", x: box.right, y: top + 15, "text-anchor": "end" }, words));
  return group;
}

function axisY(scale, y, box, unit) {
  const parts = [make("text", { x: 0, y: 11 }, unit)];
  for (const tick of scale) {
    parts.push(make("line", { class: "grid", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) }));
    parts.push(make("text", { x: box.left - 7, y: y(tick) + 4, "text-anchor": "end" }, short(tick)));
  }
  return parts;
}

function short(value) {
  return value >= 10000 ? `${say(value / 1000)}k` : say(value).replace(/\.?0+$/, (zeros) => (zeros.startsWith(".") ? "" : zeros));
}

function shade(band, box, x, end) {
  const from = Math.max(box.left, x(band.from));
  const to = Math.min(box.right, x(band.to ?? end));
  if (to <= from) return [];
  const parts = [make("rect", { class: "band", x: from, width: to - from, y: box.top, height: box.bottom - box.top })];
  const named = to - from > 8 * band.name.length;
  // A line where one burst follows another at once.
  parts.push(make("line", { class: "grid", x1: from, x2: from, y1: box.top, y2: box.bottom }));
  if (named) parts.push(make("text", { x: (from + to) / 2, y: box.top - 6, "text-anchor": "middle" }, band.name));
  return parts;
}

/** Cut a series where it has no values, and where it is too old to be shown. */
function unbroken(points, index, since) {
  const runs = [[]];
  for (const point of points) {
    const value = point.values[index];
    if (value === null || value === undefined) runs.push([]);
    else if (point.at >= since) runs.at(-1).push([point.at, value]);
  }
  return runs.filter((run) => run.length);
}

/** Put names beside the lines' ends, moved apart where they would lie upon each other. */
function endLabels(ends, box) {
  // Of equal values the last series, which is the highest percentile, stands on top.
  const sorted = ends.toReversed().sort((one, other) => one.y - other.y);
  sorted.forEach((each, index) => {
    each.at = Math.max(each.y, index ? sorted[index - 1].at + 15 : box.top);
  });
  const over = sorted.length ? Math.max(0, sorted.at(-1).at - box.bottom) : 0;
  return sorted.map((each) => make("text", { class: "label", x: box.right + 8, y: each.at - over + 4 }, each.text));
}
