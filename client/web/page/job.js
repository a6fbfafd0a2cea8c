// The page of one job.

import { getJson, getText, post } from "./api.js";
import { Chart, ChartGroup, fillTable } from "./chart.js";
import { controlsOf } from "./controls.js";
import { el, foreign, printable, setHidden, setText, speak, stateBadge, stateSign, tableOf } from "./dom.js";
import { age, bytes, date, duration, loss, percent, plural, real, short, whole } from "./format.js";
import { HeatMap } from "./heat.js";
import { Incidents } from "./incidents.js";
import { Log } from "./log.js";
import { CHARTS, RARE_CHARTS, TABLE, lineOf } from "./metrics.js";
import { Plan } from "./plan.js";
import { Ranks } from "./ranks.js";
import { Series } from "./series.js";
import { StackChart } from "./stack.js";
import { StepForecast } from "./step.js";
import { Usage, samplesOf } from "./usage.js";

const ENDED = ["done", "failed", "canceled"];
const POINTS = 600;
const AROUND = 15; // rows on each side of an incident that the charts zoom to
const UNKNOWN_MS = 1500; // a status arrives at once when there is one

const hasEnded = (job) => ENDED.includes(job.state);

// ---- one sentence: what the job does, or why it waits ----

const reasonOf = (job) => printable(job.reason ?? "");
const because = (text, reason) => (reason ? `${text}: ${reason}` : `${text}.`);

function tookText(job) {
  return job.started_ms && job.ended_ms ? ` after ${duration((job.ended_ms - job.started_ms) / 1000)}` : "";
}

function graceText(job) {
  return job.grace_left_ms ? ` Workers that still run are killed in ${duration(job.grace_left_ms / 1000)}.` : "";
}

const SENTENCES = {
  pending: (j) => because("The job waits", reasonOf(j)),
  starting: (j) => because(`${plural(j.workers, "worker")} start`.replace(/^1 worker start/, "1 worker starts"), reasonOf(j)),
  running: (j, eta) => `${j.steps ? "Training" : "Running"} on ${plural(j.workers, "worker")}${
    j.max_workers > j.workers ? ` of ${whole(j.max_workers)} wanted` : ""}${
    eta === undefined ? "" : `; about ${duration(eta)} left`}.${j.reason ? ` ${reasonOf(j)}` : ""}`,
  recovering: (j) => because("The job recovers from an incident", reasonOf(j)),
  stopping: (j) => because("The job stops", reasonOf(j)) + graceText(j),
  done: (j) => because(`The job is done${tookText(j)}`, reasonOf(j)),
  failed: (j) => because(`The job failed${tookText(j)}`, reasonOf(j)),
  canceled: (j) => because(`The job was canceled${tookText(j)}`, reasonOf(j)),
};

const sentenceOf = (job, eta) => (SENTENCES[job.state] ?? ((j) => because(j.state, reasonOf(j))))(job, eta);

// ---- tiles ----

const percentOf = (v) => `${real(100 * v, 3)} %`;
const lastOf = (key) => (p) => p.metric?.[key];

function checkpointNote(p) {
  const { job } = p, c = p.checkpoints?.filter((x) => x.step === job.checkpoint_step).at(-1);
  const risk = Math.max(0, job.step - (job.checkpoint_step ?? 0));
  const parts = [];
  if (c) parts.push(`${age(c.committed_ms)} ago`);
  if (!hasEnded(job) && job.step) parts.push(`${plural(risk, "step")} at risk`);
  return parts.join(" · ");
}

