"""A private dtd with its web page, for the tests of this folder: real programs, a folder and ports of their own."""
import atexit
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

BIN = os.environ["DTD_BIN"]
JOB = """name: {name}
model:      {{arch: llama, {size}}}
data:       {{train: [{text}], valid: [{text}], tokenizer: bytes}}
train:      {{steps: {steps}, seq: 32, global_batch: 4, micro_batch: 2, lr: 3.0e-3, warmup: 5, eval_every: 20, seed: 1}}
parallel:   {{workers: 2}}
checkpoint: {{dir: {dir}, every: {every}}}
"""


class Dtd:
    """`dtctl up`, and `dtctl down` at the exit of the test."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="dtd-web-")
        self.env = dict(os.environ, DTD_DIR=self.dir + "/state", XDG_CACHE_HOME=self.dir + "/cache")
        self.web = None
        self.files = {}  # job files, by the job's name
        atexit.register(self.end)
        self.dtctl("up")

    def end(self):
        if self.web:
            self.web.terminate()
            self.web.wait()
        subprocess.run([BIN + "/dtctl", "down"], env=self.env, capture_output=True)
        shutil.rmtree(self.dir, ignore_errors=True)

    def dtctl(self, *args, ok=True):
        r = subprocess.run([BIN + "/dtctl", *args], env=self.env, capture_output=True, text=True, errors="replace")
        if ok and r.returncode:
            sys.exit(f"dtctl {' '.join(args)} exited with {r.returncode}: {r.stderr}")
        return r.stdout

    def start_web(self):
        """`dtctl web`; returns its address with the token."""
        self.web = subprocess.Popen([BIN + "/dtctl", "web", "--port", "0", "-o", "json"], env=self.env,
                                    stdout=subprocess.PIPE, text=True)
        text = ""
        while not text.rstrip().endswith("}"):
            line = self.web.stdout.readline()
            if not line:
                sys.exit("dtctl web ended")
            text += line
        return json.loads(text)

    def web_pid(self):
        """Of the dtd-web that `dtctl web` has started."""
        children = open(f"/proc/{self.web.pid}/task/{self.web.pid}/children").read().split()
        return int(children[0]) if children else self.web.pid

    def submit(self, name, steps=60, every=20, size="dim: 32, layers: 2, heads: 2, kv_heads: 2, ffn: 64"):
        text, job = self.dir + "/text.txt", f"{self.dir}/{len(os.listdir(self.dir))}.yaml"
        if not os.path.exists(text):
            with open(text, "w") as f:
                f.write("".join(f"{i} times {i % 7} is {i * (i % 7)}.\n" for i in range(4000)))
        self.files[name] = os.path.basename(job)
        with open(job, "w") as f:
            f.write(JOB.format(name=json.dumps(name, ensure_ascii=False), text=text, steps=steps, every=every, size=size, dir=job + ".ckpt"))
        return json.loads(self.dtctl("submit", "-d", "-o", "json", job))["job"]

    def status(self, job):
        return json.loads(self.dtctl("status", "-o", "json", job))

    def wait(self, job, what, seconds=60):
        """Until what(status) holds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            status = self.status(job)
            if what(status):
                return status
            time.sleep(0.1)
        sys.exit(f"job {job} did not get there in {seconds} s: {self.status(job)}")


class Browserless:
    """Requests as the page makes them."""

    def __init__(self, url):
        self.host = url.split("//")[1]
        self.cookie = None

    def ask(self, method, path, body=None, mark=True, headers=None):
        """Returns (status, headers, body)."""
        c = http.client.HTTPConnection(self.host, timeout=20)
        h = dict(headers or {})
        if self.cookie:
            h["Cookie"] = self.cookie
        if mark and method == "POST":
            h["X-DTD"] = "1"
        c.request(method, path, body, h)
        r = c.getresponse()
        data = r.read()
        c.close()
        return r.status, r.headers, data

    def json(self, method, path, body=None):
        status, _, data = self.ask(method, path, body)
        return status, json.loads(data)

    def login(self, token):
        status, headers, data = self.ask("POST", "/login", json.dumps({"token": token}))
        if status == 200:
            self.cookie = headers["Set-Cookie"].split(";")[0]
        return status, json.loads(data)

    def events(self, path, until, seconds=30):
        """Reads server-sent events until until(name, data) is true; returns the list."""
        c = http.client.HTTPConnection(self.host, timeout=seconds)
        c.request("GET", path, headers={"Cookie": self.cookie})
        r = c.getresponse()
        assert r.status == 200, r.status
        got, name, end = [], None, time.monotonic() + seconds
        while time.monotonic() < end:
            line = r.fp.readline() if not r.chunked else read_line(r)
            if line.startswith(b"event: "):
                name = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                data = json.loads(line[6:])
                got.append((name, data))
                if until(name, data):
                    c.close()
                    return got
            elif line == b"":
                break
        sys.exit(f"{path}: the event did not come; got {[n for n, _ in got]}")


def read_line(r):
    line = b""
    while not line.endswith(b"\n"):
        byte = r.read(1)
        if not byte:
            break
        line += byte
    return line


def check(holds, what):
    if not holds:
        sys.exit(f"FAILED: {what}")
    print(f"ok: {what}")
