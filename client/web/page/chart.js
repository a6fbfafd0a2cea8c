// Line charts on canvas. The charts of a group share the horizontal axis, the zoom and the crosshair. A chart has lines;
// a line is
//   {name, color, dash, rows(), points(), key, low(row), high(row)}
// where rows() and points() are arrays with step and wall_ms in rising order, and low and high (optional) give the edges
// of the band around the line.

import { el } from "./dom.js";
import { date, duration, whole } from "./format.js";
import { logTicks, rangeOf, tickText, ticks, timeTickText } from "./scale.js";
import { notFinite, smoothed } from "./series.js";

const LEFT = 66, RIGHT = 12, TOP = 14, BOTTOM = 24;
const FONT = "11px system-ui, sans-serif";
const DRAG_PX = 6; // a shorter movement is a click

// Eight colours and as many dash patterns: the ninth line repeats a colour with another pattern.
const COLORS = 8;
const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3], [5, 2, 1, 2, 1, 2], [14, 4], [1, 2], [8, 2, 2, 2, 2, 2]];

export function lineLook(i) {
  return { color: `--line-${i % COLORS}`, dash: DASHES[(i + Math.floor(i / COLORS)) % DASHES.length] };
}

const finite = (v) => typeof v === "number" && Number.isFinite(v);

export class ChartGroup {
  constructor(origin) {
    Object.assign(this, { charts: [], axis: "step", smooth: 0, log: false, robust: true, zoom: null, hover: null });
    this.origin = origin; // origin(line): the time of a line's start in ms
    this.markers = () => []; // [{step, wall_ms, text, bad}]
    this.onZoom = () => {};
    this.onDomain = () => {}; // zoom, axis or colours have changed
    this.colors = new Map();
    this.redraw = () => this.draw();
    this.recolor = () => {
      this.colors.clear();
      this.onDomain();
      this.draw();
    };
    this.media = matchMedia("(prefers-color-scheme: dark)");
    this.media.addEventListener("change", this.recolor);
    document.addEventListener("themechange", this.recolor);
    this.resize = new ResizeObserver(this.redraw);
    this.followers = []; // pictures that are no charts, with changed(): they share zoom, axis and colours
  }

  follow(picture) {
    this.followers.push(picture);
    this.onDomain = () => { for (const f of this.followers) f.changed(); };
  }

  add(chart) {
    chart.group = this;
    this.charts.push(chart);
    this.resize.observe(chart.plot);
    return chart.element;
  }

  close() {
    this.media.removeEventListener("change", this.recolor);
    document.removeEventListener("themechange", this.recolor);
    this.resize.disconnect();
    cancelAnimationFrame(this.frame);
  }

  // Many changes between two frames of the screen are one drawing.
  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => {
      const domain = this.domain();
      for (const chart of this.charts) chart.draw(domain);
    });
  }

  color(name) {
    if (!this.colors.has(name)) {
      this.colors.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
    }
    return this.colors.get(name);
  }

  x(line, row) {
    return this.axis === "step" ? row.step : (row.wall_ms - this.origin(line)) / 1000;
  }

  xText(x) {
    return this.axis === "step" ? `step ${whole(Math.round(x))}` : `after ${duration(x)}`;
  }

  extent() {
    let min = Infinity, max = -Infinity;
    for (const chart of this.charts) {
      for (const line of chart.lines) {
        const rows = line.rows();
        if (!rows.length) continue;
        const first = rows[0];
        // A merged first row covers the steps before it.
        const x = this.axis === "step" ? first.step - (first.steps_merged ?? 1) + 1 : this.x(line, first);
        min = Math.min(min, x);
        max = Math.max(max, this.x(line, rows.at(-1)));
      }
    }
    if (min > max) return null;
    return max > min ? [min, max] : [min - 0.5, max + 0.5];
  }

  domain() {
    return this.zoom ?? this.extent();
  }

  setHover(x) {
    this.hover = x;
    this.draw();
  }

  setZoom(range) {
    const all = this.extent();
    this.zoom = null;
    if (range && all) {
      const a = Math.max(Math.min(...range), all[0]), b = Math.min(Math.max(...range), all[1]);
      if (b > a && (a > all[0] || b < all[1])) this.zoom = [a, b];
    }
    this.onZoom(this.zoom);
    this.onDomain();
    this.draw();
  }

  setAxis(axis) {
    this.axis = axis;
    this.zoom = this.hover = null;
    this.onZoom(null);
    this.onDomain();
    this.draw();
  }
}

