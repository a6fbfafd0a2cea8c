"""The page in a real browser: log in, follow a job, compare two, cancel one; no error on the console, nothing wider than
the screen, and pictures at three widths in light and dark (DTD_PICTURES: their folder; else only while the test runs)."""
import os

from dtd import Dtd, check
from webdriver import Browser, access_problems

dtd = Dtd()
browser = Browser(dtd.dir)
pictures = os.environ.get("DTD_PICTURES") or dtd.dir + "/pictures"
web = dtd.start_web()
done = dtd.submit("first")
dtd.wait(done, lambda s: s["state"] == "done")


def look_at(name):
    for width in (390, 800, 1400):
        for dark in (False, True):
            browser.look(width, dark)
            wide = browser.until("return document.documentElement.scrollWidth")
            check(wide <= width, f"{name} is not wider than {width} pixels ({wide})")
            problems = access_problems(browser)
            check(not problems, f"contrast and names of {name} at {width} pixels, {'dark' if dark else 'light'}: {problems}")
            browser.picture(f"{pictures}/{name}-{width}-{'dark' if dark else 'light'}.png")
    browser.look(1400, False)


browser.look(1400, False)
browser.open(web["url"] + "/")
browser.until("return /dtctl web/.test(document.body.innerText)", what="the page asks for the token")
look_at("login")
check(all("401" in e["message"] or "403" in e["message"] for e in browser.errors()), "only the refused request is logged")

browser.open(web["address"])
browser.until("return /first/.test(document.body.innerText) && !/token/.test(location.href)", what="the list of jobs")
check(True, "the address logs in and loses its token")
second = dtd.submit("second", steps=100000, every=0)
browser.until("return /second/.test(document.body.innerText)", what="a new job appears by itself")
look_at("overview")

browser.open(web["url"] + f"/#/job/{second}")
browser.until("return document.querySelectorAll('canvas').length >= 3", what="curves")
step = "const m = document.body.innerText.match(/step ([0-9.,]+) of 100,000/); return m && m[1];"
first = browser.until(step, what="the step of the job")
browser.until("const a = (() => {" + step + "})(); return a && a !== arguments[0];", first, what="the step moves by itself")
drawn = """const c = document.querySelector('canvas'), g = c.getContext('2d');
    const d = g.getImageData(0, 0, c.width, c.height).data; const seen = new Set();
    for (let i = 0; i < d.length; i += 4) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]); return seen.size > 3;"""
browser.until(drawn, what="the first curve is drawn")
check(True, "a running job is followed")
browser.until("return document.querySelector('.heat') && !document.querySelector('.heat .empty:not([hidden])')"
              " && /\\d+(\\.\\d+)? MiB/.test(document.querySelector('.ranks tbody').textContent)", what="the usage of the ranks")
check(browser.run("return document.querySelectorAll('.ranks tbody tr').length") == 2, "its ranks have a picture and a table")
look_at("job")

browser.open(web["url"] + f"/#/job/{second}/plan")
browser.until("const p = document.querySelector('.plan-facts'), i = document.querySelector('.picture img');"
              "return p && /dp 2/.test(p.textContent) && i.complete && i.naturalWidth > 1000", what="the plan with its timeline")
browser.until("return document.querySelectorAll('#layout option').length > 5", what="the ready-made layouts")
check(True, "the plan of the job, and its picture")
look_at("plan")
explained = browser.run("return [...document.querySelectorAll('a')].find(a => /Explain this/.test(a.textContent)).href")
layout = browser.run("const s = document.getElementById('layout'); s.value = 'ring'; s.dispatchEvent(new Event('change'));"
                     "return [...document.querySelectorAll('a.button')].find(a => a.textContent === 'Open').href")
for address, word in ((explained, "2 ranks"), (layout, "Ring attention")):
    browser.open(address)
    browser.until("return document.getElementById('caption').textContent && document.body.textContent.includes(arguments[0])", word,
                  what="the explained step")
    fill = browser.run("return getComputedStyle(document.querySelector('#cluster rect')).fill")
    check(fill not in ("rgb(0, 0, 0)", "none"), "the explained step has its colours under the policy of the page")
    browser.run("document.getElementById('next').click(); document.getElementById('next').click()")
    browser.until("return !document.getElementById('clock').textContent.startsWith('0.0 ')", what="its next moment")
    browser.picture(f"{pictures}/explain-{word[:4]}.png")
browser.open(web["url"] + f"/#/job/{second}")
browser.until("return document.querySelectorAll('canvas').length >= 3", what="curves")

pid = next(w["pid"] for w in dtd.status(second)["worker"] if w["rank"] == 1)
os.kill(pid, 9)
browser.until("return /killed by signal 9/.test(document.body.innerText)", what="the incident with its evidence")
dtd.wait(second, lambda s: s["restarts"] == 1 and s["state"] == "running")
look_at("incident")

browser.open(web["url"] + f"/#/compare/{done},{second}")
browser.until("return document.querySelectorAll('canvas').length >= 2 && /first/.test(document.body.innerText) && "
              "/second/.test(document.body.innerText)", what="two jobs in one chart")
look_at("compare")

browser.open(web["url"] + f"/#/job/{second}")
browser.click("Cancel")
browser.until("const d = document.querySelector('dialog[open]'); return d && /Cancel job/.test(d.innerText);",
              what="a question before the cancel")
check(dtd.status(second)["state"] == "running", "the question changes nothing")
browser.picture(f"{pictures}/cancel.png")
browser.click("Cancel the job", "dialog[open] button")
dtd.wait(second, lambda s: s["state"] == "canceled")
browser.until("return /canceled/i.test(document.body.innerText)", what="the page shows that it is canceled")
check(True, "the page cancels a job")
errors = browser.errors()
check(not errors, f"the console has no error: {errors}")
