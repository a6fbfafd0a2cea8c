"""/metrics: what it says of a job, in both formats, checked by promtool; then a real Prometheus scrapes it with the example
configuration and evaluates the rules of deploy/prometheus."""
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

from dtd import Browserless, Dtd, check

if not shutil.which("promtool") or not shutil.which("prometheus"):
    print("skipped: prometheus is not installed (Debian: prometheus)")
    sys.exit(77)
rules = os.environ["DTD_SOURCE"] + "/deploy/prometheus"
for what in (["check", "rules", rules + "/rules.yml"], ["test", "rules", rules + "/rules_test.yml"]):
    r = subprocess.run(["promtool", *what], capture_output=True, text=True)
    check(r.returncode == 0, f"promtool {what[0]} rules {r.stdout if r.returncode else ''}")

dtd = Dtd()
web = dtd.start_web()
token = web["address"].split("#token=")[1]
page = Browserless(web["url"])
ended = dtd.submit("ended", steps=20)
dtd.wait(ended, lambda s: s["state"] == "done")
job = dtd.submit("long", steps=1000000, every=0)
dtd.wait(job, lambda s: s["step"] > 0)


def scrape(accept="", credentials=token):
    return page.ask("GET", "/metrics", headers={"Accept": accept, "Authorization": "Bearer " + credentials})


check(page.ask("GET", "/metrics")[0] == 403 and scrape(credentials="1-2-3")[0] == 403, "no series without a right token")
status, headers, old = scrape()
check(status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4"), "the older format by default")
r = subprocess.run(["promtool", "check", "metrics"], input=old, capture_output=True)
check(r.returncode == 0 and not r.stderr, f"promtool finds no fault {r.stderr.decode()}")
status, headers, new = scrape("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
check(headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0") and new.endswith(b"# EOF\n"), "OpenMetrics")
new = new.decode()
check("# TYPE dtd_job_restarts counter" in new and "\ndtd_job_restarts_total{" in new, "a counter as OpenMetrics names it")
values = dict(re.findall(r'^([a-z_]+(?:\{[^}]*\})?) (\S+)$', new, re.M))
check(values['dtd_jobs{state="running"}'] == values['dtd_jobs{state="done"}'] == "1", "jobs by state")
check(not any(f'job_id="{ended}"' in v for v in values), "a job that has ended has no series")
at = int(float(values[f'dtd_train_step{{job_id="{job}"}}']))
row = next(r for r in json.loads(dtd.dtctl("metrics", "-o", "json", "--from", str(at), job)) if r["step"] == at)
check(float(values[f'dtd_train_loss{{job_id="{job}"}}']) == row["loss"], "the loss of that step, to the last bit")
check(float(values[f'dtd_job_world_size{{job_id="{job}"}}']) == 2 and values["dtd_nodes{state=\"up\"}"] == "1", "workers, nodes")

# ---- counters and histograms: sums over the rows of dtctl metrics ----
J = f'{{job_id="{job}"}}'
rows = [r for r in json.loads(dtd.dtctl("metrics", "-o", "json", job)) if r["step"] <= at]


def near(name, want):
    got = float(values[name + J])
    return check(abs(got - want) <= 1e-9 * abs(want), f"{name}: {got:g}")


near("dtd_train_steps_total", len(rows))
near("dtd_train_tokens_total", sum(r["tokens_per_s"] * r["step_s"] for r in rows))
near("dtd_train_step_seconds_sum", sum(r["step_s"] for r in rows))
near("dtd_train_step_seconds_count", len(rows))
for bound in re.findall(r'^dtd_train_step_seconds_bucket\{job_id="\d+",le="([^"]+)"', new, re.M):
    n = sum(r["step_s"] <= float(bound.replace("+Inf", "inf")) for r in rows)
    assert float(values[f'dtd_train_step_seconds_bucket{{job_id="{job}",le="{bound}"}}']) == n, bound
productive = float(values[f'dtd_job_worker_seconds_total{{job_id="{job}",state="productive"}}'])
check(abs(productive - 2 * sum(r["step_s"] for r in rows)) < 1e-6, "worker seconds of steps")
check(float(values["dtd_job_allocated_worker_seconds_total" + J]) <= 2 * (time.time() - json.loads(dtd.dtctl("status", "-o", "json", job))["submitted_ms"] / 1e3),
      "no more worker seconds than two workers can have")
until = time.monotonic() + 30 # the first window ends after 2 s
ranks = {}
while len(ranks) < 2 and time.monotonic() < until:
    time.sleep(0.5)
    text = scrape()[2].decode()
    ranks = dict(re.findall(r'^dtd_train_rank_compute_seconds\{job_id="\d+",rank="(\d+)",node="[^"]+"\} (\S+)$', text, re.M))
windows = [json.loads(line)["compute_s"] for line in dtd.dtctl("metrics", "--ranks", "-o", "jsonl", job).splitlines()]
check([float(ranks["0"]), float(ranks["1"])] in windows, f"times of ranks are those of dtctl metrics --ranks: {ranks}")
check(values["dtd_failures_total" + J] == values["dtd_train_recomputed_steps_total" + J] == "0", "nothing failed yet")

# ---- a worker is killed ----
os.kill(json.loads(dtd.dtctl("status", "-o", "json", job))["worker"][1]["pid"], 9)
dtd.wait(job, lambda s: s["state"] == "running" and s["epoch"] == 2 and s["step"] > 0 and s["last"]["epoch"] == 2)
text = scrape()[2].decode()
values = dict(re.findall(r'^([a-z_]+(?:\{[^}]*\})?) (\S+)$', text, re.M))
check(values["dtd_failures_total" + J] == "1" and values["dtd_recovery_seconds_count" + J] == "1", "a failure, a recovery")
again, all_ = (float(values[n + J]) for n in ("dtd_train_recomputed_steps_total", "dtd_train_steps_total"))
check(0 < again < all_ and again <= float(values["dtd_train_step" + J]), f"{again:g} of {all_:g} steps ran again")
incident = json.loads(dtd.dtctl("why", "-o", "json", job))[-1]
check(abs(float(values["dtd_recovery_seconds_sum" + J]) - incident["recover_ms"] / 1e3) < 1e-9, "the time that dtctl why shows")

# ---- a real Prometheus ----
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
shutil.copy(rules + "/rules.yml", dtd.dir)
with open(dtd.dir + "/token", "w") as f:
    f.write(token)
with open(rules + "/prometheus.yml") as f:
    config = f.read().replace("/etc/prometheus/dtd.token", dtd.dir + "/token").replace("127.0.0.1:7812", page.host)
with open(dtd.dir + "/prometheus.yml", "w") as f:
    f.write(config.replace("15s", "1s"))
prometheus = subprocess.Popen(["prometheus", f"--config.file={dtd.dir}/prometheus.yml", f"--storage.tsdb.path={dtd.dir}/tsdb",
                               f"--web.listen-address=127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
try:
    def query(path):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=10) as r:
            return json.load(r)["data"]

    result, end = [], time.monotonic() + 60
    while not result and time.monotonic() < end:
        try:
            result = query("query?query=dtd_train_step")["result"]
        except OSError:
            pass
        time.sleep(0.2)
    check(len(result) == 1 and result[0]["metric"]["job_id"] == job, "Prometheus has the job's series")
    check(result[0]["metric"]["job"] == "dtd" and "exported_job" not in result[0]["metric"], "no label collides with its own")
    groups = query("rules")["groups"]
    check(len(groups) == 1 and all(rule["health"] in ("ok", "unknown") for rule in groups[0]["rules"]), "its rules have no error")
finally:
    prometheus.terminate()
    prometheus.wait()
