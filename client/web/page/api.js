// Requests to dtd-web and its streams of events.

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

let loggedOut = () => {};

export function onLoggedOut(f) {
  loggedOut = f;
}

async function sentenceOf(response) {
  try {
    return (await response.json()).error ?? `The server answered ${response.status}.`;
  } catch {
    return `The server answered ${response.status}.`;
  }
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  } catch {
    throw new Refused(0, "The server does not answer. Is dtctl web still running?");
  }
  if (response.ok) return response;
  const refused = new Refused(response.status, await sentenceOf(response));
  if (response.status === 401) loggedOut();
  throw refused;
}

export async function getJson(path) {
  return (await ask(path, {})).json();
}

// Logs hold any bytes: those that are not UTF-8 become replacement characters.
export async function getText(path) {
  return new TextDecoder().decode(await (await ask(path, {})).arrayBuffer());
}

export async function post(path, body) {
  const options = { method: "POST", headers: { "X-DTD": "1" } };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  const text = await (await ask(path, options)).text();
  return text ? JSON.parse(text) : {};
}

export const login = (token) => post("/login", token === undefined ? undefined : { token });

const RETRY_MS = [1000, 2000, 5000, 10000];
// A browser opens about six connections to a server, for all tabs together. Hidden tabs therefore give theirs back and
// look again at this interval, which is often enough for the state in the title.
const HIDDEN_MS = 20000;
const HIDDEN_AFTER_MS = 30000;

// An EventSource that also returns after a refused request, which the browser does not retry. `events` maps the names
// of events to functions; `opened` is called at each new connection, `broken` with a sentence or null.
export class Stream {
  constructor(url, events, { opened = () => {}, broken = () => {} } = {}) {
    Object.assign(this, { url, events, opened, broken, failures: 0, closed: false });
    this.visibility = () => this.visibilityChanged();
    document.addEventListener("visibilitychange", this.visibility);
    // A page that the browser keeps for "back" would keep its connections as well.
    this.hide = () => this.source.close();
    this.show = (e) => { if (e.persisted) this.connect(); };
    addEventListener("pagehide", this.hide);
    addEventListener("pageshow", this.show);
    this.connect();
  }

  connect() {
    clearTimeout(this.timer);
    this.source?.close();
    const source = (this.source = new EventSource(this.url));
    source.onopen = () => {
      this.failures = 0;
      this.broken(null);
      this.opened();
    };
    source.onerror = () => this.failed(source);
    for (const [name, f] of Object.entries(this.events)) {
      source.addEventListener(name, (e) => {
        f(JSON.parse(e.data || "null"));
        if (document.hidden && this.resting && !this.closed) this.rest();
      });
    }
  }

  failed(source) {
    if (this.closed) return;
    this.broken("Connection lost, retrying. The page shows what it received before.");
    if (source.readyState !== EventSource.CLOSED) return;
    this.timer = setTimeout(() => this.tryAgain(), RETRY_MS[Math.min(this.failures++, RETRY_MS.length - 1)]);
  }

  // The server may have been restarted, or the session may have ended: an empty login shows which.
  async tryAgain() {
    try {
      await login();
    } catch (e) {
      if (this.closed) return;
      if (e.status === 403) loggedOut();
      else this.failed(this.source);
      return;
    }
    if (!this.closed) this.connect();
  }

  rest() {
    this.source.close();
    this.timer = setTimeout(() => this.connect(), HIDDEN_MS);
  }

  visibilityChanged() {
    clearTimeout(this.restTimer);
    if (document.hidden) {
      this.restTimer = setTimeout(() => { this.resting = true; }, HIDDEN_AFTER_MS);
    } else if (this.resting) {
      this.resting = false;
      if (this.source.readyState === EventSource.CLOSED) this.connect();
    }
  }

  close() {
    this.closed = true;
    this.source.close();
    clearTimeout(this.timer);
    clearTimeout(this.restTimer);
    document.removeEventListener("visibilitychange", this.visibility);
    removeEventListener("pagehide", this.hide);
    removeEventListener("pageshow", this.show);
    this.broken(null);
  }
}
