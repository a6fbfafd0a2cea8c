// The log viewer: the last lines of one rank or of all, with search. It follows the end while the reader is at the end.

import { getText } from "./api.js";
import { el, printable, setHidden, setText } from "./dom.js";
import { plural, whole } from "./format.js";

const POLL_MS = 2000;
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

// How many of the old lines the new ones have lost at their beginning; -1: they are not a continuation. The last old
// line may have grown, so that it is not compared.
export function shiftOf(old, fresh) {
  const n = old.length - 1;
  for (let shift = 0; shift < n; shift++) {
    if (old[shift] !== fresh[0]) continue;
    let same = 0;
    while (shift + same < n && old[shift + same] === fresh[same]) same++;
    if (shift + same === n) return shift;
  }
  return -1;
}

export class Log {
  constructor(root, job) {
    Object.assign(this, { job, lines: [], rank: -1, count: COUNTS[1], found: [], at: -1, follow: true, ended: false });
    this.build(root);
    this.load();
  }

  build(root) {
    const set = (key, convert) => (e) => {
      this[key] = convert(e.target.value);
      this.clear();
      this.load();
    };
    this.ranks = el("select", { id: "log-rank", onchange: set("rank", Number) }, el("option", { value: -1 }, "all"));
    this.counts = el("select", { id: "log-lines", onchange: set("count", Number) },
      COUNTS.map((n) => el("option", { value: n, selected: n === this.count }, whole(n))));
    this.search = el("input", { type: "search", id: "log-search", oninput: () => this.find(), onkeydown: (e) => {
      if (e.key !== "Enter") return;
      e.preventDefault();
      this.go(e.shiftKey ? -1 : 1);
    } });
    this.result = el("span", { class: "muted", role: "status" });
    this.error = el("button", { type: "button", hidden: true, onclick: () => this.showError() }, "First error");
    this.end = el("button", { type: "button", hidden: true, onclick: () => this.toEnd() }, "To the end");
    this.problem = el("p", { class: "error", hidden: true });
    this.box = el("div", { class: "log", tabindex: 0, role: "log", "aria-label": "Lines of the log", "aria-live": "off",
      onscroll: () => this.scrolled() });
    const step = (text, label, by) => el("button", { type: "button", "aria-label": label, onclick: () => this.go(by) }, text);
    root.replaceChildren(el("div", { class: "tools" },
      el("label", { for: "log-rank" }, "Rank"), this.ranks, el("label", { for: "log-lines" }, "Last lines"), this.counts,
      el("label", { for: "log-search" }, "Search"), this.search, step("↑", "Previous match", -1),
      step("↓", "Next match", 1), this.result, el("span", { class: "fill" }), this.error, this.end),
    this.problem, this.box);
  }

  setRanks(n) {
    if (this.ranks.options.length === n + 1) return;
    const options = Array.from({ length: n }, (_, r) => el("option", { value: r }, String(r)));
    this.ranks.replaceChildren(el("option", { value: -1 }, "all"), ...options);
    this.ranks.value = String(this.rank < n ? this.rank : -1);
  }

  clear() {
    this.lines = [];
    this.box.replaceChildren();
  }

  async load() {
    clearTimeout(this.timer);
    let pause = POLL_MS;
    const wanted = `${this.rank} ${this.count}`;
    try {
      const text = await getText(`/api/jobs/${encodeURIComponent(this.job)}/log?rank=${this.rank}&lines=${this.count}`);
      if (wanted === `${this.rank} ${this.count}` && !this.closed) this.show(text);
      setHidden(this.problem, true);
    } catch (e) {
      setHidden(this.problem, false);
      setText(this.problem, e.message);
      pause = RETRY_MS;
    }
    if (!this.ended && !this.closed) this.timer = setTimeout(() => this.poll(), pause);
  }

  // Nobody reads a hidden tab.
  poll() {
    if (!document.hidden) this.load();
    else this.timer = setTimeout(() => this.poll(), POLL_MS);
  }

  jobEnded() {
    if (this.ended) return;
    this.ended = true;
    this.load(); // the last lines may be newer than the last poll
  }

  show(text) {
    const fresh = text.replace(/\n$/, "").split("\n").map(plainLine);
    if (fresh.length === 1 && fresh[0] === "") fresh.pop();
    const shift = this.lines.length > 1 ? shiftOf(this.lines, fresh) : -1;
    if (shift >= 0 && fresh.length === this.lines.length - shift && fresh.at(-1) === this.lines.at(-1)) return;
    const kept = shift < 0 ? 0 : this.lines.length - 1 - shift;
    const top = this.box.scrollTop, height = this.box.scrollHeight;
    if (shift < 0) this.box.replaceChildren();
    else for (let i = 0; i < shift; i++) this.box.firstChild.remove();
    while (this.box.children.length > kept) this.box.lastChild.remove();
    if (!this.follow && shift > 0) this.box.scrollTop = top - (height - this.box.scrollHeight);
    this.box.append(...fresh.slice(kept).map((line) => this.lineOf(line)));
    this.lines = fresh;
    this.markError();
    this.find(true);
    if (this.follow) this.toEnd();
  }

  lineOf(line) {
    return el("div", {}, line || "\u200b");
  }

  markError() {
    const first = this.lines.findIndex(isError);
    for (const e of this.box.querySelectorAll(".first-error")) e.classList.remove("first-error");
    this.firstError = first;
    setHidden(this.error, first < 0);
    this.box.children[first]?.classList.add("first-error");
  }

  showError() {
    this.reveal(this.box.children[this.firstError]);
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

  find(quiet = false) {
    const word = this.search.value.toLowerCase();
    for (const i of this.found) if (this.box.children[i]?.querySelector("mark")) setPlain(this.box.children[i]);
    this.found = [];
    if (word) this.lines.forEach((line, i) => { if (line.toLowerCase().includes(word)) this.found.push(i); });
    for (const i of this.found) highlight(this.box.children[i], this.lines[i], word);
    this.at = quiet ? Math.min(this.at, this.found.length - 1) : -1;
    if (!quiet && this.found.length) this.go(-1);
    else this.showResult(word);
  }

  go(by) {
    const n = this.found.length;
    if (!n) return;
    this.box.querySelector(".current")?.classList.remove("current");
    this.at = this.at < 0 ? (by < 0 ? n - 1 : 0) : (this.at + by + n) % n;
    const e = this.box.children[this.found[this.at]];
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
    this.closed = true;
    clearTimeout(this.timer);
  }
}

function setPlain(e) {
  e.textContent = e.textContent;
  e.classList.remove("current");
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
