// What each rank used in each window of time, at most MAX_WINDOWS windows however long the job is. When a list is full,
// neighbours are joined in pairs, as the server does with its own.

import { bytes, duration, percent, real, whole } from "./format.js";

const MAX_WINDOWS = 600;

const rate = (v) => `${bytes(v)}/s`;

// A field for each number that a rank reports. `most`: the end of the scale where there is a natural one; `low`: small
// values are the bad ones.
export const FIELDS = [
  { key: "compute_s", name: "Computing, per step", short: "Compute", text: duration },
  { key: "comm_s", name: "Communication, per step", short: "Communicate", text: duration },
  { key: "data_s", name: "Waiting for data, per step", short: "Data", text: duration },
  { key: "save_s", name: "Stalled by checkpoints, per step", short: "Save", text: duration },
  { key: "step_s", name: "Step time", short: "Step", text: duration },
  { key: "cpu", name: "Cores used", short: "Cores", text: (v) => real(v, 2) },
  { key: "rss_bytes", name: "Memory used", short: "Memory", text: bytes },
  { key: "gpu_util", name: "GPU use", short: "GPU", text: percent, most: 1, low: true },
  { key: "gpu_bytes", name: "GPU memory used", short: "GPU memory", text: bytes },
  { key: "gpu_celsius", name: "GPU temperature", short: "GPU °C", text: (v) => `${whole(v)} °C` },
  { key: "gpu_watts", name: "GPU power", short: "GPU W", text: (v) => `${whole(v)} W` },
  { key: "read_bytes_per_s", name: "Reading", short: "Read", text: rate },
  { key: "write_bytes_per_s", name: "Writing", short: "Write", text: rate },
];

// The parts of a step, in the order of the picture: from below.
export const PARTS = [
  { key: "compute_s", name: "compute", color: "--part-0" },
  { key: "comm_s", name: "communicate", color: "--part-1" },
  { key: "data_s", name: "data", color: "--part-2" },
  { key: "save_s", name: "save", color: "--part-3" },
  { key: "other_s", name: "other", color: "--part-4" },
];

const finite = (v) => typeof v === "number" && Number.isFinite(v);

export function meanOf(values) {
  let sum = 0, n = 0;
  for (const v of values ?? []) {
    if (!finite(v)) continue;
    sum += v;
    n++;
  }
  return n ? sum / n : undefined;
}

// Neighbours of one epoch become one; a value that only one of them has stays.
function joinColumns(a, b, wa, wb) {
  const ret = new Float32Array(Math.max(a.length, b.length)).fill(NaN);
  for (let i = 0; i < ret.length; i++) {
    const x = i < a.length ? a[i] : NaN, y = i < b.length ? b[i] : NaN;
    ret[i] = Number.isNaN(x) ? y : Number.isNaN(y) ? x : (x * wa + y * wb) / (wa + wb);
  }
  return ret;
}

const newer = (a, b) => ({ ...b, window_ms: a.window_ms + b.window_ms });

export function joinCells(a, b) {
  return { ...newer(a, b), column: joinColumns(a.column, b.column, a.window_ms, b.window_ms) };
}

export function joinMeans(a, b) {
  const ret = newer(a, b);
  for (const { key } of FIELDS) {
    const x = a[key], y = b[key];
    ret[key] = !finite(x) ? y : !finite(y) ? x : (x * a.window_ms + y * b.window_ms) / (a.window_ms + b.window_ms);
  }
  return ret;
}

// Windows in the order of time.
export class Windows {
  constructor(join) {
    Object.assign(this, { join, list: [], span_ms: 0 });
  }

  // A window that the list has already is left out: a stream begins with what the history ended with.
  add(w) {
    const last = this.list.at(-1);
    if (last && w.wall_ms <= last.wall_ms) return;
    if (last && last.epoch === w.epoch && last.window_ms + w.window_ms <= this.span_ms) {
      this.list[this.list.length - 1] = this.join(last, w);
      return;
    }
    this.list.push(w);
    if (this.list.length > MAX_WINDOWS) this.halve();
  }

  halve() {
    const list = [];
    for (let i = 0; i < this.list.length; i += 2) {
      const a = this.list[i], b = this.list[i + 1];
      if (b && a.epoch === b.epoch) list.push(this.join(a, b));
      else list.push(...(b ? [a, b] : [a]));
    }
    this.list = list;
    this.span_ms = 2 * Math.max(this.span_ms, ...list.map((w) => w.window_ms / 2));
  }
}

// JSON has no NaN: a missing value is null.
const columnOf = (values) => Float32Array.from(values ?? [], (v) => (finite(v) ? v : NaN));

const placeOf = ({ wall_ms, window_ms, step, epoch }) => ({ wall_ms, window_ms, step, epoch });

export class Usage {
  constructor() {
    this.newest = null; // the whole last sample
    this.means = new Windows(joinMeans); // rows with the mean over the ranks of each field
    this.cells = new Map(); // field: Windows with a column of all ranks
  }

  add(sample) {
    if (this.newest && sample.wall_ms <= this.newest.wall_ms) return;
    this.newest = sample;
    this.addMeans(sample);
    for (const [key, windows] of this.cells) this.addCells(windows, sample, key);
  }

  addMeans(sample) {
    const row = placeOf(sample);
    for (const { key } of FIELDS) {
      const v = meanOf(sample[key]);
      if (v !== undefined) row[key] = v;
    }
    this.means.add(row);
  }

  addCells(windows, sample, key) {
    windows.add({ ...placeOf(sample), node: sample.node, column: columnOf(sample[key]) });
  }

  loadMeans(samples) {
    this.means = new Windows(joinMeans);
    for (const s of samples) this.addMeans(s);
    if (this.newest) this.addMeans(this.newest);
  }

  loadCells(key, samples) {
    const windows = new Windows(joinCells);
    for (const s of samples) this.addCells(windows, s, key);
    if (this.newest) this.addCells(windows, this.newest, key);
    this.cells.set(key, windows);
  }

  has(key) {
    return Boolean(this.newest?.[key]?.some(finite));
  }

  // Rows of the stacked picture: each part has its value, and its top edge under the key `top_KEY`.
  parts() {
    return this.means.list.filter((w) => finite(w.step_s)).map((w) => {
      const row = placeOf(w);
      let top = 0;
      for (const { key } of PARTS) {
        const v = key === "other_s" ? Math.max(0, w.step_s - top) : (w[key] ?? 0);
        row[key] = v;
        row[`low_${key}`] = top;
        row[`top_${key}`] = top += v;
      }
      return row;
    });
  }
}

// One sample on each line.
export function samplesOf(text) {
  return text.split("\n").filter(Boolean).map((line) => JSON.parse(line));
}

export function median(values) {
  const sorted = Float64Array.from(values).sort(), n = sorted.length;
  return n ? (sorted[(n - 1) >> 1] + sorted[n >> 1]) / 2 : undefined;
}
