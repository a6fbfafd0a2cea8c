// The curves of several jobs in the same charts.

import { getJson } from "./api.js";
import { Chart, ChartGroup, swatchOf } from "./chart.js";
import { controlsOf } from "./controls.js";
import { el, foreign, printable, setText, stateBadge } from "./dom.js";
import { loss, setServerTime, whole } from "./format.js";
import { CHARTS, lineOf } from "./metrics.js";
import { jobLink } from "./overview.js";
import { Series } from "./series.js";

const POINTS = 400;
// A stream for each job would use up the browser's connections to the server; two seconds are live enough for curves.
const POLL_MS = 2000;

class Compare {
  constructor(root, ids, context) {
    this.context = context;
    this.runs = [...new Set(ids)].map((id, i) => ({ id, i, series: new Series(), job: null, step: -1 }));
    this.group = new ChartGroup((line) => this.startOf(line));
    this.build(root);
    this.stream = new context.Stream("/api/events", {
      overview: (data) => this.received(data),
      lost: (data) => context.trouble("daemon", data.error),
    }, { broken: (text) => context.trouble("connection", text) });
    this.load();
    context.title("Comparison · dtd");
  }

  // A job that has no start yet has no rows either.
  startOf(line) {
    const run = this.runs[line?.run ?? 0];
    return run.job?.started_ms ?? run.series.rows[0]?.wall_ms ?? 0;
  }

  build(root) {
    this.context.setPlace(el("a", { href: "#/" }, "Overview"), el("span", { "aria-hidden": "true" }, "›"),
      el("span", { "aria-current": "page" }, "Comparison"));
    const charts = CHARTS.map((c) => new Chart({ ...c, lines: this.runs.map((r) => this.lineOf(c, r)) }));
    root.replaceChildren(el("h1", {}, "Comparison"), el("ul", { class: "card runs" }, this.runs.map((r) => this.entryOf(r))),
      controlsOf(this.group), el("div", { class: "charts" }, charts.map((c) => this.group.add(c))));
    this.drawSwatches();
    this.recolor = () => this.drawSwatches();
    document.addEventListener("themechange", this.recolor);
    this.group.media.addEventListener("change", this.recolor);
  }

  // Bands of several jobs would cover each other.
  lineOf(chart, run) {
    return { ...lineOf(chart, run.series, run.i, `job ${run.id}`), low: undefined, high: undefined, run: run.i };
  }

  entryOf(run) {
    run.swatch = el("span");
    run.badge = stateBadge();
    run.name = foreign("");
    run.note = el("span", { class: "muted" });
    return el("li", {}, run.swatch, el("a", { href: jobLink(run.id) }, run.name, ` #${printable(run.id)}`),
      run.badge.element, run.note);
  }

  drawSwatches() {
    for (const run of this.runs) run.swatch.replaceChildren(swatchOf(this.group, lineOf({}, run.series, run.i)));
  }

  received(data) {
    setServerTime(data.at);
    this.context.trouble("daemon", null);
    for (const run of this.runs) {
      run.job = data.jobs.find((j) => j.job === run.id) ?? run.job;
      if (run.job) this.show(run);
      else setText(run.note, "There is no such job.");
    }
    this.group.draw();
  }

  show(run) {
    const { job } = run;
    setText(run.name, printable(job.name));
    run.badge.set(job.state);
    setText(run.note, `step ${whole(job.step)}${job.last ? ` · loss ${loss(job.last.loss)}` : ""}`);
  }

  async load() {
    if (!document.hidden) {
      for (const run of this.runs) if (!this.closed && run.step !== (run.job?.step ?? 0)) await this.loadRun(run);
    }
    if (!this.closed) this.timer = setTimeout(() => this.load(), POLL_MS);
  }

  async loadRun(run) {
    const step = run.job?.step ?? 0;
    try {
      run.series.load(await getJson(`/api/jobs/${encodeURIComponent(run.id)}/metrics?points=${POINTS}`));
      run.step = step;
      this.group.draw();
    } catch (e) {
      if (!run.series.rows.length) setText(run.note, e.message);
    }
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.stream.close();
    this.group.close();
    document.removeEventListener("themechange", this.recolor);
    this.group.media.removeEventListener("change", this.recolor);
  }
}

export function openCompare(root, list, context) {
  const compare = new Compare(root, list.split(",").filter(Boolean).slice(0, 8), context);
  return { close: () => compare.close() };
}
