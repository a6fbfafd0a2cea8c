"""Compares the curves of a job with its metrics (dtctl metrics -o jsonl): curves_check.py JSONL CSV (RUN WANDB_ROOT)...
CSV -: there is none.

The readers are those of the packages tensorboard and wandb. Without them only the CSV file is compared."""
import csv
import glob
import json
import math
import struct
import sys


def same(a, b):
    return (a is None or math.isnan(a)) and (b is None or math.isnan(b)) or a == b


def check(what, got, expected):
    """Both are lists of (step, value)."""
    assert [s for s, _ in got] == [s for s, _ in expected], "%s: steps %s" % (what, [s for s, _ in got][:80])
    wrong = [(a, b) for a, b in zip(got, expected) if not same(a[1], b[1])]
    assert not wrong, "%s: %s" % (what, wrong[:5])


def single(x):
    return None if x is None else struct.unpack("f", struct.pack("f", x))[0]


def check_tensorboard(run, rows):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    a = EventAccumulator(run, size_guidance={"scalars": 0, "tensors": 0})
    a.Reload()
    for tag, key in (("train/loss", "loss"), ("train/grad_norm", "grad_norm"), ("train/lr", "lr"), ("perf/step_s", "step_s"), ("perf/epoch", "epoch")):
        check(run + " " + tag, [(e.step, e.value) for e in a.Scalars(tag)], [(r["step"], single(r[key])) for r in rows])
    check(run + " times", [(e.step, round(e.wall_time * 1000)) for e in a.Scalars("train/loss")], [(r["step"], r["wall_ms"]) for r in rows])
    content = a.PluginTagToContent("hparams")
    start = metadata.parse_session_start_info_plugin_data(content["_hparams_/session_start_info"])
    assert start.hparams["train.lr"].number_value == 1.0e-3 and start.hparams["train.schedule"].string_value == "cosine"
    assert start.hparams["model.tied"].WhichOneof("kind") == "bool_value", start.hparams["model.tied"]
    end = metadata.parse_session_end_info_plugin_data(content["_hparams_/session_end_info"])
    assert end.status == 1, end
    text = a.Tensors("job/file")
    assert len(text) == 1 and b"checkpoint:" in text[0].tensor_proto.string_val[0]


def records(path):
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal import datastore

    store = datastore.DataStore()
    store.open_for_scan(path)
    while True:
        data = store.scan_data()
        if data is None:
            return
        r = wandb_internal_pb2.Record()
        r.ParseFromString(data)
        yield r


def check_wandb(root, rows):
    paths = glob.glob(root + "/wandb/offline-run-*/run-*.wandb")
    assert len(paths) == 1, paths
    got, kinds, summary, config = [], [], {}, {}
    for i, r in enumerate(records(paths[0])):
        assert r.num == i + 1
        kinds.append(r.WhichOneof("record_type"))
        if kinds[-1] == "history":
            got.append({item.key: json.loads(item.value_json) for item in r.history.item})
            assert got[-1]["_step"] == r.history.step.num
        if kinds[-1] == "summary":
            summary = {item.key: json.loads(item.value_json) for item in r.summary.update}
        if kinds[-1] == "run":
            config = {item.key: json.loads(item.value_json) for item in r.run.config.update}
            assert r.run.run_id in paths[0]
    assert kinds[:3] == ["header", "run", "environment"] and kinds[-2:] == ["exit", "final"], kinds
    assert kinds.count("exit") == 1
    assert config["train.lr"] == 1.0e-3 and config["train.schedule"] == "cosine" and config["model.tied"] in (True, False)
    for name, key in (("train/loss", "loss"), ("train/lr", "lr"), ("perf/epoch", "epoch")):
        check(root + " " + name, [(g["_step"], g[name]) for g in got], [(r["step"], r[key]) for r in rows])
    assert summary["train/loss"] == rows[-1]["loss"]
    times = [g["_runtime"] for g in got]
    assert times == sorted(times) and times[0] >= 0


def main():
    rows = [json.loads(line) for line in open(sys.argv[1])]
    table = list(csv.DictReader(open(sys.argv[2], newline=""))) if sys.argv[2] != "-" else None
    for key in ("loss", "grad_norm", "lr", "tokens_per_s", "workers") if table else ():
        check("csv " + key, [(int(t["step"]), float(t[key])) for t in table], [(r["step"], r[key]) for r in rows])
    missing = []
    for run, root in zip(sys.argv[3::2], sys.argv[4::2]):
        for name, one in (("tensorboard", lambda: check_tensorboard(run, rows)), ("wandb", lambda: check_wandb(root, rows))):
            try:
                __import__({"wandb": "wandb.sdk.internal.datastore"}.get(name, name))
            except ImportError:
                missing.append(name)
                continue
            one()
    print("%d steps agree%s" % (len(rows), "; not installed: " + ", ".join(sorted(set(missing))) if missing else ""))


main()
