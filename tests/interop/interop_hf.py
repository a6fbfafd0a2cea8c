"""Import and export of Hugging Face models. Exit status 77 (skipped) without safetensors, torch and transformers (5 for
models with experts and the relatives of llama).

    interop_hf.py DTCTL LOGITS_TOOL                   # gpt2 and llama
    interop_hf.py DTCTL LOGITS_TOOL GRADIENTS_TOOL experts|labels|relatives

DTD_TORCH_PYTHON names a python with them.
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
        skip("DTD_TORCH_PYTHON does not name a python with torch, safetensors and transformers")
    if subprocess.run([python, "-c", "import torch, safetensors, transformers"], capture_output=True).returncode:
        skip("%s lacks torch, safetensors or transformers" % python)
    which = sys.argv[4] if len(sys.argv) == 5 else ""
    recent = "import sys, transformers; sys.exit(int(transformers.__version__.split('.')[0]) < 5)"
    if which and subprocess.run([python, "-c", recent]).returncode:
        skip("transformers is older than 5, whose files and names these tests compare")
    here = os.path.dirname(os.path.abspath(__file__))
    side = "hf_%s_side.py" % which if which else "hf_side.py"
    sys.exit(subprocess.run([python, os.path.join(here, side)] + sys.argv[1:4]).returncode)


main()