// The row at x, or the nearest one; the rows are in rising order of x.
export function nearest(rows, xOf, x) {
  let a = 0, b = rows.length - 1;
  while (b - a > 1) {
    const m = (a + b) >> 1;
    if (xOf(rows[m]) <= x) a = m;
    else b = m;
  }
  return b >= 0 && Math.abs(xOf(rows[b]) - x) < Math.abs(xOf(rows[a]) - x) ? b : a;
}

export class Chart {
  constructor({ title, unit, lines, text, robust, tick = tickText }) {
    Object.assign(this, { title, unit, lines, text, robust, tick });
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.values = el("span", { class: "values" });
    this.empty = el("span", { class: "empty" }, "No values yet");
    // A slider is what assistive technology offers for "move along an axis and read the value".
    this.plot = el("div", { class: "plot", tabindex: 0, role: "slider", "aria-label": `${title}, along the steps`,
      "aria-keyshortcuts": "ArrowLeft ArrowRight Home End Plus Minus Escape" }, this.canvas, this.empty);
    this.element = el("figure", { class: "chart" },
      el("figcaption", {}, el("h3", {}, title, unit ? el("span", { class: "unit" }, ` ${unit}`) : null), this.values),
      this.plot);
    this.drag = null;
    this.listen();
  }

  listen() {
    const on = (name, f) => this.plot.addEventListener(name, f);
    on("pointermove", (e) => this.moved(e));
    on("pointerdown", (e) => this.pressed(e));
    on("pointerup", (e) => this.released(e));
    on("pointercancel", () => { this.drag = null; });
    on("pointerleave", () => { if (!this.drag) this.group.setHover(null); });
    on("dblclick", () => this.group.setZoom(null));
    on("keydown", (e) => this.key(e));
    on("blur", () => this.group.setHover(null));
  }

  pointerX(e) {
    const box = this.plot.getBoundingClientRect();
    const domain = this.group.domain();
    const share = (e.clientX - box.left - LEFT) / Math.max(1, box.width - LEFT - RIGHT);
    return domain[0] + Math.max(0, Math.min(1, share)) * (domain[1] - domain[0]);
  }

  moved(e) {
    if (!this.group.domain()) return;
    const x = this.pointerX(e);
    if (this.drag) this.drag.to = Math.abs(e.clientX - this.drag.px) >= DRAG_PX ? x : this.drag.from;
    this.group.setHover(x);
  }

  pressed(e) {
    if (e.button !== 0 || !this.group.domain()) return;
    this.plot.setPointerCapture(e.pointerId);
    const x = this.pointerX(e);
    this.drag = { from: x, to: x, px: e.clientX };
    this.group.setHover(x);
  }

  released() {
    const drag = this.drag;
    this.drag = null;
    if (drag && drag.to !== drag.from) this.group.setZoom([drag.from, drag.to]);
    else this.group.draw();
  }

  key(e) {
    const g = this.group, domain = g.domain();
    const actions = {
      ArrowLeft: () => this.walk(e.shiftKey ? -10 : -1),
      ArrowRight: () => this.walk(e.shiftKey ? 10 : 1),
      Home: () => g.setHover(domain[0]),
      End: () => g.setHover(domain[1]),
      "+": () => this.zoomBy(0.5),
      "=": () => this.zoomBy(0.5),
      "-": () => this.zoomBy(2),
      0: () => g.setZoom(null),
      Escape: () => g.setZoom(null),
    };
    if (!domain || !actions[e.key] || e.ctrlKey || e.metaKey || e.altKey) return;
    e.preventDefault();
    actions[e.key]();
  }

