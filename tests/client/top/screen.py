"""A program in a pseudo terminal, and the screen that it has drawn: what an xterm would show, as text and as SVG.

The emulator knows the sequences that ncurses uses for the terminal types xterm and vt100, and fails on all others, so
that a test never compares a screen that was understood by half."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
import unicodedata

COLORS = {None: "#d8dee9", 0: "#4c566a", 1: "#ff6b6b", 2: "#7bd88f", 3: "#ffd866", 4: "#78a9ff", 5: "#d59bff", 6: "#6fd6e8", 7: "#ffffff"}
BACKGROUND = "#1c212b"


def width(char):
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


class Style:
    def __init__(self, color=None, background=None, bold=False, dim=False, reverse=False, underline=False):
        self.color, self.background, self.bold, self.dim, self.reverse = color, background, bold, dim, reverse
        self.underline = underline

    def key(self):
        return (self.color, self.background, self.bold, self.dim, self.reverse, self.underline)


class Screen:
    def __init__(self, rows, columns):
        self.rows, self.columns = rows, columns
        self.saved = None  # the screen before the alternate one
        self.alternate, self.cursor_shown = False, True
        self.clear()
        self.rest = ""

    def clear(self):
        self.cells = [[(" ", Style())] * self.columns for _ in range(self.rows)]
        self.y = self.x = 0
        self.top, self.bottom = 0, self.rows - 1
        self.style, self.last, self.wraps = Style(), " ", False

    def resize(self, rows, columns):
        self.rows, self.columns = rows, columns
        self.clear()

    # ---- what sequences do

    def put(self, char):
        columns = width(char)
        if columns == 0:
            before, style = self.cells[self.y][max(0, self.x - 1)]
            self.cells[self.y][max(0, self.x - 1)] = (before + char, style)
            return
        if self.wraps or self.x + columns > self.columns:
            self.x, self.wraps = 0, False
            self.line_feed()
        self.cells[self.y][self.x] = (char, self.style)
        if columns == 2:
            self.cells[self.y][self.x + 1] = ("", self.style)
        self.last = char
        self.x += columns
        if self.x >= self.columns:
            self.x, self.wraps = self.columns - 1, True

    def blank(self, y, a, b):
        for x in range(max(0, a), min(self.columns, b)):
            self.cells[y][x] = (" ", Style(background=self.style.background))

    def scroll(self, n, top=None):
        top = self.top if top is None else top
        empty = [(" ", Style())] * self.columns
        for _ in range(abs(n)):
            if n > 0:
                del self.cells[top]
                self.cells.insert(self.bottom, list(empty))
            else:
                del self.cells[self.bottom]
                self.cells.insert(top, list(empty))

    def line_feed(self):
        if self.y == self.bottom:
            self.scroll(1)
        else:
            self.y = min(self.rows - 1, self.y + 1)

    def select_graphics(self, numbers):
        s = Style(*self.style.key())
        for n in numbers or [0]:
            if n == 0:
                s = Style()
            elif n in (1, 2, 4, 7):
                setattr(s, {1: "bold", 2: "dim", 4: "underline", 7: "reverse"}[n], True)
            elif n == 22:
                s.bold = s.dim = False
            elif n in (24, 27):
                setattr(s, "underline" if n == 24 else "reverse", False)
            elif 30 <= n <= 37 or n == 39:
                s.color = None if n == 39 else n - 30
            elif 40 <= n <= 47 or n == 49:
                s.background = None if n == 49 else n - 40
            elif n not in (10, 25):
                raise ValueError(f"SGR {n}")
        self.style = s

    def mode(self, numbers, on):
        for n in numbers:
            if n == 1049:
                self.alternate = on
                if on:
                    self.saved = (self.cells, self.y, self.x)
                    self.clear()
                elif self.saved:
                    (self.cells, self.y, self.x), self.saved = self.saved, None
            elif n == 25:
                self.cursor_shown = on
            elif n not in (1, 4, 7, 12, 2004):
                raise ValueError(f"mode {n}")

    def control(self, private, numbers, final):
        n = numbers[0] if numbers and numbers[0] else 1
        second = numbers[1] if len(numbers) > 1 and numbers[1] else 1
        first = numbers[0] if numbers else 0
        self.wraps = self.wraps and final in "mhl"
        if final == "m":
            self.select_graphics(numbers)
        elif final in "Hf":
            self.y, self.x = min(n, self.rows) - 1, min(second, self.columns) - 1
        elif final == "J":
            for y in range(self.rows):
                if first == 2 or (first == 0 and y > self.y) or (first == 1 and y < self.y):
                    self.blank(y, 0, self.columns)
            if first < 2:
                self.control(private, [first], "K")
        elif final == "K":
            a, b = [(self.x, self.columns), (0, self.x + 1), (0, self.columns)][first]
            self.blank(self.y, a, b)
        elif final in "ABCDGd":
            self.y += {"A": -n, "B": n}.get(final, 0)
            self.x += {"C": n, "D": -n}.get(final, 0)
            self.x = n - 1 if final == "G" else self.x
            self.y = n - 1 if final == "d" else self.y
            self.y, self.x = max(0, min(self.rows - 1, self.y)), max(0, min(self.columns - 1, self.x))
        elif final == "X":
            self.blank(self.y, self.x, self.x + n)
        elif final == "b":
            for _ in range(n):
                self.put(self.last)
        elif final in "P@":
            row = self.cells[self.y]
            for _ in range(n):
                if final == "P":
                    del row[self.x]
                    row.append((" ", Style()))
                else:
                    row.insert(self.x, (" ", Style()))
                    row.pop()
        elif final in "LM":
            self.scroll(n if final == "M" else -n, self.y)
        elif final in "ST":
            self.scroll(n if final == "S" else -n)
        elif final == "r":
            self.top, self.bottom = (numbers or [1])[0] - 1, (numbers[1] if len(numbers) > 1 else self.rows) - 1
            self.y = self.x = 0
        elif final in "hl":
            if private:
                self.mode(numbers, final == "h")
        elif final not in "tn":
            raise ValueError(f"CSI {private}{numbers}{final}")

    SEQUENCE = re.compile(r"\x1b(?:\[(?P<private>\??)(?P<numbers>[\d;]*)(?P<final>[@-~])|[()][AB0]|[=>78MDEc])")

    def feed(self, text):
        text, self.rest = self.rest + text, ""
        at = 0
        while at < len(text):
            char = text[at]
            if char == "\x1b":
                m = self.SEQUENCE.match(text, at)
                if not m:
                    if len(text) - at < 32 and re.fullmatch(r"\x1b[\[(?)]?[\d;?]*", text[at:]):
                        self.rest = text[at:]
                        return
                    raise ValueError(f"unknown sequence {text[at:at + 12]!r}")
                if m["final"]:
                    self.control(m["private"], [int(x or 0) for x in m["numbers"].split(";")] if m["numbers"] else [], m["final"])
                elif m.group() == "\x1bM":
                    if self.y == self.top:
                        self.scroll(-1)
                    else:
                        self.y -= 1
                at = m.end()
                continue
            if char == "\n":
                self.line_feed()
            elif char == "\r":
                self.x, self.wraps = 0, False
            elif char == "\b":
                self.x, self.wraps = max(0, self.x - 1), False
            elif char == "\t":
                self.x = min(self.columns - 1, self.x // 8 * 8 + 8)
            elif char in "\x0e\x0f\x07":
                pass
            elif ord(char) < 32:
                raise ValueError(f"control character {ord(char)}")
            else:
                self.put(char)
            at += 1

    # ---- what is on it

    def lines(self):
        return ["".join(c for c, _ in row).rstrip() for row in self.cells]

    def text(self):
        return "\n".join(self.lines())

    def svg(self):
        w, h = 8.4, 18
        out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.columns * w + 24:.0f} {self.rows * h + 24}" '
               f'width="{self.columns * w + 24:.0f}" font-family="DejaVu Sans Mono, monospace" font-size="14">',
               f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>']
        for y, row in enumerate(self.cells):
            x = 0
            while x < self.columns:
                key = row[x][1].key()
                end = x
                while end < self.columns and row[end][1].key() == key:
                    end += 1
                text = "".join(c for c, _ in row[x:end])
                style = row[x][1]
                front, back = COLORS[style.color], COLORS[style.background] if style.background is not None else BACKGROUND
                if style.reverse:
                    front, back = back, front
                if back != BACKGROUND:
                    out.append(f'<rect x="{12 + x * w:.1f}" y="{12 + y * h}" width="{(end - x) * w:.1f}" height="{h}" fill="{back}"/>')
                if style.underline:
                    out.append(f'<path d="M{12 + x * w:.1f} {12 + y * h + h - 1.5} h{(end - x) * w:.1f}" stroke="{front}" opacity=".6"/>')
                if text.strip():
                    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
                    out.append(f'<text x="{12 + x * w:.1f}" y="{12 + y * h + 13.5}" textLength="{(end - x) * w:.1f}" xml:space="preserve" '
                               f'fill="{front}"{" font-weight=" + chr(34) + "bold" + chr(34) if style.bold else ""}'
                               f'{" opacity=" + chr(34) + ".6" + chr(34) if style.dim else ""}>{escaped}</text>')
                x = end
        return "\n".join(out + ["</svg>\n"])


class Terminal:
    """Runs a program; `screen` is what it has drawn so far."""

    def __init__(self, argv, rows=24, columns=80, term="xterm-256color", lang="C.UTF-8", env=()):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": term, "LC_ALL": lang, **dict(env)})
            os.environ.pop("NO_COLOR", None)
            time.sleep(0.05)  # until the size is set
            os.execvp(argv[0], argv)
        self.encoding = "utf-8" if "UTF-8" in lang else "latin-1"
        self.screen = Screen(rows, columns)
        self.bytes = b""
        self.all = b""
        self.status = None
        self.set_size(rows, columns)
        self.modes_before = termios.tcgetattr(self.fd)

    def set_size(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)

    def read(self, seconds):
        """False: the program has closed the terminal."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            data = b""
        self.all += data
        self.bytes += data
        for keep in range(4):  # a character may be cut
            try:
                cut = len(self.bytes) - keep
                text = self.bytes[:cut].decode(self.encoding)
                self.bytes = self.bytes[cut:]
                self.screen.feed(text)
                break
            except UnicodeDecodeError:
                continue
        return bool(data)

    def until(self, condition, what, seconds=20):
        """Reads until condition(text of the screen)."""
        end = time.time() + seconds
        while not condition(self.screen.text()):
            if time.time() > end or not self.read(0.1) and not condition(self.screen.text()):
                raise AssertionError(f"{what}; the screen is:\n{self.screen.text()}")
        return self.screen.text()

    def until_text(self, text, seconds=20):
        return self.until(lambda s: text in s, f"no {text!r}", seconds)

    def press(self, keys):
        os.write(self.fd, keys.encode())

    def signal(self, number):
        os.kill(self.pid, number)

    def wait(self, seconds=10):
        """Reads until the program ends. Returns its exit status, negative for a signal."""
        end = time.time() + seconds
        while time.time() < end:
            self.read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                while self.read(0.1) and select.select([self.fd], [], [], 0)[0]:
                    pass
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        raise AssertionError(f"the program did not end; the screen is:\n{self.screen.text()}")

    def modes(self):
        return termios.tcgetattr(self.fd)
