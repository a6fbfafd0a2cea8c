"""Byte-pair encoding, compared id by id with Hugging Face's tokenizers and tiktoken. Exit status 77 (skipped) without them.

    interop_bpe.py BPE_TOOL

DTD_TORCH_PYTHON names a python with tokenizers and, optionally, tiktoken. Vocabularies are trained there, on text files of
this machine.
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