  walk(rows) {
    const g = this.group, line = this.lines.find((l) => l.rows().length);
    if (!line) return;
    const all = line.rows(), xOf = (r) => g.x(line, r), domain = g.domain();
    const at = nearest(all, xOf, g.hover ?? domain[1]);
    const x = xOf(all[Math.max(0, Math.min(all.length - 1, at + rows))]);
    g.setHover(Math.max(domain[0], Math.min(domain[1], x)));
  }

  zoomBy(factor) {
    const g = this.group, [a, b] = g.domain(), middle = g.hover ?? (a + b) / 2;
    g.setZoom([middle - (middle - a) * factor, middle + (b - middle) * factor]);
  }

  // ---- drawing ----

  get log() {
    return this.group.log;
  }

  bandAlpha() {
    return 0.18;
  }

  // The rows within the domain, and one on each side, so that lines reach the edges.
  visible(line, rows, domain) {
    const xOf = (r) => this.group.x(line, r);
    if (!rows.length) return [0, 0];
    let a = nearest(rows, xOf, domain[0]), b = nearest(rows, xOf, domain[1]);
    return [Math.max(0, a - 1), Math.min(rows.length, b + 2)];
  }

  prepare(domain) {
    return this.lines.map((line) => {
      const rows = line.rows(), values = rows.map((r) => r[line.key]);
      const smooth = this.group.smooth && !line.exact ? smoothed(values, this.group.smooth) : values;
      return { line, rows, values, smooth, span: this.visible(line, rows, domain) };
    });
  }

  yRange(prepared, domain) {
    const all = [];
    const take = (v) => { if (finite(v) && (!this.log || v > 0)) all.push(v); };
    for (const { line, rows, values, smooth, span: [a, b] } of prepared) {
      for (let i = a; i < b; i++) {
        take(smooth[i]);
        take(values[i]);
        if (line.low) take(line.low(rows[i]));
        if (line.high && !this.robust) take(line.high(rows[i]));
      }
      for (const p of line.points?.() ?? []) {
        const x = this.group.x(line, p);
        if (x >= domain[0] && x <= domain[1]) take(p[line.pointKey]);
      }
    }
    const range = rangeOf(all, this.group.robust);
    if (!range) return null;
    let [min, max] = range;
    if (this.log) return max - min > 1e-9 * max ? [min / (max / min) ** 0.05, max * (max / min) ** 0.05] : [min / 2, max * 2];
    // A mean of equal values differs from them by its rounding.
    const pad = max - min > 1e-9 * Math.abs(max) ? (max - min) * 0.06 : Math.abs(max) * 0.1 || 1;
    return [min >= 0 ? Math.max(0, min - pad) : min - pad, max + pad];
  }

  draw(domain) {
    const width = this.plot.clientWidth, height = this.plot.clientHeight, scale = devicePixelRatio || 1;
    if (!width || !height) return;
    const c = this.canvas.getContext("2d");
    const w = Math.round(width * scale), h = Math.round(height * scale);
    if (this.canvas.width !== w || this.canvas.height !== h) Object.assign(this.canvas, { width: w, height: h });
    c.setTransform(scale, 0, 0, scale, 0, 0);
    c.clearRect(0, 0, width, height);
    c.font = FONT;
    const prepared = domain ? this.prepare(domain) : [];
    const range = domain && this.yRange(prepared, domain);
    this.empty.hidden = Boolean(range) || prepared.some((p) => p.rows.some(notFinite));
    this.showValues(prepared);
    if (!domain) return;
    const f = this.frame(c, width, height, domain, range ?? [0, 1]);
    this.drawGrid(f);
    this.drawMarkers(f);
    c.save();
    c.beginPath();
    c.rect(LEFT, TOP - 4, f.right - LEFT, f.bottom - TOP + 8);
    c.clip();
    for (const p of prepared) this.drawBand(f, p);
    for (const p of prepared) this.drawLine(f, p);
    for (const p of prepared) this.drawPoints(f, p);
    c.restore();
    this.drawHover(f, prepared);
  }

  frame(c, width, height, domain, range) {
    const right = width - RIGHT, bottom = height - BOTTOM, log = this.log;
    const of = log ? Math.log10 : (v) => v;
    const low = of(range[0]), high = of(range[1]);
    return {
      c, right, bottom, domain, range,
      x: (v) => LEFT + ((v - domain[0]) / (domain[1] - domain[0])) * (right - LEFT),
      y: (v) => bottom - ((of(v) - low) / (high - low)) * (bottom - TOP),
    };
  }

