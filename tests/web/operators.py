"""A system-wide dtd: its page shows a user his own jobs whole, of others name and state; a user of web.operators and root
see all of them, and an operator cancels none. Needs root, to be several users."""
import atexit
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from dtd import BIN, Browserless, check

USERS = ["daemon", "games", "www-data", "nobody"]  # of dtd, the operator, the owner of a job, and dtd-web
if os.getuid() or not shutil.which("setpriv"):
    print("skipped: needs root and setpriv (util-linux)")
    sys.exit(77)
try:
    uid = {name: pwd.getpwnam(name).pw_uid for name in USERS}
except KeyError as e:
    print(f"skipped: {e}")
    sys.exit(77)

folder = tempfile.mkdtemp(prefix="dtd-web-")
atexit.register(shutil.rmtree, folder, True)
os.chmod(folder, 0o755)
os.mkdir(folder + "/run")
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
with open(folder + "/dtd.yaml", "w") as f:
    f.write(f"state_dir: {folder}/state\nrun_dir: {folder}/run\nuser: daemon\nslots: 4\n"
            f"web:\n  listen: 127.0.0.1:{port}\n  user: nobody\n  operators: [games]\n")
with open(folder + "/log", "w") as log:
    server = subprocess.Popen([BIN + "/dtd", "--system", "--config", folder + "/dtd.yaml"], stderr=log)


def end():
    server.terminate()
    server.wait()


atexit.register(end)


def dtctl(user, *args):
    drop = ["setpriv", f"--reuid={uid[user]}", f"--regid={uid[user]}", "--clear-groups"] if user != "root" else []
    env = dict(os.environ, HOME=folder, DTD_DIR=folder + "/run")
    return subprocess.run(drop + [BIN + "/dtctl", *args], env=env, cwd="/", capture_output=True, text=True).stdout


def until(f, what, seconds=30):
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        if (value := f()):
            return value
        time.sleep(0.2)
    sys.exit(f"FAILED: not within {seconds} s: {what}\n{open(folder + '/log').read()[-2000:]}")


until(lambda: dtctl("root", "node"), "dtd serves")
text = dtctl("www-data", "run", "-d", "-o", "json", "--", "sh", "-c", "echo a secret; sleep 300")
job = json.loads(text)["job"]
until(lambda: json.loads(dtctl("www-data", "status", "-o", "json", job))["state"] == "running", "the job runs")


def page_of(user):
    address = until(lambda: dtctl(user, "web").split("\n")[0], f"an address for {user}")
    page = Browserless(address.split("/#")[0])
    who = until(lambda: page.login(address.split("#token=")[1]), f"{user} logs in")[1]
    return page, who


def sees(page):
    """Whether the overview has the job's state, and the answer to a request for its log."""
    shown = page.events("/api/events", lambda n, d: n == "overview" and d["jobs"])[-1][1]["jobs"][0]
    return shown["state"] == "running", page.ask("GET", f"/api/jobs/{job}/log")


owner, who = page_of("www-data")
shown, (status, _, log) = sees(owner)
check(shown and status == 200 and b"a secret" in log and not who["operator"], "the owner sees the job whole")
stranger, who = page_of("nobody")
shown, (status, _, log) = sees(stranger)
check(shown and status == 403 and b"a secret" not in log and not who["operator"], "another user only its state")
check(stranger.ask("GET", f"/api/jobs/{job}/plan")[0] == 403, "nor its plan")
operator, who = page_of("games")


def all_of_it():
    shown, (status, _, log) = sees(operator)
    return shown and status == 200 and b"a secret" in log


until(all_of_it, "an operator sees the job whole, as soon as the name of the user is known")
check([user.ask("GET", f"/api/jobs/{job}/usage")[0] for user in (owner, operator, stranger)] == [200, 200, 403], "and its ranks")
until(lambda: page_of("games")[1]["operator"], "an operator sees all jobs, and is told so")
status, _, text = operator.ask("POST", f"/api/jobs/{job}/cancel", "{}")
check(status == 403 and b"belongs to www-data" in text, "but cannot cancel those of others")
check(json.loads(dtctl("games", "status", "-o", "json", job) or "{}") == {}, "outside the page the operator is a user like others")
root, who = page_of("root")
shown, (status, _, log) = sees(root)
check(shown and status == 200 and who["operator"], "root sees all jobs")
check(root.ask("POST", f"/api/jobs/{job}/cancel", "{}")[0] == 200, "and may cancel them")
