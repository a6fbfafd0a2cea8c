"""PyTorch's side of the interop test: torch.distributed.checkpoint with dtd's reader and writer.

    torch_side.py reads DIR     load DIR with torch in three ways; print every tensor's hash and every value
    torch_side.py writes DIR    dcp.save a state dict with dtd's names into DIR; print the same
"""
import hashlib
import json
import os
import sys
import tempfile
import warnings

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

warnings.filterwarnings("ignore")


def sha(tensor):
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(raw).hexdigest()


def describe(fqn, value):
    if isinstance(value, torch.Tensor):
        return {"fqn": fqn, "sha256": sha(value), "dtype": str(value.dtype).removeprefix("torch.")}
    row = {"fqn": fqn, "kind": "opaque", "i": 0, "f": [0.0, 0.0], "s": ""}
    if isinstance(value, bool):
        row.update(kind="bool", i=int(value))
    elif isinstance(value, int):
        row.update(kind="int", i=value)
    elif isinstance(value, float):
        row.update(kind="float", f=[value, 0.0])
    elif value is None:
        row.update(kind="none")
    elif isinstance(value, str):
        row.update(kind="str", s=value)
    elif isinstance(value, tuple) and len(value) == 2:
        row.update(kind="pair", f=list(value))
    return row


def flat(tree, prefix=""):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, prefix + key + ".")
        else:
            yield prefix + key, value


def rows(tree):
    out = [describe(fqn, value) for fqn, value in flat(tree)]
    return sorted(out, key=lambda row: row["fqn"])


def nested(path):
    """A state dict of the checkpoint's structure: empty tensors, and None for the entries of planner_data."""
    metadata = FileSystemReader(path).read_metadata()
    tree = {}
    for fqn, entry in metadata.state_dict_metadata.items():
        at = tree
        *above, last = metadata.planner_data[fqn]
        for key in above:
            at = at.setdefault(key, {})
        at[last] = (torch.full(entry.size, 7).to(entry.properties.dtype)
                    if isinstance(entry, TensorStorageMetadata) else None)
    return tree


def loaded(path):
    tree = nested(path)
    dcp.load(tree, storage_reader=FileSystemReader(path))
    return rows(tree)


def converted(path):
    with tempfile.TemporaryDirectory() as tmp:
        file = os.path.join(tmp, "one.pt")
        dcp_to_torch_save(path, file)
        return rows(torch.load(file, weights_only=False))


def state_dict():
    torch.manual_seed(1)
    names = ["tok_embeddings.weight", "layers.0.attention.wq.weight", "norm.weight"]
    shapes = [(300, 64), (64, 64), (64,)]
    tree = {name: torch.randn(shape) for name, shape in zip(names, shapes)}
    tree["transposed"] = torch.randn(40, 70).t()
    tree["strided"] = torch.randn(6, 8, 10).permute(2, 0, 1)
    tree["half"] = torch.randn(33, 5).to(torch.bfloat16)
    tree["fp16"] = torch.randn(9).to(torch.float16)
    tree["double"] = torch.randn(9, dtype=torch.float64)
    tree["ids"] = torch.arange(77)
    tree["mask"] = torch.randn(5, 5) > 0
    tree["empty"] = torch.zeros(0, 4)
    tree["large"] = torch.randn(3000, 1000)
    tree["slice"] = torch.randn(100, 100)[10:20, 5:9]
    tree["optimizer"] = {}
    for name in names:
        tree["optimizer"]["state.%s.exp_avg" % name] = torch.randn_like(tree[name])
        tree["optimizer"]["state.%s.exp_avg_sq" % name] = torch.rand_like(tree[name])
        tree["optimizer"]["state.%s.step" % name] = torch.tensor(10.0)
        tree["optimizer"]["param_groups.%s.lr" % name] = 1e-3
        tree["optimizer"]["param_groups.%s.betas" % name] = (0.9, 0.95)
        tree["optimizer"]["param_groups.%s.amsgrad" % name] = False
        tree["optimizer"]["param_groups.%s.foreach" % name] = None
    tree["lr_scheduler"] = {"last_epoch": 10}
    tree["train_state"] = {"step": 10, "ntokens_seen": 1 << 40, "name": "first-job"}
    return tree


def main():
    mode, path = sys.argv[1:]
    if mode == "reads":
        first, second = loaded(path), converted(path)
        if first != second:
            sys.exit("dcp.load and dcp_to_torch_save disagree")
        print(json.dumps(first))
    else:
        tree = state_dict()
        dcp.save(tree, checkpoint_id=path)
        print(json.dumps(rows(tree)))


main()
