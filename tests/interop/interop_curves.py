"""Curves that curves_tool writes, read by the packages tensorboard and wandb. Exit status 77 (skipped) without both.

    interop_curves.py CURVES_TOOL CURVES_CHECK

DTD_TORCH_PYTHON names a python with the packages.
"""
import os
import subprocess
import sys
import tempfile


def main():
    tool, check = sys.argv[1:]
    python = os.environ.get("DTD_TORCH_PYTHON")
    if not python or subprocess.run([python, "-c", "import tensorboard, wandb.sdk.internal.datastore"], capture_output=True).returncode:
        print("skipped: DTD_TORCH_PYTHON does not name a python with tensorboard and wandb 0.28")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as d:
        rows = os.path.join(d, "rows.jsonl")
        with open(rows, "w") as f:
            subprocess.run([tool, d], check=True, stdout=f)
        sys.exit(subprocess.run([python, check, rows, "-", d + "/tb/job7", d + "/wb"]).returncode)


main()
