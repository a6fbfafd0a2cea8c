"""A headless Chromium, driven by chromedriver over its HTTP protocol (W3C WebDriver)."""
import atexit
import base64
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    def __init__(self, folder):
        driver = shutil.which("chromedriver")
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        if not driver or not chromium:
            print("skipped: chromium and chromedriver are not installed (Debian: chromium chromium-driver)")
            sys.exit(77)
        self.driver = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        atexit.register(self.end)
        port = None
        while not port:
            line = self.driver.stdout.readline()
            if not line:
                sys.exit("chromedriver ended")
            port = re.search(r"successfully on port (\d+)", line)
        self.base = f"http://127.0.0.1:{port.group(1)}"
        args = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={folder}/profile"]
        want = {"goog:chromeOptions": {"args": args, "binary": chromium}, "goog:loggingPrefs": {"browser": "ALL"}}
        self.session = None
        self.session = "/session/" + self.call("POST", "/session", {"capabilities": {"alwaysMatch": want}})["sessionId"]

    def end(self):
        if self.session:
            try:
                self.call("DELETE", self.session)
            except (OSError, SystemExit):
                pass
        self.driver.terminate()
        self.driver.wait()

    def call(self, method, path, body=None):
        data = None if method != "POST" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as r:
                return json.load(r)["value"]
        except urllib.error.HTTPError as e:
            raise OSError(json.load(e)["value"]["message"].split("\n")[0]) from None

    def open(self, url):
        self.call("POST", self.session + "/url", {"url": url})

    def run(self, script, *args):
        return self.call("POST", self.session + "/execute/sync", {"script": script, "args": list(args)})

    def cdp(self, command, **params):
        return self.call("POST", self.session + "/goog/cdp/execute", {"cmd": command, "params": params})

    def look(self, width, dark):
        """A screen of this width, in light or dark mode."""
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
        self.cdp("Emulation.setEmulatedMedia",
                 features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def picture(self, path):
        shot = self.cdp("Page.captureScreenshot", captureBeyondViewport=True)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(base64.b64decode(shot["data"]))

    def until(self, script, *args, seconds=30, what=None):
        """Waits until the script returns something true, and returns that."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                value = self.run(script, *args)
                if value:
                    return value
            except OSError as e:
                if "javascript error" not in str(e):
                    raise
            time.sleep(0.1)
        sys.exit(f"FAILED: not within {seconds} s: {what or script}\n{self.run('return document.body.innerText')[:2000]}")

    def text(self):
        return self.run("return document.body.innerText")

    def click(self, words, role="button, a"):
        """Clicks the visible element that has these words."""
        self.until("""const e = [...document.querySelectorAll(arguments[0])].find(x => x.offsetParent !== null
            && !x.disabled && x.textContent.trim().startsWith(arguments[1])); if (e) e.click(); return !!e;""", role, words,
                   what=f"click {words}")

    def errors(self):
        """What the console has got since the last call, except refused requests that a test makes on purpose."""
        return [e for e in self.call("POST", self.session + "/se/log", {"type": "browser"}) if e["level"] == "SEVERE"]


def access_problems(browser):
    """Texts with too little contrast, controls without a name or out of the keyboard's reach (access.js)."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "access.js")) as f:
        return browser.run(f.read())
