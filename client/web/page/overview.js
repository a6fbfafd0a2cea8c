// The overview: nodes and jobs. Rows are kept and their texts updated, so that a selection, the focus and the scroll
// position survive the changes, which arrive at every step of every job.

import { badgeOf, el, foreign, printable, setHidden, setText, speak, stateBadge, stateSign, tableOf } from "./dom.js";
import { age, bytes, date, duration, loss, percent, plural, real, setServerTime, short, whole } from "./format.js";

const LIVE = ["starting", "running", "recovering", "stopping", "loading"];
const PAGE = 200; // rows at first; the browser lays out thousands of rows slowly
const MAX_COMPARED = 8;
const SMOOTH = 0.1; // weight of the newest step time: the mean covers about ten steps

export const jobLink = (id, rest) => `#/job/${encodeURIComponent(id)}${rest ? `/${rest}` : ""}`;

const COLUMNS = [
  { key: "pick", label: "" },
  { key: "state", label: "State", by: (j) => j.state },
  { key: "job", label: "Job", by: (j) => j.name },
  { key: "user", label: "User", by: (j) => j.user ?? "" },
  { key: "progress", label: "Progress", by: (j) => (j.steps ? j.step / j.steps : 0) },
  { key: "eta", label: "Time left", by: (j, o) => o.etaOf(j) ?? Infinity },
  { key: "loss", label: "Loss", by: (j) => j.last?.loss ?? Infinity },
  { key: "speed", label: "Tokens/s", by: (j) => -(j.last?.tokens_per_s ?? 0) },
  { key: "age", label: "Submitted", by: (j) => -j.submitted_ms },
  { key: "reason", label: "Reason" },
];

// Jobs that run come first, then those that wait, then the others; newer ones first in each part.
function rank(job) {
  if (LIVE.includes(job.state)) return 0;
  return job.state === "pending" ? 1 : 2;
}

const usual = (a, b) => rank(a) - rank(b) || b.submitted_ms - a.submitted_ms;

class JobRow {
  constructor(job, overview) {
    this.badge = stateBadge();
    this.pick = el("input", { type: "checkbox", onchange: () => overview.picked(job.job, this.pick.checked) });
    this.name = foreign("", { class: "name" });
    this.number = el("span", { class: "muted" });
    this.bar = el("progress", { max: 1 });
    this.steps = el("span", { class: "nowrap steps" });
    this.cells = {
      pick: el("label", { class: "hit" }, this.pick),
      state: this.badge.element,
      job: el("a", { href: jobLink(job.job) }, this.name, " ", this.number),
      user: foreign(""),
      progress: el("div", { class: "progress" }, this.bar, this.steps),
      reason: foreign("", { class: "reason" }),
    };
    this.element = el("tr", {}, COLUMNS.map((c) => {
      this.cells[c.key] ??= el("span");
      return el("td", { class: `col-${c.key}`, data: { label: c.label } }, this.cells[c.key]);
    }));
  }

  set(job, overview) {
    const name = printable(job.name);
    this.badge.set(job.state);
    setText(this.name, name);
    setText(this.number, `#${job.job}`);
    this.pick.setAttribute("aria-label", `Choose job ${job.job}, ${name}`);
    this.pick.checked = overview.chosen.has(job.job);
    setText(this.cells.user, printable(job.user ?? ""));
    setHidden(this.cells.progress, !job.steps);
    this.bar.value = job.steps ? job.step / job.steps : 0;
    this.bar.setAttribute("aria-label", `Progress of ${name}`);
    setText(this.steps, `${whole(job.step)} / ${whole(job.steps)}`);
    const eta = overview.etaOf(job);
    setText(this.cells.eta, eta === undefined ? "" : duration(eta));
    setText(this.cells.loss, job.last ? loss(job.last.loss) : "");
    setText(this.cells.speed, job.last && LIVE.includes(job.state) ? short(job.last.tokens_per_s) : "");
    setText(this.cells.reason, printable(job.reason ?? ""));
    this.cells.age.title = date(job.submitted_ms);
    this.setAge(job);
    // On a phone, empty cells would be lines with a label and nothing behind it.
    for (const [key, cell] of Object.entries(this.cells)) {
      cell.parentElement.classList.toggle("none", key !== "pick" && (cell.hidden || cell.textContent === ""));
    }
  }

  setAge(job) {
    setText(this.cells.age, `${age(job.submitted_ms)} ago`);
  }
}

