"""The pictures and the table of ranks, with recorded samples (fake.py): their numbers against arithmetic, a straggler that
is visible among many ranks, the keyboard, contrast, and pictures as in page.py."""
import json
import os
import tempfile

from dtd import check
from fake import Fake, sample_lines
from webdriver import Browser, access_problems

folder = tempfile.TemporaryDirectory(prefix="dtd-web-")
pictures = os.environ.get("DTD_PICTURES") or folder.name + "/pictures"
browser = Browser(folder.name)
HEAT = "return document.querySelector('.heat')"


def open_job(fake, width=1400):
    browser.look(width, False)
    browser.open("about:blank")
    browser.open(fake.url + "/#/job/7")
    browser.until(HEAT + " && !document.querySelector('.heat .empty:not([hidden])')", what="the heat map", seconds=60)


def key(name, shift=False):
    browser.run("document.querySelector('.heat').dispatchEvent(new KeyboardEvent('keydown', "
                "{key: arguments[0][0], shiftKey: arguments[0][1], bubbles: true, cancelable: true}))", [name, shift])


def reading(words):
    return browser.until("const t = document.querySelector('.heat').getAttribute('aria-valuetext'); "
                         "return t.includes(arguments[0]) && t", words, what=f"the heat map reads {words}")


def rows():
    return browser.run("return [...document.querySelectorAll('.ranks tbody tr')].map(r => [...r.children].map(c => c.textContent.trim()))")


def head():
    return browser.run("return [...document.querySelectorAll('.ranks thead th')].map(h => h.textContent)")


# ---- few ranks: every number ----
samples = sample_lines(16, 120, straggler=5)
STEP = {"source": "here: measured 2026-11-27 on 16 GPUs", "assumed": True, "workers": 16, "other_workers": False, "forecast_s": 0.1,
        "step_s": 0.12, "largest": "params", "text": "step 0.12 s, forecast 0.1 s (+20 %): most of it in parameter gathers, +0.02 s",
        "cause": "Links take 3 times as long as with the assumed rates.",
        "parts": [{"part": "compute", "label": "computing", "forecast_s": 0.08, "measured_s": 0.08},
                  {"part": "params", "label": "parameter gathers", "forecast_s": 0.01, "measured_s": 0.03},
                  {"part": "update", "label": "optimizer", "forecast_s": 0.01, "measured_s": None}]}
fake = Fake(samples, straggler=5, more={"forecast": ("application/json", json.dumps(STEP))})
open_job(fake)
last = samples[-1]


def mean(field):
    known = [v for v in last[field] if v is not None]
    return sum(known) / len(known)


texts = browser.until("const v = [...document.querySelectorAll('.chart')].find(c => /Parts of a step/.test(c.textContent));"
                      "return v && [...v.querySelectorAll('.value')].map(x => x.textContent)", what="the parts of a step")
step = mean("step_s")
parts = {"compute": mean("compute_s"), "communicate": mean("comm_s"), "data": mean("data_s"), "save": mean("save_s")}
parts["other"] = step - sum(parts.values())
for name, seconds in parts.items():
    text = next(t for t in texts if t.startswith(name + " "))
    percent = int(text.split("(")[1].split()[0])
    assert abs(percent - 100 * seconds / step) <= 1, (text, 100 * seconds / step)
check(len(texts) == 5, "the parts of a step are those of the samples, and add up to it")

step_text = browser.until("const v = document.querySelector('.step-forecast:not([hidden])'); return v && v.innerText", what="the forecast of the step")
check(all(word in step_text for word in (STEP["text"], STEP["cause"], "here: measured 2026-11-27 on 16 GPUs", "parameter gathers")),
      "the forecast, its largest difference, the reason and the machine are there")
bars = browser.run("return [...document.querySelectorAll('.step-bars')].map(b => [...b.children].map(c => c.getBoundingClientRect().width / b.clientWidth))")
expected = [[p["forecast_s"] / 0.08, (p["measured_s"] or 0) / 0.08] for p in STEP["parts"]]
check(all(abs(x - y) < 0.02 for bar, want in zip(bars, expected) for x, y in zip(bar, want)) and len(bars) == 3, "the bars have one scale")

