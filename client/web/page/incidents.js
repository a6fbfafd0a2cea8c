// The incidents of a job: where they lie in its time, how long each part of a recovery took, and the evidence.

import { el, foreign, printable } from "./dom.js";
import { date, duration, now, plural, time } from "./format.js";

// The parts of a recovery in their order, with the parts of each of them.
const PHASES = [
  { key: "detect_ms", name: "detection", parts: [] },
  { key: "restart_ms", name: "restart",
    parts: [["slots_ms", "wait for slots"], ["connect_ms", "processes start"], ["scan_ms", "scan of the checkpoints"],
      ["log_ms", "record of the epoch"]] },
  { key: "load_ms", name: "loading",
    parts: [["data_ms", "job file, data, device"], ["plan_ms", "program"], ["join_ms", "joining of the ranks"],
      ["memory_ms", "memory"], ["state_ms", "state"]] },
  { key: "step_ms", name: "first step", parts: [] },
];

const ms = (v) => duration(v / 1000);
const total = (i) => PHASES.reduce((sum, p) => sum + (i[p.key] ?? 0), 0);

function barOf(incident, longest) {
  const bar = el("div", { class: "phases", role: "img",
    "aria-label": PHASES.filter((p) => incident[p.key] !== undefined).map((p) => `${p.name} ${ms(incident[p.key])}`).join(", ") });
  PHASES.forEach((p, n) => {
    const v = incident[p.key];
    if (!(v > 0)) return;
    const piece = el("span", { class: `phase-${n}`, title: `${p.name} ${ms(v)}` });
    piece.style.flexGrow = String(v);
    bar.append(piece);
  });
  bar.style.width = `${Math.max(2, (100 * total(incident)) / (longest || 1))}%`;
  return bar;
}

function legendOf(incident) {
  return el("ul", { class: "legend" }, PHASES.map((p, n) => (incident[p.key] === undefined ? null
    : el("li", {}, el("span", { class: `key phase-${n}` }), `${p.name} ${ms(incident[p.key])}`))));
}

function partsOf(incident) {
  const rows = PHASES.flatMap((p) => [[p.key, p.name, false], ...p.parts.map(([k, name]) => [k, name, true])])
    .filter(([k]) => incident[k] !== undefined);
  if (!rows.length) return null;
  return el("details", {}, el("summary", {}, "All durations"), el("table", { class: "durations" },
    el("tbody", {}, rows.map(([k, name, inner]) => el("tr", {}, el("th", { scope: "row", class: inner ? "inner" : null }, name),
      el("td", {}, ms(incident[k])))))));
}

function evidenceOf(incident) {
  return [["error", "Error"], ["log", "Last log lines"]].filter(([k]) => incident[k]).map(([k, name]) =>
    el("details", { open: k === "error" }, el("summary", {}, name), el("pre", { tabindex: 0 }, printable(incident[k]).trimEnd())));
}

function cardOf(incident, title, longest) {
  const recovered = incident.recover_ms;
  return el("article", { class: "incident" },
    el("h3", {}, title, el("time", { class: "muted" }, date(incident.wall_ms))),
    el("p", {}, foreign(incident.seen), incident.decided ? [" → ", foreign(incident.decided)] : null),
    total(incident) ? [barOf(incident, longest), legendOf(incident)] : null,
    el("p", { class: "muted" }, [
      recovered === undefined ? null : `First step after ${ms(recovered)}`,
      incident.lost_steps === undefined ? null : `${plural(incident.lost_steps, "step")} repeated`,
    ].filter(Boolean).join(" · ")),
    partsOf(incident), evidenceOf(incident));
}

// The job's time from its start to its end or now, with a mark for each incident; a click zooms the charts to it.
function stripOf(job, incidents, zoomTo) {
  const from = job.started_ms ?? job.submitted_ms, to = Math.max(job.ended_ms ?? now(), from + 1);
  const share = (wall) => `${Math.max(0, Math.min(100, (100 * (wall - from)) / (to - from)))}%`;
  const strip = el("div", { class: "strip" });
  incidents.forEach((i, n) => {
    const mark = el("button", { type: "button", class: "mark", title: `${time(i.wall_ms)}: ${printable(i.seen)}`,
      "aria-label": `Incident ${n + 1}, ${date(i.wall_ms)}: zoom the charts to it`, onclick: () => zoomTo(i) });
    mark.style.left = share(i.wall_ms);
    mark.style.width = `max(10px, ${(100 * total(i)) / (to - from)}%)`;
    strip.append(mark);
  });
  return el("div", {}, strip, el("div", { class: "ends muted" }, el("span", {}, date(from)),
    el("span", {}, job.ended_ms ? date(to) : "now")));
}

export class Incidents {
  constructor(root, zoomTo) {
    Object.assign(this, { root, zoomTo, shown: "" });
  }

  // Cards are built again only when something changed, so that opened details stay open.
  set(job) {
    const incidents = job.incident ?? [];
    const text = JSON.stringify([incidents, job.start, job.ended_ms]);
    if (text === this.shown) return;
    this.shown = text;
    const longest = Math.max(...[...incidents, job.start ?? {}].map(total));
    const newest = incidents.map((x, i) => cardOf(x, `Incident ${i + 1}, epoch ${x.epoch}`, longest)).reverse();
    this.root.replaceChildren(
      incidents.length ? stripOf(job, incidents, this.zoomTo) : el("p", { class: "muted" }, "No incident: no worker failed and no epoch ended early."),
      ...newest,
      job.start ? cardOf(job.start, "First start", longest) : "");
  }
}
