"""The c10d store with PyTorch's clients. Exit status 77 (skipped) without PyTorch.

    interop_store.py STORE_SERVE CASE

DTD_TORCH_PYTHON names a python that has torch; the cases are in store_side.py.
"""
import os
import subprocess
import sys


def skip(why):
    print("skipped:", why)
    sys.exit(77)


def main():
    python = os.environ.get("DTD_TORCH_PYTHON")
    if not python:
        skip("DTD_TORCH_PYTHON does not name a python with torch")
    if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode:
        skip("%s has no torch" % python)
    side = os.path.join(os.path.dirname(os.path.abspath(__file__)), "store_side.py")
    sys.exit(subprocess.run([python, side] + sys.argv[1:]).returncode)


main()
