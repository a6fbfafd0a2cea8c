"""interop_tables.py's comparison of Parquet with pyarrow: codecs x pages x encodings x nulls x checksums."""
import itertools

import pyarrow as pa
import pyarrow.parquet as pq

from tables import IDS, LABELLED, TEXTS, Cases, check_cut, check_flipped, of_ids, of_labels, of_texts

CODECS = ["none", "snappy", "gzip", "zstd", "lz4"]  # pyarrow's lz4 is LZ4_RAW
SMALL = dict(row_group_size=1234, data_page_size=2000, write_batch_size=100)


def encodings(leaf, delta):
    return [dict(use_dictionary=True), dict(use_dictionary=False), dict(use_dictionary=False, column_encoding={leaf: delta}),
            dict(use_dictionary=True, dictionary_pagesize_limit=200)]  # falls back to PLAIN inside a chunk


def texts():
    cases = Cases(".parquet")
    for codec, version, how, crc, nullable in itertools.product(CODECS, ["1.0", "2.0"], encodings("text", "DELTA_LENGTH_BYTE_ARRAY"),
                                                                [False, True], [False, True]):
        rows = TEXTS if nullable else [t or "" for t in TEXTS]
        schema = pa.schema([pa.field("n", pa.int64()), pa.field("text", pa.string(), nullable=nullable)])
        file = cases.file((codec, version, how, crc, nullable), of_texts(rows))
        pq.write_table(pa.table({"n": list(range(len(rows))), "text": rows}, schema=schema), file, compression=codec,
                       data_page_version=version, write_page_checksum=crc, **SMALL, **how)
    cases.check()


def lists():
    cases = Cases(".parquet")
    kinds = [pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.uint16()), pa.list_(pa.uint32())]
    for codec, version, kind, old in itertools.product(CODECS, ["1.0", "2.0"], kinds, [False, True]):
        for how in encodings("input_ids.list." + ("item" if old else "element"), "DELTA_BINARY_PACKED"):
            file = cases.file((codec, version, kind, old, how), of_ids(IDS))
            pq.write_table(pa.table({"n": list(range(len(IDS))), "input_ids": pa.array(IDS, type=kind)}), file, compression=codec,
                           data_page_version=version, use_compliant_nested_type=not old, **SMALL, **how)
    cases.check()


def weights():
    cases = Cases(".parquet")
    labels = [t and [-100 if i % 3 else v for i, v in enumerate(t)] for t in IDS]
    mask = [t and [int(i + 1 < len(t)) for i, _ in enumerate(t)] for t in IDS]
    want = [(row, t[:-1], [int(i % 3 == 0) for i, _ in enumerate(t[:-1])]) for row, t in enumerate(IDS) if t is not None]
    pq.write_table(pa.table({"input_ids": IDS, "labels": labels, "attention_mask": mask}), cases.file("labels", want), **SMALL)
    loss = [t and [int(i % 2) for i, _ in enumerate(t)] for t in IDS]
    want = [(row, t, [int(i % 2) for i, _ in enumerate(t)]) for row, t in enumerate(IDS) if t is not None]
    pq.write_table(pa.table({"input_ids": IDS, "loss_mask": loss}), cases.file("loss_mask", want), **SMALL)
    pq.write_table(pa.table({"input_ids": [[1], [2]], "labels": [0, 1]}), cases.file("class labels", of_ids([[1], [2]])))
    cases.check()


def others():
    """Nested names, empty files and row groups, and values that DELTA_BINARY_PACKED wraps around."""
    cases = Cases(".parquet")
    extreme = [[2**31 - 1, 0] * 70]
    pq.write_table(pa.table({"input_ids": pa.array(extreme, type=pa.list_(pa.int32()))}), cases.file("deltas", of_ids(extreme)),
                   use_dictionary=False, column_encoding={"input_ids.list.element": "DELTA_BINARY_PACKED"})
    # From -100 to the largest id, a difference of 32 bits wraps around.
    wraps, labels = [[5, 2**31 - 1] * 70], [[-100, 2**31 - 1] * 70]
    kind = pa.list_(pa.int32())
    pq.write_table(pa.table({"input_ids": pa.array(wraps, type=kind), "labels": pa.array(labels, type=kind)}),
                   cases.file("deltas that wrap", [(0, wraps[0], [0, 1] * 70)]), use_dictionary=False,
                   column_encoding={"labels.list.element": "DELTA_BINARY_PACKED"})
    pq.write_table(pa.table({"text": pa.array([], type=pa.string())}), cases.file("empty", []))
    with pq.ParquetWriter(cases.file("empty row group", of_texts(["a", "b"])), pa.schema([("text", pa.string())])) as w:
        for rows in [], ["a"], [], ["b"], []:
            w.write_table(pa.table({"text": pa.array(rows, type=pa.string())}))
    pq.write_table(pa.table({"text": ["a", "bb"]}).replace_schema_metadata({"k": "v" * 100000}), cases.file("metadata", of_texts(["a", "bb"])))
    # A string of 1 MiB in the statistics makes a page's header longer than the window that is read first.
    pq.write_table(pa.table({"text": ["q" * 2**20]}), cases.file("long", of_texts(["q" * 2**20])), data_page_version="1.0")
    cases.check()
    pq.write_table(pa.table({"s": [{"a": "x"}, {"a": None}, None]}), cases.file("struct", [(0, b"x")]))
    cases.check(field="s.a")


