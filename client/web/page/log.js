// The log viewer: the last lines of one rank or of all as they are written, with search and levels. It follows the end
// while the reader is at the end.

import { el, printable, setHidden, setText } from "./dom.js";
import { plural, whole } from "./format.js";

const RETRY_MS = 10000; // a job that waits has no log for a while
const COUNTS = [200, 1000, 5000];

// A word that reports an error; not an ended epoch, which a recovery reports in every healthy worker.
const ERROR = /\b(error|fatal|panic|traceback|exception|segmentation fault|out of memory|assertion|abort(?:ed)?)\b(?!=(?:OK|ERR_CANCELED)\b)/i;
const HARMLESS = /\b(?:0|no) errors?\b/i;

// A progress bar rewrites its line with carriage returns: the last version is what a terminal would show.
export function plainLine(line) {
  const text = line.replace(/\r+$/, "");
  return printable(text.slice(text.lastIndexOf("\r") + 1));
}

export const isError = (line) => ERROR.test(line) && !HARMLESS.test(line);

const WARNING = /\b(warn|warning)\b/i;

const LEVELS = [["all", 0], ["warnings and errors", 1], ["errors", 2]];

export function levelOf(line) {
  if (isError(line)) return 2;
  return WARNING.test(line) ? 1 : 0;
}

// Lines of a text that arrives in pieces. A piece may end within a line, which the next piece of that rank continues.
export class Lines {
  constructor(most) {
    Object.assign(this, { most, list: [], open: new Map() });
  }

  // Returns the lines that are new or have changed, and how many left at the front.
  add(pieces) {
    const changed = new Set();
    for (const [rank, text] of pieces) this.addPiece(rank, text, changed);
    const gone = Math.max(0, this.list.length - this.most);
    for (const line of this.list.splice(0, gone)) {
      line.gone = true;
      changed.delete(line);
      if (this.open.get(line.rank) === line) this.open.delete(line.rank);
    }
    return { changed: [...changed], gone };
  }

  addPiece(rank, text, changed) {
    const parts = text.split("\n"), rest = parts.pop();
    for (const part of parts) {
      changed.add(this.extend(rank, part));
      this.open.delete(rank);
    }
    if (!rest) return;
    const line = this.extend(rank, rest);
    changed.add(line);
    this.open.set(rank, line);
  }

  extend(rank, text) {
    let line = this.open.get(rank);
    if (!line) {
      line = { rank, raw: "" };
      this.list.push(line);
    }
    line.raw += text;
    line.text = plainLine(line.raw);
    line.level = levelOf(line.text);
    return line;
  }
}

export class Log {
  constructor(root, job, Stream) {
    Object.assign(this, { job, Stream, rank: -1, count: COUNTS[1], level: 0, found: [], at: -1, follow: true });
    this.lines = new Lines(this.count);
    this.build(root);
    this.connect();
  }

  build(root) {
    const set = (key, convert) => (e) => {
      this[key] = convert(e.target.value);
      this.connect();
    };
    this.ranks = el("select", { id: "log-rank", onchange: set("rank", Number) }, el("option", { value: -1 }, "all"));
    this.counts = el("select", { id: "log-lines", onchange: set("count", Number) },
      COUNTS.map((n) => el("option", { value: n, selected: n === this.count }, whole(n))));
    this.levels = el("select", { id: "log-level", onchange: () => this.setLevel(Number(this.levels.value)) },
      LEVELS.map(([name, level]) => el("option", { value: level }, name)));
    this.search = el("input", { type: "search", id: "log-search", oninput: () => this.find(), onkeydown: (e) => {
      if (e.key !== "Enter") return;
      e.preventDefault();
      this.go(e.shiftKey ? -1 : 1);
    } });
    this.result = el("span", { class: "muted", role: "status" });
    this.error = el("button", { type: "button", hidden: true, onclick: () => this.showError() }, "First error");
    this.end = el("button", { type: "button", hidden: true, onclick: () => this.toEnd() }, "To the end");
    this.download = el("a", { download: `job${this.job}.log` }, "Download");
    this.problem = el("p", { class: "error", hidden: true });
    this.box = el("div", { class: "log", tabindex: 0, role: "log", "aria-label": "Lines of the log", "aria-live": "off",
      onscroll: () => this.scrolled() });
    this.empty = el("p", { class: "muted" }, "No line yet.");
    const step = (text, label, by) => el("button", { type: "button", "aria-label": label, onclick: () => this.go(by) }, text);
    root.replaceChildren(el("div", { class: "tools" },
      el("label", { for: "log-rank" }, "Rank"), this.ranks, el("label", { for: "log-lines" }, "Last lines"), this.counts,
      el("label", { for: "log-level" }, "Level"), this.levels,
      el("label", { for: "log-search" }, "Search"), this.search, step("↑", "Previous match", -1),
      step("↓", "Next match", 1), this.result, el("span", { class: "fill" }), this.error, this.end, this.download),
    this.problem, this.empty, this.box);
  }

  setRanks(n) {
    if (this.ranks.options.length === n + 1) return;
    const options = Array.from({ length: n }, (_, r) => el("option", { value: r }, String(r)));
    this.ranks.replaceChildren(el("option", { value: -1 }, "all"), ...options);
    this.ranks.value = String(this.rank < n ? this.rank : -1);
  }

