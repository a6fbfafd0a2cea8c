"""interop_tables.py's comparison of Arrow with pyarrow: files and streams x compression x types x batch sizes."""
import itertools
import os

import datasets
import pyarrow as pa
import pyarrow.ipc as ipc

from tables import IDS, LABELLED, TEXTS, Cases, check_cut, check_flipped, of_ids, of_labels, of_texts, path, read

HOW = list(itertools.product([ipc.new_file, ipc.new_stream], [None, "lz4", "zstd"]))


def write(name, table, new, codec, rows):
    with new(name, table.schema, options=ipc.IpcWriteOptions(compression=codec)) as w:
        w.write_table(table, max_chunksize=rows)


def neighbours(n):
    """A column of every type whose buffers stand in front of ours."""
    return {"null": pa.nulls(n), "int": pa.array(range(n)), "bool": pa.array([True] * n), "struct": pa.array([{"x": 1, "y": "q"}] * n),
            "dictionary": pa.array((["u", "v"] * n)[:n]).dictionary_encode(), "view": pa.array(["a string that is long"] * n, type=pa.string_view()),
            "map": pa.array([[("k", 1)]] * n, type=pa.map_(pa.string(), pa.int32())), "list": pa.array([["a"], None] * (n // 2) + [[]] * (n % 2)),
            "sparse": pa.UnionArray.from_sparse(pa.array([0] * n, type=pa.int8()), [pa.array([1] * n)]),
            "dense": pa.UnionArray.from_dense(pa.array([0] * n, type=pa.int8()), pa.array(range(n), type=pa.int32()), [pa.array([1] * n)]),
            "list_view": pa.array([[1]] * n, type=pa.list_view(pa.int64())), "fixed": pa.array([b"ab"] * n, type=pa.binary(2)),
            "runs": pa.RunEndEncodedArray.from_arrays(pa.array([n], type=pa.int32()), pa.array([1])),
            "fixed_list": pa.array([[1, 2]] * n, type=pa.list_(pa.int8(), 2))}


def texts():
    cases = Cases(".arrow")
    raw = [t if t is None else t.encode() for t in TEXTS]
    for (new, codec), kind, rows in itertools.product(HOW, [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], [1, 7, 1000, 10000]):
        column = pa.array(TEXTS if kind in (pa.string(), pa.large_string()) else raw, type=kind)
        # A slice begins in the middle of a byte of the validity, and its offsets do not begin at 0.
        write(cases.file((new, codec, kind, rows), of_texts(TEXTS[3:])), pa.table({"text": column}).slice(3), new, codec, rows)
    for new, codec in HOW:
        table = pa.table({**neighbours(len(TEXTS)), "text": TEXTS})
        write(cases.file((new, codec, "neighbours"), of_texts(TEXTS)), table, new, codec, 10000)
    cases.check()


def lists():
    cases = Cases(".arrow")
    ints = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]
    lists_of = [pa.list_, pa.large_list, lambda t: pa.list_(t, 5)]
    for (new, codec), of, kind in itertools.product(HOW, ints, lists_of):
        ids = IDS if kind is not lists_of[2] else [t if t is None else (t * 5 + [1] * 5)[:5] for t in IDS]
        labels = [t and [-100 if i % 2 else v for i, v in enumerate(t)] for t in ids]
        mask = [t and [1] * (len(t) - 1) + [0] for t in ids]
        want = [(row, t[:-1], [1 - i % 2 for i, _ in enumerate(t[:-1])]) for row, t in enumerate(ids[1:]) if t is not None]
        table = pa.table({"input_ids": pa.array(ids, type=kind(of)), "labels": labels, "attention_mask": mask}).slice(1)
        write(cases.file((new, codec, of, kind), want), table, new, codec, 333)
    cases.check()


def course():
    """One record batch for each sample, as a course's Arrow files have them."""
    cases = Cases(".arrow")
    rows = [b"sample %d" % i for i in range(20000)]
    table = pa.table({"image_data": pa.array(rows, type=pa.binary()), "label": pa.array([i % 7 for i in range(20000)], type=pa.uint16())})
    write(cases.file("course", of_texts(rows)), table, ipc.new_file, None, 1)
    cases.check(field="image_data")
    write(cases.file("course's labels", [row + (row[0] % 7,) for row in of_texts(rows)]), table, ipc.new_file, None, 1)
    cases.check(field="image_data", label="label")


def labels():
    """A class beside each text; where the text is null there may be none."""
    cases = Cases(".arrow")
    for of in pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64():
        for new, codec, rows in (ipc.new_file, None, 100), (ipc.new_stream, "zstd", 7), (ipc.new_file, "lz4", 500):
            values = pa.array([i % 100 if i % 5 else None for i in range(len(LABELLED))], type=of)
            table = pa.table({"label": values, "text": pa.array(LABELLED)})
            write(cases.file((of, codec, rows), of_labels(lambda i: i % 100)), table, new, codec, rows)
            want = [(row - 3, *rest) for row, *rest in of_labels(lambda i: i % 100) if row >= 3]
            write(cases.file((of, codec, rows, "slice"), want), table.slice(3), new, codec, rows)
    cases.check(label="label")
    for column, part in [(pa.array([None], type=pa.int64()), "row 0: its label is null"), (pa.array([-1]), "its label is -1, but"),
                         (pa.array([65536]), "its label is 65536, but"), (pa.array([1.0]), "column label: its type is float"),
                         (pa.array(["pos"]), "A label must be one integer"), (pa.array([[1]]), "A label must be one integer")]:
        write(cases.file(part, part), pa.table({"label": column, "text": ["a"]}), ipc.new_file, None, 1)
    write(cases.file("none", "no column label; the columns are: text. Set data.label"), pa.table({"text": ["a"]}), ipc.new_file, None, 1)
    cases.check(label="label")


def refused():
    cases = Cases(".arrow")
    for table, part in [({"text": pa.array(["a"], type=pa.string_view())}, "its type is string_view"),
                        ({"text": pa.array(["a"]).dictionary_encode()}, "its type is a dictionary"), ({"text": [1]}, "its type is int"),
                        ({"text": [["a"]]}, "a list of something else"), ({"input_ids": [1]}, "its type is int"),
                        ({"input_ids": [[1, None]]}, "row 0: a list contains a null"), ({"input_ids": [[-1]]}, "row 0: token 0 is -1"),
                        ({"x": [1], "y": [2]}, "the columns are: x, y"), ({"text": ["a"], "input_ids": [[1]]}, "columns text and input_ids"),
                        ({"indices": pa.array([1], type=pa.uint64())}, "Write the result with save_to_disk")]:
        for new in ipc.new_file, ipc.new_stream:
            write(cases.file(table, part), pa.table(table), new, None, 10)
    file = cases.file("joined", "joined with cat")
    write(file, pa.table({"text": ["a"]}), ipc.new_stream, None, 10)
    data = open(file, "rb").read()
    open(file, "ab").write(data)
    cases.check()


def damaged():
    for new, codec in HOW:
        cases = Cases(".arrow")
        file = cases.file("whole", of_texts(TEXTS[:300]))
        write(file, pa.table({"text": TEXTS[:300]}), new, codec, 50)
        cases.check()
        whole = open(file, "rb").read()
        check_cut("%s-%s.arrow" % (new.__name__, codec), whole)
        # pyarrow's lz4 frames and zstd have no checksums either.
        check_flipped("%s-%s.arrow" % (new.__name__, codec), whole, of_texts(TEXTS[:300]), 400, False)


def folders():
    """Folders of datasets: a cache with one file and with several, map, filter, save_to_disk behind a shuffle, a DatasetDict."""
    text = path("lines.txt")
    with open(text, "w") as f:
        f.write("".join("line %d\n" % i if i % 5 else "\n" for i in range(3000)))
    data = datasets.load_dataset("text", data_files=text, cache_dir=path("cache"))
    rows = data["train"]["text"][:]
    cache = os.path.dirname(data["train"].cache_files[0]["filename"])
    shuffled, pairs = data["train"].shuffle(seed=3), data["train"].train_test_split(0.1, seed=1)
    shuffled.save_to_disk(path("saved"), num_shards=3)
    tokens = data["train"].map(lambda row: {"input_ids": list(row["text"].encode())}, remove_columns="text")
    tokens.save_to_disk(path("tokens"))
    pairs.save_to_disk(path("dict"))
    datasets.DatasetDict({"train": tokens}).save_to_disk(path("one"))
    filtered = data["train"].filter(lambda row: row["text"])
    several = datasets.Dataset.from_generator(lambda n: ({"text": "%d" % i} for i in n), gen_kwargs={"n": list(range(100))}, num_proc=4,
                                              cache_dir=path("cache"))
    ids = of_ids([list(t.encode()) for t in rows])
    expected = [
        ([cache], of_texts(rows)), ([path("tokens")], ids), ([path("one")], ids), ([path("dict")], "the splits train, test"),
        ([path("dict/test")], of_texts(pairs["test"]["text"][:])), ([f["filename"] for f in filtered.cache_files], None),
    ]
    for files, want in expected:
        results = read(files)
        if want is None:  # a filter caches its indices beside the data
            assert any("indices" in why for _, why in results), results
        elif isinstance(want, str):
            assert want in results[0][1], results[0][1]
        else:
            assert results == [(want, "")], (files, results[0][1], results[0][0][:2], want[:2])
    for folder, want in (path("saved"), shuffled["text"][:]), (os.path.dirname(several.cache_files[0]["filename"]), several["text"][:]):
        results = read([folder], count=3 if folder == path("saved") else 4)
        assert [t for docs, why in results for _, t in docs] == [t.encode() for t in want] and not any(why for _, why in results), folder
    print("folders of datasets agree")


texts()
lists()
course()
labels()
folders()
refused()
damaged()
