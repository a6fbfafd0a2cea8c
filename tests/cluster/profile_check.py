# Checks the traces of dtctl profile with nothing but their own rules: TRACE... [--files FOLDER] [--ranks N] [--steps N]
# [--pipeline MICROBATCHES] [--messages N]. Several traces are the files of one archive.
#
# Slices of a row nest or are disjoint; every arrow has one begin and one end, both inside of slices; the sums of the ops
# equal those that the workers counted themselves; and the pipeline runs 1F1B as in the paper (Narayanan et al., 2019).
import argparse
import collections
import gzip
import json
import re

a = argparse.ArgumentParser()
a.add_argument("traces", nargs="+")
a.add_argument("--files")
a.add_argument("--ranks", type=int, required=True)
a.add_argument("--steps", type=int, required=True)
a.add_argument("--pipeline", type=int)
a.add_argument("--messages", type=int)
a = a.parse_args()


def ns(us):
    return round(us * 1000)


traces = [json.load(gzip.open(t)) for t in a.traces]
events = [e for t in traces for e in t["traceEvents"]]
first = traces[0]
assert first["schemaVersion"] == 1 and first["distributedInfo"]["world_size"] == a.ranks
assert len({t["baseTimeNanoseconds"] for t in traces}) == 1
assert all(isinstance(e["pid"], int) and 0 < e["pid"] < 2**31 for e in events)
process = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
row = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
measured = sorted(p for p, n in process.items() if n.startswith("rank "))
assert [process[p] for p in measured] == ["rank %03d" % r for r in range(a.ranks)], process
assert sum(n.startswith("forecast, rank ") for n in process.values()) == a.ranks, process

slices = collections.defaultdict(list)
for e in events:
    if e["ph"] == "X":
        assert e["dur"] > 0 and (e["pid"], e["tid"]) in row, e
        slices[e["pid"], e["tid"]].append((ns(e["ts"]), ns(e["ts"]) + ns(e["dur"]), e))
for where, list_ in slices.items():
    open_ = []
    for begin, end, e in sorted(list_, key=lambda s: (s[0], -s[1])):
        while open_ and open_[-1] <= begin:
            open_.pop()
        assert not open_ or end <= open_[-1], ("a slice overlaps another", row[where], e)
        open_.append(end)

arrows = collections.defaultdict(list)
for e in events:
    if e["ph"] in "stf":
        arrows[e["cat"], e["name"], e["id"]].append(e)
        inside = [s for s in slices[e["pid"], e["tid"]] if s[0] <= ns(e["ts"]) < s[1]]
        assert inside, ("an arrow outside of slices", e)
        e["rank"] = measured.index(e["pid"])
        e["of"] = min(inside, key=lambda s: s[1] - s[0])[2]
if len(traces) == 1:
    for ends in arrows.values():
        assert sorted(e["ph"] for e in ends) == ["f", "s"], ends
        f, s = sorted(ends, key=lambda e: e["ph"])
        assert f["bp"] == "e" and s["of"]["args"]["Dst Rank"] == f["rank"] and f["of"]["args"]["Src Rank"] == s["rank"]
        assert s["of"]["args"]["bytes"] == f["of"]["args"]["bytes"] > 0
        # each end may be wrong by the uncertainty in the trace
        slack = 2 * first["dtd"]["clock_error_ns"]
        assert ns(f["ts"]) >= ns(s["ts"]) - slack, ("a message arrives before it is sent", s, f)
if a.messages is not None:
    assert len(arrows) == a.messages, len(arrows)

steps = collections.Counter()
for (pid, tid), list_ in slices.items():
    if pid in measured and row[pid, tid] == "step":
        steps[pid] = len(list_)
        assert all(re.fullmatch(r"ProfilerStep#\d+", s[2]["name"]) for s in list_)
        numbers = [int(s[2]["name"].split("#")[1]) for s in sorted(list_, key=lambda s: s[0])]
        assert numbers == list(range(first["dtd"]["first_step"], first["dtd"]["first_step"] + a.steps)), numbers