  drawGrid({ c, right, bottom, domain, range, x, y }) {
    const g = this.group, isTime = g.axis === "time";
    const ys = this.log ? logTicks(...range) : ticks(...range, Math.max(3, (bottom - TOP) / 40));
    const xs = ticks(...domain, Math.max(2, (right - LEFT) / 110), isTime);
    c.lineWidth = 1;
    c.setLineDash([]);
    c.strokeStyle = g.color("--grid");
    c.fillStyle = g.color("--muted");
    c.textAlign = "right";
    c.textBaseline = "middle";
    for (const v of ys) {
      const at = Math.round(y(v)) + 0.5;
      c.beginPath();
      c.moveTo(LEFT, at);
      c.lineTo(right, at);
      c.stroke();
      c.fillText(this.tick(v, ys[1] - ys[0]), LEFT - 7, at);
    }
    c.textBaseline = "top";
    for (const v of xs) {
      if (!isTime && !Number.isInteger(v)) continue;
      const at = Math.round(x(v)) + 0.5, text = isTime ? timeTickText(v) : tickText(v, xs[1] - xs[0]);
      const half = c.measureText(text).width / 2;
      c.textAlign = at + half > right + RIGHT ? "right" : at - half < 0 ? "left" : "center";
      c.fillText(text, at, bottom + 7);
      c.beginPath();
      c.moveTo(at, bottom);
      c.lineTo(at, bottom + 4);
      c.stroke();
    }
  }

  // Epochs are thin lines; an incident also has a triangle, since colour alone would not distinguish it.
  drawMarkers({ c, right, bottom, domain, x }) {
    const g = this.group;
    let free = LEFT;
    for (const m of g.markers()) {
      const at = Math.round(x(g.x(null, m))) + 0.5;
      if (g.x(null, m) < domain[0] || g.x(null, m) > domain[1]) continue;
      c.strokeStyle = c.fillStyle = g.color(m.bad ? "--bad" : "--muted");
      c.setLineDash(m.bad ? [] : [2, 3]);
      c.beginPath();
      c.moveTo(at, TOP - 4);
      c.lineTo(at, bottom);
      c.stroke();
      c.setLineDash([]);
      if (m.bad) {
        c.beginPath();
        c.moveTo(at - 5, TOP - 12);
        c.lineTo(at + 5, TOP - 12);
        c.lineTo(at, TOP - 3);
        c.fill();
      }
      const wide = c.measureText(m.text).width;
      if (at + 8 < free || at + 8 + wide > right) continue;
      c.textAlign = "left";
      c.textBaseline = "top";
      c.fillText(m.text, at + 8, TOP - 13);
      free = at + 16 + wide;
    }
  }

  drawBand({ c, x, y }, { line, rows, span: [a, b] }) {
    if (!line.low && !line.high) return;
    const g = this.group, inLog = (v) => finite(v) && (!this.log || v > 0);
    c.fillStyle = g.color(line.color);
    c.globalAlpha = this.bandAlpha();
    let from = a;
    const flush = (to) => { // draws the rows before `to`
      if (to - from < 1) return;
      c.beginPath();
      for (let i = from; i < to; i++) c.lineTo(x(g.x(line, rows[i])), y(this.edge(line.high, line, rows[i])));
      for (let i = to - 1; i >= from; i--) c.lineTo(x(g.x(line, rows[i])), y(this.edge(line.low, line, rows[i])));
      c.fill();
    };
    for (let i = a; i < b; i++) {
      const shown = inLog(this.edge(line.low, line, rows[i])) && inLog(this.edge(line.high, line, rows[i]));
      if (shown && !this.pauseBefore(rows, i)) continue;
      flush(i);
      from = shown ? i : i + 1;
    }
    flush(b);
    c.globalAlpha = 1;
  }

  // Nothing was trained between two epochs, so that no line crosses that time.
  pauseBefore(rows, i) {
    return this.group.axis === "time" && i > 0 && rows[i].epoch !== rows[i - 1].epoch;
  }

