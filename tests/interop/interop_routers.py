"""dtd's routers beside those of transformers. Exit status 77 (skipped) without torch and transformers 5.

    interop_routers.py ROUTE_TOOL

DTD_TORCH_PYTHON names a python with them.
"""
import os
import subprocess
import sys

python = os.environ.get("DTD_TORCH_PYTHON")
recent = "import sys, torch, transformers; sys.exit(int(transformers.__version__.split('.')[0]) < 5)"
if not python or subprocess.run([python, "-c", recent], capture_output=True).returncode:
    print("skipped: DTD_TORCH_PYTHON does not name a python with torch and transformers 5")
    sys.exit(77)
side = os.path.join(os.path.dirname(os.path.abspath(__file__)), "routers_side.py")
sys.exit(subprocess.run([python, side] + sys.argv[1:]).returncode)
