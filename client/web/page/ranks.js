// The table of ranks: where each runs, in which state, and what it used in the last window.

import { badgeOf, el, foreign, printable, setHidden, setText } from "./dom.js";
import { bytes, plural, real, time, whole } from "./format.js";
import { FIELDS } from "./usage.js";

const OWN_BYTES = 256 * 2 ** 20; // of a process, which no plan counts: code, libraries, buffers of the driver
const PAGE = 128; // rows at first; the browser lays out thousands of rows slowly

const finite = (v) => typeof v === "number" && Number.isFinite(v);

const exitOf = (w) => (w.exit_signal !== undefined ? `signal ${w.exit_signal}`
  : w.exit_status !== undefined ? `status ${w.exit_status}` : "");

// Memory of the device that computes, beside what the plan has computed for it.
const usedOf = (r) => (finite(r.gpu_bytes) ? r.gpu_bytes : r.rss_bytes);

// `by`: the value to sort by; `wide`: a cell of its own kind. Columns of fields appear with their first value.
const COLUMNS = [
  { key: "rank", label: "Rank", by: (r) => r.rank, cell: (r) => whole(r.rank) },
  { key: "note", label: "Straggler", by: (r) => -(r.straggler?.ratio ?? 0), cell: (r) => stragglerMark(r.straggler),
    shown: (t) => t.stragglers.length > 0 },
  { key: "node", label: "Node", by: (r) => r.node ?? "", cell: (r) => foreign(r.node ?? "") },
  { key: "state", label: "State", by: (r) => r.state ?? "", cell: (r) => (r.state ? badgeOf(r.state) : "") },
  ...FIELDS.map((f) => ({ key: f.key, label: f.short, title: f.name, by: (r) => r[f.key] ?? -1,
    cell: (r) => (finite(r[f.key]) ? f.text(r[f.key]) : "–"), shown: (t) => t.has(f.key) && (f.key !== "rss_bytes" || t.has("gpu_bytes")),
    hidden: f.key === "gpu_bytes" })),
  { key: "memory", label: "Memory used / planned", by: (r) => usedOf(r) ?? -1, cell: (r, t) => memoryBar(r, t),
    shown: (t) => t.has("rss_bytes") || t.has("gpu_bytes") },
  { key: "pid", label: "Process", by: (r) => r.pid ?? 0, cell: (r) => String(r.pid || "–") },
  { key: "exit", label: "Exit", by: exitOf, cell: exitOf, shown: (t) => t.rows.some((r) => exitOf(r)) },
];

function stragglerMark(s) {
  if (!s) return "";
  return el("span", { class: "straggler", title: printable(s.text ?? "") },
    `▲ ${real(s.ratio, 3)} ×${s.since_ms ? ` since ${time(s.since_ms)}` : ""}`);
}

// The bar of what is used, with a line at what was planned. All bars have the same scale.
function memoryBar(r, table) {
  const used = usedOf(r), planned = r.planned_bytes;
  if (!finite(used)) return "–";
  const over = finite(planned) && used > planned + OWN_BYTES;
  const text = finite(planned) ? `${bytes(used)} of ${bytes(planned)}` : bytes(used);
  const bar = el("span", { class: `memory-bar${over ? " over" : ""}`, "aria-hidden": "true" },
    el("span", { class: "memory-used" }), finite(planned) ? el("span", { class: "memory-planned" }) : null);
  const share = (v) => `${Math.min(100, (100 * v) / table.mostMemory)}%`;
  bar.firstChild.style.width = share(used);
  if (finite(planned)) bar.lastChild.style.left = share(planned);
  return el("span", { class: "memory" }, bar, el("span", { class: "nowrap" }, text));
}

export class Ranks {
  constructor(root) {
    Object.assign(this, { rows: [], workers: [], sample: null, stragglers: [], sort: null, descending: false, most: PAGE });
    this.summary = el("span", { class: "muted", role: "status" });
    this.filter = el("input", { type: "search", id: "rank-filter", placeholder: "Rank, node, state",
      oninput: () => this.render() });
    this.only = el("input", { type: "checkbox", onchange: () => this.render() });
    this.onlyBox = el("label", { class: "choice", hidden: true }, this.only, "stragglers only");
    this.list = el("ul", { class: "stragglers", hidden: true });
    this.head = el("tr");
    this.body = el("tbody");
    this.table = el("table", { class: "ranks" }, el("caption", { class: "unseen" }, "Ranks"),
      el("thead", {}, this.head), this.body);
    this.more = el("button", { type: "button", hidden: true, onclick: () => { this.most *= 2; this.render(); } });
    this.tools = el("div", { class: "tools" }, this.summary, el("span", { class: "fill" }), this.onlyBox,
      el("label", { for: "rank-filter" }, "Filter"), this.filter);
    this.box = el("div", { class: "card flush scroll tall", tabindex: 0, role: "region", "aria-label": "Table of ranks" },
      this.table);
    root.replaceChildren(this.tools, this.list, this.box, this.more);
  }

