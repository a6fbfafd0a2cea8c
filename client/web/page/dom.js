// Elements are built by functions and all text is set as text, so that no text of a job can become markup.

const SVG = "http://www.w3.org/2000/svg";

// A key that begins with "on" is a listener, "data" fills the data-attributes; undefined, null and false are left out.
export function el(tag, attributes = {}, ...children) {
  const e = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) e.addEventListener(key.slice(2), value);
    else if (key === "data") Object.assign(e.dataset, value);
    else e.setAttribute(key, value === true ? "" : value);
  }
  e.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
  return e;
}

function svg(tag, attributes, ...children) {
  const e = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  e.append(...children);
  return e;
}

// Writes only changes: a write would end a reader's selection and make the browser lay the page out again.
export function setText(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

export function setHidden(e, hidden) {
  if (e.hidden !== hidden) e.hidden = hidden;
}

// Colours, cursor movements and titles that programs send to terminals.
const ESCAPES = /\u001b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[ -/]*[0-~])/g;
// Control characters, and the characters that reverse the direction of the text after them, could disguise a name.
const UNPRINTABLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;

export function printable(text) {
  return String(text ?? "").replace(ESCAPES, "").replace(UNPRINTABLE, "\ufffd");
}

// Foreign text in an isolated element, so that its direction does not reorder the text around it.
export function foreign(text, attributes = {}) {
  return el("bdi", attributes, printable(text));
}

// One shape for each state, so that a state is visible without colours.
const SHAPES = {
  pending: ["circle", { cx: 8, cy: 8, r: 5.5, fill: "none", "stroke-width": 2, "stroke-dasharray": "3 2" }],
  starting: ["circle", { cx: 8, cy: 8, r: 5.5, fill: "none", "stroke-width": 2.5 }],
  running: ["circle", { cx: 8, cy: 8, r: 6, "stroke-width": 0, fill: "currentColor" }],
  recovering: ["path", { d: "M13 8a5 5 0 1 1-2-4M11.5 1v3.5H8", fill: "none", "stroke-width": 2 }],
  stopping: ["path", { d: "M4 3v10M12 3v10", fill: "none", "stroke-width": 3 }],
  done: ["path", { d: "M2.5 8.5l3.5 4 7-9", fill: "none", "stroke-width": 2.5 }],
  failed: ["path", { d: "M3 3l10 10M13 3L3 13", fill: "none", "stroke-width": 2.5 }],
  canceled: ["path", { d: "M3 3h10v10H3z", fill: "none", "stroke-width": 2.5 }],
};
const SAME_SHAPE = {
  up: "running", loading: "starting", ended: "done", away: "pending", unknown: "pending", lost: "failed",
  silent: "recovering", drained: "stopping",
};
const SIGNS = {
  pending: "○", starting: "◌", running: "●", recovering: "↻", stopping: "‖", done: "✓", failed: "✕", canceled: "□",
};

const shapeOf = (state) => SAME_SHAPE[state] ?? (SHAPES[state] ? state : "pending");

export const stateSign = (state) => SIGNS[shapeOf(state)];

export function stateBadge() {
  const e = el("span", { class: "state" });
  const text = el("span");
  let shown = null;
  return {
    element: e,
    set(state) {
      if (state === shown) return;
      shown = state;
      const [tag, attributes] = SHAPES[shapeOf(state)];
      e.className = `state is-${shapeOf(state)}`;
      text.textContent = state;
      e.replaceChildren(
        svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, svg(tag, { stroke: "currentColor", ...attributes })),
        text,
      );
    },
  };
}

export function badgeOf(state) {
  const badge = stateBadge();
  badge.set(state);
  return badge.element;
}

// A table of plain rows: each cell is text or an element. The labels become the left column of cards on a phone.
export function tableOf(caption, columns, rows, attributes = {}) {
  const head = el("tr", {}, columns.map((c) => el("th", { scope: "col" }, c)));
  const cells = (row) => row.map((c, i) => el("td", { data: { label: columns[i] } }, c));
  return el("table", attributes, el("caption", { class: "unseen" }, caption), el("thead", {}, head),
    el("tbody", {}, rows.map((r) => el("tr", {}, cells(r)))));
}

let speaker = null;

// For screen readers. The same text twice would not be read again, so that the region is emptied first.
export function speak(text) {
  speaker ??= document.getElementById("spoken");
  speaker.textContent = "";
  setTimeout(() => { speaker.textContent = text; }, 50);
}
