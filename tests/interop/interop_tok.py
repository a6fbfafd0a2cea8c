"""Byte-pair encoding, and tokenizer files with the settings of known models and with every supported step, compared id by id with Hugging Face's
tokenizers; and .model, .tiktoken and tekken.json files, compared with sentencepiece and tiktoken. Exit status 77 (skipped) without
them.

    interop_tok.py BPE_TOOL bpe_side.py|tok_side.py|sp_side.py
    interop_tok.py DTCTL chat_side.py CHAT_TOOL

DTD_TORCH_PYTHON names a python with tokenizers, tiktoken and, optionally, sentencepiece and mistral-common. Vocabularies are trained there, on text files of this machine.
DTD_TOK_TEXTS: number of hostile texts for each file (default 400); from 3000 on, all code points are tried.
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
    if subprocess.run([python, "-c", "import tokenizers, tiktoken"], capture_output=True).returncode:
        skip("%s has no tokenizers or no tiktoken" % python)
    here = os.path.dirname(os.path.abspath(__file__))
    sys.exit(subprocess.run([python, os.path.join(here, sys.argv[2]), sys.argv[1]] + sys.argv[3:],
                            env={**os.environ, "RUST_BACKTRACE": "0", "TOKENIZERS_PARALLELISM": "false"}).returncode)


main()
