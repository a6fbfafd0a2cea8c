// The steps of one job, at most MAX_ROWS rows however long the job is. When the table is full, neighbours are merged in
// pairs: a row then stands for several steps, with the values of its last step and the extremes of all of them. Rows
// that the server has merged already look the same.

const MAX_ROWS = 2000;
const RECENT = 20; // single steps behind the step time of the ETA: an evaluation or a save among them weighs little

const finite = (v) => typeof v === "number" && Number.isFinite(v);

function extreme(pick, a, b) {
  const known = [a, b].filter(finite);
  return known.length ? pick(...known) : undefined;
}

const low = (row) => (finite(row.loss_min) ? row.loss_min : row.loss);
const high = (row) => (finite(row.loss_max) ? row.loss_max : row.loss);
const slowest = (row) => (finite(row.step_s_max) ? row.step_s_max : row.step_s);
const count = (row) => row.steps_merged ?? 1;

function merge(a, b) {
  return {
    ...b,
    loss_min: extreme(Math.min, low(a), low(b)),
    loss_max: extreme(Math.max, high(a), high(b)),
    step_s_max: extreme(Math.max, slowest(a), slowest(b)),
    steps_merged: count(a) + count(b),
    // A value that was not finite must stay visible after merging.
    not_finite: notFinite(a) || notFinite(b),
  };
}

export function notFinite(row) {
  return row.not_finite === true || row.loss === null;
}

export class Series {
  constructor() {
    this.clear();
  }

  clear() {
    this.rows = [];
    this.points = []; // validation: {step, wall_ms, valid_loss, test_loss}
    this.recent = [];
    this.stride = 1; // steps that a row takes before the next one begins
  }

  load(rows) {
    this.clear();
    for (const row of rows) this.stride = Math.max(this.stride, count(row));
    for (const row of rows) this.add(row);
  }

  get last() {
    return this.rows.at(-1);
  }

  // A step that the table has already, with a later epoch, is a roll-back: the steps after it do not exist any more.
  add(row) {
    const last = this.last;
    if (last && row.step <= last.step) {
      if (row.epoch === last.epoch ? row.wall_ms <= last.wall_ms : row.epoch < last.epoch) return;
      this.dropFrom(row.step);
    }
    this.addPoint(row);
    if (count(row) === 1) this.addRecent(row);
    this.addRow(row);
  }

  addRow(row) {
    const last = this.last;
    if (last && last.epoch === row.epoch && count(last) + count(row) <= this.stride) {
      this.rows[this.rows.length - 1] = merge(last, row);
      return;
    }
    this.rows.push(row);
    if (this.rows.length > MAX_ROWS) this.halve();
  }

  addPoint(row) {
    if (!finite(row.valid_loss) && !finite(row.test_loss)) return;
    const { step, wall_ms, valid_loss, test_loss } = row;
    this.points.push({ step, wall_ms, valid_loss, test_loss });
    if (this.points.length > MAX_ROWS) this.points = this.points.filter((_, i) => i % 2 === 1);
  }

  addRecent(row) {
    if (this.recent.length && this.recent.at(-1).epoch !== row.epoch) this.recent = [];
    this.recent.push(row);
    if (this.recent.length > RECENT) this.recent.shift();
  }

  halve() {
    const rows = [];
    for (let i = 0; i < this.rows.length; i += 2) {
      const b = this.rows[i + 1];
      rows.push(b ? merge(this.rows[i], b) : this.rows[i]);
    }
    this.rows = rows;
    this.stride *= 2;
  }

  dropFrom(step) {
    while (this.last && this.last.step >= step) {
      const row = this.rows.pop();
      const first = row.step - count(row) + 1;
      if (first >= step) continue;
      this.rows.push({ ...row, step: step - 1, steps_merged: step - first });
      break;
    }
    const before = (p) => p.step < step;
    this.points = this.points.filter(before);
    this.recent = this.recent.filter(before);
  }

  // Seconds of a step, for the ETA; undefined: unknown.
  stepSeconds() {
    const known = (this.recent.length ? this.recent : this.rows.slice(-RECENT)).map((r) => r.step_s).filter(finite);
    return known.length ? known.reduce((a, b) => a + b) / known.length : undefined;
  }
}

// Exponential smoothing with the correction of its start, so that the first values are not drawn to 0. A value that is
// not finite leaves the mean as it was.
export function smoothed(values, weight) {
  let mean = 0, share = 0;
  return values.map((v) => {
    if (!finite(v)) return v;
    mean = weight * mean + (1 - weight) * v;
    share = weight * share + (1 - weight);
    return mean / share;
  });
}
