"""Byte-pair encoding against Hugging Face's tokenizers and tiktoken, id by id. Exit status 77 (skipped) without them.

    interop_bpe.py BPE_TOOL

DTD_TORCH_PYTHON names a python that has tokenizers, and perhaps tiktoken. Vocabularies are trained there, on this
machine's own texts.
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
        skip("DTD_TORCH_PYTHON does not name a python with tokenizers")
    if subprocess.run([python, "-c", "import tokenizers"], capture_output=True).returncode:
        skip("%s has no tokenizers" % python)
    here = os.path.dirname(os.path.abspath(__file__))
    sys.exit(subprocess.run([python, os.path.join(here, "bpe_side.py"), sys.argv[1]]).returncode)


main()
