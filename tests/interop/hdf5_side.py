"""interop_tables.py's comparison of HDF5 with h5py: layouts x filters x types, and the files of a course."""
import itertools

import h5py
import numpy as np

from tables import IDS, TEXTS, Cases, check_cut, check_flipped, of_ids, of_texts, path

ROWS = [t.replace("\0", "") for t in TEXTS if t is not None]  # h5py refuses a NUL
FILTERS = [{}, dict(chunks=True), dict(compression="gzip"), dict(compression="gzip", shuffle=True), dict(compression="gzip", fletcher32=True),
           dict(scaleoffset=0)]


def strings():
    cases = Cases(".h5")
    for version, encoding, how in itertools.product([None, ("v110", "v110")], ["utf-8", "ascii"], FILTERS[:4]):
        rows = ROWS if encoding == "utf-8" else [r.encode("ascii", "replace").decode() for r in ROWS]
        with h5py.File(cases.file((version, encoding, how), of_texts(rows)), "w", libver=version) as f:
            f.create_dataset("text", data=rows, dtype=h5py.string_dtype(encoding), **how)
    cases.check()


def grids():
    cases = Cases(".h5")
    for dtype, how, chunks in itertools.product(["<i4", "<u2", "<i8", ">i4", "u1", "u8"], FILTERS, [None, (1, 7), (100, 64)]):
        rows = np.random.default_rng(3).integers(0, 120, (400, 65)).astype(dtype)
        with h5py.File(cases.file((dtype, how, chunks), of_ids(rows.tolist())), "w") as f:
            f.create_dataset("input_ids", data=rows, **({**how, "chunks": chunks} if chunks else how))
    mask = np.arange(6).reshape(2, 3) % 2
    with h5py.File(cases.file("loss_mask", [(0, [1, 2, 3], [0, 1, 0]), (1, [4, 5, 6], [1, 0, 1])]), "w") as f:
        f["input_ids"], f["loss_mask"] = np.array([[1, 2, 3], [4, 5, 6]]), mask
    with h5py.File(cases.file("no rows", []), "w") as f:
        f.create_dataset("input_ids", shape=(0, 5), dtype="i4")
    with h5py.File(cases.file("no columns", of_ids([[], []])), "w") as f:
        f.create_dataset("input_ids", shape=(2, 0), dtype="i4")
    with h5py.File(cases.file("a block for the user", of_ids([[1]])), "w", userblock_size=1024) as f:
        f["input_ids"] = [[1]]
    cases.check()


def lists():
    cases = Cases(".h5")
    for dtype, how in itertools.product(["<i4", "<u2", "<i8", "i1"], FILTERS[:4]):
        rows = [t or [] for t in IDS]
        with h5py.File(cases.file((dtype, how), of_ids(rows)), "w") as f:
            d = f.create_dataset("input_ids", (len(rows),), dtype=h5py.vlen_dtype(np.dtype(dtype)), **how)
            for i, t in enumerate(rows):
                d[i] = np.array(t, dtype=dtype)
    cases.check()


def course():
    """A course's layout: /train and /val with variable-length bytes and int16 targets, both contiguous."""
    cases = Cases(".h5")
    rows = [b"sample %d" % i * (i % 40) for i in range(500)]
    with h5py.File(cases.file("course", of_texts(rows)), "w") as f:
        for split in "train", "val":
            images = f.create_dataset(split + "/images", (len(rows),), dtype=h5py.vlen_dtype(np.uint8))
            for i, row in enumerate(rows):
                images[i] = np.frombuffer(row, np.uint8)
            f[split + "/targets"] = np.arange(len(rows), dtype=np.int16)
    cases.check(field="train/images")
    with h5py.File(cases.file("course's labels", [row + (row[0],) for row in of_texts(rows)]), "w") as f:
        images = f.create_dataset("val/images", (len(rows),), dtype=h5py.vlen_dtype(np.uint8))
        for i, row in enumerate(rows):
            images[i] = np.frombuffer(row, np.uint8)
        f["val/targets"] = np.arange(len(rows), dtype=np.int16)
    cases.check(field="val/images", label="targets")
    with h5py.File(cases.file("in groups", of_texts(ROWS)), "w") as f:
        f.create_dataset("/a/b/text", data=ROWS, dtype=h5py.string_dtype())
    cases.check(field="/a/b/text")


