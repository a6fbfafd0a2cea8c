"""Import and export of Hugging Face models. Exit status 77 (skipped) without safetensors, torch and transformers (5 for
models with experts).

    interop_hf.py DTCTL LOGITS_TOOL                   # gpt2 and llama
    interop_hf.py DTCTL LOGITS_TOOL GRADIENTS_TOOL    # models with experts

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
    experts = len(sys.argv) == 4
    recent = "import sys, transformers; sys.exit(int(transformers.__version__.split('.')[0]) < 5)"
    if experts and subprocess.run([python, "-c", recent]).returncode:
        skip("transformers is older than 5, which keeps all experts of a layer in one tensor")
    here = os.path.dirname(os.path.abspath(__file__))
    side = "hf_experts_side.py" if experts else "hf_side.py"
    sys.exit(subprocess.run([python, os.path.join(here, side)] + sys.argv[1:]).returncode)


main()
