"""dtd-web over real HTTP: login, overview, a job's events, curves, log and end; what it refuses; hostile requests."""
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import threading
import time

from dtd import BIN, Browserless, Dtd, check



def stat_of(pid):
    """State and parent of a process."""
    try:
        fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
        return fields[0], int(fields[1])
    except (OSError, IndexError):
        return "", 0


dtd = Dtd()
web = dtd.start_web()
url, token = web["url"], web["address"].split("#token=")[1]
page = Browserless(url)

# ---- login ----
status, headers, body = page.ask("GET", "/")
check(status == 200 and b"<!doctype html>" in body.lower(), "the page is served to everybody")
check("default-src 'self'" in headers["Content-Security-Policy"], "with a content security policy")
files = os.environ["DTD_SOURCE"] + "/client/web/page/"
check(sum(os.path.getsize(files + name) for name in os.listdir(files)) < 300_000, "of less than 300 kB")
check(page.ask("GET", "/api/events")[0] == 401, "the API is not")
check(page.login("0-1900000000-" + "0" * 64)[0] == 403, "a token that nobody made is refused")
check(page.login("x" * 5000)[0] in (403, 413), "a token that is too long is refused")
refused = [page.login(f"{i}-1900000000-" + "0" * 64)[0] for i in range(300)]
check(set(refused) == {403}, "and 300 of them leave room for others")
status, who = page.login(token)
check(status == 200 and who["uid"] == os.getuid(), "the token of `dtctl web` logs in")

# ---- overview and a job ----
job = dtd.submit("first", steps=60)
overview = page.events("/api/events", lambda n, d: n == "overview" and any(j["job"] == job for j in d["jobs"]))[-1][1]
check(overview["node"]["slots"] >= 2 and overview["user"] == who["user"], "the overview has node and user")
events = page.events(f"/api/jobs/{job}/events", lambda n, d: n == "end", 90)
steps = [m["step"] for n, d in events if n == "metrics" for m in d]
check(events[0][0] == "status" and steps == sorted(set(steps)) and steps[-1] == 60, "a job's stream: status, metrics, end")
check([d for n, d in events if n == "status"][-1]["state"] == "done", "and the last status")

again = page.events(f"/api/jobs/{job}/events", lambda n, d: n == "end", 10)
check([n for n, _ in again] == ["status", "end"], "of a job that has ended: its status, end")
load = page.events("/api/events", lambda n, d: n == "overview" and "cores_used" in d["node"].get("load", {}), 20)[-1][1]["node"]["load"]
total = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemTotal:"))
check(load["cores"] == os.cpu_count() and load["memory_bytes"] == 1024 * total, "and its cores and memory")
check(0 <= load["cores_used"] <= os.cpu_count() and 0 < load["memory_used_bytes"] < 1024 * total, "with what is used of them")

# ---- curves equal dtctl metrics ----
want = {m["step"]: m for m in json.loads(dtd.dtctl("metrics", "-o", "json", job))}
status, rows = page.json("GET", f"/api/jobs/{job}/metrics?points=600")
check(len(rows) == 60 and all(want[r["step"]]["loss"] == r["loss"] for r in rows), "all rows if there is room")
status, rows = page.json("GET", f"/api/jobs/{job}/metrics?points=10")
check(10 <= len(rows) <= 20 and sum(r.get("steps_merged", 1) for r in rows) == 60, "few rows stand for all steps")
at = 0
for r in rows:
    part = [want[s]["loss"] for s in range(at + 1, r["step"] + 1)]
    at = r["step"]
    assert (r.get("loss_min", r["loss"]), r.get("loss_max", r["loss"])) == (min(part), max(part)), r
check(at == 60, "and have the least and the largest loss of theirs")

# ---- dtctl metrics --points, --last ----
points = [json.loads(line) for line in dtd.dtctl("metrics", "--points", "7", "-o", "jsonl", job).splitlines()]
check(len(points) == 7 and sum(p.get("steps", 1) for p in points) == 60, "--points joins all steps")
at = 0
for p in points:
    part = [want[s] for s in range(at + 1, p["step"] + 1)]
    at = p["step"]
    for key in ("loss", "grad_norm", "step_s"):
        values = [m[key] for m in part]
        assert (p[key + "_min"], p[key + "_max"]) == (min(values), max(values)), p
        assert abs(p[key + "_mean"] - sum(values) / len(values)) < 1e-12 * max(values), p
    assert p["loss"] == part[-1]["loss"] and "not_finite" not in p, p
table = dtd.dtctl("metrics", "--points", "7", job).splitlines()
check(len(table) == 8 and table[0].split()[:4] == ["STEP", "STEPS", "LOSS", "LOSS_MIN"] and table[7].split()[0] == "60", "also as a table")
last = [json.loads(dtd.dtctl("metrics", *a, "-o", "json", job)) for a in (("--last",), ("--last=3",), ("--last=99",), ("-f", "--last=2"))]
check(last == [[want[60]], [want[s] for s in (58, 59, 60)], list(want.values()), [want[59], want[60]]], "--last has the last steps")

