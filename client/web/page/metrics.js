// What the charts, the tiles and the tables show of a step.

import { lineLook } from "./chart.js";
import { date, duration, loss, real, short, whole } from "./format.js";
import { durationTickText, tickText } from "./scale.js";

const bandLow = (row) => (Number.isFinite(row.loss_min) ? row.loss_min : undefined);
const bandHigh = (row) => (Number.isFinite(row.loss_max) ? row.loss_max : undefined);
const slowest = (row) => (Number.isFinite(row.step_s_max) ? row.step_s_max : undefined);

// A chart for each row. `exact` values are set, not measured: smoothing them would be wrong. `robust`: the slowest step
// of many does not set the scale.
export const CHARTS = [
  { key: "loss", title: "Loss", text: loss, low: bandLow, high: bandHigh, marksNotFinite: true,
    pointKey: "valid_loss", pointName: "validation" },
  { key: "grad_norm", title: "Gradient norm", text: (v) => real(v, 4) },
  { key: "lr", title: "Learning rate", text: (v) => real(v, 4), exact: true },
  { key: "tokens_per_s", title: "Tokens per second", text: short },
  { key: "step_s", title: "Step time", text: duration, tick: durationTickText, high: slowest,
    robust: true },
];

// Metrics that only some jobs have; the chart appears with the first value.
export const RARE_CHARTS = [
  { key: "mfu", title: "Model FLOP utilisation", unit: "MFU", text: (v) => `${real(100 * v, 3)} %`,
    tick: (v, step) => `${tickText(100 * v, 100 * step)} %` },
  { key: "aux_loss", title: "Auxiliary loss of the routers", text: loss },
  { key: "z_loss", title: "Z-loss of the routers", text: loss },
  { key: "expert_load", title: "Load of the busiest expert", unit: "of the mean", text: (v) => real(v, 3) },
  { key: "expert_entropy", title: "Entropy of the routers", text: (v) => real(v, 3) },
  { key: "expert_dropped", title: "Choices that no expert computed", text: whole },
];

export const TABLE = [
  { label: "Step", text: (r) => whole(r.step) },
  { label: "Time", text: (r) => date(r.wall_ms) },
  { label: "Loss", text: (r) => loss(r.loss) },
  { label: "Lowest loss", text: (r) => loss(bandLow(r) ?? r.loss) },
  { label: "Highest loss", text: (r) => loss(bandHigh(r) ?? r.loss) },
  { label: "Validation", text: (r) => loss(r.valid_loss) },
  { label: "Gradient norm", text: (r) => real(r.grad_norm) },
  { label: "Learning rate", text: (r) => real(r.lr) },
  { label: "Tokens/s", text: (r) => whole(r.tokens_per_s) },
  { label: "Step time", text: (r) => duration(r.step_s) },
  { label: "Workers", text: (r) => whole(r.workers) },
  { label: "Epoch", text: (r) => whole(r.epoch) },
];

// The line of a chart for one series of steps; `i` chooses its colour and pattern.
export function lineOf(chart, series, i, name) {
  const points = chart.pointKey ? { points: () => series.points, pointColor: name ? undefined : "--point" } : {};
  return { ...chart, ...lineLook(i), ...points, name, rows: () => series.rows };
}