class Overview {
  constructor(root, context) {
    Object.assign(this, { root, context, rows: new Map(), chosen: new Set(), states: new Map(), speeds: new Map(), cards: new Map() });
    this.sort = null;
    this.descending = false;
    this.most = PAGE;
    this.build();
    this.stream = new context.Stream("/api/events", {
      overview: (data) => this.received(data),
      lost: (data) => context.trouble("daemon", data.error),
    }, { broken: (text) => context.trouble("connection", text) });
    this.clock = setInterval(() => this.tick(), 10000);
    context.title("dtd");
  }

  build() {
    this.filter = el("input", { type: "search", id: "filter", placeholder: "Name, user, state, reason",
      oninput: () => this.render() });
    this.compare = el("button", { type: "button", class: "main", disabled: true, onclick: () => this.goCompare() },
      "Compare");
    this.count = el("span", { class: "muted", role: "status" });
    this.nodes = el("div", { class: "nodes" });
    this.note = el("p", { class: "muted" });
    this.body = el("tbody");
    this.more = el("button", { type: "button", hidden: true, onclick: () => { this.most *= 2; this.render(); } });
    this.none = el("p", { class: "muted empty-list", hidden: true });
    this.table = el("table", { class: "jobs cards" }, el("caption", { class: "unseen" }, "Jobs"),
      el("thead", {}, el("tr", {}, COLUMNS.map((c) => this.headOf(c)))), this.body);
    this.root.replaceChildren(
      el("h1", { class: "unseen" }, "Overview"),
      el("section", { "aria-labelledby": "nodes-title" }, el("h2", { id: "nodes-title" }, "Nodes"), this.nodes,
        this.note),
      el("section", { "aria-labelledby": "jobs-title" },
        el("div", { class: "tools" }, el("h2", { id: "jobs-title" }, "Jobs"), this.count, el("span", { class: "fill" }),
          el("label", { for: "filter" }, "Filter"), this.filter, this.compare),
        el("div", { class: "card flush" }, this.table, this.none), this.more));
  }

  headOf(c) {
    c = { ...c };
    if (!c.label) return el("th", { scope: "col", class: "col-pick" }, el("span", { class: "unseen" }, "Choose"));
    if (!c.by) return el("th", { scope: "col", class: `col-${c.key}` }, c.label);
    const head = el("th", { scope: "col", class: `col-${c.key}` },
      el("button", { type: "button", class: "sort", onclick: () => this.sortBy(c, head) }, c.label));
    return head;
  }

  // First click: rising; second: falling; third: the usual order.
  sortBy(c, head) {
    const again = this.sort?.key === c.key;
    for (const h of this.table.querySelectorAll("th")) h.removeAttribute("aria-sort");
    if (again && this.descending) {
      this.sort = null;
      this.descending = false;
    } else {
      this.descending = again;
      this.sort = c;
      head.setAttribute("aria-sort", this.descending ? "descending" : "ascending");
    }
    this.render();
  }

  received(data) {
    setServerTime(data.at);
    this.context.trouble("daemon", null);
    for (const job of data.jobs) {
      this.noteState(job);
      this.noteSpeed(job);
    }
    this.forget(new Set(data.jobs.map((j) => j.job)));
    this.data = data;
    this.renderNodes();
    this.render();
    const running = data.jobs.filter((j) => j.state === "running").length;
    const bad = data.jobs.filter((j) => j.state === "recovering").length;
    this.context.title(`${running ? `${stateSign("running")} ${running} running · ` : ""}${
      bad ? `${stateSign("recovering")} ${bad} recovering · ` : ""}dtd`);
  }

  // Jobs that were removed.
  forget(present) {
    for (const id of this.states.keys()) {
      if (present.has(id)) continue;
      for (const table of [this.states, this.speeds, this.rows]) table.delete(id);
      this.picked(id, false);
    }
  }

  noteState(job) {
    const before = this.states.get(job.job);
    if (this.data && before !== job.state) speak(`Job ${job.job}, ${printable(job.name)}: ${job.state}`);
    this.states.set(job.job, job.state);
  }

  noteSpeed(job) {
    const m = job.last, s = this.speeds.get(job.job);
    if (!m || !Number.isFinite(m.step_s)) return;
    if (!s || s.epoch !== m.epoch) this.speeds.set(job.job, { step: m.step, epoch: m.epoch, step_s: m.step_s });
    else if (s.step !== m.step) {
      s.step = m.step;
      s.step_s = (1 - SMOOTH) * s.step_s + SMOOTH * m.step_s;
    }
  }

  etaOf(job) {
    const s = this.speeds.get(job.job);
    if (job.state !== "running" || !s || !job.steps || job.step > job.steps) return undefined;
    return (job.steps - job.step) * s.step_s;
  }