status, headers, table = page.ask("GET", f"/api/jobs/{job}/metrics.csv")
check(headers["Content-Type"].startswith("text/csv") and table.decode() == dtd.dtctl("metrics", job, "--to", "csv"), "the table for download")

# ---- checkpoints, log ----
status, list_ = page.json("GET", f"/api/jobs/{job}/checkpoints")
check(sorted(k["step"] for k in list_) == [20, 40, 60], "checkpoints")
status, headers, text = page.ask("GET", f"/api/jobs/{job}/log?rank=1&lines=3")
check(status == 200 and text.count(b"\n") == 3 and headers["Content-Type"].startswith("text/plain"), "three lines of a log")
dtd.dtctl("run", "--", "printf", r"\033[31m<script>\377\000\n")
printer = max(json.loads(dtd.dtctl("status", "-o", "json")), key=lambda j: int(j["job"]))["job"]
status, headers, text = page.ask("GET", f"/api/jobs/{printer}/log")
check(b"\033[31m<script>\377" in text and headers["X-Content-Type-Options"] == "nosniff", "any bytes of a log, as plain text")
check(page.json("GET", "/api/jobs/999/metrics")[0] == 404, "a job that does not exist")

# ---- the log as it is written ----
def said(events, rank):
    return "".join(text for n, d in events if n == "log" for r, text in d if r == rank)


ended = page.events(f"/api/jobs/{job}/log/events?rank=1&lines=3", lambda n, d: n == "end", 15)
whole = dtd.dtctl("logs", job, "--rank", "1").replace("[rank 1] ", "")
check(ended[0][0] == "begin" and said(ended, 1).splitlines() == whole.splitlines()[-3:], "the last lines of a log, to its end")
slow = dtd.dtctl("run", "-d", "-o", "json", "--", "sh", "-c", "for i in 1 2 3; do echo line $i; sleep 1; done; echo gone")
slow = json.loads(slow)["job"]
times = []
live = page.events(f"/api/jobs/{slow}/log/events", lambda n, d: times.append(time.monotonic()) or n == "end", 30)
at = [t for t, (n, _) in zip(times, live) if n == "log"]
check(said(live, 0).split("\n") == ["line 1", "line 2", "line 3", "gone", ""] and len(at) >= 3 and at[-1] - at[0] > 1.5, "and line by line while it is written")

# ---- the plan ----
status, plan = page.json("GET", f"/api/jobs/{job}/plan")
told = json.loads(dtd.dtctl("plan", "-o", "json", f"{dtd.dir}/{dtd.files['first']}"))
same = ["parameters", "steps", "flops_per_token", "workers", "layout", "microbatches", "memory_per_worker", "ranks", "forecast"]
check(status == 200 and [plan[k] for k in same] == [told[k] for k in same], "the plan equals that of dtctl plan")
check(plan["layout"] == {"dp": 2} and "train_tokens" not in plan, "it has the layout, and nothing about data that it has not read")
status, headers, picture = page.ask("GET", f"/api/jobs/{job}/timeline.svg")
dtd.dtctl("plan", f"{dtd.dir}/{dtd.files['first']}", "--timeline", dtd.dir + "/step.svg")
check(headers["Content-Type"] == "image/svg+xml" and picture == open(dtd.dir + "/step.svg", "rb").read(), "its timeline too")
status, headers, text = page.ask("GET", f"/api/jobs/{job}/explain")
check(status == 200 and b'src="/explain.js"' in text and b"<style>" not in text and text.count(b"<script") == 2
      and b'<script type="application/json"' in text, "the explained step, with no inline script or style")
check(page.ask("GET", "/explain.js")[0] == page.ask("GET", "/explain.css")[0] == 200, "whose files are served")
status, layouts = page.json("GET", "/api/layouts")
check({"zero3", "1f1b", "3d"} <= {x["name"] for x in layouts}, "the ready-made layouts")
check(all(page.ask("GET", f"/api/layouts?layout={x['name']}")[0] == 200 for x in layouts), "each has a page")
check(page.ask("GET", "/api/layouts?layout=nope")[0] == 404, "one that does not exist")
status, step = page.json("GET", f"/api/jobs/{job}/forecast")
told = json.loads(dtd.dtctl("report", job, "--to", dtd.dir + "/report.html", "-o", "json"))["step"]
check(status == 200 and step == told and step["forecast_s"] > 0 and step["parts"][0]["part"] == "compute",
      f"forecast and measurement of a step equal those of the report: {step} {told}")