def labels():
    cases = Cases(".h5")
    texts = ["text %d" % i for i in range(500)]
    for of in "i1", "u1", ">i2", "u2", "i4", "u4", "i8":
        for how in {}, {"chunks": (7,)}, {"chunks": (64,), "compression": "gzip", "shuffle": True}:
            with h5py.File(cases.file((of, how), [row + (row[0] % 100,) for row in of_texts(texts)]), "w") as f:
                f.create_dataset("text", data=texts, dtype=h5py.string_dtype())
                f.create_dataset("label", data=np.arange(500) % 100, dtype=of, **how)
    cases.check(label="label")
    for data, part in [(np.array([1.0]), "1-D floats. A label must be"), (np.array([[1]]), "A label must be one integer"),
                       (np.array([1, 2]), "has 2 rows, but the dataset before has 1"), (np.array([-3]), "its label is -3, but")]:
        with h5py.File(cases.file(part, part), "w") as f:
            f["text"], f["label"] = ["a"], data
    cases.check(label="label")


def refused():
    cases = Cases(".h5")
    with h5py.File(cases.file("groups", "no column text or input_ids; the columns are: train, val. Set data.field"), "w") as f:
        f["train/text"], f["val/text"] = ["a"], ["b"]
    for data, part in [(np.array([b"ab"]), "strings of fixed length"), (np.array([1.5]), "1-D floats"), (np.array(3), "one integer"),
                       (np.zeros((2, 2, 2), "i4"), "more than 2 dimensions"), (np.zeros(2, "i4,f4"), "compounds"), (np.zeros(3, "i4"), "1-D integers")]:
        with h5py.File(cases.file(part, part), "w") as f:
            f["text"] = data
    with h5py.File(cases.file("not written", "some of its rows were never written"), "w") as f:
        f.create_dataset("input_ids", (100, 4), dtype="i4", chunks=(10, 4))[:10] = 1
    with h5py.File(cases.file("rows", "dataset labels has 1 rows, but the dataset before has 2"), "w") as f:
        f["input_ids"], f["labels"] = [[1], [2]], [[1]]
    with h5py.File(cases.file("negative", "row 1: token 0 is -5"), "w") as f:
        f["input_ids"] = [[1], [-5]]
    with h5py.File(cases.file("plugin", "its filter 32000 (lzf)"), "w") as f:
        f.create_dataset("input_ids", data=[[1]], compression="lzf")
    with h5py.File(cases.file("external link", "a link to another file or name"), "w") as f:
        f["text"] = h5py.ExternalLink("/etc/passwd", "/text")
    with h5py.File(cases.file("external values", "its values are in other files"), "w") as f:
        f.create_dataset("input_ids", (1, 8), dtype="u1", external=[("/etc/passwd", 0, 8)])
    with h5py.File(path("source.h5"), "w") as f:
        f["input_ids"] = [[1, 2]]
    with h5py.File(cases.file("virtual", "its values are in other files"), "w") as f:
        layout = h5py.VirtualLayout((1, 2), "i8")
        layout[:] = h5py.VirtualSource(path("source.h5"), "input_ids", (1, 2))
        f.create_virtual_dataset("input_ids", layout)
    cases.check()
    with h5py.File(cases.file("no group", "there is no group x"), "w") as f:
        f["text"] = ["a"]
    cases.check(field="x/text")


def damaged():
    for how in {}, dict(compression="gzip", fletcher32=True):
        cases = Cases(".h5")
        rows = np.arange(600).reshape(100, 6)
        file = cases.file("whole", of_ids(rows.tolist()))
        with h5py.File(file, "w") as f:
            f.create_dataset("input_ids", data=rows, **how)
        cases.check()
        whole = open(file, "rb").read()
        check_cut("%s.h5" % (how or "plain"), whole)
        check_flipped("%s.h5" % (how or "plain"), whole, of_ids(rows.tolist()), 200, False)
    with h5py.File(file, "w") as f:
        f.create_dataset("text", data=ROWS[:50], dtype=h5py.string_dtype())
    check_flipped("strings.h5", open(file, "rb").read(), of_texts(ROWS[:50]), 100, False)


strings()
grids()
lists()
course()
labels()
refused()
damaged()