  // ---- data ----

  connect() {
    clearTimeout(this.timer);
    this.stream?.close();
    this.clear();
    const path = `/api/jobs/${encodeURIComponent(this.job)}/log`;
    this.download.href = `${path}?rank=${this.rank}&lines=20000`;
    this.stream = new this.Stream(`${path}/events?rank=${this.rank}&lines=${this.count}`, {
      begin: () => this.clear(),
      log: (pieces) => this.add(pieces),
      lost: ({ error }) => this.lost(error),
      end: () => this.stream.close(),
    }, { opened: () => setHidden(this.problem, true) });
  }

  // A job that waits has no log for a while.
  lost(error) {
    setHidden(this.problem, false);
    setText(this.problem, error);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.connect(), RETRY_MS);
  }

  clear() {
    this.lines = new Lines(this.count);
    this.box.replaceChildren();
    this.found = [];
    this.firstError = null;
    setHidden(this.empty, false);
    setHidden(this.error, true);
  }

  add(pieces) {
    const { changed, gone } = this.lines.add(pieces);
    const height = this.box.scrollHeight, top = this.box.scrollTop, fresh = document.createDocumentFragment();
    for (let i = 0; i < gone; i++) this.box.firstChild?.remove();
    if (!this.follow && gone) this.box.scrollTop = top - (height - this.box.scrollHeight);
    for (const line of changed) {
      if (!line.element) fresh.append((line.element = el("div")));
      this.render(line);
    }
    this.box.append(fresh);
    setHidden(this.empty, this.lines.list.length > 0);
    this.markError();
    this.find(true, changed);
    if (this.follow) this.toEnd();
  }

  textOf(line) {
    return this.rank < 0 ? `[${line.rank}] ${line.text}` : line.text;
  }

  render(line) {
    line.element.textContent = this.textOf(line) || "\u200b";
    line.element.className = ["", "is-warning", "is-error"][line.level];
    line.element.hidden = line.level < this.level;
  }

  setLevel(level) {
    this.level = level;
    for (const line of this.lines.list) line.element.hidden = line.level < level;
    this.find();
    if (this.follow) this.toEnd();
  }

  markError() {
    const first = this.lines.list.find((line) => line.level === 2);
    if (first !== this.firstError) this.firstError?.element?.classList.remove("first-error");
    this.firstError = first;
    setHidden(this.error, !first);
    first?.element.classList.add("first-error");
  }

  showError() {
    this.reveal(this.firstError?.element);
  }

  // Scrolls the box only; scrollIntoView would move the page as well.
  reveal(e) {
    if (!e) return;
    this.box.scrollTop = e.offsetTop - this.box.clientHeight / 3;
    this.scrolled();
  }

  scrolled() {
    this.follow = this.box.scrollTop + this.box.clientHeight >= this.box.scrollHeight - 24;
    setHidden(this.end, this.follow);
  }

  toEnd() {
    this.box.scrollTop = this.box.scrollHeight;
    this.follow = true;
    setHidden(this.end, true);
  }

  // ---- search ----

  // With `changed`, only these lines are new: the others keep their marks.
  find(quiet = false, changed = null) {
    const word = this.search.value.toLowerCase(), fits = (l) => l.level >= this.level && this.textOf(l).toLowerCase().includes(word);
    if (!changed) {
      for (const line of this.found) if (!line.gone) this.render(line);
      this.markError();
    }
    const kept = changed ? this.found.filter((l) => !l.gone && !changed.includes(l)) : [];
    const fresh = word ? (changed ?? this.lines.list).filter(fits) : [];
    const current = this.found[this.at];
    this.found = [...kept, ...fresh];
    for (const line of fresh) highlight(line.element, this.textOf(line), word);
    this.at = quiet ? this.found.indexOf(current) : -1;
    if (!quiet && this.found.length) this.go(-1);
    else this.showResult(word);
  }

  go(by) {
    const n = this.found.length;
    if (!n) return;
    this.box.querySelector(".current")?.classList.remove("current");
    this.at = this.at < 0 ? (by < 0 ? n - 1 : 0) : (this.at + by + n) % n;
    const e = this.found[this.at].element;
    e.classList.add("current");
    this.reveal(e);
    this.showResult(this.search.value);
  }

  showResult(word) {
    const n = this.found.length;
    const at = this.at >= 0 ? `${whole(this.at + 1)} of ${whole(n)}` : plural(n, "line");
    setText(this.result, !word ? "" : n ? at : "not found");
  }

  close() {
    clearTimeout(this.timer);
    this.stream.close();
  }
}

function highlight(e, line, word) {
  const low = line.toLowerCase(), parts = [];
  let from = 0;
  // Some characters change their length in lower case; the places would then be wrong, and the line stays plain.
  if (low.length !== line.length) return;
  for (let i = low.indexOf(word); i >= 0; i = low.indexOf(word, from)) {
    parts.push(line.slice(from, i), el("mark", {}, line.slice(i, i + word.length)));
    from = i + word.length;
  }
  e.replaceChildren(...parts, line.slice(from));
}