  edge(f, line, row) {
    const v = f ? f(row) : row[line.key];
    return finite(v) ? v : row[line.key];
  }

  drawLine(f, p) {
    const { c } = f, { line, values, smooth } = p;
    c.strokeStyle = this.group.color(line.color);
    c.lineJoin = "round";
    if (smooth !== values) {
      c.globalAlpha = this.lines.length > 1 ? 0.15 : 0.3; // several raw curves would cover each other
      c.lineWidth = 1;
      this.strokeValues(f, p, values);
      c.globalAlpha = 1;
    }
    c.lineWidth = 1.75;
    c.setLineDash(line.dash ?? []);
    this.strokeValues(f, p, smooth);
    c.setLineDash([]);
    this.drawNotFinite(f, p);
  }

  // A gap where a value is missing: a line across it would invent values. A single value between two gaps is a dot.
  strokeValues({ c, x, y }, { line, rows, span: [a, b] }, values) {
    const g = this.group, shown = (v) => finite(v) && (!this.log || v > 0);
    c.beginPath();
    let pen = false;
    for (let i = a; i < b; i++) {
      if (!shown(values[i])) {
        pen = false;
        continue;
      }
      const px = x(g.x(line, rows[i])), py = y(values[i]);
      if (this.pauseBefore(rows, i)) pen = false;
      if (pen) c.lineTo(px, py);
      else c.moveTo(px, py);
      if (!pen && !shown(values[i + 1])) c.arc(px, py, 1.5, 0, 7);
      pen = true;
    }
    c.stroke();
  }

  drawNotFinite({ c, x, bottom }, { line, rows, span: [a, b] }) {
    const g = this.group;
    c.strokeStyle = g.color("--bad");
    c.lineWidth = 1.5;
    let before = -Infinity;
    for (let i = a; i < b; i++) {
      if (rows[i][line.key] !== null && !(line.marksNotFinite && notFinite(rows[i]))) continue;
      const at = x(g.x(line, rows[i])), y = bottom - 6;
      if (at - before < 8) continue;
      before = at;
      c.beginPath();
      c.moveTo(at - 3, y - 3);
      c.lineTo(at + 3, y + 3);
      c.moveTo(at + 3, y - 3);
      c.lineTo(at - 3, y + 3);
      c.stroke();
    }
  }

  drawPoints({ c, x, y, domain, right }, { line }) {
    const g = this.group;
    c.fillStyle = g.color(line.pointColor ?? line.color);
    c.strokeStyle = g.color("--card");
    c.lineWidth = 1;
    const all = line.points?.() ?? [], size = all.length * 12 > right - LEFT ? 3.5 : 5;
    for (const p of all) {
      const v = p[line.pointKey], px = g.x(line, p);
      if (!finite(v) || px < domain[0] || px > domain[1] || (this.log && v <= 0)) continue;
      c.beginPath();
      c.moveTo(x(px), y(v) - size);
      c.lineTo(x(px) + size, y(v));
      c.lineTo(x(px), y(v) + size);
      c.lineTo(x(px) - size, y(v));
      c.closePath();
      c.fill();
      c.stroke();
    }
  }

  drawHover({ c, bottom, domain, x, y }, prepared) {
    const g = this.group;
    if (this.drag && this.drag.to !== this.drag.from) {
      const a = x(this.drag.from), b = x(this.drag.to);
      c.fillStyle = g.color("--accent");
      c.globalAlpha = 0.15;
      c.fillRect(Math.min(a, b), TOP, Math.abs(b - a), bottom - TOP);
      c.globalAlpha = 1;
    }
    if (g.hover === null || g.hover < domain[0] || g.hover > domain[1]) return;
    const at = Math.round(x(g.hover)) + 0.5;
    c.strokeStyle = g.color("--text");
    c.lineWidth = 1;
    c.globalAlpha = 0.5;
    c.beginPath();
    c.moveTo(at, TOP);
    c.lineTo(at, bottom);
    c.stroke();
    c.globalAlpha = 1;
    for (const p of prepared) {
      if (!p.rows.length) continue;
      const i = nearest(p.rows, (r) => g.x(p.line, r), g.hover), v = p.smooth[i];
      if (!finite(v) || (this.log && v <= 0)) continue;
      c.fillStyle = g.color(p.line.color);
      c.beginPath();
      c.arc(x(g.x(p.line, p.rows[i])), y(v), 3.5, 0, 7);
      c.fill();
    }
  }

