"""The page with a server of its own, for what a real job of a few seconds cannot show: many ranks, a long history, GPUs,
a straggler. The samples are recorded lines as in usage.jsonl; sample_lines() makes them."""
import http.server
import json
import os
import random
import threading

PAGE = os.environ["DTD_SOURCE"] + "/client/web/page"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
START = 1_700_000_000_000


def sample_lines(ranks, windows, window_ms=2000, straggler=None, gpus=True, seed=1):
    """Objects of usage.jsonl: each rank computes 80 ms of a step of 100 ms, and waits for the slowest; rank `straggler`
    computes 25 ms more in the last third."""
    noise, ret = random.Random(seed), []
    for w in range(windows):
        slow = straggler is not None and 3 * w >= 2 * windows
        compute = [0.08 + 0.002 * noise.random() + (0.025 if slow and r == straggler else 0) for r in range(ranks)]
        step = max(compute) + 0.015
        save = 0.012 if w % 20 == 10 else 0
        s = {"wall_ms": START + w * window_ms, "window_ms": window_ms, "step": 20 * (w + 1), "epoch": 1 if w < windows / 2 else 2,
             "node": [f"node{r // 8}" for r in range(ranks)], "compute_s": compute, "step_s": [step + save] * ranks,
             "comm_s": [step - c - 0.005 for c in compute], "data_s": [0.002] * ranks, "save_s": [save] * ranks,
             "cpu": [round(1 + noise.random(), 3) for _ in range(ranks)],
             "rss_bytes": [int(3e9 + 1e8 * noise.random()) for _ in range(ranks)],
             "planned_bytes": [int(4.2e10)] * ranks}
        if gpus:
            s["gpu_util"] = [round(0.9 + 0.08 * noise.random(), 3) for _ in range(ranks)]
            s["gpu_bytes"] = [int(3.6e10 + 1e9 * noise.random()) for _ in range(ranks)]
            s["gpu_celsius"] = [round(61 + 6 * noise.random(), 1) if r != 2 else None for r in range(ranks)]
            s["gpu_watts"] = [round(560 + 60 * noise.random()) for _ in range(ranks)]
        ret.append(s)
    return ret


def status(samples, straggler):
    last = samples[-1]
    ranks = len(last["node"])
    ret = {"job": "7", "name": "llama-70b", "state": "running", "reason": "", "epoch": 2, "step": last["step"], "steps": 100000,
           "workers": ranks, "max_workers": ranks, "restarts": 1, "submitted_ms": START - 60000, "started_ms": START - 30000,
           "layout_why": "tp 2, microbatch 4: 0.48 s a step; next best fsdp 2 (zero 1), microbatch 4: 0.52 s",
           "checkpoint_step": last["step"] - 40, "user": "ada", "incident": [], "spec_yaml": "name: llama-70b\n",
           "worker": [{"rank": r, "pid": 4000 + r, "state": "running", "node": last["node"][r]} for r in range(ranks)]}
    if straggler is not None:
        ret["straggler"] = [{"rank": straggler, "node": last["node"][straggler], "ratio": 1.31, "since_ms": START + 400000,
                             "text": f"rank {straggler} on node {last['node'][straggler]} computes 1.31 times as long as the median since 14:02"}]
    return ret


def metrics(samples):
    return [{"step": s["step"], "loss": 4 * (1 + s["step"]) ** -0.1, "grad_norm": 1.0, "lr": 1e-3, "tokens_per_s": 4e5, "mfu": 0.41,
             "step_s": s["step_s"][0], "workers": len(s["node"]), "epoch": s["epoch"], "wall_ms": s["wall_ms"]} for s in samples]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, body, kind="application/json"):
        data = body if isinstance(body, bytes) else body.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Security-Policy", POLICY)
        try:
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            pass  # the page has gone elsewhere

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.answer(json.dumps({"user": "ada", "uid": 1000, "system": False}))

    def do_GET(self):
        path, _, query = self.path.partition("?")
        self.server.asked.append(self.path)
        if path.endswith("/log/events"):
            self.log()
        elif path.endswith("/events"):
            self.events()
        elif path.startswith("/api/"):
            self.api(path.rsplit("/", 1)[1], query)
        else:
            name = PAGE + (path if path != "/" else "/index.html")
            if not os.path.isfile(name):
                self.send_error(404)
                return
            with open(name, "rb") as f:
                self.answer(f.read(), TYPES[os.path.splitext(name)[1]])

    def api(self, what, query):
        s = self.server.samples
        if what == "usage":
            self.answer("".join(json.dumps(x) + "\n" for x in s), "application/x-ndjson")
        elif what == "metrics":
            self.answer(json.dumps(metrics(s)))
        elif what in self.server.more:
            kind, body = self.server.more[what]
            self.answer(body, kind)
        else:
            self.answer("[]")

    def log(self):
        """The pieces of `server.log`, as they are put there."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            self.wfile.write(b"event: begin\ndata: {}\n\n")
            sent = 0
            while not self.server.ended.wait(0.1):
                fresh = self.server.log[sent:]
                sent += len(fresh)
                if fresh:
                    self.wfile.write(f"event: log\ndata: {json.dumps(fresh)}\n\n".encode())
                self.wfile.write(b":\n\n")
                self.wfile.flush()
        except OSError:
            pass

    def events(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for name, value in (("status", self.server.status), ("usage", self.server.samples[-1])):
            self.wfile.write(f"event: {name}\ndata: {json.dumps(value)}\n\n".encode())
        self.wfile.flush()
        try:
            while not self.server.ended.wait(0.2):
                while self.server.news:
                    self.wfile.write(b"event: usage\ndata: " + json.dumps(self.server.news.pop(0)).encode() + b"\n\n")
                self.wfile.write(b":\n\n")
                self.wfile.flush()
        except OSError:
            pass


class Fake(http.server.ThreadingHTTPServer):
    """Serves the page with these samples. `news`: samples that are sent as events; `more`: other answers by name."""
    daemon_threads = True

    def __init__(self, samples, straggler=None, more=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.samples, self.status, self.more = samples, status(samples, straggler), more or {}
        self.news, self.asked, self.log, self.ended = [], [], [], threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def end(self):
        self.ended.set()
        self.shutdown()
