// Axes: ranges, round ticks, and their texts.

import { duration, real, short } from "./format.js";

// 1, 2 or 5 times a power of ten.
function roundStep(span, about) {
  const power = 10 ** Math.floor(Math.log10(span / about));
  const ratio = span / about / power;
  return power * (ratio < 1.5 ? 1 : ratio < 3.5 ? 2 : ratio < 7.5 ? 5 : 10);
}

const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

// Durations have ticks at whole minutes, hours and days.
function timeStep(span, about) {
  if (span / about < 1) return roundStep(span, about);
  return TIMES.find((t) => t >= span / about) ?? 86400 * roundStep(span / 86400, about);
}

export function ticks(min, max, about, isTime = false) {
  // A range within the rounding of its numbers has one tick: the loop below could not distinguish its steps.
  if (!(max - min > 1e-9 * Math.max(Math.abs(min), Math.abs(max))) || !Number.isFinite(max - min)) return [min];
  const step = isTime ? timeStep(max - min, about) : roundStep(max - min, about);
  const ret = [];
  for (let i = Math.ceil(min / step - 1e-9); i * step <= max + step * 1e-9; i++) ret.push(i * step + 0); // not -0
  return ret;
}

// Powers of ten; with few of them, also 2 and 5 times each; within one of them, the ticks of a linear axis.
export function logTicks(min, max) {
  const ret = [];
  const decades = Math.log10(max / min);
  if (decades < 1) return ticks(min, max, 4);
  const factors = decades > 3 ? [1] : [1, 2, 5];
  const every = Math.ceil(decades / 6);
  for (let e = Math.floor(Math.log10(min)); e <= Math.log10(max); e++) {
    if (e % every) continue;
    for (const f of factors) if (f * 10 ** e >= min && f * 10 ** e <= max) ret.push(f * 10 ** e);
  }
  return ret;
}

export function tickText(v, step) {
  if (Math.abs(v) < step * 1e-6) return "0";
  if (Math.abs(v) >= 1e4) return short(v);
  const size = Math.abs(v);
  const digits = step > 0 ? Math.ceil(Math.log10(size / step) + 1e-9) + 1 : 3;
  return real(v, Math.max(1, Math.min(6, digits)));
}

export const timeTickText = (v) => duration(v).replace(/ 00 (min|s|h)$/, "");

// "52 ms" on the axis of a duration.
export function durationTickText(v, step) {
  if (v > 0 && v < 1e-3) return `${tickText(v * 1e6, step * 1e6)} µs`;
  return v < 1 ? `${tickText(v * 1000, step * 1000)} ms` : v < 60 ? `${tickText(v, step)} s` : timeTickText(v);
}

// The range of `values`; with `robust`, single values far from all others do not count.
export function rangeOf(values, robust) {
  if (!values.length) return null;
  const sorted = Float64Array.from(values).sort();
  const cut = robust && sorted.length >= 50 ? Math.floor(sorted.length * 0.01) : 0;
  return [sorted[cut], sorted[sorted.length - 1 - cut]];
}
