"""What the sides of interop_tables.py share: running table_tool, and documents to compare."""
import os
import random
import struct
import subprocess
import sys
import tempfile

TOOL = sys.argv[1]
FOLDER = tempfile.TemporaryDirectory(prefix="dtd-tables-")
random.seed(7)

# Null, empty, repeated (for dictionaries), long (for pages and windows), and bytes that are no text.
TEXTS = [random.choice([None, "", "a", "h\u00e4llo\u4e16", "x" * random.randrange(50), "word %d" % random.randrange(10), "\0\r\n"])
         for _ in range(3000)] + ["y" * 300000, "end"]
IDS = [random.choice([None, [], [1], [random.randrange(120) for _ in range(random.randrange(40))]]) for _ in range(3000)]


def path(name):
    return os.path.join(FOLDER.name, name)


def read(files, field=None, count=None, label=None):
    """For each file: its documents, (row, bytes) or (row, ids, weights or None), with `label` and the label, and the sentence of its error or "". A folder
    gives `count` of them."""
    done = subprocess.run([TOOL] + (["--field", field] if field else []) + (["--label", label] if label else []) + list(files), capture_output=True)
    assert done.returncode == 0, done.stderr[-3000:].decode()
    data, at, all_files, docs = done.stdout, 0, [], []
    while at < len(data):
        kind, row, n = struct.unpack_from("=BqQ", data, at)
        at += 17
        if kind == 3:
            all_files.append((docs, data[at:at + n].decode()))
            docs = []
        elif kind == 4:
            docs[-1] += (n,)
            continue
        elif kind == 0:
            docs.append((row, data[at:at + n]))
        else:
            docs.append((row, list(struct.unpack_from("=%di" % n, data, at)), None))
            at += 4 * n
        if kind == 2:
            docs[-1] = docs[-1][:2] + (list(data[at:at + n]),)
        at += n if kind != 1 else 0
    assert len(all_files) == (count or len(files)), done.stderr
    return all_files


def of_texts(texts):
    return [(i, t if isinstance(t, bytes) else t.encode()) for i, t in enumerate(texts) if t is not None]


def of_ids(ids):
    return [(i, t, None) for i, t in enumerate(ids) if t is not None]


LABELLED = ["row %d" % i if i % 5 else None for i in range(500)]


def of_labels(label):
    """LABELLED as documents with label(row)."""
    return [row + (label(row[0]),) for row in of_texts(LABELLED)]


class Cases:
    """Files with the documents that they must have, or a part of the sentence that refuses them."""

    def __init__(self, suffix):
        self.suffix, self.cases = suffix, []

    def file(self, what, want):
        self.cases.append((path("%d%s" % (len(self.cases), self.suffix)), what, want))
        return self.cases[-1][0]

    def check(self, field=None, label=None):
        for (name, what, want), (docs, why) in zip(self.cases, read([c[0] for c in self.cases], field, label=label)):
            if isinstance(want, str):
                assert want in why, "%s: %s: refused with '%s', expected '%s'" % (name, what, why, want)
            else:
                first = next((i for i, (a, b) in enumerate(zip(docs, want)) if a != b), min(len(docs), len(want)))
                assert not why and docs == want, "%s: %s: %s; document %d is %.200s, expected %.200s" % (
                    name, what, why, first, docs[first:first + 1], want[first:first + 1])
        print("%d files agree" % len(self.cases))
        self.cases = []


def check_cut(name, whole):
    """Every prefix of the file is refused."""
    step = max(1, len(whole) // 400)
    files = [path("cut-%d-%s" % (n, name)) for n in range(8, len(whole), step)]
    for f, n in zip(files, range(8, len(whole), step)):
        with open(f, "wb") as out:
            out.write(whole[:n])
    for f, (docs, why) in zip(files, read(files)):
        assert why, "%s: %d documents, and no error" % (f, len(docs))
        os.unlink(f)
    print("%d prefixes of %s refused" % (len(files), name))


def check_flipped(name, whole, want, n, refused):
    """One bit flipped: a crash fails in read(). refused: everything is refused or reads as it was."""
    files, differ = [], 0
    for i in range(n):
        bit = random.randrange(8 * len(whole))
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        files.append(path("flip-%d-bit-%d-%s" % (i, bit, name)))
        with open(files[-1], "wb") as out:
            out.write(flipped)
    for f, (docs, why) in zip(files, read(files)):
        assert why or len(docs) == len(want) or not refused, "%s: %d documents, not %d" % (f, len(docs), len(want))
        if not why and docs != want:
            differ += 1
            assert not refused, "%s: other documents, and no error" % f
        os.unlink(f)
    print("%d flipped bits in %s: %d read as other documents" % (n, name, differ))