rows_of = """return import('/usage.js').then(m => { const u = new m.Usage();
  const at = (wall_ms, epoch, step) => ({wall_ms, window_ms: 1000, epoch, step, node: ['a'], step_s: [0.1], compute_s: [0.05]});
  u.load([at(1000, 1, 10), at(2000, 1, 20), at(3000, 1, 30), at(4000, 2, 15), at(5000, 2, 25)]);
  return [u.parts('step'), u.parts('time')].map(rows => rows.map(r => r.step)); })"""
check(browser.run(rows_of) == [[0, 10, 10, 15, 15, 25], [0, 10, 10, 20, 20, 30, 30, 15, 15, 25]], "steps that ran again are drawn once on their axis")
key("w")
text = reading("rank 5 ")
ms = 1000 * last["compute_s"][5]
ratio = last["compute_s"][5] / sorted(last["compute_s"])[8]
check(f"{ms:.0f} ms" in text and f"{ratio:.2f}" in text and "node0" in text, f"W finds the straggler and its value: {text}")
key("ArrowUp")
reading("rank 4 ")
key("Home")
check("step 20," in reading("rank 4 on node0 step 20,"), "the keyboard moves to the first window")
key("ArrowLeft")
reading("step 20,")
key("ArrowDown", True)
check("rank 14" in reading("rank 14 "), "and by ten ranks")
key("End")
browser.run("const s = document.getElementById('heat-field'); s.value = 'gpu_celsius'; s.dispatchEvent(new Event('change'))")
reading(f"{round(last['gpu_celsius'][14])} °C")
for _ in range(12):
    key("ArrowUp")
check("no value" in reading("rank 2 "), "another field; a missing value is no number")

node = head().index("Node")
assert rows()[5][node] == "node0" and rows()[9][node] == "node1"
check(len(rows()) == 16 and "1.31 ×" in rows()[5][1], "the table marks the straggler")
browser.click("Compute")
check(rows()[0][0] == "5", "sorted by compute time, the straggler is the first")
check(browser.run("return document.querySelector('.ranks [aria-sort]').getAttribute('aria-sort')") == "descending", "the head says so")
browser.click("Compute")
check(rows()[-1][0] == "5", "pressed again, the last")
browser.click("Compute")
check([r[0] for r in rows()] == [str(r) for r in range(16)], "and a third time in the order of ranks")
share = browser.run("const b = document.querySelector('.memory-bar'); return b.firstChild.getBoundingClientRect().width / b.clientWidth")
used = last["gpu_bytes"][0]
check(abs(share - used / 4.2e10) < 0.02, "the bar of memory is as long as what is used of the planned bytes")

changed = sample_lines(16, 121, straggler=5)[-1]
changed["compute_s"][3] = 0.5
fake.news.append(changed)
browser.run("const s = document.getElementById('heat-field'); s.value = 'compute_s'; s.dispatchEvent(new Event('change'))")
browser.until("return [...document.querySelectorAll('.ranks tbody tr')].some(r => /500 ms/.test(r.textContent))", what="a sample that arrives")
key("End")
key("w")
check("500 ms" in reading("rank 3 "), "a sample of the stream is in the picture and the table")

# ---- the log as it is written: levels, the first error, a line in two pieces, search ----
LOG = "return [...document.querySelectorAll('.log div')].filter(e => !e.hidden).map(e => e.textContent)"
fake.log += [[0, "begin\nwarn: slow disk\n"], [1, "step 1\n0 errors so far\n"], [0, "Traceback (most recent call last)\nprogr"]]
browser.until(LOG + ".length === 6", what="six lines of the log")
check(browser.run(LOG)[-1] == "[0] progr", "a line without an end is shown")
fake.log.append([0, "ess 50 %\rprogress 100 %\n"])
browser.until("return " + LOG[7:] + ".at(-1) === '[0] progress 100 %'", what="its end, as a terminal shows it")
check(len(browser.run(LOG)) == 6, "its two pieces are one line")
check(browser.run("return document.querySelector('.first-error').textContent").startswith("[0] Traceback"), "the first error is marked")


def level(name):
    browser.run("const s = document.getElementById('log-level'); s.value = [...s.options].find(o => o.textContent === arguments[0]).value;"
                "s.dispatchEvent(new Event('change'))", name)
    return browser.run(LOG)


