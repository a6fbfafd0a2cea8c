"""Documents of Parquet, Arrow and HDF5 files, compared byte by byte with what pyarrow, h5py and datasets wrote.
Exit status 77 (skipped) without them.

    interop_tables.py TABLE_TOOL parquet_side.py|arrow_side.py|hdf5_side.py

DTD_TORCH_PYTHON names a python with pyarrow, h5py and datasets.
"""
import os
import subprocess
import sys

NEEDS = {"parquet_side.py": "pyarrow", "arrow_side.py": "pyarrow, datasets", "hdf5_side.py": "h5py"}


def skip(why):
    print("skipped:", why)
    sys.exit(77)


def main():
    tool, side = sys.argv[1:]
    python = os.environ.get("DTD_TORCH_PYTHON")
    if not python:
        skip("DTD_TORCH_PYTHON does not name a python with %s" % NEEDS[side])
    if subprocess.run([python, "-c", "import " + NEEDS[side]], capture_output=True).returncode:
        skip("%s has no %s" % (python, NEEDS[side]))
    here = os.path.dirname(os.path.abspath(__file__))
    sys.exit(subprocess.run([python, os.path.join(here, side), tool], env={**os.environ, "HF_HUB_OFFLINE": "1"}).returncode)


main()
