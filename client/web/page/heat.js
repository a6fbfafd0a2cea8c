// The heat map: a column for each window of time, a row for each rank, a colour for each value. When there are more ranks
// than pixels, a row of pixels shows the worst of its ranks, so that no straggler falls between two rows.
//
// The cells are drawn once into an image with a pixel for each of them, which the browser then scales; moving the pointer
// draws that image again and no cell.

import { colorAt, pixelsOf } from "./colors.js";
import { el, foreign, printable, setHidden, setText } from "./dom.js";
import { date, duration, real, time, whole } from "./format.js";
import { ticks } from "./scale.js";
import { FIELDS, median } from "./usage.js";

const LEFT = 66, RIGHT = 18, TOP = 8, BOTTOM = 26;
const FONT = "11px system-ui, sans-serif";
const ROW_MOST = 22, HEIGHT_LEAST = 96, HEIGHT_MOST = 420; // of a row, and of all rows, in pixels
const BINS = 512; // of the histogram that finds the range
const OUTLIERS = 0.002; // this part of the values at each end does not set the scale
const SPAN_LEAST = 0.1; // of the middle: a smaller range would show noise as if it mattered

const finite = (v) => Number.isFinite(v);

// The range of the values, without the few that are far from all others.
export function heatRange(columns) {
  let min = Infinity, max = -Infinity, n = 0;
  for (const column of columns) {
    for (const v of column) {
      if (Number.isNaN(v)) continue;
      if (v < min) min = v;
      if (v > max) max = v;
      n++;
    }
  }
  if (!n) return null;
  if (max > min) [min, max] = cutRange(columns, min, max, n);
  const middle = (min + max) / 2, least = Math.abs(middle) * SPAN_LEAST || 1;
  return max - min >= least ? [min, max] : [middle - least / 2, middle + least / 2];
}

function cutRange(columns, min, max, n) {
  const bins = new Uint32Array(BINS), scale = (BINS - 1) / (max - min), out = Math.floor(n * OUTLIERS);
  for (const column of columns) for (const v of column) if (!Number.isNaN(v)) bins[((v - min) * scale) | 0]++;
  let a = 0, b = BINS - 1;
  for (let sum = bins[0]; sum <= out && a < b; sum += bins[++a]);
  for (let sum = bins[b]; sum <= out && b > a; sum += bins[--b]);
  return [min + a / scale, min + (b + 1) / scale];
}

export class HeatMap {
  constructor({ group, usage, stragglers }) {
    Object.assign(this, { group, usage, stragglers, at: null, stale: true });
    this.key = FIELDS[0].key;
    this.relative = false;
    this.build();
    this.listen();
    // The drawing sets the height itself.
    this.resize = new ResizeObserver(() => { if (this.plot.clientWidth !== this.width) this.redraw(); });
    this.resize.observe(this.plot);
  }

  build() {
    this.field = el("select", { id: "heat-field", onchange: () => this.choose(this.field.value) });
    const relative = el("input", { type: "checkbox", id: "heat-relative", onchange: () => {
      this.relative = relative.checked;
      this.changed();
    } });
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.empty = el("span", { class: "empty" }, "No values yet");
    this.plot = el("div", { class: "plot heat", tabindex: 0, role: "slider", "aria-label": "Heat map: ranks and times",
      "aria-keyshortcuts": "ArrowUp ArrowDown ArrowLeft ArrowRight PageUp PageDown Home End w Escape" }, this.canvas, this.empty);
    this.reading = el("span", { class: "values", role: "status" });
    this.low = el("span", { class: "nowrap" });
    this.high = el("span", { class: "nowrap" });
    this.bar = el("canvas", { class: "ramp", width: 160, height: 12, "aria-hidden": "true" });
    this.pooled = el("span", { class: "muted", hidden: true });
    this.element = el("figure", { class: "chart wide" },
      el("figcaption", {}, el("h3", {}, "Ranks over time"), this.reading),
      el("div", { class: "tools heat-tools" },
        el("label", { for: "heat-field" }, "Show"), this.field,
        el("label", { class: "choice" }, relative, "relative to the median of the ranks"),
        el("span", { class: "fill" }), el("span", { class: "ramp-box" }, this.low, this.bar, this.high)),
      this.plot,
      el("p", { class: "muted hint pad" }, "Arrow keys move the cell, W goes to the worst one. ", this.pooled));
    this.image = el("canvas");
  }