check(level("errors") == ["[0] Traceback (most recent call last)"], "only errors: no line that counts none")
check(level("warnings and errors") == ["[0] warn: slow disk", "[0] Traceback (most recent call last)"], "warnings and errors")
fake.log.append([1, "error: disk is full\n"])
browser.until(LOG + ".length === 3", what="a new error passes the level")
level("all")
browser.run("const s = document.getElementById('log-search'); s.value = 'DISK'; s.dispatchEvent(new Event('input'))")
marks = "return [...document.querySelectorAll('.log mark')].map(m => m.parentElement.textContent)"
check(browser.run(marks) == ["[0] warn: slow disk", "[1] error: disk is full"], "search marks the lines")
fake.log.append([1, "no disk\n"])
browser.until("return document.querySelectorAll('.log mark').length === 3", what="a new line with the word")
check(True, "and those that arrive later")

for width in (390, 800, 1400):
    for dark in (False, True):
        browser.look(width, dark)
        wide = browser.until("return document.documentElement.scrollWidth")
        check(wide <= width, f"not wider than {width} pixels ({wide})")
        browser.run("document.querySelector('.heat').dispatchEvent(new KeyboardEvent('keydown', {key: 'w', bubbles: true}))")
        problems = access_problems(browser)
        check(not problems, f"contrast and names at {width} pixels, {'dark' if dark else 'light'}: {problems}")
        browser.picture(f"{pictures}/ranks-{width}-{'dark' if dark else 'light'}.png")
fake.end()

# ---- the colours: even for the eye (CIE L*a*b*), light to dark without a turn ----
fake = Fake(sample_lines(2048, 600, straggler=777, gpus=False), straggler=777)
open_job(fake)
ramp = browser.run("return import('/colors.js').then(m => m.RAMP)")


def lab(rgb):
    linear = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb]
    xyz = [sum(m * c for m, c in zip(row, linear)) / white for row, white in
           (((0.4124, 0.3576, 0.1805), 0.9505), ((0.2126, 0.7152, 0.0722), 1.0), ((0.0193, 0.1192, 0.9505), 1.089))]
    f = [t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in xyz]
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


points = [lab(c) for c in ramp[::15]]
steps = [sum((x - y) ** 2 for x, y in zip(a, b)) ** 0.5 for a, b in zip(points, points[1:])]
rises = [b[0] - a[0] for a, b in zip(points, points[1:])]
check(min(rises) > 0 and points[-1][0] - points[0][0] > 60, "the colour map rises in lightness, by more than 60")
check(max(steps) / min(steps) < 2, f"in steps that are about even ({min(steps):.1f} to {max(steps):.1f})")

# ---- many ranks: one straggler among 2048 in 420 rows of pixels ----
pixels = browser.run("""const c = document.querySelector('.heat canvas'), g = c.getContext('2d'), w = c.width, h = c.height;
    const x = Math.round(66 + (w - 84) * 0.9), out = [];
    for (let y = 9; y < h - 28; y++) out.push([...g.getImageData(x, y, 1, 1).data].slice(0, 3));
    return out;""")
darkest = min(range(len(pixels)), key=lambda i: sum(pixels[i]))
check(abs(darkest / len(pixels) - 777 / 2048) < 0.01, "a straggler among 2048 ranks has its row of pixels")
check(sorted(sum(p) for p in pixels)[0] + 100 < sorted(sum(p) for p in pixels)[5], "which differs from all others")
key("w")
check("rank 777 " in reading("rank 777 "), "and is found by the keyboard")
check(sum("/usage?" in p for p in fake.asked) == 1, "the history was loaded once")
frame = browser.run("""const p = document.querySelector('.heat'), r = p.getBoundingClientRect(), all = [];
    const next = () => new Promise(done => requestAnimationFrame(done));
    return (async () => { for (let i = 0; i < 60; i++) {
      const from = performance.now();
      p.dispatchEvent(new PointerEvent('pointermove', {clientX: r.left + 80 + 15 * i, clientY: r.top + 20 + 5 * i, bubbles: true}));
      await next(); await next(); all.push(performance.now() - from); }
      all.sort((a, b) => a - b); return all[30]; })()""")
print(f"2048 ranks and 600 windows: {frame / 2:.1f} ms for a frame while the pointer moves")
fake.end()
errors = browser.errors()
check(not errors, f"the console has no error: {errors}")
