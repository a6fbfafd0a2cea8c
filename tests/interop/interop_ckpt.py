"""Checkpoints of dtd in PyTorch, and of PyTorch in dtd. Exit status 77 (skipped) without PyTorch.

    interop_ckpt.py CKPT_TOOL TEST_IO_SHARED

DTD_TORCH_PYTHON names a python that has torch.
"""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def skip(why):
    print("skipped:", why)
    sys.exit(77)


def find_torch():
    python = os.environ.get("DTD_TORCH_PYTHON")
    if not python:
        skip("DTD_TORCH_PYTHON does not name a python with torch")
    probe = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
    if probe.returncode:
        skip("%s has no torch" % python)
    print("torch", probe.stdout.strip())
    return python


def lines(text):
    out = []
    for line in text.splitlines():
        row = json.loads(line)
        if "f" in row:
            row["f"] = [float.fromhex(x) for x in row["f"]]
        out.append(row)
    return sorted(out, key=lambda row: row["fqn"])


def compare(what, ours, theirs):
    a, b = {r["fqn"]: r for r in ours}, {r["fqn"]: r for r in theirs}
    wrong = [k for k in sorted(a.keys() | b.keys()) if a.get(k) != b.get(k)]
    for name in wrong[:10]:
        print("%s: %s\n  dtd   %s\n  torch %s" % (what, name, a.get(name), b.get(name)))
    if wrong or not a:
        sys.exit("%s: %d of %d differ" % (what, len(wrong), len(a)))
    print("%s: %d tensors and values are equal" % (what, len(a)))


def main():
    tool = sys.argv[1]
    python = find_torch()

    def run(*argv):
        return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout

    def torch_side(*argv):
        return json.loads(run(python, os.path.join(HERE, "torch_side.py"), *argv).splitlines()[-1])

    def hashes(path):
        return lines(run(tool, "hash", path))

    with tempfile.TemporaryDirectory() as tmp:
        for ranks in ("1", "3"):
            root = os.path.join(tmp, "ours" + ranks)
            run(tool, "write", root, ranks)
            step = os.path.join(root, "step-1")
            compare("written by dtd on %s" % ranks, hashes(step), torch_side("reads", step))
        if len(sys.argv) > 2:
            shared = os.path.join(tmp, "shared")
            os.mkdir(shared)
            subprocess.run([sys.argv[2], "for_torch"], check=True, env=dict(os.environ, DTD_SHARED_OUT=shared))
            step = os.path.join(shared, "step-1")
            compare("written by three dtd-ios", hashes(step), torch_side("reads", step))
        path = os.path.join(tmp, "theirs", "step-10")
        theirs = torch_side("writes", path)
        compare("written by torch", hashes(path), theirs)


main()