def labels():
    """A class beside each text; where the text is null there may be none."""
    cases = Cases(".parquet")
    for of in pa.int8(), pa.uint8(), pa.int16(), pa.int32(), pa.uint32(), pa.int64():
        for how in {}, {"use_dictionary": False, "data_page_size": 64}, {"data_page_version": "2.0", "compression": "zstd", "row_group_size": 77}, \
                {"use_dictionary": False, "column_encoding": {"label": "DELTA_BINARY_PACKED"}}:
            values = pa.array([i % 100 if i % 5 else None for i in range(len(LABELLED))], type=of)
            pq.write_table(pa.table({"text": LABELLED, "label": values}), cases.file((of, how), of_labels(lambda i: i % 100)), **how)
    cases.check(label="label")
    for column, part in [(pa.array([None], type=pa.int64()), "row 0: its label is null"), (pa.array([-1]), "its label is -1, but"),
                         (pa.array([1.0]), "its type is DOUBLE. A label must be"), (pa.array([True]), "A label must be one integer")]:
        pq.write_table(pa.table({"label": column, "text": ["a"]}), cases.file(part, part))
    cases.check(label="label")


def refused():
    cases = Cases(".parquet")
    text = pa.table({"text": ["a", "b", None]})
    for how, part in [(dict(compression="brotli"), "the compression is brotli"),
                      (dict(use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"}), "the encoding is DELTA_BYTE_ARRAY")]:
        pq.write_table(text, cases.file(how, part), **how)
    for table, part in [({"text": [1]}, "column text: its type is INT64"), ({"input_ids": [1]}, "column input_ids: its type is INT64"),
                        ({"text": [["a"]]}, "list of BYTE_ARRAY"), ({"input_ids": [[1.5]]}, "list of DOUBLE"),
                        ({"input_ids": [[[1]]]}, "list of lists"), ({"input_ids": [[1, None]]}, "the list contains a null"),
                        ({"a": ["x"], "b": [1]}, "the columns are: a, b"), ({"text": ["a"], "input_ids": [[1]]}, "columns text and input_ids"),
                        ({"input_ids": [[-1]]}, "row 0: token 0 is -1"), ({"input_ids": [[2**31]]}, "which is no token id"),
                        ({"input_ids": [[1]], "labels": [[2]]}, "label 0 is 2"), ({"input_ids": [[1]], "labels": [[]]}, "0 values for 1 tokens"),
                        ({"input_ids": [[1]], "loss_mask": [[2]]}, "must be 0 or 1"), ({"input_ids": [[1]], "labels": [None]}, "labels is null"),
                        ({"input_ids": [[1]], "loss_mask": [[1]], "labels": [[1]]}, "labels and loss_mask"),
                        ({"input_ids": pa.array([[1]], type=pa.list_(pa.date32()))}, "unit")]:
        types = {"labels": pa.array([None], type=pa.list_(pa.int64()))} if table.get("labels") == [None] else {}
        pq.write_table(pa.table({**table, **types}), cases.file(table, part))
    cases.check()
    pq.write_table(text, cases.file("field", "no column nothing; the columns are: text"))
    cases.check(field="nothing")


def damaged():
    rows = [t for t in TEXTS[:300]]
    for codec, crc in [("snappy", True), ("none", True), ("zstd", False), ("none", False)]:
        cases = Cases(".parquet")
        file = cases.file("whole", of_texts(rows))
        # 80 rows to a page. The header of a page and the footer have no checksum.
        pq.write_table(pa.table({"text": rows}), file, compression=codec, write_page_checksum=crc, data_page_size=500, write_batch_size=80)
        cases.check()
        whole = open(file, "rb").read()
        check_cut("%s.parquet" % codec, whole)
        check_flipped("%s.parquet%s" % (codec, " with checksums" if crc else ""), whole, of_texts(rows), 400, False)


texts()
lists()
weights()
others()
labels()
refused()
damaged()
