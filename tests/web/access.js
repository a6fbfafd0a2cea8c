// Returned to the tests: texts whose contrast is too low, and controls without a name. The contrast is that of WCAG 2:
// 4.5 : 1, and 3 : 1 for large text.
const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
canvas.canvas.width = canvas.canvas.height = 1;

function rgba(color) {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = color;
  canvas.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
  return [r, g, b, a / 255];
}

function over(top, under) {
  return [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
}

function background(e) {
  const layers = [];
  for (let at = e; at; at = at.parentElement) {
    layers.push(rgba(getComputedStyle(at).backgroundColor));
    if (layers.at(-1)[3] === 1) break;
  }
  return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255, 1]);
}

function luminance([r, g, b]) {
  const [x, y, z] = [r, g, b].map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
}

function contrast(a, b) {
  const [high, low] = [luminance(a), luminance(b)].sort((x, y) => y - x);
  return (high + 0.05) / (low + 0.05);
}

function isShown(e) {
  return e.checkVisibility({ visibilityProperty: true }) && e.getClientRects().length > 0 && !e.closest('.unseen, .skip, :disabled');
}

const problems = new Set();
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walk.nextNode(); node; node = walk.nextNode()) {
  const e = node.parentElement, style = getComputedStyle(e), px = parseFloat(style.fontSize);
  if (!node.textContent.trim() || !isShown(e) || e.closest('script, style, option')) continue;
  const under = background(e), ratio = contrast(over(rgba(style.color), under), under);
  const least = px >= 24 || (px >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
  if (ratio < least) problems.add(`contrast ${ratio.toFixed(2)} of "${node.textContent.trim().slice(0, 40)}"`);
  if (px < 11) problems.add(`text of ${px} pixels: "${node.textContent.trim().slice(0, 40)}"`);
}
for (const e of document.querySelectorAll('button, a[href], input, select, [tabindex="0"]')) {
  if (!isShown(e)) continue;
  const label = e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.textContent.trim()
    || e.labels?.[0]?.textContent.trim();
  if (!label) problems.add(`a control without a name: ${e.outerHTML.slice(0, 80)}`);
  if (e.tabIndex < 0) problems.add(`the keyboard does not reach ${e.outerHTML.slice(0, 80)}`);
}
return [...problems];
