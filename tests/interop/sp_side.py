"""The part of interop_tok.py for .model, .tiktoken and tekken.json files: dtd's ids must equal those of sentencepiece, tiktoken
and mistral-common. Models are trained here; the real files that mistral-common brings are read if it is installed."""
import base64
import glob
import importlib.util
import itertools
import json
import os
import random
import sys
import tempfile

import tiktoken
from tiktoken_ext import openai_public

from bpe_side import LLAMA3, corpus
from tok_side import MARK, SIZE, compare, hostile


def trained(folder, lines):
    """SentencePiece models with each option that dtd reads."""
    import sentencepiece as spm
    text = folder + "/text"
    open(text, "w", encoding="utf-8").write("".join(line for line in lines if len(line) < 2000 and "\0" not in line))
    options = {
        "T5": dict(model_type="unigram", vocab_size=2000),
        "unigram, identity": dict(model_type="unigram", vocab_size=1500, normalization_rule_name="identity", remove_extra_whitespaces=False),
        "unigram, byte fallback": dict(model_type="unigram", vocab_size=1500, byte_fallback=True, character_coverage=0.98),
        "unigram, user-defined": dict(model_type="unigram", vocab_size=1500, user_defined_symbols=["<|end|>", "abc", MARK + MARK, "  "]),
        "unigram, nfkc_cf, no prefix": dict(model_type="unigram", vocab_size=1500, normalization_rule_name="nmt_nfkc_cf", add_dummy_prefix=False),
        "unigram, suffix": dict(model_type="unigram", vocab_size=1500, treat_whitespace_as_suffix=True),
        "Llama 2": dict(model_type="bpe", vocab_size=2000, normalization_rule_name="identity", byte_fallback=True, split_digits=True,
                        remove_extra_whitespaces=False, character_coverage=0.98, allow_whitespace_only_pieces=True),
        "bpe": dict(model_type="bpe", vocab_size=2000),
        "bpe, user-defined": dict(model_type="bpe", vocab_size=2000, user_defined_symbols=["<|end|>", "abc", "  ", "\n"],
                                  normalization_rule_name="nfkc", byte_fallback=True),
        "bpe, across spaces": dict(model_type="bpe", vocab_size=2000, split_by_whitespace=False, character_coverage=0.985),
        "bpe, suffix": dict(model_type="bpe", vocab_size=1500, treat_whitespace_as_suffix=True, remove_extra_whitespaces=False),
        "bpe, not escaped": dict(model_type="bpe", vocab_size=1500, remove_extra_whitespaces=False, add_dummy_prefix=False),
    }
    for name, some in options.items():
        prefix = folder + "/model"
        spm.SentencePieceTrainer.train(input=text, model_prefix=prefix, minloglevel=2, hard_vocab_limit=False, num_threads=1,
                                       input_sentence_size=20000, shuffle_input_sentence=False, **some)
        yield name, prefix + ".model"


def sentencepieces(folder, lines, sample):
    if not importlib.util.find_spec("sentencepiece"):
        print("no sentencepiece here")
        return
    import sentencepiece as spm
    files = [(os.path.basename(p), p) for p in real("*.model.*")]
    for name, path in itertools.chain(files, trained(folder, lines)):
        sp = spm.SentencePieceProcessor(model_file=path)
        compare("sentencepiece, " + name, path, sample, lambda t: sp.encode(t))


def real(pattern):
    """Files that mistral-common brings."""
    spec = importlib.util.find_spec("mistral_common")
    return sorted(glob.glob(os.path.dirname(spec.origin) + "/data/" + pattern)) if spec else []


def tekkens(sample):
    for path in real("tekken*.json"):
        data = json.load(open(path))
        config, n = data["config"], data["config"]["default_num_special_tokens"]
        ranks = {base64.b64decode(v["token_bytes"]): v["rank"] for v in data["vocab"][:config["default_vocab_size"] - n]}
        enc = tiktoken.Encoding("tekken", pat_str=config["pattern"], mergeable_ranks=ranks, special_tokens={})
        compare("tekken, " + os.path.basename(path), path, sample, lambda t: [n + i for i in enc.encode_ordinary(t)])


def ranks_of(size, lines):
    """A vocabulary of exactly `size` tokens: bytes, and prefixes of words by how often they occur."""
    counts = {}
    for line in lines:
        for word in line.replace("\n", " \n").split(" "):
            for piece in (word, " " + word):
                raw = piece.encode()
                for n in range(2, min(len(raw), 12) + 1):
                    counts[raw[:n]] = counts.get(raw[:n], 0) + 1
    words = sorted(counts, key=lambda w: (-counts[w], w))[:size // 2]
    known = [bytes([i]) for i in range(256)] + words
    extra = (bytes([a, b, c]) for a in range(32, 256) for b in range(32, 256) for c in range(32, 128))
    seen = set(known)
    while len(known) < size:
        token = next(extra)
        if token not in seen:
            known.append(token)
    return {token: i for i, token in enumerate(known)}


def tiktokens(folder, lines, sample):
    qwen = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
    for name, size, pattern, specials in (
            ("r50k", 50256, openai_public.r50k_pat_str, {"<|endoftext|>": 50256}),
            ("cl100k", 100256, None, {"<|endoftext|>": 100257, "<|fim_prefix|>": 100258}),
            ("o200k", 199998, None, {"<|endoftext|>": 199999}),
            ("Llama 3", 128000, LLAMA3, {"<|begin_of_text|>": 128000, "<|eot_id|>": 128009}),
            ("Qwen", 151643, qwen, {"<|endoftext|>": 151643, "<|im_start|>": 151644})):
        if pattern is None:  # as the package has it, without the file that it would load
            openai_public.load_tiktoken_bpe = lambda *a, **k: {}
            pattern = getattr(openai_public, name + "_base")()["pat_str"]
        ranks = ranks_of(size, lines)
        path = folder + "/x.tiktoken"
        with open(path, "wb") as f:
            f.writelines(base64.b64encode(t) + b" %d\n" % r for t, r in ranks.items())
        enc = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=specials)
        more = ["%s\n  %sx%s" % (s, s, s) for s in specials] + ["a  \n  ", "a \n\n ", "\r\n\r\n", " "]
        compare("tiktoken, " + name, path, sample + more, lambda t: enc.encode(t, allowed_special="all"))


def main():
    texts, rng = corpus(), random.Random(23)
    lines = [line for text in texts for line in text.splitlines(keepends=True)][:60000]
    sample = list(hostile(rng, lines, SIZE)) + [texts[0][:20000], texts[1][:50000]]
    with tempfile.TemporaryDirectory() as folder:
        tekkens(sample)
        tiktokens(folder, lines, sample)
        sentencepieces(folder, lines, sample)


main()
