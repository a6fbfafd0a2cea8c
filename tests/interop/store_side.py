"""PyTorch's side of interop_store.py: store_side.py STORE_SERVE operations|ddp|torchrun.

operations  every operation of the client's interface, with dtd's store and with PyTorch's server: the results are compared
ddp         two workers train with DDP over gloo; dtd's store is their only store (TORCHELASTIC_USE_AGENT_STORE)
torchrun    two unmodified torchrun agents rendezvous in dtd's store (is_host=0); a worker fails, and both restart and finish
"""
import datetime
import json
import os
import subprocess
import sys
import tempfile
import threading

import torch
import torch.distributed as dist

LIMIT_S = 240


def seconds(n):
    return datetime.timedelta(seconds=n)


class Ours:
    def __init__(self, serve):
        self.process = subprocess.Popen([serve], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = json.loads(self.process.stdout.readline())["port"]

    def client(self, **more):
        return dist.TCPStore("127.0.0.1", self.port, is_master=False, timeout=seconds(30), **more)

    def end(self):
        output, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, self.process.returncode
        return json.loads(output)


class Stock:
    def __init__(self):
        self.master = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        assert self.master.libuvBackend
        self.port = self.master.port

    def client(self, **more):
        return dist.TCPStore("127.0.0.1", self.port, is_master=False, timeout=seconds(30), **more)


def outcome(call, *args):
    """The result of the call, or the kind of its error."""
    try:
        return call(*args)
    except Exception as error:  # noqa: BLE001
        return type(error).__name__


def meanwhile(call, *args):
    """Runs the call in a thread; returns a function that waits for its outcome."""
    found = []
    thread = threading.Thread(target=lambda: found.append(outcome(call, *args)), daemon=True)
    thread.start()

    def wait():
        thread.join(LIMIT_S)
        assert found, "it never came back"
        return found[0]
    return wait


def values(s, note):
    note(s.set("k", "v"), s.get("k"), s.set("k", ""), s.get("k"), s.set("", "of the empty key"), s.get(""))
    note(s.set("bytes", bytes(range(256)).decode("latin-1")), s.get("bytes"))
    note(s.add("n", 5), s.add("n", -7), s.get("n"), s.add("n", 0), s.set("text", "41"), s.add("text", 1))
    note(s.add("large", 2**62), s.add("large", 2**62 - 1))
    note(s.append("a", "one"), s.append("a", ""), s.append("a", "two"), s.get("a"))
    for expected, desired in (("", "first"), ("", "second"), ("x", "third"), ("first", "fourth"), ("fourth", "")):
        note(s.compare_set("c", expected, desired))
    note(s.compare_set("missing", "x", "y"), s.check(["missing"]))
    note(s.check(["k", "n"]), s.check(["k", "missing"]), s.check([]))
    note(s.multi_set(["m1", "m2", "m3"], ["1", "", "3"]), s.multi_get(["m1", "m3", "m2"]), s.multi_get([]))
    note(s.num_keys(), s.delete_key("m1"), s.delete_key("m1"), s.num_keys())
    note(sorted(s.list_keys()))
    note(len(s.multi_get(["k"] * 5000)))


def sizes(server, s, note):
    large = "x" * (8 << 20)
    note(s.set("large value", large), s.get("large value") == large.encode(), s.delete_key("large value"))
    key = "k" * 8191  # and the slash that the client puts before it
    note(s.set(key, "v"), s.get(key), s.delete_key(key))
    other = server.client()
    note(outcome(other.get, "k" * 8192), outcome(other.get, "k"))
    other = server.client()
    outcome(other.set, "too large", large + "x")  # it may finish before the connection is closed
    note(outcome(other.get, "k"), s.check(["too large"]))
    other = server.client()
    note(other.set("word", "x"), outcome(other.add, "word", 1), outcome(other.get, "k"), s.get("word"))


def waits(server, s, note):
    note(outcome(s.wait, ["never"], seconds(0.3)), outcome(s.wait, ["never"], seconds(0)), s.get("k"))
    note(outcome(s.wait, ["k", "n"], seconds(5)), outcome(s.wait, [], seconds(5)))
    other = server.client()
    late = meanwhile(other.wait, ["late/1", "late/2", "late/1"], seconds(60))
    s.set("late/1", "x")
    s.add("late/2", 1)
    note(late(), other.get("k"))
    late = meanwhile(other.get, "late/3")
    s.append("late/3", "x")
    note(late())
    # The timeout and the key race; the connection stays usable in both cases.
    for i in range(60):
        late = meanwhile(other.wait, ["race/%d" % i], datetime.timedelta(milliseconds=5))
        threading.Event().wait(0.005)
        s.set("race/%d" % i, "x")
        late()
        assert other.get("race/%d" % i) == b"x"


def queues(server, s, note):
    other = server.client()
    note(s.queue_push("q", "one"), s.queue_push("q", ""), s.queue_len("q"), s.check(["q"]), s.queue_pop("q"), s.queue_pop("q"))
    note(outcome(s.queue_pop, "q", False), s.queue_len("q"), s.queue_len("none"), s.check(["q"]))
    late = meanwhile(other.queue_pop, "q")
    threading.Event().wait(0.2)
    s.queue_push("q", "late")
    note(late(), s.queue_len("q"))
    others = [server.client() for _ in range(4)]
    late = [meanwhile(o.queue_pop, "many") for o in others]
    threading.Event().wait(0.3)
    for i in range(4):
        s.queue_push("many", "item %d" % i)
    note(sorted(wait() for wait in late), s.queue_len("many"))


def barriers(server, s, note):
    others = [server.client() for _ in range(3)]
    late = [meanwhile(o.barrier, "b", 4, seconds(60)) for o in others]
    note(s.barrier("b", 4), [wait() for wait in late], s.get("b"))
    note(s.barrier("alone", 1), outcome(s.barrier, "too few", 2, seconds(0.3)), s.get("too few"), s.barrier("too few", 2))


def layers(server, s, note):
    inner = dist.PrefixStore("pre", dist.PrefixStore("outer", s))
    note(inner.set("k", "of the prefix"), inner.get("k"), s.get("k"), s.get("outer/pre/k"), inner.add("n", 3))
    note(sorted(inner.list_keys()), inner.num_keys() == s.num_keys(), inner.delete_key("k"), inner.check(["k"]))
    copy = s.clone()
    note(copy.get("n"), copy.set("by the copy", "x"), s.get("by the copy"))
    s.set_timeout(seconds(0.3))
    note(outcome(s.get, "never"))
    s.set_timeout(seconds(30))
    note(s.has_extended_api())
    counted = server.client(world_size=2, wait_for_workers=True)
    note(counted.get("k"), s.num_keys())


def conversation(server):
    notes = []
    s = server.client()

    def note(*found):
        notes.extend(found)
    values(s, note)
    sizes(server, s, note)
    waits(server, s, note)
    queues(server, s, note)
    barriers(server, s, note)
    layers(server, s, note)
    return notes


def operations(serve):
    stock = conversation(Stock())
    ours = Ours(serve)
    found = conversation(ours)
    for i, (a, b) in enumerate(zip(stock, found)):
        assert a == b, "answer %d is %r, PyTorch's own server's is %r" % (i, b, a)
    assert len(stock) == len(found)
    stats = ours.end()
    assert stats["broken"] == 3, stats
    unused = [op for op, n in stats["by_op"].items() if not n]
    assert not unused, unused
    print("%d answers are those of PyTorch's own server; %s" % (len(found), stats))


TRAIN = """
import os, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    if os.environ.get("FAIL") and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and step == 3 and rank == 1:
        sys.exit(3)
    optimizer.zero_grad()
    model(torch.full((4, 8), float(rank + step))).square().mean().backward()
    optimizer.step()
total = torch.cat([p.detach().flatten() for p in model.parameters()]).double().sum()
sums = [torch.zeros((), dtype=torch.float64) for _ in range(world)]
dist.all_gather(sums, total)
assert all(s == sums[0] for s in sums), sums
with open(os.path.join(sys.argv[1], "rank-%d" % rank), "w") as f:
    f.write("%d %.17g" % (world, total.item()))
with open(os.path.join(sys.argv[1], "restarts-%d" % rank), "w") as f:
    f.write(os.environ.get("TORCHELASTIC_RESTART_COUNT", ""))
dist.barrier()
dist.destroy_process_group()
"""


def results(folder, what="rank"):
    found = {}
    for name in os.listdir(folder):
        if name.startswith(what + "-"):
            with open(os.path.join(folder, name)) as f:
                found[name] = f.read()
    return found


def run_all(commands, folder):
    """Starts all processes and ends all, even if one fails."""
    running = []
    try:
        for i, (command, env) in enumerate(commands):
            log = open(os.path.join(folder, "log-%d" % i), "w")
            running.append(subprocess.Popen(command, env={**os.environ, **env}, stdout=log, stderr=log))
        codes = [p.wait(LIMIT_S) for p in running]
    finally:
        for p in running:
            if p.poll() is None:
                p.kill()
    logs = ""
    for i in range(len(running)):
        with open(os.path.join(folder, "log-%d" % i)) as f:
            logs += f.read()
    assert not any(codes), "%s\n%s" % (codes, logs)


def script_in(folder):
    path = os.path.join(folder, "train.py")
    with open(path, "w") as f:
        f.write(TRAIN)
    return path


def ddp(serve):
    ours = Ours(serve)
    with tempfile.TemporaryDirectory() as folder:
        script = script_in(folder)
        run_all([([sys.executable, script, folder],
                  {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ours.port), "RANK": str(rank), "WORLD_SIZE": "2",
                   "TORCHELASTIC_USE_AGENT_STORE": "True"}) for rank in range(2)], folder)
        found = results(folder)
    assert len(found) == 2 and len(set(found.values())) == 1, found
    stats = ours.end()
    assert stats["accepted"] >= 2 and stats["broken"] == 0, stats
    print("two workers end with %s; %s" % (found["rank-0"], stats))


def torchrun(serve):
    ours = Ours(serve)
    with tempfile.TemporaryDirectory() as folder:
        script = script_in(folder)
        command = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:%d" % ours.port,
                   "--rdzv-conf=is_host=0", "--rdzv-id=job", "--nnodes=2", "--nproc-per-node=1", "--max-restarts=2",
                   "--local-addr=127.0.0.1", script, folder]
        # Each attempt uses a separate store of the agents: in a shared store it would find the keys of the last attempt.
        env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "FAIL": "1", "OMP_NUM_THREADS": "1"}
        run_all([(command, env), (command, env)], folder)
        found, restarts = results(folder), results(folder, "restarts")
    assert "1" in restarts.values(), restarts
    assert len(found) == 2 and len(set(found.values())) == 1, found
    stats = ours.end()
    assert stats["by_op"]["COMPARE_SET"] > 4, stats
    print("two agents, a worker that failed, both end with %s; %s" % (found["rank-0"], stats))


{"operations": operations, "ddp": ddp, "torchrun": torchrun}[sys.argv[2]](sys.argv[1])