assert all(steps[p] == a.steps for p in measured), steps

collectives = [s[2] for l in slices.values() for s in l if s[2]["cat"] == "collective_comm"]
for e in collectives:
    if e["args"].get("Collective name") == "allreduce":
        g = e["args"]
        assert g["In msg nelems"] == g["Out msg nelems"] > 0 and g["Group size"] == len(json.loads(g["Process Group Ranks"]))
        assert g["dtype"] in ("Float", "Double", "BFloat16") and row[e["pid"], e["tid"]].startswith("comm "), e
if a.ranks > 1:
    assert any("Collective name" in e["args"] for e in collectives)
memory = [e for e in events if e["ph"] == "C"]
assert len(memory) == 2 * a.steps * a.ranks and all(e["args"]["host"] > 1e6 for e in memory)

if a.files:  # sums of the worker's own counters
    for rank, pid in enumerate(measured):
        ops, names, total = [], [], {}
        for line in open("%s/rank-%d" % (a.files, rank)):
            w = line.split()
            if w[0] == "op":
                names.append(w[1])
            if w[0] == "total":
                total[names[int(w[1])]] = (int(w[2]), int(w[3]))
        calls, time = collections.Counter(), collections.Counter()
        roles = {"send to": "send", "post recv from": "recv", "wait sent to": "wait", "wait recv from": "wait"}
        for (p, tid), list_ in slices.items():
            for begin, end, e in list_:
                if p == pid and e["cat"] != "user_annotation":
                    name = re.sub(r" \d+$", "", e["name"])
                    name = roles.get(name, name)
                    calls[name] += 1
                    time[name] += end - begin
        for name, (n, sum_) in total.items():
            assert calls[name] == n, (rank, name, calls[name], n)
            # an op of no duration has one nanosecond, and rates of clocks round others
            assert abs(time[name] - sum_) <= 2 * n + sum_ * 1e-4, (rank, name, time[name], sum_)
        assert set(calls) == set(total), (rank, set(calls) ^ set(total))


def one_forward_one_backward(ranks, micros, rank):
    warm = min(ranks - rank - 1, micros)
    order = [("forward", m) for m in range(warm)]
    for m in range(micros - warm):
        order += [("forward", warm + m), ("backward", m)]
    return order + [("backward", m) for m in range(micros - warm, micros)]


if a.pipeline:
    for rank, pid in enumerate(measured):
        compute = [s for (p, tid), l in slices.items() if p == pid and row[p, tid] == "compute" for s in l]
        for step in range(first["dtd"]["first_step"], first["dtd"]["first_step"] + a.steps):
            did = [(e["name"].split()[0], e["args"]["microbatch"]) for begin, end, e in sorted(compute, key=lambda s: s[0])
                   if e["cat"] == "user_annotation" and e["args"]["step"] == step and e["name"].split()[0] in ("forward", "backward")]
            did = [d for i, d in enumerate(did) if i == 0 or d != did[i - 1]]
            assert did == one_forward_one_backward(a.ranks, a.pipeline, rank), (rank, step, did)

for pid in [p for p, n in process.items() if n.startswith("forecast")]:
    begins, ends = {}, {}
    for (p, tid), list_ in slices.items():
        for begin, end, e in list_ if p == pid else []:
            begins[e["args"]["step"]] = min(begin, begins.get(e["args"]["step"], begin))
            ends[e["args"]["step"]] = max(end, ends.get(e["args"]["step"], end))
    assert len(begins) == a.steps, begins
    for step, begin in begins.items():
        real = min(s[0] for (p, tid), l in slices.items() if p in measured and row[p, tid] == "step" for s in l
                   if s[2]["name"] == "ProfilerStep#%d" % step)
        # a forecast begins with its step, or after the forecast of the step before
        assert begin >= real and (begin - real < 1e7 or real < ends[step - 1] <= begin), (begin, real)
print("ok: %d slices, %d arrows, %d rows" % (sum(map(len, slices.values())), len(arrows), len(row)))
