'use strict';
/* The animation of a training step. The data (explain_json.c) have what each rank holds and what moves at each
 * nanosecond of the step; everything that is drawn is a function of one moment `now`, so that playing, stepping and
 * seeking show the same. */
(function () {
const data = JSON.parse(document.getElementById('data').textContent);
const byId = id => document.getElementById(id);
const still = matchMedia('(prefers-reduced-motion: reduce)');
const KINDS = data.kinds.length, END = Math.max(1, data.end), RANKS = data.ranks.length;
const OPT = 0, PARAM = 1, GRAD = 2; /* enum explain_kind */
const WHOLE = 0, LOCAL = 1, SUM = 2; /* enum explain_part */

/* ---- data ---- */

function rows(flat, width) {
  const all = [];
  for (let i = 0; i < flat.length; i += width)
    all.push(flat.slice(i, i + width));
  return all;
}

/* The steps of a value: times and values, both in the order of time. */
function series() {
  return { at: [], value: [], most: 0 };
}

function push(s, at, value) {
  s.at.push(at);
  s.value.push(value);
  s.most = Math.max(s.most, value);
}

/* The number of entries of an ascending list that are at most x. */
function count(list, x) {
  let low = 0, high = list.length;
  while (low < high) {
    const mid = (low + high) >> 1;
    if (list[mid] <= x) low = mid + 1; else high = mid;
  }
  return low;
}

function valueAt(s, t) {
  const i = count(s.at, t);
  return i ? s.value[i - 1] : 0;
}

const ranks = data.ranks.map((r, id) => {
  const memory = data.kinds.map(series), parts = {}, streams = data.streams.map(() => []);
  for (const [kind, at, bytes] of rows(r.memory, 3))
    push(memory[kind], at, bytes);
  for (const [unit, part, at, bytes] of rows(r.parts, 4))
    push(parts[unit * 3 + part] = parts[unit * 3 + part] || series(), at, bytes);
  for (const [action, stream, chunk, micro, stage, start, end] of rows(r.spans, 7))
    streams[stream].push({ action: data.actions[action], stream, chunk, micro, stage, start, end, rank: id });
  const starts = streams.map(list => list.map(s => s.start));
  const own = rows(r.own, 6).map(([unit, elements, low, high, localLow, localHigh]) =>
    ({ unit, elements, low, high, localLow, localHigh }));
  return { id, coords: r.coords, stages: r.stages, peak: r.peak, arena: r.arena, memory, parts, streams, starts, own,
    reserved: r.reserved.reduce((a, b) => a + b, 0) };
});

const moves = data.moves.map(([op, kind, group, unit, layer, micro, flags, turn, start, end, bytes]) =>
  ({ op: data.ops[op], kind, members: data.groups[group].ranks, axes: data.groups[group].axes, unit, layer, micro,
    gradient: !!(flags & 1), back: !!(flags & 2), turn, start, end, bytes }));
const moveStarts = moves.map(m => m.start);
const longest = moves.reduce((a, m) => Math.max(a, m.end - m.start), 0);

function spanAt(rank, stream, t) {
  const r = ranks[rank], i = count(r.starts[stream], t) - 1;
  return i >= 0 && r.streams[stream][i].end > t ? r.streams[stream][i] : null;
}

function movesAt(t) {
  const found = [];
  for (let i = count(moveStarts, t) - 1; i >= 0 && moves[i].start >= t - longest; i--)
    if (moves[i].end > t)
      found.push(moves[i]);
  return found.reverse();
}

/* ---- words ---- */

function bytesText(n) {
  const units = ['bytes', 'kB', 'MB', 'GB', 'TB'];
  let i = 0;
  while (n >= 1000 && i < 4) { n /= 1000; i++; }
  return (i ? n.toPrecision(3) : n) + ' ' + units[i];
}

function timeText(ns) {
  return END < 1e6 ? (ns / 1e3).toFixed(1) + ' \u00b5s' : END < 1e9 ? (ns / 1e6).toFixed(2) + ' ms'
    : (ns / 1e9).toFixed(3) + ' s';
}

/* "3", "0 and 2", "0 to 3", "0, 2, 5 and 7" */
function listText(numbers) {
  const all = [...new Set(numbers)].sort((a, b) => a - b), n = all.length;
  if (n > 2 && all[n - 1] - all[0] === n - 1)
    return all[0] + ' to ' + all[n - 1];
  return n < 2 ? String(all[0]) : all.slice(0, -1).join(', ') + ' and ' + all[n - 1];
}

function ranksText(list) {
  return (list.length > 1 ? 'Ranks ' : 'Rank ') + listText(list);
}

function microText(micros) {
  return new Set(micros).size > 1 ? 'microbatches ' + listText(micros) : 'microbatch ' + micros[0];
}

/* [of one rank, of several]; @ is the microbatch. */
const actionWords = {
  begin: ['begins the step', 'begin the step'],
  forward: ['computes the forward of @', 'compute the forward of @'],
  backward: ['computes the backward of @', 'compute the backward of @'],
  input: ['computes the gradients of the inputs of @', 'compute the gradients of the inputs of @'],
  weight: ['computes the gradients of its weights from @', 'compute the gradients of their weights from @'],
  exchange: ['waits for a message of another stage', 'wait for messages of other stages'],
  gather: ['gathers parameters', 'gather parameters'],
  reduce: ['sums gradients with other ranks', 'sum gradients with other ranks'],
  norm: ['computes the norm of the gradients', 'compute the norm of the gradients'],
  update: ['updates its parameters', 'update their parameters'],
  restore: ['repeats its update', 'repeat their update'],
  snapshot: ['copies what it saves', 'copy what they save'],
};

function place(m) {
  return m.unit >= 0 ? 'the ' + (m.kind === GRAD ? 'gradients' : 'parameters') + ' of ' +
    (/^layer/.test(data.units[m.unit].name) ? '' : 'the ') + data.units[m.unit].name : null;
}

function layerText(m) {
  return m.layer >= 0 ? ' in layer ' + m.layer : '';
}

function values(m) {
  return place(m) || (m.kind === 4 ? 'the numbers of the step (loss, norm)' : 'what each computed' + layerText(m));
}

/* A sentence for each kind of move; w: its ranks in words. */
const moveWords = {
  unit_gather: (m, w) => `All-gather: ${w} gather ${place(m)}, so that each has them whole.`,
  unit_scatter: (m, w) => `Reduce-scatter: ${w} sum ${place(m)}; each keeps the sum of its own piece.`,
  all_reduce: (m, w) => `All-reduce: ${w} sum ${values(m)}; all receive the sum.`,
  own_gather: (m, w) => `All-gather: ${w} gather the tokens of each other${layerText(m)}.`,
  own_scatter: (m, w) => `Reduce-scatter: ${w} sum their shares${layerText(m)}; each keeps the sum of its own tokens.`,
  gather: (m, w) => m.layer >= 0 ? `All-gather: ${w} send each other which experts their tokens have${layerText(m)}.`
    : `All-gather: ${w} gather the parts of the loss that each has computed.`,
  recv: (m, w) => `Rank ${m.members[0]} sends the ${m.gradient ? 'gradients' : 'activations'}` +
    (m.micro >= 0 ? ` of microbatch ${m.micro}` : '') + ` to rank ${m.members[1]}.`,
  shift: (m, w) => m.axes === 'tp' ? `Ring: ${w} pass tokens on to the next rank${layerText(m)}.`
    : `Ring: ${w} pass ${m.gradient ? 'the gradients of ' : ''}keys and values on to the next rank${layerText(m)}.`,
  exchange: (m, w) => m.back ? `All-to-all: rows return from the experts to the ranks of their tokens${layerText(m)}.`
    : `All-to-all: ${w} send the rows of tokens to the ranks of their experts${layerText(m)}.`,
  borrow: (m, w) => `${w} borrow the matrices of busy experts${layerText(m)}.`,
  give_back: (m, w) => `${w} return the gradients of borrowed experts${layerText(m)}.`,
};

function sizeText(m) {
  const in_ = m.bytes.filter(b => b > 0), least = bytesText(Math.min(...in_)), most = bytesText(Math.max(...in_));
  return (in_.length > 1 ? 'each receives ' : '') + (least === most ? most : `${least} to ${most}`);
}

/* A sentence for all groups of ranks that do the same. */
function moveTexts(all) {
  const groups = new Map();
  for (const m of all) {
    const words = moveWords[m.op] || ((x, y) => `${m.op}: ${y} exchange ${values(x)}.`);
    const key = words(m, '@').replace(/\.$/, ` (${sizeText(m)}).`);
    groups.set(key, (groups.get(key) || []).concat([m.members]));
  }
  return [...groups].map(([text, lists]) => {
    const all = [...new Set(lists.map(m => listText(m)))];
    const who = all.length > 3 ? `${all.length} groups of ${lists[0].length} ranks` : all.map(l => 'ranks ' + l).join(', and ');
    const filled = text.replace('@', who);
    return filled[0].toUpperCase() + filled.slice(1);
  });
}

/* One sentence for all ranks that do the same. */
function spanTexts(spans) {
  const groups = new Map();
  for (const s of spans) {
    const key = s.action + ' ' + s.stage;
    groups.set(key, (groups.get(key) || []).concat(s));
  }
  return [...groups.values()].map(list => {
    const first = list[0], many = list.length > 1;
    const words = (actionWords[first.action] || [first.action, first.action])[many ? 1 : 0];
    const staged = first.stage >= 0 && data.axes[0][1] > 1;
    const who = ranksText(list.map(s => s.rank)) + (staged ? ` (stage ${first.stage})` : '');
    return `${who} ${words.replace('@', microText(list.map(s => s.micro)))}.`;
  });
}

function captionAt(t, focus) {
  const shown = ranks.filter(r => focus < 0 || r.id === focus);
  const spans = shown.map(r => spanAt(r.id, 0, t)).filter(s => s);
  const idle = shown.filter(r => !spanAt(r.id, 0, t)).map(r => r.id);
  const texts = spanTexts(spans);
  const active = movesAt(t).filter(m => focus < 0 || m.members.includes(focus));
  if (t >= END)
    return ['The step is complete.'];
  texts.push(...moveTexts(active));
  if (idle.length)
    texts.push(`${ranksText(idle)} ${idle.length > 1 ? 'wait' : 'waits'}.`);
  return texts.length > 5 ? texts.slice(0, 4).concat(`And ${texts.length - 4} more.`) : texts;
}

/* ---- time ---- */

let now = 0, focus = -1, playing = false, shownAt = 0, lastFrame = 0;

function stepTimes() {
  const all = [0, END];
  for (const r of ranks)
    if (focus < 0 || r.id === focus)
      for (const list of r.starts)
        all.push(...list);
  for (const m of moves)
    if (focus < 0 || m.members.includes(focus))
      all.push(m.start);
  return [...new Set(all)].sort((a, b) => a - b);
}

/* The pace of playing: `shown` seconds of the viewer at each breakpoint of the step. A step takes half a minute, and a
 * transfer at least a moment that the eye can follow. */
const pace = (function () {
  const at = [...new Set([0, END].concat(moves.flatMap(m => [m.start, m.end])))].filter(t => t <= END)
    .sort((a, b) => a - b);
  const least = Math.min(0.7, 25 / Math.max(1, at.length));
  const shown = [0];
  for (let i = 1; i < at.length; i++) {
    const mid = (at[i - 1] + at[i]) / 2, seconds = (at[i] - at[i - 1]) / END * 24;
    shown.push(shown[i - 1] + Math.max(seconds, movesAt(mid).length ? least : 0));
  }
  return { at, shown };
})();

function between(from, to, x) {
  const i = Math.min(Math.max(count(from, x), 1), from.length - 1), width = from[i] - from[i - 1];
  return to[i - 1] + (width ? (x - from[i - 1]) / width : 0) * (to[i] - to[i - 1]);
}

/* ---- the ranks ---- */

const NS = 'http://www.w3.org/2000/svg';

function make(name, attributes, parent, text) {
  const e = document.createElementNS(NS, name);
  for (const key in attributes) {
    /* As an attribute, a style would be inline, which the web page's policy refuses. */
    if (key === 'style')
      e.style.cssText = attributes[key];
    else
      e.setAttribute(key, attributes[key]);
  }
  if (text !== undefined)
    e.textContent = text;
  if (parent)
    parent.appendChild(e);
  return e;
}

const BOX = 172, HIGH = 142, INNER = 148, CELL = 15;
const mostReserved = Math.max(...ranks.map(r => r.reserved));
let boxes = [], pieces = null, wires = null;

function actionColor(action) {
  const names = { forward: 'forward', backward: 'backward', input: 'backward', weight: 'weight', update: 'update',
    norm: 'update', restore: 'update', exchange: 'comm', gather: 'comm', reduce: 'comm' };
  return `--a-${names[action] || 'other'}`;
}

/* The largest number of columns that fits and divides the ranks, so that rows of the mesh stay together. */
function columnsFor(width) {
  const most = Math.max(1, Math.floor((width + 18) / (BOX + 18)));
  for (let c = Math.min(most, 8, RANKS); c > 1; c--)
    if (RANKS % c === 0)
      return c;
  return Math.min(most, RANKS);
}

const axes = data.axes.map(([name, size], i) => ({ name, size, i })).filter(a => a.size > 1);
const crowded = axes.length > 2; /* coordinates in short, to fit beside the rank */

function coordText(r) {
  return axes.map(a => a.name + (crowded ? '' : ' ') + r.coords[a.i]).join(crowded ? ' ' : ' \u00b7 ');
}

function drawCell(group, r, o, kind, x, y, width) {
  const cell = make('g', {}, group), at = v => x + v / 1e6 * width;
  make('rect', { x, y, width, height: CELL - 3, style: 'fill:var(--empty)' }, cell);
  const part = (low, high, opacity) => make('rect', { x: at(low), y, width: Math.max(1, at(high) - at(low)),
    height: CELL - 3, style: `fill:var(--k${kind})`, opacity }, cell);
  make('title', {}, cell, `${data.units[o.unit].name}: ${data.kinds[kind]}; this rank owns ${o.elements} of ` +
    `${data.units[o.unit].elements} elements`);
  const local = kind === OPT ? null : part(o.localLow, o.localHigh, 0);
  const piece = part(o.low, o.high, kind === GRAD ? 0 : 1);
  return { local, piece, kind, unit: o.unit };
}

function drawRank(svg, r, x, y) {
  const g = make('g', { class: 'rank', transform: `translate(${x},${y})` }, svg);
  const frame = make('rect', { width: BOX, height: HIGH, rx: 8, style: 'fill:var(--box);stroke:var(--line)' }, g);
  make('text', { x: 12, y: 18, 'font-weight': 600 }, g, `rank ${r.id}`);
  make('text', { x: BOX - 12, y: 18, 'text-anchor': 'end', class: crowded ? 'small' : 'soft' }, g, coordText(r));
  const pill = make('rect', { x: 12, y: 26, width: INNER, height: 18, rx: 4, style: 'fill:var(--empty)' }, g);
  const doing = make('text', { x: BOX / 2, y: 39, 'text-anchor': 'middle' }, g);
  const units = data.units.length, step = (INNER - 14) / units, cells = [];
  [['P', PARAM], ['G', GRAD], ['O', OPT]].forEach(([letter, kind], row) => {
    make('text', { x: 12, y: 62 + row * CELL, class: 'soft' }, g, letter);
    for (const o of r.own)
      cells.push(drawCell(g, r, o, kind, 26 + o.unit * step, 53 + row * CELL, Math.max(1, step - 2)));
  });
  const full = INNER * r.reserved / mostReserved;
  const bars = data.kinds.map((k, i) => make('rect', { x: 12, y: 104, width: 0, height: 14,
    style: `fill:var(--k${i})` }, g));
  make('rect', { x: 12, y: 104, width: full, height: 14, style: 'fill:none;stroke:var(--soft)' }, g);
  const text = make('text', { x: 12, y: 133, class: 'soft' }, g);
  g.addEventListener('click', () => setFocus(focus === r.id ? -1 : r.id));
  return { x, y, frame, pill, doing, cells, bars, text };
}

function layoutCluster() {
  /* Many ranks are drawn smaller where the window is wide. */
  const shrink = RANKS > 16 && byId('cluster').clientWidth > 700 ? 0.72 : 1;
  const width = Math.max(260, byId('cluster').clientWidth) / shrink, cols = columnsFor(width);
  const gap = cols > 1 ? Math.min(90, (width - cols * BOX - 8) / (cols - 1)) : 0, lines = Math.ceil(RANKS / cols);
  const left = (width - cols * BOX - (cols - 1) * gap) / 2, height = lines * (HIGH + 46) + 10;
  const svg = make('svg', { viewBox: `0 0 ${width} ${height}`, height: height * shrink, role: 'img',
    'aria-label': 'Each rank with the parameters (P), gradients (G) and optimizer state (O) that it holds of each unit ' +
      'of the model, and its memory. The caption has the same in words.' });
  boxes = ranks.map(r => drawRank(svg, r, left + (r.id % cols) * (BOX + gap), 28 + Math.floor(r.id / cols) * (HIGH + 46)));
  wires = make('g', {}, svg);
  pieces = make('g', {}, svg);
  byId('cluster').replaceChildren(svg);
}

function updateCell(c, r) {
  if (c.kind === PARAM && c.local) {
    const whole = r.parts[c.unit * 3 + WHOLE];
    c.local.setAttribute('opacity', whole ? 0.45 * valueAt(whole, now) / whole.most : 0);
  }
  if (c.kind === GRAD) {
    const local = r.parts[c.unit * 3 + LOCAL], sum = r.parts[c.unit * 3 + SUM];
    c.local.setAttribute('opacity', local ? (sum ? 0.5 : 1) * valueAt(local, now) / local.most : 0);
    c.piece.setAttribute('opacity', sum ? valueAt(sum, now) / sum.most : 0);
  }
}

function updateRank(r) {
  const b = boxes[r.id], span = spanAt(r.id, 0, now), other = [1, 2].map(s => spanAt(r.id, s, now)).find(s => s);
  const doing = span || other;
  let x = 12, sum = 0;
  b.frame.style.stroke = focus === r.id ? 'var(--k1)' : 'var(--line)';
  b.frame.style.strokeWidth = focus === r.id ? 2.5 : 1;
  b.pill.style.fill = doing ? `var(${span ? actionColor(span.action) : '--a-comm'})` : 'var(--empty)';
  b.doing.setAttribute('class', doing ? 'on' : 'soft');
  b.doing.textContent = span ? span.action + (span.micro >= 0 ? ' ' + span.micro : '') +
    (r.stages.length > 1 && span.stage >= 0 ? `, stage ${span.stage}` : '') : other ? 'communication'
    : now >= END ? 'done' : 'waits';
  b.cells.forEach(c => updateCell(c, r));
  b.bars.forEach((bar, kind) => {
    const bytes = valueAt(r.memory[kind], now), width = INNER * bytes / mostReserved;
    bar.setAttribute('x', x);
    bar.setAttribute('width', width);
    x += width;
    sum += bytes;
  });
  b.text.textContent = `${bytesText(sum)} of ${bytesText(r.reserved)}`;
}

/* Who sends to whom: pairs of members. */
function pairsOf(m) {
  const n = m.members.length, pairs = [];
  for (let to = 0; to < n; to++)
    for (let from = 0; from < n; from++) {
      const far = Math.min((to - from + n) % n, (from - to + n) % n);
      const sends = m.op === 'recv' ? from === 0 && to === 1
        : m.op === 'shift' ? from === (to + m.turn) % n : from !== to && (n <= 8 || far <= 2);
      if (sends && from !== to && m.bytes[to] > 0)
        pairs.push([m.members[from], m.members[to]]);
    }
  return pairs;
}

/* A curve above the boxes for one direction, below for the other, so that opposite arrows do not cover each other. */
function curveOf(from, to) {
  const a = boxes[from], b = boxes[to], up = from < to ? -1 : 1, side = up < 0 ? 0 : HIGH;
  if (a.y === b.y) {
    const x1 = a.x + BOX / 2 - up * 14, x2 = b.x + BOX / 2 + up * 14, y = a.y + side;
    const lift = up * (10 + 12 * Math.min(3, Math.abs(from - to)));
    return [[x1, y], [(x1 + x2) / 2, y + lift], [x2, y]];
  }
  if (a.x === b.x && Math.abs(a.y - b.y) > HIGH + 50) { /* beside the boxes between them */
    const edge = a.x > 100 ? a.x : a.x + BOX, out = a.x > 100 ? -18 : 18, y1 = a.y + HIGH / 2, y2 = b.y + HIGH / 2;
    return [[edge, y1 + up * 10], [edge + out, (y1 + y2) / 2], [edge, y2 - up * 10]];
  }
  const down = b.y > a.y, y1 = a.y + (down ? HIGH : 0), y2 = b.y + (down ? 0 : HIGH), x1 = a.x + BOX / 2 + (down ? -12 : 12);
  const x2 = b.x + BOX / 2 + (down ? -12 : 12);
  return [[x1, y1], [(x1 + x2) / 2 + (down ? -18 : 18), (y1 + y2) / 2], [x2, y2]];
}

function onCurve(c, f) {
  return [0, 1].map(i => (1 - f) * (1 - f) * c[0][i] + 2 * f * (1 - f) * c[1][i] + f * f * c[2][i]);
}

function drawMove(m) {
  const part = (now - m.start) / Math.max(1, m.end - m.start);
  const f = still.matches ? 0.5 : m.op === 'all_reduce' ? (part * 2) % 1 : part;
  for (const [from, to] of pairsOf(m)) {
    const c = curveOf(from, to), [x, y] = onCurve(c, f), color = `var(--k${m.kind})`;
    const dim = focus < 0 || from === focus || to === focus ? 1 : 0.25;
    make('path', { d: `M${c[0]}Q${c[1]} ${c[2]}`, style: `fill:none;stroke:${color}`, 'stroke-width': 1.5,
      opacity: 0.6 * dim }, wires);
    const [bx, by] = onCurve(c, 0.93), angle = Math.atan2(c[2][1] - by, c[2][0] - bx) * 180 / Math.PI;
    make('path', { d: 'M0 0L-8 -4L-8 4z', transform: `translate(${c[2]}) rotate(${angle})`, style: `fill:${color}`,
      opacity: dim }, wires);
    make('rect', { x: x - 6, y: y - 6, width: 12, height: 12, rx: 2, opacity: dim,
      style: `fill:${color};stroke:var(--page)` }, pieces);
  }
}

/* ---- canvases ---- */

function canvasOf(id, height) {
  const c = byId(id), ratio = window.devicePixelRatio || 1, width = c.clientWidth;
  c.style.height = height + 'px';
  c.width = Math.round(width * ratio);
  c.height = Math.round(height * ratio);
  const pen = c.getContext('2d');
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = '11px system-ui, sans-serif';
  return { pen, width, height };
}

const LEFT = 56, colors = {};
function color(name) {
  return colors[name] = colors[name] || getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const rowHeight = RANKS > 16 ? 14 : 26, hasComm = ranks.some(r => r.streams[1].length || r.streams[2].length);

function drawTimeline() {
  const { pen, width, height } = canvasOf('timeline', RANKS * rowHeight + 24);
  const x = t => LEFT + (width - LEFT - 4) * t / END, thick = rowHeight - (hasComm ? 10 : 4);
  pen.textBaseline = 'middle';
  ranks.forEach((r, i) => {
    const y = i * rowHeight;
    pen.fillStyle = color(focus === i ? '--ink' : '--soft');
    pen.textAlign = 'left';
    pen.fillText(`rank ${i}`, 2, y + thick / 2 + 1);
    pen.fillStyle = color('--empty');
    pen.fillRect(LEFT, y, width - LEFT - 4, thick);
    pen.textAlign = 'center';
    r.streams.forEach((list, stream) => list.forEach(s => {
      const from = x(s.start), wide = Math.max(0.5, x(s.end) - from);
      pen.fillStyle = color(stream ? '--a-comm' : actionColor(s.action));
      pen.globalAlpha = (s.chunk % 2 ? 0.65 : 1) * (focus < 0 || focus === i ? 1 : 0.45);
      pen.fillRect(from, stream ? y + thick + 1 : y, wide, stream ? 5 : thick);
      pen.globalAlpha = 1;
      if (!stream && s.micro >= 0 && wide > 14 && thick > 10) {
        pen.fillStyle = color('--on');
        pen.fillText(s.micro, from + wide / 2, y + thick / 2 + 1);
      }
    }));
  });
  pen.textAlign = 'center';
  pen.fillStyle = color('--soft');
  const ticks = width < 500 ? 3 : 6;
  for (let i = 0; i <= ticks; i++) {
    pen.textAlign = i === ticks ? 'right' : i ? 'center' : 'left';
    pen.fillText(timeText(END * i / ticks), x(END * i / ticks), height - 8);
  }
}

function drawMemory() {
  const r = ranks[Math.max(0, focus)], { pen, width, height } = canvasOf('memory', 130);
  /* Whole pixels: else the edges of neighbours would show as seams. */
  const x = t => Math.round(LEFT + (width - LEFT - 4) * t / END), y = b => 118 - 112 * b / r.reserved;
  const times = [...new Set([0, END].concat(...r.memory.map(s => s.at)))].sort((a, b) => a - b);
  pen.fillStyle = color('--empty');
  pen.fillRect(LEFT, y(r.reserved), width - LEFT - 4, 112);
  for (let i = 0; i + 1 < times.length; i++) {
    let base = 0;
    r.memory.forEach((s, kind) => {
      const bytes = valueAt(s, times[i]);
      pen.fillStyle = color(`--k${kind}`);
      pen.fillRect(x(times[i]), y(base + bytes), x(times[i + 1]) - x(times[i]), y(base) - y(base + bytes));
      base += bytes;
    });
  }
  pen.fillStyle = color('--soft');
  pen.textAlign = 'right';
  pen.fillText(bytesText(r.reserved), LEFT - 4, 14);
  pen.fillText('0', LEFT - 4, 118);
  byId('memoryTitle').textContent = `Memory of rank ${r.id}, ${bytesText(r.reserved)} reserved`;
  byId('memory').setAttribute('aria-label', `Bytes that rank ${r.id} holds over the step, by kind; at most ` +
    `${bytesText(r.peak)} of ${bytesText(r.reserved)}.`);
}

function moveCursor(id) {
  byId(id).nextElementSibling.style.left = LEFT + (byId(id).clientWidth - LEFT - 4) * now / END - 1 + 'px';
}

/* ---- the page ---- */

function row(cells) {
  const tr = document.createElement('tr');
  cells.forEach((text, i) => {
    const cell = document.createElement(i ? 'td' : 'th');
    if (!i)
      cell.scope = 'row';
    cell.textContent = text;
    tr.appendChild(cell);
  });
  return tr;
}

function showNumbers() {
  const r = ranks[Math.max(0, focus)];
  const all = data.kinds.map((kind, i) => row([kind, bytesText(valueAt(r.memory[i], now)), bytesText(r.memory[i].most)]));
  const sum = r.memory.reduce((a, s) => a + valueAt(s, now), 0);
  all.push(row(['together', bytesText(sum), bytesText(r.peak)]));
  byId('numbers').replaceChildren(...all);
}

function showCaption() {
  const lines = captionAt(now, focus).map(text => {
    const span = document.createElement('span');
    span.textContent = text;
    return span;
  });
  const text = lines.map(s => s.textContent).join('\n');
  if (text !== byId('caption').dataset.text) {
    byId('caption').replaceChildren(...lines);
    byId('caption').dataset.text = text;
  }
}

function show() {
  ranks.forEach(updateRank);
  wires.replaceChildren();
  pieces.replaceChildren();
  movesAt(now).forEach(drawMove);
  moveCursor('timeline');
  moveCursor('memory');
  showCaption();
  showNumbers();
  byId('seek').value = 1000 * now / END;
  byId('seek').setAttribute('aria-valuetext', timeText(now));
  byId('clock').textContent = `${timeText(now)} of ${timeText(END)}`;
}

function setNow(t) {
  now = Math.min(END, Math.max(0, t));
  shownAt = between(pace.at, pace.shown, now);
  show();
}

function step(direction) {
  setPlaying(false);
  const times = stepTimes(), i = count(times, now);
  setNow(direction > 0 ? times[Math.min(i, times.length - 1)] : times[Math.max(0, i - 1 - (times[i - 1] === now))]);
}

function setPlaying(on) {
  playing = on;
  byId('play').textContent = on ? 'Pause' : 'Play';
  /* Otherwise a screen reader would read captions without end. */
  byId('caption').setAttribute('aria-live', on ? 'off' : 'polite');
  if (on) {
    if (now >= END)
      setNow(0);
    lastFrame = performance.now();
    requestAnimationFrame(frame);
  }
}

/* With reduced motion the picture changes from step to step instead of moving. */
function frame(time) {
  const passed = (time - lastFrame) / 1000, speed = Number(byId('speed').value);
  if (!playing)
    return;
  if (still.matches) {
    if (passed * speed >= 1) {
      const times = stepTimes(), next = times[count(times, now)];
      lastFrame = time;
      setNow(next === undefined ? END : next);
    }
  } else {
    shownAt += Math.max(0, passed) * speed;
    lastFrame = time;
    now = Math.min(END, between(pace.shown, pace.at, Math.min(shownAt, pace.shown[pace.shown.length - 1])));
    show();
  }
  if (now >= END)
    setPlaying(false);
  else
    requestAnimationFrame(frame);
}

function setFocus(rank) {
  focus = rank;
  byId('focus').value = rank;
  drawTimeline();
  drawMemory();
  show();
}

function redraw() {
  for (const key in colors)
    delete colors[key];
  layoutCluster();
  drawTimeline();
  drawMemory();
  show();
}

function legend(id, entries) {
  byId(id).replaceChildren(...entries.map(([name, variable]) => {
    const item = document.createElement('span'), key = document.createElement('span');
    item.className = 'item';
    key.className = 'key';
    key.style.background = `var(${variable})`;
    item.append(key, name + '\u00a0\u00a0');
    return item;
  }));
}

function legends() {
  const names = { forward: 'forward', backward: 'backward', weight: 'gradients of weights', comm: 'communication',
    update: 'norm and update', other: 'other' };
  const used = new Set(ranks.flatMap(r => r.streams.flatMap((list, i) =>
    list.map(s => i ? '--a-comm' : actionColor(s.action)))));
  legend('legend', data.kinds.map((k, i) => [k === 'buffers' ? 'buffers (inputs, messages, scratch)' : k, `--k${i}`]).concat([['reserved, not in use', '--empty']]));
  legend('actions', Object.keys(names).map(n => [names[n], '--a-' + n]).filter(e => used.has(e[1])));
}

function start() {
  const mesh = axes.map(a => `${a.name} ${a.size}`).join(' \u00d7 ') || 'one rank';
  document.title = `${data.name}: a training step`;
  byId('title').textContent = `${data.name}: a training step`;
  byId('about').textContent = data.about;
  byId('facts').textContent = `${data.measured ? 'Measured' : 'Forecast'}: ${timeText(END)}, ` +
    `${(100 * data.bubble).toFixed(1)} % idle, ${(100 * data.exposed).toFixed(1)} % waiting for communication. ` +
    `${RANKS} ${RANKS > 1 ? 'ranks' : 'rank'}: ${mesh}.`;
  ranks.forEach(r => byId('focus').add(new Option(String(r.id), String(r.id))));
  byId('timeline').setAttribute('aria-label', 'What each rank computes and sends over the step; the caption has it in words.');
  legends();
  byId('play').onclick = () => setPlaying(!playing);
  byId('next').onclick = () => step(1);
  byId('back').onclick = () => step(-1);
  byId('focus').onchange = e => setFocus(Number(e.target.value));
  byId('seek').oninput = e => { setPlaying(false); setNow(END * e.target.value / 1000); };
  for (const id of ['timeline', 'memory'])
    byId(id).onclick = e => setNow(END * (e.offsetX - LEFT) / (e.target.clientWidth - LEFT - 4));
  document.addEventListener('keydown', e => {
    const own = /^(INPUT|SELECT)$/.test(e.target.tagName) || e.ctrlKey || e.metaKey || e.altKey;
    const keys = { ArrowRight: () => step(1), ArrowLeft: () => step(-1), Home: () => setNow(0), End: () => setNow(END) };
    if (e.key === ' ' && !own && e.target.tagName !== 'BUTTON') keys[' '] = () => setPlaying(!playing);
    if (!own && keys[e.key]) {
      e.preventDefault();
      keys[e.key]();
    }
  });
  addEventListener('resize', redraw);
  /* FILE.html#0.35,1 opens at this part of the step, with this rank in focus. */
  const [at, rank] = location.hash.slice(1).split(',').map(Number);
  if (at > 0)
    now = Math.min(END, END * at);
  if (ranks[rank])
    byId('focus').value = focus = rank;
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
  redraw();
  setNow(now);
}

start();
})();