const TILES = [
  { name: "Step", value: (p) => whole(p.job.step), note: (p) => (p.job.steps ? `of ${whole(p.job.steps)}` : "") },
  { name: "Loss", value: (p) => loss(lastOf("loss")(p)), note: (p) => p.validText() },
  { name: "Tokens per second", value: (p) => short(lastOf("tokens_per_s")(p)),
    note: (p) => plural(p.job.workers, "worker") },
  { name: "MFU", rare: true, value: (p) => (Number.isFinite(p.metric?.mfu) ? percentOf(p.metric.mfu) : "–"),
    note: () => "of the peak of all workers" },
  { name: "Step time", value: (p) => duration(lastOf("step_s")(p)), note: (p) => p.meanText() },
  { name: "Gradient norm", value: (p) => real(lastOf("grad_norm")(p)),
    note: (p) => (p.metric ? `learning rate ${real(p.metric.lr, 3)}` : "") },
  { name: "Checkpoint at step", value: (p) => (p.job.checkpoint_step === undefined ? "none" : whole(p.job.checkpoint_step)),
    note: checkpointNote },
  { name: "Epoch", always: true, value: (p) => whole(p.job.epoch), note: (p) => plural(p.job.restarts, "restart") },
];

class Tiles {
  constructor() {
    this.tiles = TILES.map((t) => ({ ...t, strong: el("dd", { class: "big" }), small: el("dd", { class: "muted" }) }));
    this.element = el("dl", { class: "tiles" },
      this.tiles.map((t) => el("div", { class: "tile" }, el("dt", {}, t.name), t.strong, t.small)));
  }

  set(page) {
    for (const t of this.tiles) {
      setText(t.strong, t.value(page));
      setText(t.small, t.note(page));
      // The steps of a job that runs a command are its own affair.
      setHidden(t.strong.parentElement, (!page.job.steps && !t.always) || (t.rare && t.strong.textContent === "–"));
    }
  }
}

// ---- the dialog that confirms a cancel ----