  has(key) {
    return Boolean(this.sample?.[key]?.some(finite));
  }

  setWorkers(workers) {
    this.workers = workers;
    this.changed();
  }

  setSample(sample) {
    this.sample = sample;
    this.changed();
  }

  setStragglers(list) {
    this.stragglers = list;
    setHidden(this.list, !list.length);
    this.list.replaceChildren(...list.map((s) => el("li", {}, el("span", { class: "straggler", "aria-hidden": "true" }, "▲ "),
      printable(s.text || `rank ${s.rank} on node ${s.node} computes ${real(s.ratio, 3)} times as long as the median`))));
    this.changed();
  }

  // Workers, usage and stragglers arrive one after another; one rendering serves all of them.
  changed() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.render());
  }

  merge() {
    const rows = new Map(), rowOf = (rank) => {
      if (!rows.has(rank)) rows.set(rank, { rank });
      return rows.get(rank);
    };
    for (const w of this.workers) Object.assign(rowOf(w.rank), w);
    const s = this.sample;
    for (const key of s ? [...FIELDS.map((f) => f.key), "planned_bytes"] : []) {
      s[key]?.forEach((v, rank) => { if (finite(v)) rowOf(rank)[key] = v; });
    }
    s?.node?.forEach((node, rank) => { rowOf(rank).node ||= node; });
    for (const x of this.stragglers) if (rows.has(x.rank)) rows.get(x.rank).straggler = x;
    this.rows = [...rows.values()].sort((a, b) => a.rank - b.rank);
    this.mostMemory = Math.max(1, ...this.rows.map((r) => Math.max(usedOf(r) ?? 0, r.planned_bytes ?? 0)));
  }

  shownRows() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const textOf = (r) => `rank ${r.rank} ${r.node ?? ""} ${r.state ?? ""} ${exitOf(r)}`.toLowerCase();
    // A number alone is a rank: "1" does not mean each rank with a 1 in it.
    const fits = (r, w) => (/^\d+$/.test(w) ? r.rank === Number(w) : textOf(r).includes(w));
    const rows = this.rows.filter((r) => (!this.only.checked || r.straggler) && words.every((w) => fits(r, w)));
    if (!this.sort) return rows;
    const { by } = this.sort, sign = this.descending ? -1 : 1;
    const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b);
    return rows.sort((a, b) => sign * compare(by(a), by(b)) || a.rank - b.rank);
  }

  render() {
    this.merge();
    const columns = COLUMNS.filter((c) => !c.hidden && (!c.shown || c.shown(this)));
    const rows = this.shownRows(), shown = rows.slice(0, this.most);
    this.renderHead(columns);
    this.body.replaceChildren(...shown.map((r) => el("tr", {}, columns.map((c) => el("td", { class: `col-${c.key}` },
      c.cell(r, this))))));
    setHidden(this.onlyBox, !this.stragglers.length && !this.only.checked);
    setHidden(this.more, rows.length <= this.most);
    setText(this.more, `Show ${whole(Math.min(this.most, rows.length - this.most))} more`);
    setHidden(this.box, !this.rows.length);
    setText(this.summary, this.summaryText(rows.length));
  }

  summaryText(shown) {
    const states = new Map();
    for (const w of this.workers) states.set(w.state, (states.get(w.state) ?? 0) + 1);
    if (!this.rows.length) return "The job has no workers now.";
    const all = [...states].map(([s, n]) => `${whole(n)} ${s}`).join(", ") || plural(this.rows.length, "rank");
    return shown === this.rows.length ? all : `${all}; ${whole(shown)} shown`;
  }

  // The head stays while its columns do: the focus is on one of its buttons.
  renderHead(columns) {
    const text = columns.map((c) => c.key).join();
    if (text !== this.headText) {
      this.headText = text;
      this.head.replaceChildren(...columns.map((c) => el("th", { scope: "col", title: c.title, data: { key: c.key } },
        el("button", { type: "button", class: "sort", onclick: () => this.sortBy(c) }, c.label))));
    }
    for (const th of this.head.children) {
      if (th.dataset.key === this.sort?.key) th.setAttribute("aria-sort", this.descending ? "descending" : "ascending");
      else th.removeAttribute("aria-sort");
    }
  }

  // Numbers of use begin with the largest; a third press returns to the order of ranks.
  sortBy(c) {
    const first = FIELDS.some((f) => f.key === c.key) || c.key === "memory";
    if (this.sort?.key !== c.key) Object.assign(this, { sort: c, descending: first });
    else if (this.descending === first) this.descending = !first;
    else this.sort = null;
    this.render();
  }

  close() {
    cancelAnimationFrame(this.frame);
  }
}
