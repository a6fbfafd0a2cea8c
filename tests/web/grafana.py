"""deploy/grafana/dashboard.json: every metric that a panel uses is one that /metrics has, and a real Prometheus that scrapes a running job
has data for every expression. The rules for a dashboard that is not empty after its import: no fixed data source, no label of the site."""
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request

from dtd import Browserless, Dtd, check

if not shutil.which("prometheus"):
    print("skipped: prometheus is not installed (Debian: prometheus)")
    sys.exit(77)
with open(os.environ["DTD_SOURCE"] + "/deploy/grafana/dashboard.json") as f:
    board = json.load(f)

# ---- the file ----
panels = [p for p in board["panels"] if p["type"] != "row"]
variables = {v["name"]: v for v in board["templating"]["list"]}
check(board["id"] is None and board["uid"] and board["title"] and board["schemaVersion"] >= 36, "it imports as a new dashboard")
check(variables["DS"]["type"] == "datasource" and variables["DS"]["query"] == "prometheus", "the data source is a variable")
sources = [p["datasource"] for p in panels] + [t["datasource"] for p in panels for t in p["targets"]]
sources += [a["datasource"] for a in board["annotations"]["list"]] + [variables["job_id"]["datasource"]]
check(all(s == {"type": "prometheus", "uid": "${DS}"} for s in sources), "and nothing names another one")
check(len({p["id"] for p in board["panels"]}) == len(board["panels"]), "panels have numbers of their own")
cells = [(x, y) for p in board["panels"] for g in [p["gridPos"]]
         for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])]
check(len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24, "no panel lies on another one or beyond column 24")
check(all(len({t["refId"] for t in p["targets"]}) == len(p["targets"]) for p in panels), "each query of a panel has its letter")
exprs = [(p["title"], t["expr"]) for p in panels for t in p["targets"]]
marks = [(a["name"], a["expr"]) for a in board["annotations"]["list"]]
labels = {m for _, e in exprs + marks for m in re.findall(r"[{,]\s*(\w+)\s*[=!]", e)}
check(labels <= {"job_id", "state"}, f"no query depends on a label of the site ({labels})")

# ---- a job, and what it serves ----
dtd = Dtd()
web = dtd.start_web()
token = web["address"].split("#token=")[1]
page = Browserless(web["url"])
job = dtd.submit("long", steps=1000000, every=200)
dtd.wait(job, lambda s: s.get("checkpoint_step", 0) > 0)
used = {m for _, e in exprs + marks for m in re.findall(r"\bdtd_\w+", e)} | {"dtd_job_info"}


def ask_metrics():
    text = page.ask("GET", "/metrics", headers={"Accept": "", "Authorization": "Bearer " + token})[2].decode()
    return text, set(re.findall(r"^(dtd_\w+)[{ ]", text, re.M))


(text, served), stop = ask_metrics(), time.monotonic() + 30
while not used <= served and time.monotonic() < stop: # ranks report after their first two seconds
    time.sleep(0.5)
    text, served = ask_metrics()
check(used <= served, f"every metric is served (not: {used - served})")
with open(os.environ["DTD_SOURCE"] + "/deploy/prometheus/rules.yml") as f:
    ruled = set(re.findall(r"\bdtd_\w+", f.read()))
check(ruled <= served | set(re.findall(r"^# HELP (dtd_\w+) ", text, re.M)), f"those of the rules, too (not: {ruled - served})")

# ---- a real Prometheus ----
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
with open(dtd.dir + "/prometheus.yml", "w") as f:
    json.dump({"scrape_configs": [{"job_name": "any", "scrape_interval": "1s", "authorization": {"credentials": token},
                                   "static_configs": [{"targets": [page.host]}]}]}, f)
prometheus = subprocess.Popen(["prometheus", f"--config.file={dtd.dir}/prometheus.yml", f"--storage.tsdb.path={dtd.dir}/tsdb",
                               f"--web.listen-address=127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def query(expr):
    for name, value in (("$job_id", job), ("$__rate_interval", "10s"), ("$__range", "1m")):
        expr = expr.replace(name, value)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": expr}), timeout=10) as r:
        return json.load(r)["data"]["result"]


try:
    end, result = time.monotonic() + 60, []
    while time.monotonic() < end and not (result and float(result[0]["value"][1]) > 0):
        try:
            result = query('rate(dtd_train_steps_total{job_id="$job_id"}[$__rate_interval])')
        except OSError:
            pass
        time.sleep(0.3)
    time.sleep(3)
    empty = [(title, expr) for title, expr in exprs if not query(expr)]
    check(not empty, f"every query of {len(exprs)} has data (not: {empty})")
    for _, expr in marks:
        query(expr)
    check([r["metric"]["job_id"] for r in query("dtd_job_info")] == [job], "the list of jobs has the job")
    steps = float(query('dtd_train_steps_total{job_id="$job_id"}')[0]["value"][1])
    rate = float(query('rate(dtd_train_steps_total{job_id="$job_id"}[$__rate_interval])')[0]["value"][1])
    mean = float(query('rate(dtd_train_step_seconds_sum{job_id="$job_id"}[$__rate_interval])')[0]["value"][1])
    check(steps > 0 and 0 < mean <= 1.5, f"{rate:.0f} steps a second fill {mean:.2f} s of each second")
finally:
    prometheus.terminate()
    prometheus.wait()
