// The colour map of the heat map: a straight line in the OKLab space, from a dark blue through grey to a light yellow.
// Equal steps of a value are equal steps for the eye, and blue and yellow are apart for every common colour blindness.
// With a light page the large values are dark, with a dark page light: they stand out in both.

const DARK = [0.30, -0.02, -0.115], LIGHT = [0.93, -0.03, 0.135];
const STEPS = 256;

// Ottosson's matrices from OKLab to linear sRGB (https://bottosson.github.io/posts/oklab/).
function linearOf([L, a, b]) {
  const l = (L + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (L - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (L - 0.0894841775 * a - 1.2914855480 * b) ** 3;
  return [4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s];
}

function byteOf(x) {
  const v = x <= 0.0031308 ? 12.92 * x : 1.055 * x ** (1 / 2.4) - 0.055;
  return Math.round(255 * Math.min(1, Math.max(0, v)));
}

export const RAMP = Array.from({ length: STEPS }, (_, i) => {
  const t = i / (STEPS - 1);
  return linearOf(DARK.map((v, k) => v + (LIGHT[k] - v) * t)).map(byteOf);
});

// The colours of the map, from small values to large ones, as a pixel has them in memory.
export function pixelsOf(dark) {
  const ret = new Uint32Array(STEPS), bytes = new Uint8ClampedArray(ret.buffer);
  RAMP.forEach((rgb, i) => bytes.set([...rgb, 255], 4 * (dark ? i : STEPS - 1 - i)));
  return ret;
}

export const colorAt = (share, dark) => {
  const i = Math.round(Math.min(1, Math.max(0, share)) * (STEPS - 1));
  return `rgb(${RAMP[dark ? i : STEPS - 1 - i].join(" ")})`;
};