function cancelDialog(job, done) {
  const save = el("input", { type: "checkbox" });
  save.checked = Boolean(job.steps);
  const error = el("p", { class: "error", role: "alert", hidden: true });
  const send = el("button", { type: "button", class: "danger", onclick: async () => {
    send.disabled = true;
    try {
      done(await post(`/api/jobs/${encodeURIComponent(job.job)}/cancel`, { save: save.checked }));
      dialog.close();
    } catch (e) {
      setText(error, e.message);
      setHidden(error, false);
      send.disabled = false;
    }
  } }, "Cancel the job");
  const dialog = el("dialog", { "aria-labelledby": "cancel-title", onclose: () => dialog.remove() },
    el("h2", { id: "cancel-title" }, "Cancel job ", foreign(`${job.job} ${job.name}`), "?"),
    el("p", {}, "Its workers stop. dtctl resume can continue it from its last checkpoint later."),
    el("label", { class: "choice" }, save, "Save a checkpoint first"), error,
    el("div", { class: "tools end" }, el("button", { type: "button", autofocus: true, onclick: () => dialog.close() },
      "Keep it running"), send));
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

// ---- the page ----

const SECTIONS = [
  { key: "charts", name: "Charts", build: (page, body, section) => page.buildCharts(body, section) },
  { key: "ranks", name: "Ranks", build: (page, body) => page.buildRanks(body) },
  { key: "incidents", name: "Incidents", build: (page, body) => page.buildIncidents(body) },
  { key: "log", name: "Log", build: (page, body) => page.buildLog(body) },
  { key: "plan", name: "Plan", build: (page, body, section) => page.buildPlan(body, section) },
  { key: "checkpoints", name: "Checkpoints", build: (page, body) => page.buildCheckpoints(body) },
  { key: "file", name: "Job file", build: (page, body) => page.buildFile(body) },
];

class JobPage {
  constructor(root, id, context) {
    Object.assign(this, { root, id, context, job: null, metric: null, checkpoints: null });
    this.series = new Series();
    this.usage = new Usage();
    this.waiting = []; // metrics that arrive before the history
    this.group = new ChartGroup(() => this.job?.started_ms ?? this.job?.submitted_ms ?? 0);
    this.group.markers = () => this.markers();
    this.build();
    this.connect();
    this.clock = setInterval(() => { if (this.job) this.tiles.set(this); }, 5000);
    context.title(`Job ${printable(id)} · dtd`);
  }

  // ---- elements ----

  build() {
    const href = (key) => `#/job/${encodeURIComponent(this.id)}/${key}`;
    this.links = new Map(SECTIONS.map((s) => [s.key, el("a", { href: href(s.key) }, s.name)]));
    this.badge = stateBadge();
    this.name = foreign("");
    this.facts = el("p", { class: "muted facts" });
    this.sentence = el("p", { class: "sentence" });
    this.problem = el("p", { class: "warning", hidden: true });
    this.bar = el("progress", { max: 1, "aria-label": "Progress" });
    this.share = el("span", { class: "nowrap" });
    this.progress = el("div", { class: "progress wide", hidden: true }, this.bar, this.share);
    this.cancel = el("button", { type: "button", class: "danger", hidden: true,
      onclick: () => {
        this.dialog = cancelDialog(this.job, (job) => job.job && this.setStatus(job));
      } }, "Cancel");
    this.tiles = new Tiles();
    this.context.setPlace(el("a", { href: "#/" }, "Overview"), el("span", { "aria-hidden": "true" }, "›"),
      el("span", { "aria-current": "page" }, `Job ${printable(this.id)}`));
    this.loading = el("p", { class: "muted" }, "Loading the job …");
    this.content = el("div", { hidden: true },
      el("div", { class: "card head" },
        el("div", { class: "tools" }, el("h1", {}, this.name), this.badge.element, el("span", { class: "fill" }), this.cancel),
        this.sentence, this.problem, this.progress, this.facts),
      this.tiles.element,
      el("nav", { class: "sections", "aria-label": "Parts of this page" }, [...this.links.values()]),
      SECTIONS.map((s) => this.section(s)));
    this.root.replaceChildren(this.loading, this.content);
  }

  section({ key, name, build }) {
    const body = el("div", { class: key === "charts" || key === "ranks" ? "" : "card" });
    const section = el("section", { id: `part-${key}`, "aria-labelledby": `title-${key}`, tabindex: -1 },
      el("h2", { id: `title-${key}` }, name), body);
    build(this, body, section);
    return section;
  }

  buildCharts(body, section) {
    this.chartSection = section;
    this.grid = el("div", { class: "charts" });
    for (const c of CHARTS) this.addChart(c);
    this.rare = [...RARE_CHARTS];
    this.table = el("table", { class: "numbers" });
    const scroll = el("div", { class: "scroll card flush", hidden: true, tabindex: 0, role: "region",
      "aria-label": "Values of the charts" }, this.table);
    this.tableBox = scroll;
    const toggle = el("button", { type: "button", "aria-expanded": "false", onclick: () => {
      scroll.hidden = !scroll.hidden;
      toggle.setAttribute("aria-expanded", String(!scroll.hidden));
      setText(toggle, scroll.hidden ? "Show as table" : "Hide the table");
      this.fillTable();
    } }, "Show as table");
    body.append(controlsOf(this.group), this.grid, el("div", { class: "tools" }, toggle,
      el("a", { class: "button", href: `/api/jobs/${encodeURIComponent(this.id)}/metrics.csv`, download: `job${this.id}.csv` },
        "Download as CSV"),
      this.usageLink = el("a", { class: "button", hidden: true, href: `/api/jobs/${encodeURIComponent(this.id)}/usage`,
        download: `job${this.id}-usage.jsonl` }, "Download the usage of ranks")), scroll);
  }

  addChart(c) {
    const chart = new Chart({ ...c, lines: [lineOf(c, this.series, 0)] });
    this.grid.append(this.group.add(chart));
  }

  buildIncidents(body) {
    this.incidents = new Incidents(body, (incident) => this.zoomTo(incident));
  }

  // The chart of parts and the heat map appear with the first sample.
  buildRanks(body) {
    const table = el("div");
    this.rankPictures = el("div", { class: "charts", hidden: true });
    body.append(this.rankPictures, table);
    this.ranks = new Ranks(table);
  }

  addRankPictures() {
    this.rankPictures.hidden = false;
    const parts = new StackChart(() => this.usage.parts(this.group.axis));
    this.heat = new HeatMap({ group: this.group, usage: this.usage,
      stragglers: () => this.job?.straggler ?? [] });
    this.stepForecast = new StepForecast(this.id);
    this.rankPictures.append(this.group.add(parts), this.stepForecast.element, this.heat.element);
    this.group.follow(this.heat);
  }

  buildPlan(body, section) {
    this.planSection = section;
    this.plan = new Plan(body, this.id);
  }

  buildLog(body) {
    this.log = new Log(body, this.id, this.context.Stream);
  }

  buildCheckpoints(body) {
    this.checkpointBox = body;
    body.classList.add("flush", "scroll", "tall");
  }

  buildFile(body) {
    this.file = el("pre", { class: "file", tabindex: 0, "aria-label": "Job file" });
    const copy = el("button", { type: "button", onclick: () => this.copyFile(copy) }, "Copy");
    body.append(el("div", { class: "tools" }, el("span", { class: "fill" }),
      el("button", { type: "button", onclick: () => this.saveFile() }, "Download"), copy), this.file);
  }

  saveFile() {
    const url = URL.createObjectURL(new Blob([this.job.spec_yaml ?? ""], { type: "application/yaml" }));
    el("a", { href: url, download: `job${this.id}.yaml` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }

  // The clipboard exists only on https and on this machine; elsewhere the text is selected for the reader's own copy.
  async copyFile(button) {
    try {
      await navigator.clipboard.writeText(this.job.spec_yaml ?? "");
      setText(button, "Copied");
    } catch {
      getSelection().selectAllChildren(this.file);
      setText(button, "Selected: press Ctrl+C");
    }
    setTimeout(() => setText(button, "Copy"), 3000);
  }

  // ---- data ----

  connect() {
    const path = `/api/jobs/${encodeURIComponent(this.id)}`, { trouble } = this.context;
    this.stream = new this.context.Stream(`${path}/events`, {
      status: (job) => this.setStatus(job),
      metrics: (rows) => this.addMetrics(rows),
      usage: (sample) => this.addUsage(sample),
      lost: (data) => trouble("daemon", data.error),
      end: () => this.stream.close(),
    }, {
      opened: () => {
        this.loadHistory();
        this.loadUsage();
      },
      broken: (text) => trouble("connection", text),
    });
    this.loadHistory();
  }

  // Also after each new connection, since steps may have passed meanwhile.
  async loadHistory() {
    if (this.isLoading) return;
    this.isLoading = true;
    try {
      this.series.load(await getJson(`/api/jobs/${encodeURIComponent(this.id)}/metrics?points=${POINTS}`));
      setHidden(this.loading, Boolean(this.job));
    } catch (e) {
      if (!this.job) setText(this.loading, e.message);
      if (!this.job && e.status === 404) this.giveUpLater();
    }
    this.isLoading = false;
    const rows = this.waiting;
    this.waiting = [];
    this.addMetrics(rows);
    this.metricsChanged();
  }

  // ---- usage of the ranks ----

  async loadUsage() {
    try {
      const text = await getText(`/api/jobs/${encodeURIComponent(this.id)}/usage?points=${POINTS / 2}`);
      this.usage.load(samplesOf(text));
      this.context.trouble("usage", null);
    } catch (e) {
      if (e.status !== 404) this.context.trouble("usage", e.message);
    }
    this.usageChanged();
  }

  addUsage(sample) {
    this.usage.add(sample);
    this.usageChanged();
  }

  usageChanged() {
    if (!this.usage.newest) return;
    if (!this.heat) this.addRankPictures();
    setHidden(this.usageLink, false);
    this.heat.setFields();
    this.heat.changed();
    this.ranks.setSample(this.usage.newest);
    if (this.job?.steps) this.stepForecast.changed();
    this.group.draw();
  }

  addMetrics(rows) {
    if (this.isLoading) {
      this.waiting.push(...rows);
      return;
    }
    for (const row of rows) this.series.add(row);
    if (rows.length) this.metricsChanged();
  }

  metricsChanged() {
    const last = this.series.last;
    if (last && (!this.metric || last.wall_ms >= this.metric.wall_ms)) this.metric = last;
    this.rare = this.rare.filter((c) => {
      if (!this.series.rows.some((r) => r[c.key] !== undefined)) return true;
      this.addChart(c);
      return false;
    });
    this.group.draw();
    if (!this.tableBox.hidden) this.fillTable();
    this.showHead();
  }

  setStatus(job) {
    this.context.trouble("daemon", null);
    const before = this.job?.state;
    this.job = job;
    if (job.last && (!this.metric || job.last.wall_ms >= this.metric.wall_ms)) this.metric = job.last;
    setHidden(this.loading, true);
    setHidden(this.content, false);
    if (before && before !== job.state) speak(`Job ${job.job} is ${job.state}. ${reasonOf(job)}`);
    if (job.checkpoint_step !== this.checkpointStep || !this.checkpoints) this.loadCheckpoints();
    this.showHead();
    this.showWorkers();
    this.plan.setJob(job);
    this.incidents.set(job);
    this.log.setRanks(Math.max(0, ...job.worker.map((w) => w.rank + 1)));
    setHidden(this.chartSection, !job.steps);
    setHidden(this.links.get("charts"), !job.steps);
    setHidden(this.planSection, !job.steps);
    setHidden(this.links.get("plan"), !job.steps);
    if (job.steps) this.stepForecast?.changed();
    setText(this.file, printable(job.spec_yaml ?? ""));
    this.group.draw();
    this.scrollLater();
  }

  async loadCheckpoints() {
    this.checkpointStep = this.job.checkpoint_step;
    try {
      this.checkpoints = await getJson(`/api/jobs/${encodeURIComponent(this.id)}/checkpoints`);
      this.showCheckpoints();
    } catch (e) {
      this.checkpoints = [];
      this.checkpointBox.replaceChildren(el("p", { class: "muted pad" }, e.message));
    }
    this.tiles.set(this);
  }

  // ---- display ----

  eta() {
    const { job } = this, s = this.series.stepSeconds() ?? this.metric?.step_s;
    if (job.state !== "running" || !job.steps || !Number.isFinite(s) || job.step > job.steps) return undefined;
    return (job.steps - this.step()) * s;
  }

  // Metrics arrive before the status that counts them; after a roll-back the status is right.
  step() {
    const m = this.series.last;
    return m && m.epoch === this.job.epoch ? Math.max(m.step, this.job.step) : this.job.step;
  }

  validText() {
    const p = this.series.points.filter((x) => Number.isFinite(x.valid_loss)).at(-1);
    return p ? `validation ${loss(p.valid_loss)}` : "";
  }

  meanText() {
    const s = this.series.stepSeconds();
    return s === undefined ? "" : `mean ${duration(s)}`;
  }

  showHead() {
    const { job } = this;
    if (!job) return;
    job.step = this.step();
    const share = job.steps ? job.step / job.steps : 0, eta = this.eta(), name = printable(job.name);
    this.badge.set(job.state);
    setText(this.name, name);
    setText(this.sentence, sentenceOf(job, eta));
    setHidden(this.progress, !job.steps);
    this.bar.value = share;
    setText(this.share, `${percent(share)} · step ${whole(job.step)} of ${whole(job.steps)}`);
    setHidden(this.problem, !job.checkpoint_error);
    setText(this.problem, `The last checkpoint failed: ${printable(job.checkpoint_error ?? "")}`);
    setText(this.facts, this.factText());
    setHidden(this.cancel, hasEnded(job) || job.state === "stopping" || !this.mayCancel());
    this.tiles.set(this);
    const part = job.steps && !hasEnded(job) && job.state !== "pending" ? ` ${percent(share)}` : "";
    const state = job.state === "running" && job.steps ? "training" : job.state;
    this.context.title(`${stateSign(job.state)} ${state}${part} · ${name}`);
  }

  // An operator sees the jobs of others and cannot cancel them.
  mayCancel() {
    const { user } = this.context;
    return !user.system || user.uid === 0 || this.job.user === undefined || this.job.user === user.user;
  }

  factText() {
    const { job } = this;
    return [`job ${job.job}`, job.user && `user ${printable(job.user)}`, `submitted ${date(job.submitted_ms)}`,
      job.started_ms && `started ${date(job.started_ms)}`, job.ended_ms && `ended ${date(job.ended_ms)}`,
      job.parent && `continues job ${printable(job.parent)}`].filter(Boolean).join(" · ");
  }

  showWorkers() {
    const text = JSON.stringify([this.job.worker, this.job.straggler]);
    if (text === this.workersText) return;
    this.workersText = text;
    this.ranks.setWorkers(this.job.worker);
    this.ranks.setStragglers(this.job.straggler ?? []);
    this.heat?.redraw();
  }

  showCheckpoints() {
    const marks = (c) => [c.best && "best", c.final && "final", c.manifest === false && "no manifest"].filter(Boolean).join(", ");
    const rows = [...this.checkpoints].reverse().map((c) => [whole(c.step), whole(c.epoch), loss(c.loss), bytes(c.bytes),
      date(c.committed_ms), marks(c), foreign(c.path ?? "", { class: "path" })]);
    this.checkpointBox.replaceChildren(rows.length
      ? tableOf("Checkpoints", ["Step", "Epoch", "Loss", "Size", "Committed", "Marks", "Folder"], rows, { class: "cards" })
      : el("p", { class: "muted pad" }, "No checkpoint yet."));
  }

  fillTable() {
    fillTable(this.table, TABLE, this.series.rows);
  }

  // ---- incidents and epochs in the charts ----

  // On the axis of steps, an incident lies at the last row that was not rolled back.
  rowAt(wall_ms) {
    return this.series.rows.filter((r) => r.wall_ms <= wall_ms).at(-1)?.step ?? 0;
  }

  markers() {
    const incidents = this.job?.incident ?? [], ret = [], rows = this.series.rows;
    incidents.forEach((x, i) => ret.push({ step: this.rowAt(x.wall_ms), wall_ms: x.wall_ms, text: `incident ${i + 1}`, bad: true }));
    for (let i = 1; i < rows.length; i++) {
      const before = rows[i - 1].epoch;
      if (rows[i].epoch === before || incidents.some((x) => x.epoch >= before && x.epoch < rows[i].epoch)) continue;
      ret.push({ step: rows[i].step, wall_ms: rows[i].wall_ms, text: `epoch ${rows[i].epoch}`, bad: false });
    }
    return ret.sort((a, b) => a.wall_ms - b.wall_ms);
  }

  // Some rows before the incident, and as many after the recovery.
  zoomTo(incident) {
    const { rows } = this.series, g = this.group;
    if (!rows.length) return;
    const after = rows.findIndex((r) => r.wall_ms > incident.wall_ms), at = after < 0 ? rows.length : after;
    const xOf = (i) => g.x(null, rows[Math.max(0, Math.min(rows.length - 1, i))]);
    g.setZoom([xOf(at - 1 - AROUND), xOf(at + AROUND)]);
    document.getElementById("part-charts").scrollIntoView();
  }

  // ---- parts of the page have addresses ----

  go(part) {
    this.part = part;
    this.scrollLater();
  }

  scrollLater() {
    if (!this.part || this.content.hidden) return;
    const section = document.getElementById(`part-${this.part}`);
    this.part = null;
    requestAnimationFrame(() => {
      section?.scrollIntoView();
      section?.focus({ preventScroll: true });
    });
  }

  // Without any answer about the job within this time, a 404 means that there is no such job; a job that waits may have
  // no metrics yet.
  giveUpLater() {
    setTimeout(() => {
      if (this.job) return;
      this.stream.close();
      this.log.close();
    }, UNKNOWN_MS);
  }

  close() {
    this.stream.close();
    this.log.close();
    this.plan.close();
    this.stepForecast?.close();
    this.ranks.close();
    this.heat?.close();
    this.group.close();
    this.dialog?.close();
    clearInterval(this.clock);
  }
}

export function openJob(root, id, context) {
  const page = new JobPage(root, id, context);
  return { close: () => page.close(), go: (part) => page.go(part) };
}