  // ---- the values at the crosshair, or the last ones ----

  showValues(prepared) {
    const g = this.group, parts = [], said = [];
    for (const p of prepared) {
      if (!p.rows.length) continue;
      const i = g.hover === null ? p.rows.length - 1 : nearest(p.rows, (r) => g.x(p.line, r), g.hover);
      const row = p.rows[i], text = this.valueText(p, i);
      if (!said.length) said.push(g.axis === "step" ? `step ${whole(row.step)}` : g.xText(g.x(p.line, row)));
      said.push(`${p.line.name ?? this.title} ${text}`);
      parts.push(el("span", { class: "value" }, this.swatch(p.line), text));
    }
    const at = g.hover === null || !said.length ? [] : [el("span", { class: "at", title: this.wallText(prepared) }, said[0])];
    this.values.replaceChildren(...at, ...parts);
    this.plot.setAttribute("aria-valuetext", said.join(", ") || "no values yet");
    const domain = g.domain();
    if (!domain) return;
    this.plot.setAttribute("aria-valuemin", domain[0]);
    this.plot.setAttribute("aria-valuemax", domain[1]);
    this.plot.setAttribute("aria-valuenow", g.hover ?? domain[1]);
  }

  wallText(prepared) {
    const p = prepared.find((one) => one.rows.length), g = this.group;
    const row = p.rows[nearest(p.rows, (r) => g.x(p.line, r), g.hover)];
    return Number.isFinite(row.wall_ms) ? date(row.wall_ms) : "";
  }

  valueText({ line, rows, values, smooth }, i) {
    const row = rows[i], parts = [this.text(values[i])];
    if (smooth !== values && finite(smooth[i])) parts.push(`smooth ${this.text(smooth[i])}`);
    const low = line.low?.(row), high = line.high?.(row);
    if (finite(low) && finite(high) && low !== high) parts.push(`(${this.text(low)} to ${this.text(high)})`);
    else if (!line.low && finite(high) && high !== values[i]) parts.push(`(up to ${this.text(high)})`);
    const point = line.points && this.pointText(line, row);
    if (point) parts.push(point);
    return parts.join(" ");
  }

  pointText(line, row) {
    const last = line.points().filter((p) => p.step <= row.step && finite(p[line.pointKey])).at(-1);
    return last ? `◆ ${line.pointName} ${this.text(last[line.pointKey])}` : null;
  }

  swatch(line) {
    return this.lines.length > 1 ? swatchOf(this.group, line) : "";
  }
}

// A short piece of the line with its colour and pattern.
export function swatchOf(group, line) {
  const canvas = el("canvas", { class: "swatch", "aria-hidden": "true" });
  const scale = devicePixelRatio || 1, c = canvas.getContext("2d");
  Object.assign(canvas, { width: 28 * scale, height: 10 * scale });
  c.scale(scale, scale);
  c.strokeStyle = group.color(line.color);
  c.lineWidth = 2.5;
  c.setLineDash(line.dash ?? []);
  c.beginPath();
  c.moveTo(0, 5);
  c.lineTo(28, 5);
  c.stroke();
  return canvas;
}

// The same rows as a table, for readers who cannot see the picture; about `most` of them.
export function fillTable(table, columns, rows, most = 100) {
  const every = Math.max(1, Math.ceil(rows.length / most));
  const shown = rows.filter((_, i) => (rows.length - 1 - i) % every === 0);
  table.replaceChildren(
    el("caption", {}, every > 1 ? `One of ${every} rows` : "All rows"),
    el("thead", {}, el("tr", {}, columns.map((c) => el("th", { scope: "col" }, c.label)))),
    el("tbody", {}, shown.map((r) => el("tr", {}, columns.map((c) => el("td", {}, c.text(r)))))),
  );
  return shown.length;
}