status, said = page.json("GET", f"/api/jobs/{printer}/forecast")
check(status == 404, "a command has no forecast")
status, said = page.json("GET", f"/api/jobs/{printer}/plan")
check(status == 404 and "command" in said["error"], "a command has no plan")
answers = []
asks = [threading.Thread(target=lambda: answers.append(page.ask("GET", "/api/layouts?layout=3d")[0])) for _ in range(20)]
for one in asks:
    one.start()
for one in asks:
    one.join()
check(set(answers) <= {200, 429} and 200 in answers, "of many plans at once, those that are too many are refused")
zombies = [p for p in os.listdir("/proc") if p.isdigit() and stat_of(p)[:2] == ("Z", dtd.web_pid())]
check(not zombies, "no process of a plan is left")

# ---- usage of ranks, and cancel ----
long = dtd.submit("long", steps=100000, every=0)
dtd.wait(long, lambda s: s["step"] > 0)
sample = page.events(f"/api/jobs/{long}/events", lambda n, d: n == "usage", 20)[-1][1]
check(len(sample["compute_s"]) == 2 and 0 < sample["compute_s"][0] <= sample["step_s"][0], "a job's stream has the usage of its ranks")
worker = next(w["pid"] for w in dtd.status(long)["worker"] if w["rank"] == 0)
os.kill(worker, signal.SIGKILL)
page.events(f"/api/jobs/{long}/events", lambda n, d: n == "status" and any("step_ms" in i for i in d["incident"]), 15)
check(True, "a recovery is in the stream with all its durations")
status, rows = page.json("GET", f"/api/jobs/{long}/metrics?points=5000")
at = [r["step"] for r in rows]
check(at[0] == 1 and at == sorted(set(at)), "a step that ran again is in the curve once")

# ---- usage of ranks ----
events = page.events(f"/api/jobs/{long}/usage/events", lambda n, d: n == "usage" and d["epoch"] >= 2, 30)
shown = events[-1][1]
check(len(shown["compute_s"]) == len(shown["node"]) == 2 and all(c > 0 for c in shown["compute_s"]), "a window of the usage of ranks")
status, headers, text = page.ask("GET", f"/api/jobs/{long}/usage")
rows = [json.loads(line) for line in text.splitlines()]
at = [r["wall_ms"] for r in rows]
check(status == 200 and at == sorted(set(at)) and rows[-1]["wall_ms"] >= shown["wall_ms"], "all windows, one a line")
check(rows == json.loads(dtd.dtctl("metrics", "--ranks", "-o", "json", long))[: len(rows)], "as dtctl prints them")
events = page.events(f"/api/jobs/{job}/usage/events", lambda n, d: n == "end", 30)
check(events[-1][0] == "end", "the usage of a job that has ended ends")

status, headers, data = page.ask("POST", f"/api/jobs/{long}/cancel", "{}", mark=False)
check(status == 403, "a request without the page's mark changes nothing")
status, headers, data = page.ask("POST", f"/api/jobs/{long}/cancel", "{}", headers={"Origin": "http://evil.example"})
check(status == 403 and dtd.status(long)["state"] == "running", "nor one of another site")
check(page.ask("GET", f"/api/jobs/{long}/cancel")[0] == 405, "nor a GET")
check(page.ask("POST", f"/api/jobs/{long}/cancel", "{" + " " * 100000)[0] == 413, "a body that is too long")
check(page.ask("POST", f"/api/jobs/{long}/cancel", "[")[0] == 400, "a body that is no JSON")
check(page.json("POST", f"/api/jobs/{long}/cancel", "{}")[0] == 200, "the page cancels a job")
check(dtd.wait(long, lambda s: s["state"] == "canceled")["reason"], "which ends")


# ---- hostile bytes: each ends its own connection at most ----
def raw(data, wait=2):
    host, port = page.host.split(":")
    with socket.create_connection((host, int(port)), timeout=wait) as s:
        s.settimeout(wait)
        try:
            s.sendall(data)
            return s.recv(4096)
        except (socket.timeout, ConnectionError):
            return b""


HOSTILE_BYTES = [
    b"", b"\0" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET " + b"a" * 100000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 20000 + b"\r\n",
    b"POST /login HTTP/1.1\r\nHost: x\r\nX-DTD: 1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /api/events HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /login HTTP/1.1\r\nHost: x\r\nX-DTD: 1\r\nContent-Length: -1\r\n\r\n",
    b"POST /login HTTP/1.1\r\nHost: x\r\nX-DTD: 1\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /%2e%2e/%00/\xff\xfe HTTP/1.1\r\nHost: \xff\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nCookie: dtd=" + b"\xff" * 500 + b"\r\n\r\n",
    b"POST /login HTTP/1.1\r\nHost: x\r\nX-DTD: 1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
]
for data in HOSTILE_BYTES:
    answer = raw(data)
    assert b"root:" not in answer and b"event:" not in answer, (data[:60], answer)
