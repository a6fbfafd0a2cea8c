// The forecast of a step beside its measurement, part by part. The server compares them (client/step_parts.h).

import { getJson } from "./api.js";
import { el, printable, setText, tableOf } from "./dom.js";
import { duration } from "./format.js";

const EVERY_MS = 10000; // a comparison is a process on the server
const RETRY_MS = 2000; // plans are being made
const RETRIES = 10;

const finite = (v) => typeof v === "number" && Number.isFinite(v);

function barsOf(part, most) {
  const bar = (color, v) => {
    const e = el("span", { class: color });
    e.style.width = `${finite(v) ? (100 * v) / most : 0}%`;
    return e;
  };
  return el("span", { class: "step-bars", "aria-hidden": "true" },
    bar("part-4", part.forecast_s), bar("part-0", part.measured_s));
}

const seconds = (v) => (finite(v) ? duration(v) : "–");

export class StepForecast {
  constructor(id) {
    this.path = `/api/jobs/${encodeURIComponent(id)}/forecast`;
    this.text = el("p", { role: "status" });
    this.source = el("p", { class: "muted" });
    this.table = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Forecast and measurement of a step" });
    this.element = el("figure", { class: "chart wide step-forecast", hidden: true },
      el("figcaption", {}, el("h3", {}, "Forecast and measurement of a step"),
        el("ul", { class: "legend" }, el("li", {}, el("span", { class: "key part-4" }), "forecast"),
          el("li", {}, el("span", { class: "key part-0" }), "measured"))),
      this.text, this.table, this.source);
  }

  // New usage has come: compares again when the last comparison is old enough.
  changed() {
    if (this.loading || Date.now() - (this.loaded ?? 0) < EVERY_MS) return;
    this.load(RETRIES);
  }

  async load(tries) {
    clearTimeout(this.timer);
    this.loading = true;
    try {
      const step = await getJson(this.path);
      if (!this.closed && step?.parts) this.show(step);
      this.loaded = step?.parts ? Date.now() : Infinity; // a job without a forecast gets none later
    } catch (e) {
      if (e.status === 429 && tries && !this.closed) this.timer = setTimeout(() => this.load(tries - 1), RETRY_MS);
      this.loaded = Date.now();
    }
    this.loading = false;
  }

  show(step) {
    const most = Math.max(1e-9, ...step.parts.flatMap((p) => [p.forecast_s, p.measured_s ?? 0]));
    const name = (p) => (p.part === step.largest ? el("strong", {}, printable(p.label)) : printable(p.label));
    const rows = step.parts.map((p) => [name(p), seconds(p.forecast_s), seconds(p.measured_s), barsOf(p, most)]);
    rows.push(["step", seconds(step.forecast_s), seconds(step.step_s), ""]);
    setText(this.text, `${printable(step.text)}. ${printable(step.cause)}`.trim());
    setText(this.source, `Forecast at submission for ${printable(step.source)}.${
      step.other_workers ? ` It is for ${step.workers} workers.` : ""}`);
    this.table.replaceChildren(tableOf("Forecast and measurement of a step", ["Part", "Forecast", "Measured", "Times"], rows,
      { class: "numbers" }));
    this.element.hidden = false;
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
  }
}
