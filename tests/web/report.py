"""The page of `dtctl report` in a real browser: no error on the console, nothing wider than the screen, every picture has a
name and a table, and the policy stops scripts; at three widths in light and dark (DTD_PICTURES: folder for the pictures)."""
import os

from dtd import Dtd, check
from webdriver import Browser

dtd = Dtd()
browser = Browser(dtd.dir)
pictures = os.environ.get("DTD_PICTURES") or dtd.dir + "/pictures"
job = dtd.submit("first")
dtd.wait(job, lambda s: s["state"] == "done")
page = dtd.dir + "/report.html"
dtd.dtctl("report", job, "--to", page)
browser.look(1400, False)
browser.open("file://" + page)
for width in (390, 800, 1400):
    for dark in (False, True):
        browser.look(width, dark)
        wide = browser.until("return document.documentElement.scrollWidth")
        check(wide <= width, f"the page is not wider than {width} pixels ({wide})")
        color = browser.run("return getComputedStyle(document.body).backgroundColor")
        check((color == "rgb(22, 28, 35)") == dark, f"the background is {color}, dark is {dark}")
        browser.picture(f"{pictures}/report-{width}-{'dark' if dark else 'light'}.png")
check(browser.run("return document.querySelectorAll('svg').length") >= 5, "pictures")
check(browser.run("return [...document.querySelectorAll('svg')].every(s => s.getAttribute('role') === 'img' && "
                  "s.getAttribute('aria-label'))"), "every picture has a name")
check(browser.run("return [...document.querySelectorAll('figure')].slice(1).every(f => f.querySelector('details table'))"),
      "every picture after the ledger has a table")
check(browser.run("return document.querySelectorAll('h2').length") == 8, "eight sections")
check(not browser.errors(), "no error on the console")
browser.run("const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s);")
check(browser.run("return window.ran === undefined"), "the policy of the page stops scripts")
