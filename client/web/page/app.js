// Starts the page: login, theme, and the view that the address names.

import { Stream, login, onLoggedOut, post } from "./api.js";
import { openCompare } from "./compare.js";
import { el, foreign, setHidden, setText, speak } from "./dom.js";
import { openJob } from "./job.js";
import { openOverview } from "./overview.js";

const $ = (id) => document.getElementById(id);
const main = $("main");

let session = null; // {user, uid, system}
let view = null; // {close(), go(rest)} and the route that opened it

// ---- the banner: several parts of the page can have something to report; the first that does is shown ----

const troubles = new Map();

function trouble(source, text) {
  if (text) troubles.set(source, text);
  else troubles.delete(source);
  const [first] = troubles.values();
  setHidden($("banner"), !first);
  setText($("banner"), first ?? "");
}

// ---- routes ----

const ROUTES = [
  { pattern: /^#?\/?$/, open: openOverview },
  { pattern: /^#\/job\/([^/]+)(?:\/(\w+))?$/, open: openJob, decode: true },
  { pattern: /^#\/compare\/([^/]+)$/, open: openCompare, decode: true },
];

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function closeView() {
  view?.close();
  view = null;
  troubles.clear();
  trouble("", null);
}

function setPlace(...parts) {
  $("place").replaceChildren(...parts);
}

const context = { trouble, setPlace, Stream, title: (text) => { if (document.title !== text) document.title = text; } };

function notFound() {
  return () => {
    context.title("dtd");
    main.replaceChildren(el("section", { class: "card" }, el("h1", {}, "There is no such page"),
      el("p", {}, el("a", { href: "#/" }, "To the overview"))));
    return { close() {} };
  };
}

function show() {
  if (takeToken()) return;
  if (!session) return;
  const route = ROUTES.find((r) => r.pattern.test(location.hash));
  const found = route?.pattern.exec(location.hash) ?? [];
  const [, what, rest] = found.map((part) => part && decoded(part));
  if (view && route && view.route === route && view.what === what) {
    view.go?.(rest);
    return;
  }
  closeView();
  setPlace();
  main.replaceChildren();
  scrollTo(0, 0);
  view = Object.assign((route?.open ?? notFound())(main, what, { ...context, user: session }), { route, what });
  view.go?.(rest);
}

// ---- login ----

// The token must not stay in the address bar, in the history, or in a screenshot.
function takeToken() {
  const found = /^#token=(.+)$/.exec(location.hash);
  if (!found) return false;
  history.replaceState(null, "", `${location.pathname}#/`);
  start(decoded(found[1]));
  return true;
}

async function start(token) {
  try {
    session = await login(token);
  } catch (e) {
    showLogin(e.status === 403 && token === undefined ? null : e.message, e.status === 0);
    return;
  }
  $("who").replaceChildren(foreign(session.user), session.system ? ` · ${session.operator ? "sees all jobs" : "system"}` : "");
  setHidden($("logout"), false);
  closeView();
  show();
}

function showLogin(error, retry) {
  closeView();
  session = null;
  setPlace();
  $("who").replaceChildren();
  setHidden($("logout"), true);
  context.title("Log in · dtd");
  const input = el("input", { type: "password", id: "token", autocomplete: "off", spellcheck: "false", required: true });
  const enter = (e) => {
    e.preventDefault();
    // Whole addresses are accepted too, because that is what a terminal shows.
    start(input.value.trim().replace(/^.*#token=/, ""));
  };
  main.replaceChildren(el("section", { class: "card login" },
    el("h1", {}, "Log in"),
    el("p", {}, "Run ", el("code", {}, "dtctl web"), " in a terminal and open the address that it prints."),
    error ? el("p", { class: "error", role: "alert" }, error) : null,
    el("form", { onsubmit: enter }, el("label", { for: "token" }, "Or enter the token, or the whole address"), input,
      el("button", { type: "submit", class: "main" }, "Log in"),
      retry ? el("button", { type: "button", onclick: () => start() }, "Try again") : null)));
  input.focus();
}

let returning = false;

// The server was restarted, or the session ended: the cookie is tried once before the reader is asked.
onLoggedOut(async () => {
  if (returning || !session) return;
  returning = true;
  session = null;
  await start();
  returning = false;
});

async function logout() {
  try {
    await post("/logout");
  } catch (e) {
    trouble("logout", e.message);
    return;
  }
  showLogin(null, false);
}

// ---- theme ----

const THEMES = ["system", "light", "dark"];

function setTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    if (theme === "system") localStorage.removeItem("theme");
    else localStorage.setItem("theme", theme);
  } catch {
    // Without storage, the choice lasts until the page is closed.
  }
  setText($("theme"), `Theme: ${theme}`);
  document.dispatchEvent(new Event("themechange"));
}

const theme = () => document.documentElement.dataset.theme ?? "system";

setText($("theme"), `Theme: ${theme()}`);
$("theme").addEventListener("click", () => {
  setTheme(THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);
  speak(`Theme: ${theme()}`);
});
$("logout").addEventListener("click", logout);
$("skip").addEventListener("click", () => main.focus());
addEventListener("hashchange", show);
if (!takeToken()) start();