  shownJobs() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const textOf = (j) => `${j.name} #${j.job} ${j.user ?? ""} ${j.state} ${j.reason ?? ""}`.toLowerCase();
    const jobs = this.data.jobs.filter((j) => {
      const text = words.length ? textOf(j) : "";
      return words.every((w) => text.includes(w));
    });
    jobs.sort(usual);
    if (!this.sort) return jobs;
    const by = this.sort.by, sign = this.descending ? -1 : 1;
    const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b || 0);
    return jobs.sort((a, b) => sign * compare(by(a, this), by(b, this)));
  }

  render() {
    if (!this.data) return;
    const jobs = this.shownJobs(), shown = jobs.slice(0, this.most), all = this.data.jobs;
    const elements = shown.map((job) => {
      if (!this.rows.has(job.job)) this.rows.set(job.job, new JobRow(job, this));
      const row = this.rows.get(job.job);
      row.job = job;
      row.set(job, this);
      return row.element;
    });
    this.arrange(elements);
    setText(this.count, jobs.length === all.length ? plural(all.length, "job") : `${jobs.length} of ${all.length} jobs`);
    setHidden(this.none, jobs.length > 0);
    setText(this.none, all.length ? "No job matches the filter." : "No jobs yet. In a terminal: dtctl submit FILE.yaml");
    setHidden(this.more, jobs.length <= this.most);
    setText(this.more, `Show ${whole(Math.min(this.most, jobs.length - this.most))} more`);
    const others = this.data.system || all.some((j) => j.user && j.user !== this.data.user);
    this.table.classList.toggle("one-user", !others);
  }

  // Moving an element ends its focus, so that only those rows move that are in the wrong place.
  arrange(elements) {
    const wanted = new Set(elements);
    for (const e of [...this.body.children]) if (!wanted.has(e)) e.remove();
    elements.forEach((e, i) => {
      if (this.body.children[i] !== e) this.body.insertBefore(e, this.body.children[i] ?? null);
    });
  }

  picked(id, on) {
    if (on) this.chosen.add(id);
    else this.chosen.delete(id);
    const n = this.chosen.size;
    this.compare.disabled = n < 2 || n > MAX_COMPARED;
    setText(this.compare, n ? `Compare ${n}` : "Compare");
    this.compare.title = n > MAX_COMPARED ? `At most ${MAX_COMPARED} jobs can be compared` : "";
  }

  goCompare() {
    location.hash = `#/compare/${[...this.chosen].map(encodeURIComponent).join(",")}`;
  }

  tick() {
    for (const e of this.body.children) {
      for (const row of this.rows.values()) if (row.element === e) row.setAge(row.job);
    }
  }

  renderNodes() {
    const { node, cluster } = this.data;
    const alone = !cluster?.node?.length;
    const nodes = alone ? [{ name: node?.node, state: "up", role: null }] : cluster.node;
    const cards = nodes.map((n) => {
      const card = this.cards.get(n.name) ?? new NodeCard();
      this.cards.set(n.name, card);
      card.set(n, alone || n.name === cluster.self ? node : null);
      return card.element;
    });
    const shown = [...this.nodes.children];
    if (cards.length !== shown.length || cards.some((c, at) => c !== shown[at])) this.nodes.replaceChildren(...cards);
    setText(this.note, printable(cluster?.note ?? ""));
  }

  close() {
    this.stream.close();
    clearInterval(this.clock);
  }
}

// ---- nodes ----

function gpuFact(node) {
  if (node.gpus === undefined) return "being probed";
  if (!node.gpus) return "none";
  return `${whole(node.gpus_free)} of ${whole(node.gpus)} free${node.gpu_model ? `, ${printable(node.gpu_model)}` : ""}`;
}

function coresFact(node) {
  return (node.numa_nodes ?? []).filter((n) => n.cores)
    .map((n) => `${n.cores}${n.gpus?.length ? ` (GPU ${n.gpus.join(", ")})` : ""}`).join(" · ");
}

function factsOf(n, node) {
  const facts = [];
  if (n.role) facts.push(["role", n.role]);
  if (n.domain) facts.push(["domain", printable(n.domain)]);
  if (node) {
    facts.push(["slots", whole(node.slots)]);
    if (coresFact(node)) facts.push(["cores", coresFact(node)]);
    facts.push(["GPUs", gpuFact(node)]);
  }
  if (n.silent_ms > 1000) facts.push(["last heartbeat", `${duration(n.silent_ms / 1000)} ago`]);
  if (n.version ?? node?.version) facts.push(["version", printable(n.version ?? node.version)]);
  return facts;
}

const finite = (v) => typeof v === "number" && Number.isFinite(v);

// A bar with its text; `bad`: from this share on it is a warning.
function meter(share, bad) {
  const bar = el("span", { class: `meter${share >= bad ? " full" : ""}`, "aria-hidden": "true" }, el("span"));
  bar.firstChild.style.width = `${Math.min(100, Math.max(0, 100 * share))}%`;
  return bar;
}

