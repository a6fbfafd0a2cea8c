"""Import and export of Hugging Face models. Exit status 77 (skipped) without safetensors, torch and transformers.

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
    here = os.path.dirname(os.path.abspath(__file__))
    side = "hf_side.py" if len(sys.argv) == 3 else "hf_experts_side.py"
    sys.exit(subprocess.run([python, os.path.join(here, side)] + sys.argv[1:]).returncode)


main()
