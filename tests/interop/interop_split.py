"""The tokenizer `split` beside Python's own text.split() and text.lower().split(): every code point that this Python knows, alone and beside
letters, and random words.

    interop_split.py DTCTL
"""
import array
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

PIECES = "Σ σ ΑΣ A\u0345Σ 'Σ Σ\u00adB İ ẞ ß ŉ ǰ \u1fe4 ＦＵＬＬ 𐐀 a\u0301Σ.".split() + ["\u0085", "\u00a0", "\x1c", "\x1f", "\u3000", "\u200b", "\ufeff", "\r\n"]


def known():
    for c in range(1, 0x110000):
        if unicodedata.category(chr(c)) not in ("Cn", "Cs"):
            yield chr(c)


def hostile(seed, n):
    chars = list(known())
    r = random.Random(seed)
    for c in chars:
        yield "a%sB %s Σ%s " % (c, c, c)
    for _ in range(n):
        yield "".join(r.choice(PIECES if r.random() < 0.7 else chars) for _ in range(r.randrange(12))) + " "


def prepared(dtctl, folder, text, options):
    path = os.path.join(folder, "text.txt")
    with open(path, "wb") as f:
        f.write(text.encode())
    out = subprocess.run([dtctl, "data", "prepare", path, "--tokenizer", "split", "--raw", "--cache", folder, *options],
                         check=True, capture_output=True, text=True).stdout
    set_ = os.path.join(folder, next(w for w in out.split() if len(w) == 64))
    with open(os.path.join(set_, "vocab"), "rb") as f:
        vocab = f.read().decode().split("\n")[:-1]
    ids = array.array("H" if len(vocab) <= 65535 else "I")
    for name in sorted(n for n in os.listdir(set_) if n.startswith("tokens-")):
        with open(os.path.join(set_, name), "rb") as f:
            ids.frombytes(f.read())
    return vocab, [vocab[i] for i in ids]


def main():
    text = "".join(hostile(11, 20000))
    for options in [], ["--lowercase"]:
        words = (text.lower() if options else text).split()
        with tempfile.TemporaryDirectory() as folder:
            vocab, found = prepared(sys.argv[1], folder, text, options)
        for i, (a, b) in enumerate(zip(words, found)):
            if a != b:
                sys.exit("%s word %d: Python has %a, dtd %a" % (options, i, a, b))
        if len(words) != len(found):
            sys.exit("%s: Python has %d words, dtd %d" % (options, len(words), len(found)))
        if vocab != sorted(set(words)):
            sys.exit("%s: another vocabulary" % options)
        print("%s: %d words, %d different, equal" % (" ".join(options) or "as it is", len(words), len(vocab)))


main()
