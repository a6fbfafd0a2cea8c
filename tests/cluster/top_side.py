"""The terminal's side of top.sh. With a folder as the last argument, writes pictures of the screens there."""
import os
import re
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../client/top"))
from screen import Terminal  # noqa: E402

dtctl, job, control, pictures = sys.argv[1:5]


def picture(t, name):
    if pictures:
        with open(os.path.join(pictures, f"top-{name}.svg"), "w") as f:
            f.write(t.screen.svg())


def restored(t, before):
    assert not t.screen.alternate and t.screen.cursor_shown, "the screen is not restored"
    assert t.modes() == before, "the modes of the terminal are not restored"


began = time.time()
t = Terminal([dtctl, "top", "-d", "0.3"])
before = t.modes()
first = t.until_text("k:cancel")
print(f"first screen after {time.time() - began:.2f} s")
assert re.search(rf"^ +{job} esc-job +\S+ +running", first, re.M), first
assert t.screen.alternate and not t.screen.cursor_shown
picture(t, "overview")

t.press("\n")
text = t.until_text("RANK")
# the usage of the ranks, whose times are parts of the step
t.until(lambda s: re.search(r"^ +1 .* running +0\.\d+ +0\.\d+ +\d+ +\d", s, re.M), "no usage", 30)
t.until(lambda s: re.search(r"checkpoint: step \d+, .* ago", s), "no checkpoint")
assert re.search(r"^ +1 .* running", text, re.M), text
assert re.search(r"ETTR \d", text), text
picture(t, "job")
step = lambda s: int(re.search(r"^step (\d+)/", s, re.M)[1])
at = step(t.screen.text())
t.until(lambda s: re.search(r"^step (\d+)/", s, re.M) and step(s) > at, "no further step")
t.press("m")
t.until_text("seconds of a step")
t.press("e")
t.until_text("checkpoint")
picture(t, "events")
t.press("\x1b[5~" * 20)  # PgUp: by now the oldest events may be some screens away
t.until(lambda s: "submitted" in s, "no oldest event")
t.press("\x1b")
t.until_text("seconds of a step")
t.press("l")
t.until_text("output of job")
t.press("?")
t.until_text("Any key")
t.press("x\x1b")
t.until_text("seconds of a step")

# another size of the window
t.set_size(12, 40)
t.until(lambda s: s.split("\n")[11].startswith("?help") and f"job {job}" in s.split("\n")[0], "not drawn at 40 columns")
t.set_size(30, 120)
t.until(lambda s: s.split("\n")[29].startswith("?help") and "=:work" in s, "not drawn at 120 columns")
t.press("\x1b")
t.until_text("NODE")

# control is killed, and comes back
os.kill(int(control), signal.SIGSTOP)
t.until_text("! no answer from dtd, trying again")
os.kill(int(control), signal.SIGCONT)
t.until(lambda s: "no answer" not in s, "no answer for too long")
os.kill(int(control), signal.SIGKILL)
t.until(lambda s: "no answer" not in s and "running" in s, "control is not back", 30)

# a question, and another answer than yes; then a cancel
t.press("k")
t.until_text(f"cancel job {job}?")
t.press("n")
t.until_text("not canceled")
t.press("k")
t.until_text(f"cancel job {job}?")
t.press("y")
t.until(lambda s: re.search(r"^ +\d+ esc-job .* canceled", s, re.M), "not canceled", 30)
t.press("q")
assert t.wait() == 0
restored(t, before)

# ends by signals, and a terminal without colours, in ASCII
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGSEGV):
    t = Terminal([dtctl, "top", job], term="vt100" if number == signal.SIGINT else "xterm-256color", lang="C")
    before = t.modes()
    t.until_text("RANK")
    assert t.screen.text().isascii(), t.screen.text()
    if number == signal.SIGINT:
        assert not re.search(rb"\x1b\[([0-9;]*;)?3[0-7]m", t.all), "colours on a vt100"
    t.signal(number)
    assert t.wait() == -number, number
    if number != signal.SIGINT:
        restored(t, before)
    assert t.modes() == before

# no such terminal
t = Terminal([dtctl, "top"], term="nonsense")
assert t.wait() == 2, t.screen.text()
assert "TERM=nonsense" in t.screen.text(), t.screen.text()
