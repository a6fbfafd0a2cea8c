// The plan of a job: what it needs, the forecast of a step as a picture, and the pages that explain a step. It is loaded
// when the reader comes to it, since the server computes it.

import { getJson } from "./api.js";
import { el, printable, setText, tableOf } from "./dom.js";
import { bytes, duration, plural, real, short, whole } from "./format.js";

const RETRY_MS = 2000; // other plans are being made
const RETRIES = 10;
const PICTURE_MAX_RANKS = 64; // of the explained step: client/explain/explain_job.c

// The parts of memory in the order of the bars.
const MEMORY = [
  { key: "parameters", color: "part-0" }, { key: "optimizer", color: "part-3" }, { key: "gradients", color: "part-1" },
  { key: "activations", color: "part-2" }, { key: "messages", color: "part-4" }, { key: "collectives", color: "part-5" },
  { key: "host", color: "part-6" }, { key: "snapshot", color: "part-7" },
];

const layoutText = (layout) => Object.entries(layout).map(([k, v]) => `${k} ${v}`).join(" · ") || "one worker";

function runsText(list) {
  if (!list.length) return "–";
  const low = Math.min(...list), high = Math.max(...list);
  return `${low === high ? whole(low) : `${whole(low)} to ${whole(high)}`} on each rank`;
}

const FACTS = [
  ["Layout", (p) => layoutText(p.layout)],
  ["Workers", (p) => whole(p.workers)],
  ["Parameters", (p) => short(p.parameters)],
  ["Step", (p) => `${whole(p.tokens_per_step)} tokens`],
  ["Compute", (p) => `${short(p.flops_per_token)} FLOP per token`],
  ["Microbatches", (p) => runsText(p.microbatches)],
  ["Forecast", (p) => (p.forecast ? `${duration(p.forecast.seconds)} per step` : "none: the plan is too large")],
  ["Bubble", (p) => (p.forecast ? `${real(100 * p.forecast.bubble, 3)} %` : "")],
  ["Exposed communication", (p) => (p.forecast ? `${real(100 * p.forecast.exposed, 3)} %` : "")],
  ["Traffic per step", (p) => Object.entries(p.forecast?.bytes ?? {}).map(([k, v]) => `${bytes(v)} over ${k}`).join(", ")],
];

const rankText = ({ first, last }) => (first === last ? `rank ${whole(first)}` : `ranks ${whole(first)} to ${whole(last)}`);

// A bar for each run of ranks that need the same; all bars have the same scale.
function memoryOf(plan) {
  const used = MEMORY.filter(({ key }) => plan.ranks.some((r) => r[key] > 0));
  const totalOf = (r) => used.reduce((sum, { key }) => sum + (r[key] ?? 0), 0);
  const most = Math.max(1, ...plan.ranks.map(totalOf));
  const barOf = (r) => {
    const parts = used.filter(({ key }) => r[key] > 0).map(({ key, color }) => {
      const part = el("span", { class: color, title: `${key}: ${bytes(r[key])}` });
      part.style.width = `${(100 * r[key]) / most}%`;
      return part;
    });
    return el("span", { class: "plan-bar", "aria-hidden": "true" }, parts);
  };
  const rows = plan.ranks.slice(0, 64).map((r) => [rankText(r), barOf(r), bytes(totalOf(r)), ...used.map(({ key }) => bytes(r[key] ?? 0))]);
  return [
    el("ul", { class: "legend" }, used.map(({ key, color }) => el("li", {}, el("span", { class: `key ${color}` }), key))),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Planned memory of each rank" },
      tableOf("Planned memory of each rank", ["Ranks", "Memory", "Total", ...used.map((u) => u.key)], rows,
        { class: "plan-memory numbers" })),
  ];
}

