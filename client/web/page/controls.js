// The controls above charts: horizontal axis, smoothing, scale, zoom.

import { el, setHidden } from "./dom.js";

// Single steps are noisy: the mean of some five rows shows the trend, and the rows stay visible behind it.
const USUAL_SMOOTHING = 0.6;

function number(text) {
  const v = Number(text ?? USUAL_SMOOTHING);
  return v >= 0 && v < 1 ? v : USUAL_SMOOTHING;
}

function stored(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

function store(key, value) {
  try {
    localStorage.setItem(key, value);
  } catch {
    // Without storage, the choice lasts until the page is closed.
  }
}

function check(label, on, f) {
  const box = el("input", { type: "checkbox", onchange: () => f(box.checked) });
  box.checked = on;
  return el("label", { class: "choice" }, box, label);
}

export function controlsOf(group) {
  group.smooth = number(stored("smooth"));
  const axis = el("select", { id: "axis", onchange: () => group.setAxis(axis.value) },
    el("option", { value: "step" }, "step"), el("option", { value: "time" }, "time since the start"));
  const shown = el("output", { for: "smooth" }, String(group.smooth));
  const slider = el("input", { type: "range", id: "smooth", min: 0, max: 0.99, step: 0.01, value: group.smooth,
    oninput: () => {
      group.smooth = number(slider.value);
      shown.textContent = slider.value;
      store("smooth", slider.value);
      group.draw();
    } });
  const reset = el("button", { type: "button", hidden: true, onclick: () => group.setZoom(null) }, "Whole range");
  group.onZoom = (zoom) => setHidden(reset, !zoom);
  const set = (key) => (on) => {
    group[key] = on;
    group.draw();
  };
  return el("div", { class: "tools" },
    el("label", { for: "axis" }, "Axis"), axis,
    el("label", { for: "smooth" }, "Smoothing"), slider, shown,
    check("logarithmic", group.log, set("log")), check("without outliers", group.robust, set("robust")),
    el("span", { class: "fill" }), reset,
    el("span", { class: "muted hint" }, "Drag to zoom, double click for the whole range; arrow keys, + and − on a chart"));
}
