// Numbers and times as text. The reader's locale decides how dates and digits look.

const numbers = new Map();

function numberFormat(options) {
  const key = JSON.stringify(options);
  if (!numbers.has(key)) numbers.set(key, new Intl.NumberFormat(undefined, options));
  return numbers.get(key);
}

// JSON has no NaN: the server sends null for a value that was measured and is not finite.
function missing(v) {
  if (v === undefined) return "–";
  return v === null || !Number.isFinite(v) ? "not finite" : null;
}

export function whole(v) {
  return missing(v) ?? numberFormat({ maximumFractionDigits: 0 }).format(v);
}

export function real(v, digits = 4) {
  const none = missing(v);
  if (none) return none;
  const size = Math.abs(v);
  if (v !== 0 && (size < 1e-4 || size >= 1e7)) {
    return numberFormat({ notation: "scientific", maximumFractionDigits: digits - 1 }).format(v).replace("E", "e");
  }
  return numberFormat({ maximumSignificantDigits: Math.max(digits, Math.ceil(Math.log10(size + 1))) }).format(v);
}

export function loss(v) {
  return missing(v) ?? (Math.abs(v) < 100 && Math.abs(v) >= 0.01
    ? numberFormat({ minimumFractionDigits: 4, maximumFractionDigits: 4 }).format(v) : real(v, 5));
}

export function short(v) {
  return missing(v) ?? numberFormat({ notation: "compact", maximumSignificantDigits: 3 }).format(v);
}

export function percent(share) {
  // A job that is not complete never shows 100 %.
  const floor = Math.floor(share * 100);
  return `${whole(Math.max(0, Math.min(100, floor)))} %`;
}

export function bytes(v) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let i = 0;
  for (; v >= 1024 && i < units.length - 1; i++) v /= 1024;
  return `${real(v, 3)} ${units[i]}`;
}

const two = (n) => String(n).padStart(2, "0");

// Two units are precise enough for a reader: "2 h 05 min", "3 min 07 s", "12 s", "340 ms".
export function duration(s) {
  if (!Number.isFinite(s)) return "–";
  if (s < 0) return "0 s";
  if (s > 0 && s < 1e-3) return `${real(s * 1e6, 3)} µs`;
  if (s < 1) return s === 0 ? "0 s" : `${real(s * 1000, 3)} ms`;
  if (s < 10) return `${real(s, 2)} s`;
  const all = Math.round(s), d = Math.floor(all / 86400), h = Math.floor(all / 3600) % 24;
  const m = Math.floor(all / 60) % 60;
  if (d) return `${d} d ${two(h)} h`;
  if (h) return `${h} h ${two(m)} min`;
  return m ? `${m} min ${two(all % 60)} s` : `${all} s`;
}

const dates = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });

export const date = (ms) => dates.format(ms);
export const time = (ms) => clock.format(ms);

// The difference between the server's clock and the reader's, so that ages are right on a machine with a wrong clock.
let skew = 0;

export function setServerTime(ms) {
  if (Number.isFinite(ms)) skew = ms - Date.now();
}

export const now = () => Date.now() + skew;

export function age(ms) {
  return duration(Math.max(0, Math.floor((now() - ms) / 1000)));
}

export function plural(n, one, many = `${one}s`) {
  return `${whole(n)} ${n === 1 ? one : many}`;
}