export class Plan {
  constructor(root, id) {
    Object.assign(this, { id, workers: null, seen: false, plan: null });
    this.path = `/api/jobs/${encodeURIComponent(id)}`;
    this.message = el("p", { class: "muted", role: "status" }, "The plan is computed when you come here.");
    this.content = el("div", { class: "plan" });
    root.append(this.message, this.content);
    this.observer = new IntersectionObserver((entries) => {
      if (!entries.some((e) => e.isIntersecting)) return;
      this.observer.disconnect();
      this.seen = true;
      this.loadIfDue();
    }, { rootMargin: "200px" });
    this.observer.observe(root);
  }

  // The plan follows the number of workers.
  setJob(job) {
    this.job = job;
    this.loadIfDue();
  }

  loadIfDue() {
    if (!this.seen || !this.job || this.workers === this.job.workers) return;
    this.workers = this.job.workers;
    this.load(RETRIES);
  }

  async load(tries) {
    clearTimeout(this.timer);
    if (!this.plan) setText(this.message, "Computing the plan …");
    try {
      this.plan = await getJson(`${this.path}/plan`);
    } catch (e) {
      if (e.status === 429 && tries && !this.closed) this.timer = setTimeout(() => this.load(tries - 1), RETRY_MS);
      else setText(this.message, e.message);
      return;
    }
    if (!this.closed) this.show();
  }

  show() {
    const p = this.plan, facts = FACTS.map(([k, f]) => [k, f(p)]).filter(([, v]) => v);
    this.message.hidden = true;
    this.content.replaceChildren(
      el("dl", { class: "plan-facts" }, facts.map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, v)))),
      el("h3", {}, "Planned memory"), ...memoryOf(p),
      ...(p.forecast ? [el("h3", {}, "Forecast of a step"), this.timeline()] : []),
      el("h3", {}, "A step, explained"), this.explain());
  }

  timeline() {
    const src = `${this.path}/timeline.svg?workers=${this.workers}`; // another address after each change
    const error = el("p", { class: "muted", hidden: true }, "The picture could not be made. ");
    const picture = el("img", { src, alt: `Timeline of a step: what each rank computes and sends, in ${
      duration(this.plan.forecast.seconds)}`, onerror: () => { error.hidden = false; picture.hidden = true; } });
    error.append(el("button", { type: "button", onclick: () => {
      error.hidden = true;
      picture.hidden = false;
      picture.src = `${src}&again=${Date.now()}`;
    } }, "Try again"));
    return el("div", {},
      el("div", { class: "scroll picture", tabindex: 0, role: "region", "aria-label": "Timeline of a step" }, picture), error,
      el("p", { class: "muted" }, el("a", { href: src, target: "_blank", rel: "noopener" }, "Open the timeline alone"), " · ",
        el("a", { href: src, download: `timeline-job${this.id}.svg` }, "Download as SVG")));
  }

  explain() {
    const link = this.plan.workers <= PICTURE_MAX_RANKS
      ? el("a", { class: "button main", href: `${this.path}/explain`, target: "_blank", rel: "noopener" }, "Explain this job's step")
      : el("span", { class: "muted" }, `An animation has room for ${PICTURE_MAX_RANKS} workers; this job has ${plural(this.plan.workers, "worker")}.`);
    const box = el("div", { class: "tools" }, link);
    this.addLayouts(box);
    return box;
  }

  async addLayouts(box) {
    let layouts;
    try {
      layouts = await getJson("/api/layouts");
    } catch {
      return; // the job's own page does not need them
    }
    const about = el("span", { class: "muted layout-about" });
    const open = el("a", { class: "button", target: "_blank", rel: "noopener" }, "Open");
    const choose = el("select", { id: "layout", onchange: () => set() },
      layouts.map((l) => el("option", { value: l.name }, printable(l.name))));
    const set = () => {
      open.href = `/api/layouts?layout=${encodeURIComponent(choose.value)}`;
      setText(about, layouts.find((l) => l.name === choose.value)?.about ?? "");
    };
    set();
    box.append(el("label", { for: "layout" }, "or a ready-made layout"), choose, open, about);
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.observer.disconnect();
  }
}