  listen() {
    const on = (name, f) => this.plot.addEventListener(name, f);
    on("pointermove", (e) => this.pointed(e));
    on("pointerdown", (e) => this.pointed(e));
    on("pointerleave", () => this.move(null));
    on("blur", () => this.move(null));
    on("keydown", (e) => this.keyPressed(e));
  }

  // ---- data ----

  get spec() {
    return FIELDS.find((f) => f.key === this.key);
  }

  // Fields that some rank has reported.
  setFields() {
    const shown = FIELDS.filter((f) => this.usage.has(f.key));
    const text = shown.map((f) => f.key).join();
    if (text === this.fieldText) return;
    this.fieldText = text;
    if (shown.length && !shown.includes(this.spec)) this.key = shown[0].key;
    this.field.replaceChildren(...shown.map((f) => el("option", { value: f.key, selected: f.key === this.key }, f.name)));
  }

  choose(key) {
    this.key = key;
    this.changed();
  }

  changed() {
    this.stale = true;
    this.redraw();
  }

  redraw() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.draw());
  }

  // The windows within the zoom of all charts.
  windows() {
    const list = this.usage.windows.filter((w) => w.columns[this.key]), { zoom } = this.group;
    if (!zoom) return list;
    return list.filter((w) => {
      const x = this.group.x(null, w);
      return x >= zoom[0] && x <= zoom[1];
    });
  }

  columnOf(w) {
    const column = w.columns[this.key];
    if (!this.relative) return column;
    w.ratios ??= {};
    if (!w.ratios[this.key]) {
      const middle = median(column.filter(finite));
      w.ratios[this.key] = column.map((v) => (middle > 0 ? v / middle : NaN));
    }
    return w.ratios[this.key];
  }

  // ---- the image ----

  prepare(height) {
    const list = this.windows(), ranks = Math.max(0, ...list.map((w) => w.columns[this.key].length));
    const rows = Math.min(ranks, Math.max(1, Math.floor(height)));
    this.shown = { list, ranks, rows, columns: list.map((w) => this.columnOf(w)) };
    this.shown.range = this.spec.most && !this.relative ? [0, this.spec.most] : heatRange(this.shown.columns);
    this.stale = false;
    if (!this.shown.range) return;
    Object.assign(this.image, { width: list.length, height: rows });
    const c = this.image.getContext("2d"), data = c.createImageData(list.length, rows);
    this.fill(new Uint32Array(data.data.buffer));
    c.putImageData(data, 0, 0);
  }

  fill(out) {
    const { list, ranks, rows, columns, range: [min, max] } = this.shown;
    const pixels = pixelsOf(this.dark()), scale = (pixels.length - 1) / (max - min), worse = this.spec.low ? -1 : 1;
    for (let x = 0; x < list.length; x++) {
      const column = columns[x];
      for (let y = 0; y < rows; y++) {
        let v = NaN;
        const end = this.firstOf(y + 1, ranks, rows);
        for (let r = this.firstOf(y, ranks, rows); r < end; r++) {
          if (Number.isNaN(v) || worse * column[r] > worse * v) v = column[r] ?? NaN;
        }
        if (Number.isNaN(v)) continue; // transparent
        const at = (v - min) * scale;
        out[y * list.length + x] = pixels[at < 0 ? 0 : at > pixels.length - 1 ? pixels.length - 1 : Math.round(at)];
      }
    }
  }

  // The first rank of a row of pixels.
  firstOf(y, ranks, rows) {
    return Math.floor((y * ranks) / rows);
  }

  dark() {
    const set = document.documentElement.dataset.theme;
    return set ? set === "dark" : this.group.media.matches;
  }

  // ---- drawing ----

  draw() {
    const all = this.usage.newest?.step_s?.length ?? this.usage.newest?.node?.length ?? 0;
    const inner = Math.min(HEIGHT_MOST, Math.max(HEIGHT_LEAST, all * ROW_MOST));
    this.plot.style.height = `${inner + TOP + BOTTOM}px`;
    const width = this.plot.clientWidth, height = inner + TOP + BOTTOM, scale = devicePixelRatio || 1;
    if (!width) return;
    this.width = width;
    if (this.stale) this.prepare(inner * scale);
    const { range, list, ranks, rows } = this.shown;
    const c = this.canvas.getContext("2d"), w = Math.round(width * scale), h = Math.round(height * scale);
    if (this.canvas.width !== w || this.canvas.height !== h) Object.assign(this.canvas, { width: w, height: h });
    c.setTransform(scale, 0, 0, scale, 0, 0);
    c.clearRect(0, 0, width, height);
    this.empty.hidden = Boolean(range);
    setHidden(this.pooled, rows >= ranks);
    setText(this.pooled, rows < ranks ? `A row shows the worst of about ${whole(Math.ceil(ranks / rows))} ranks.` : "");
    this.showLegend();
    this.showReading();
    if (!range) return;
    this.box = { x: LEFT, y: TOP, w: width - LEFT - RIGHT, h: inner };
    c.imageSmoothingEnabled = false;
    c.drawImage(this.image, LEFT, TOP, this.box.w, inner);
    c.font = FONT;
    this.drawAxes(c, list, ranks);
    this.drawEpochs(c, list);
    this.drawStragglers(c, ranks);
    this.drawCell(c, list, ranks);
  }

  drawAxes(c, list, ranks) {
    const { x, y, w, h } = this.box;
    c.fillStyle = this.group.color("--muted");
    c.textAlign = "right";
    c.textBaseline = "middle";
    for (const r of ticks(0, Math.max(1, ranks - 1), Math.max(2, h / 44))) {
      if (Number.isInteger(r) && r < ranks) c.fillText(`rank ${whole(r)}`, x - 7, y + ((r + 0.5) / ranks) * h);
    }
    c.textBaseline = "top";
    const n = list.length, about = Math.min(n, Math.max(2, Math.floor(w / 120)));
    for (let i = 0; i < about; i++) {
      const at = Math.floor((i * n) / about), px = x + ((at + 0.5) / n) * w;
      const text = this.group.axis === "step" ? whole(list[at].step) : duration(Math.max(0, this.group.x(null, list[at])));
      c.textAlign = i ? "center" : "left";
      c.fillText(text, i ? px : x, y + h + 7);
    }
  }

  drawEpochs(c, list) {
    const { x, y, w, h } = this.box;
    c.strokeStyle = this.group.color("--bad");
    c.lineWidth = 1.5;
    for (let i = 1; i < list.length; i++) {
      if (list[i].epoch === list[i - 1].epoch) continue;
      const px = x + (i / list.length) * w;
      c.beginPath();
      c.moveTo(px, y - 4);
      c.lineTo(px, y + h + 3);
      c.stroke();
    }
  }

  // A triangle at the right edge.
  drawStragglers(c, ranks) {
    const { x, y, w, h } = this.box;
    c.fillStyle = this.group.color("--bad");
    for (const { rank } of this.stragglers()) {
      if (rank >= ranks) continue;
      const at = y + ((rank + 0.5) / ranks) * h;
      c.beginPath();
      c.moveTo(x + w + 3, at);
      c.lineTo(x + w + 14, at - 6);
      c.lineTo(x + w + 14, at + 6);
      c.fill();
    }
  }

  drawCell(c, list, ranks) {
    if (!this.at) return;
    const { x, y, w, h } = this.box, cw = w / list.length, ch = h / ranks;
    const left = x + this.at.i * cw, top = y + this.at.rank * ch;
    for (const [color, grow] of [["--card", 2.5], ["--text", 1]]) {
      c.strokeStyle = this.group.color(color);
      c.lineWidth = color === "--card" ? 3 : 1.5;
      c.strokeRect(left - grow, top - grow, Math.max(cw, 3) + 2 * grow, Math.max(ch, 3) + 2 * grow);
    }
  }

  showLegend() {
    const c = this.bar.getContext("2d"), { range } = this.shown, dark = this.dark();
    for (let i = 0; i < this.bar.width; i++) {
      c.fillStyle = colorAt(i / (this.bar.width - 1), dark);
      c.fillRect(i, 0, 1, this.bar.height);
    }
    setText(this.low, range ? this.valueText(range[0]) : "");
    setText(this.high, range ? this.valueText(range[1]) : "");
  }

  valueText(v) {
    if (!finite(v)) return "no value";
    return this.relative ? `${real(v, 3)} ×` : this.spec.text(v);
  }

  // ---- the cell under the pointer ----

  move(at) {
    const { list, ranks } = this.shown ?? {};
    this.at = at && list?.length && ranks
      ? { i: Math.min(list.length - 1, Math.max(0, at.i)), rank: Math.min(ranks - 1, Math.max(0, at.rank)) } : null;
    this.redraw();
  }

  pointed(e) {
    if (!this.box || !this.shown?.range) return;
    const r = this.plot.getBoundingClientRect(), { list, ranks, rows, columns } = this.shown;
    const i = Math.floor(((e.clientX - r.left - this.box.x) / this.box.w) * list.length);
    const row = Math.floor(((e.clientY - r.top - this.box.y) / this.box.h) * rows);
    if (i < 0 || i >= list.length || row < 0 || row >= rows) return;
    this.move({ i, rank: this.worstOf(columns[i], this.firstOf(row, ranks, rows), this.firstOf(row + 1, ranks, rows)) });
  }

  worstOf(column, from, to) {
    const worse = this.spec.low ? -1 : 1;
    let best = from;
    for (let r = from; r < to; r++) {
      if (!finite(column[best]) || worse * column[r] > worse * column[best]) best = r;
    }
    return best;
  }

  keyPressed(e) {
    const { list, ranks } = this.shown ?? {};
    if (!list?.length || e.ctrlKey || e.metaKey || e.altKey) return;
    const { i, rank } = this.at ?? { i: list.length - 1, rank: 0 }, far = e.shiftKey ? 10 : 1;
    const to = {
      ArrowLeft: { i: i - far, rank }, ArrowRight: { i: i + far, rank },
      ArrowUp: { i, rank: rank - far }, ArrowDown: { i, rank: rank + far },
      PageUp: { i, rank: rank - Math.ceil(ranks / 10) }, PageDown: { i, rank: rank + Math.ceil(ranks / 10) },
      Home: { i: 0, rank }, End: { i: list.length - 1, rank },
      w: { i, rank: this.worstOf(this.shown.columns[i], 0, ranks) },
    }[e.key];
    if (e.key === "Escape") this.move(null);
    else if (to) this.move(this.at || e.key === "w" ? to : { i, rank });
    else return;
    e.preventDefault();
  }

  showReading() {
    const { list, ranks, range } = this.shown, w = this.at && list[this.at.i];
    let parts = [];
    if (w && range) {
      const { rank } = this.at, column = w.columns[this.key], v = column[rank], middle = median(column.filter(finite));
      const ratio = finite(v) && middle > 0 ? ` · ${real(v / middle, 3)} × the median` : "";
      parts = [el("strong", {}, `rank ${whole(rank)}`), w.node?.[rank] ? ["on ", foreign(w.node[rank])] : "",
        el("span", { title: date(w.wall_ms) }, `step ${whole(w.step)}, ${time(w.wall_ms)}`),
        `${finite(v) ? this.spec.text(v) : "no value"}${ratio}`].flat();
    }
    this.reading.replaceChildren(...parts.filter((p) => p !== ""));
    const text = parts.length ? printable(this.reading.innerText.replace(/\s+/g, " ")) : "no cell is chosen";
    this.plot.setAttribute("aria-valuetext", text);
    this.plot.setAttribute("aria-valuemin", 0);
    this.plot.setAttribute("aria-valuemax", Math.max(0, ranks - 1));
    this.plot.setAttribute("aria-valuenow", this.at?.rank ?? 0);
  }

  close() {
    this.resize.disconnect();
    cancelAnimationFrame(this.frame);
  }
}