// One line for each kind of use: name, share of the bar (undefined: no bar), text.
function usesOf(load) {
  const uses = [];
  if (finite(load.cores_used)) {
    uses.push(["CPU", load.cores_used / load.cores, `${real(load.cores_used, 2)} of ${plural(load.cores, "core")}`]);
  } else if (load.cores) {
    uses.push(["CPU", undefined, plural(load.cores, "core")]);
  }
  if (finite(load.memory_used_bytes)) {
    uses.push(["memory", load.memory_used_bytes / load.memory_bytes,
      `${bytes(load.memory_used_bytes)} of ${bytes(load.memory_bytes)}`, 0.95]);
  }
  if (finite(load.load)) uses.push(["load", undefined, real(load.load, 2)]);
  if (finite(load.temperature_c)) uses.push(["hottest", undefined, `${whole(load.temperature_c)} °C`]);
  if (finite(load.received_bytes_per_s) && finite(load.sent_bytes_per_s)) {
    uses.push(["network", undefined, `in ${bytes(load.received_bytes_per_s)}/s · out ${bytes(load.sent_bytes_per_s)}/s`]);
  }
  return uses;
}

const GPU_COLUMNS = [
  ["GPU", (g) => whole(g.gpu)],
  ["Use", (g) => (finite(g.busy) ? percent(g.busy) : "–")],
  ["Memory", (g) => (finite(g.memory_used_bytes) ? `${bytes(g.memory_used_bytes)} of ${bytes(g.memory_bytes)}` : "–")],
  ["°C", (g) => (finite(g.temperature_c) ? `${whole(g.temperature_c)} °C` : "–")],
  ["Power", (g) => (finite(g.power_w) ? `${whole(g.power_w)}${finite(g.power_limit_w) ? ` of ${whole(g.power_limit_w)}` : ""} W` : "–")],
  ["Health", (g) => (g.sick ? el("span", { class: "straggler" }, "✕ ", foreign(g.sick)) : "good")],
];

// Columns without any number are left out.
function gpuTable(gpus) {
  const cells = gpus.map((g) => GPU_COLUMNS.map(([, f]) => f(g)));
  const used = GPU_COLUMNS.map((_, i) => cells.some((row) => row[i] !== "–"));
  const keep = (row) => row.filter((_, i) => used[i]);
  return tableOf("GPUs", keep(GPU_COLUMNS.map(([label]) => label)), cells.map(keep), { class: "gpus" });
}

function loadOf(load) {
  if (!load) return [];
  return [
    el("dl", { class: "uses" }, usesOf(load).map(([name, share, text, bad]) => el("div", {}, el("dt", {}, name),
      el("dd", {}, share === undefined ? null : meter(share, bad ?? 2), text)))),
    load.gpu?.length ? el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "GPUs" }, gpuTable(load.gpu)) : null,
  ];
}

function factPartsOf(n, node) {
  return [
    el("h3", {}, foreign(n.name), badgeOf(n.drained ? "drained" : n.state)),
    el("dl", {}, factsOf(n, node).map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, v)))),
  ];
}

function notesOf(n, node) {
  const alert = (text) => (text ? el("p", { class: "warning" }, foreign(text)) : null);
  const missing = node && !node.gpus && node.gpu_missing;
  return [
    n.drained ? alert(`Drained: ${n.drained}`) : null,
    alert(node?.warning),
    missing ? el("details", {}, el("summary", {}, "Why there is no GPU"), foreign(node.gpu_missing)) : null,
  ];
}

// The load changes every few seconds, the rest rarely: an open list of details stays open.
class NodeCard {
  constructor() {
    this.facts = el("div", { class: "parts" });
    this.load = el("div", { class: "parts" });
    this.notes = el("div", { class: "parts" });
    this.element = el("article", { class: "card node" }, this.facts, this.load, this.notes);
  }

  set(n, node) {
    const load = n.load ?? node?.load;
    const rest = [{ ...n, load: 0, log_index: 0 }, { ...node, load: 0, raft_index: 0 }];
    this.fill("facts", rest, () => factPartsOf(n, node));
    this.fill("notes", [n.drained, node?.warning, node?.gpu_missing], () => notesOf(n, node));
    this.fill("load", load, () => loadOf(load));
  }

  fill(part, value, build) {
    const text = JSON.stringify(value ?? null);
    if (this[`${part}Text`] === text) return;
    this[`${part}Text`] = text;
    this[part].replaceChildren(...build().filter(Boolean));
  }
}

export function openOverview(root, _, context) {
  const overview = new Overview(root, context);
  return { close: () => overview.close() };
}