check(page.ask("GET", "/")[0] == 200, f"alive after {len(HOSTILE_BYTES)} hostile requests")
slow = [socket.create_connection(tuple(page.host.split(":"))) for _ in range(200)]
for s in slow:
    s.sendall(b"GET / HTTP/1.1\r\nHo")
check(page.ask("GET", "/")[0] == 200, "200 connections that never end their request stop nobody")
for s in slow:
    s.close()

# ---- control and dtd-web are started again ----
pid = json.loads(dtd.dtctl("node", "-o", "json"))["control_pid"]
got_names = []


def until(name, data):
    got_names.append((name, data))
    return name == "overview" and any(n == "lost" for n, _ in got_names)


t = threading.Thread(target=lambda: page.events("/api/events", until, 30))
t.start()
while not got_names:
    time.sleep(0.05)
os.kill(pid, signal.SIGKILL)
t.join(40)
check(not t.is_alive() and got_names[-1][0] == "overview", "a stream outlives dtd-control: lost, then news")
dtd.web.send_signal(signal.SIGINT)
dtd.web.wait(20)
check(dtd.web.returncode is not None, "Ctrl-C ends dtctl web")
web = dtd.start_web()
again = Browserless(web["url"])
again.cookie = page.cookie.split("=")[0].rsplit("-", 1)[0] + "-" + again.host.split(":")[1] + "=" + page.cookie.split("=", 1)[1]
check(again.json("POST", "/login")[0] == 200, "the cookie is valid for another dtd-web")
os.remove(dtd.dir + "/state/cluster/web.key")
dtd.web.send_signal(signal.SIGINT)
dtd.web.wait(20)
web = dtd.start_web()
gone = Browserless(web["url"])
gone.cookie = f"dtd-{gone.host.split(':')[1]}=" + page.cookie.split("=", 1)[1]
check(gone.json("POST", "/login")[0] == 403, "but not after the key was deleted")

# ---- as a part of dtd, with TLS, and what is refused ----
dtd.web.send_signal(signal.SIGINT)
dtd.web.wait(20)
dtd.web = None
dtd.dtctl("down")
pem = [dtd.dir + "/web.pem", dtd.dir + "/web.key"]
subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-out", pem[0], "-keyout", pem[1]],
               check=True, capture_output=True)
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
with open(dtd.dir + "/dtd.yaml", "w") as f:
    f.write(f"web:\n  listen: 127.0.0.1:{port}\n  certificate: {pem[0]}\n  key: {pem[1]}\n")
server = subprocess.Popen([BIN + "/dtd", "--config", dtd.dir + "/dtd.yaml", "--state-dir", dtd.env["DTD_DIR"]],
                          stderr=subprocess.PIPE, text=True)
context = ssl.create_default_context(cafile=pem[0])


def secure_page(seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            c = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=5)
            c.request("GET", "/")
            return c.getresponse().status
        except (ConnectionError, TimeoutError):
            time.sleep(0.1)
    return None


check(secure_page() == 200, "dtd starts dtd-web, with TLS")
while not dtd.dtctl("node", ok=False):
    time.sleep(0.1)
address = dtd.dtctl("web").strip()
check(address.startswith(f"https://127.0.0.1:{port}/#token="), "dtctl web prints its address")
pids = {int(p) for p in os.listdir("/proc") if p.isdigit() and os.path.exists(f"/proc/{p}/cmdline")
        and open(f"/proc/{p}/cmdline").read().startswith("dtd-web\0--run-dir\0" + dtd.env["DTD_DIR"])}
check(len(pids) == 1, "one dtd-web runs")
pid = pids.pop()
status = open(f"/proc/{pid}/status").read()
check("NoNewPrivs:\t1" in status and "Seccomp:\t2" in status, "it is confined")
os.kill(pid, signal.SIGKILL)
check(secure_page() == 200, "it is started again after a kill")
dtd.dtctl("down")
check(server.wait(20) == 0 and secure_page(1) is None, "and ends with dtd")


def refusal(*options):
    r = subprocess.run([BIN + "/dtd-web", "--run-dir", dtd.dir, *options], capture_output=True, text=True, timeout=20)
    return r.stderr if r.returncode == 1 else f"exit {r.returncode}"


check("web.certificate" in refusal("--listen", "0.0.0.0:0"), "an address of the network without TLS is refused")
check("expected a numeric address" in refusal("--listen", "localhost:0"), "a host name is refused")
with open(dtd.dir + "/bad.yaml", "w") as f:
    f.write(f"web:\n  listen: 127.0.0.1:0\n  certificate: {pem[0]}\n  key: {dtd.dir}/nowhere.key\n")
check("nowhere.key: No such file" in refusal("--config", dtd.dir + "/bad.yaml"), "a missing key is named")
