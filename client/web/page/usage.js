// What each rank used in each window of time, at most MAX_WINDOWS windows however long the job is, and at most MAX_CELLS
// numbers. When the list is full, neighbours are joined in pairs, as the server does with its own.

import { bytes, duration, percent, real, whole } from "./format.js";

const MAX_WINDOWS = 600, LEAST_WINDOWS = 40;
const MAX_CELLS = 16e6; // of four bytes

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

// A value that only one of two neighbours has stays.
function joinColumns(a, b, wa, wb) {
  const ret = new Float32Array(b.length);
  for (let i = 0; i < ret.length; i++) {
    const x = a[i], y = b[i];
    ret[i] = Number.isNaN(y) ? x : Number.isNaN(x) ? y : (x * wa + y * wb) / (wa + wb);
  }
  return ret;
}

function joinWindows(a, b) {
  const ret = { ...a, ...b, window_ms: a.window_ms + b.window_ms, columns: { ...a.columns, ...b.columns } };
  for (const [key, column] of Object.entries(b.columns)) {
    if (a.columns[key]) ret.columns[key] = joinColumns(a.columns[key], column, a.window_ms, b.window_ms);
    ret[key] = meanOf(ret.columns[key]);
  }
  return ret;
}

// JSON has no NaN: a missing value is null.
const columnOf = (values) => Float32Array.from(values, (v) => (finite(v) ? v : NaN));

// A window has the mean over the ranks of each field under its name, like a row of a chart, and the columns of all ranks.
function windowOf(sample) {
  const { wall_ms, window_ms, step, epoch, node } = sample, ret = { wall_ms, window_ms, step, epoch, node, columns: {} };
  for (const { key } of FIELDS) {
    if (!sample[key]?.some(finite)) continue;
    ret.columns[key] = columnOf(sample[key]);
    ret[key] = meanOf(sample[key]);
  }
  return ret;
}

const alike = (a, b) => a.epoch === b.epoch && a.node?.length === b.node?.length;

export class Usage {
  constructor() {
    this.newest = null; // the whole last sample
    this.windows = []; // in the order of time
    this.span_ms = 0; // a window takes the next one until it is so long
  }

  // The history, of which a stream may have brought the last windows already.
  load(samples) {
    const before = this.windows;
    this.windows = samples.map(windowOf);
    this.span_ms = Math.max(0, ...this.windows.map((w) => w.window_ms));
    const last = this.windows.at(-1)?.wall_ms ?? 0;
    this.windows.push(...before.filter((w) => w.wall_ms > last));
    this.shrink();
    if (samples.length && !(this.newest?.wall_ms >= samples.at(-1).wall_ms)) this.newest = samples.at(-1);
  }

  add(sample) {
    if (this.newest && sample.wall_ms <= this.newest.wall_ms) return;
    this.newest = sample;
    const w = windowOf(sample), last = this.windows.at(-1);
    if (last && alike(last, w) && last.window_ms + w.window_ms <= this.span_ms) {
      this.windows[this.windows.length - 1] = joinWindows(last, w);
      return;
    }
    this.windows.push(w);
    this.shrink();
  }

  shrink() {
    const ranks = this.newest?.node?.length ?? this.windows.at(-1)?.node?.length ?? 1;
    const most = Math.min(MAX_WINDOWS, Math.max(LEAST_WINDOWS, Math.floor(MAX_CELLS / (ranks * FIELDS.length))));
    while (this.windows.length > most) this.halve();
  }

  // Pairs of one epoch become one; if each window is of another epoch, the older half goes.
  halve() {
    const list = [];
    for (let i = 0; i < this.windows.length; i++) {
      const a = this.windows[i], b = this.windows[i + 1];
      if (b && alike(a, b)) {
        list.push(joinWindows(a, b));
        i++;
      } else {
        list.push(a);
      }
    }
    this.windows = list.length < this.windows.length ? list : list.slice(list.length >> 1);
    this.span_ms = Math.max(...this.windows.map((w) => w.window_ms));
  }

  has(key) {
    return Boolean(this.newest?.[key]?.some(finite));
  }

  // Rows of the stacked picture: each part has its value, and its edges under the keys `low_KEY` and `top_KEY`. A window
  // has a row at its begin and one at its end.
  parts(axis) {
    const known = this.windows.filter((w) => finite(w.step_s));
    // On the axis of steps, those that ran again have their last values.
    let least = Infinity;
    for (let i = known.length - 1; axis === "step" && i >= 0; i--) {
      if (known[i].step >= least) known.splice(i, 1);
      else least = known[i].step;
    }
    return known.flatMap((w, i) => {
      const before = known[i - 1], follows = before && before.epoch === w.epoch && before.step < w.step;
      const steps = Math.max(1, Math.round(w.window_ms / 1000 / w.step_s));
      const row = { wall_ms: w.wall_ms, step: w.step, epoch: w.epoch };
      const first = { step: follows ? before.step : Math.max(before?.step ?? 0, w.step - steps),
        wall_ms: Math.max(before?.wall_ms ?? 0, w.wall_ms - w.window_ms) };
      let top = 0;
      for (const { key } of PARTS) {
        const v = key === "other_s" ? Math.max(0, w.step_s - top) : (w[key] ?? 0);
        row[key] = v;
        row[`low_${key}`] = top;
        row[`top_${key}`] = top += v;
      }
      return [{ ...row, ...first }, row];
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
