"""The part of interop_tok.py that runs in the Python with tokenizers."""
import glob
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

TOOL = sys.argv[1]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
GPT2 = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
SPECIALS = ["<|endoftext|>", "<|end|>", "<|endo|>"]


def corpus():
    texts = []
    for path in sorted(glob.glob("/usr/share/common-licenses/*") + glob.glob("/usr/share/i18n/locales/[a-h]*")
                       + glob.glob("/usr/share/perl/5*/*.pm"))[:400]:
        try:
            texts.append(open(path, encoding="utf-8").read()[:60000])
        except (OSError, UnicodeDecodeError):
            pass
    if sum(map(len, texts)) < 100000:
        print("skipped: this machine has no texts to train on")
        sys.exit(77)
    return texts


def strange(rng):
    """Random characters of all planes, as of Unicode 14 (PCRE2 of Debian 12), with much white space and many contractions."""
    known = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) not in ("Cn", "Cs", "Co")]
    if unicodedata.unidata_version > "14":
        known = [c for c in known if ord(c) < 0x3000]
    low = [c for c in known if ord(c) < 0x800]
    spaces = [c for c in known if c.isspace()] + ["\u180e", "\u200b", "\ufeff"]
    parts = ["'s", "'S", "'ll", "'LL", "'\u017f", "the", " the", "  ", "\n\n", "\r\n", "123", "1234", "\u00b2", "..."] + SPECIALS
    for _ in range(4000):
        yield "".join(rng.choice(rng.choice((known, low, spaces, parts, parts))) for _ in range(rng.randrange(1, 40)))


def ours(files, texts):
    blob = b"".join(struct.pack("=I", len(b)) + b for b in (t.encode() for t in texts))
    run = subprocess.run([TOOL] + files, input=blob, capture_output=True)
    if run.returncode:
        sys.exit("bpe_tool: " + run.stderr.decode())
    at, out = 0, []
    while at < len(run.stdout):
        (n,) = struct.unpack_from("=I", run.stdout, at)
        out.append(list(struct.unpack_from("=%dI" % n, run.stdout, at + 4)))
        at += 4 + 4 * n
    return out


def compare(name, files, texts, encode):
    ids = 0
    for text, mine in zip(texts, ours(files, texts), strict=True):
        theirs = encode(text)
        ids += len(theirs)
        if mine != theirs:
            sys.exit("%s: %r\n  ours   %s\n  theirs %s" % (name, text, mine, theirs))
    print("%s: %d texts, %d ids, the same" % (name, len(texts), ids))


def train(texts, size, pre, ignore_merges=False):
    tok = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tok.pre_tokenizer = pre
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIALS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return tok


def check_tiktoken(tok, files, texts):
    try:
        import tiktoken
    except ImportError:
        print("no tiktoken here")
        return
    own = [b for r in (range(33, 127), range(161, 173), range(174, 256)) for b in r]
    char = {c: b for b, c in zip(own, map(chr, own))}
    char.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in own)})
    vocab = tok.get_vocab()
    ranks = {bytes(char[c] for c in t): i for t, i in vocab.items() if t not in SPECIALS}
    if len(ranks) != len(vocab) - len(SPECIALS):
        sys.exit("two tokens of the same bytes")
    enc = tiktoken.Encoding("small", pat_str=GPT2, mergeable_ranks=ranks, special_tokens={s: vocab[s] for s in SPECIALS})
    compare("tiktoken", files, texts, lambda t: enc.encode(t, allowed_special="all"))


def added_tokens(texts, rng, folder):
    """Added tokens of both kinds (normalized or not) that overlap, contain each other, or are spelled like entries of the
    vocabulary; texts are random strings of their parts."""
    for round_ in range(12):
        tok = train(texts[:40], 600, pre_tokenizers.ByteLevel(add_prefix_space=False))
        entries = [t for t in tok.get_vocab() if len(t) > 3]
        parts = ["x", "ab", "abc", "bc", "c", "<|", "|>", "a", " ", "  ", "\t", "\u00e9", "\u0120", "\u0120the", "the", "\n"]
        words = {"".join(rng.choice(parts) for _ in range(rng.randrange(1, 5))) for _ in range(14)} | set(rng.sample(entries, 3))
        for word in sorted(words):
            tok.add_tokens([AddedToken(word, normalized=rng.random() < 0.5, special=rng.random() < 0.3)])
        path = "%s/added-%d.json" % (folder, round_)
        tok.save(path)
        sample = ["".join(rng.choice(parts + sorted(words)) for _ in range(rng.randrange(1, 30))) for _ in range(400)]
        compare("tokenizers, added tokens %d" % round_, ["--respelled", path], sample,
                lambda t: tok.encode(t, add_special_tokens=False).ids)


def main():
    texts, rng = corpus(), random.Random(7)
    lines = [line for text in texts for line in text.splitlines(keepends=True)]
    sample = rng.sample(lines, min(6000, len(lines))) + [t for t in texts if len(t) < 20000][:60] + list(strange(rng))
    sample += ["a" * 5000, "the" * 4000, " " * 3000 + "x", "-=" * 2500, ""]
    with tempfile.TemporaryDirectory() as folder:
        tok = train(texts, 3000, pre_tokenizers.ByteLevel(add_prefix_space=False))
        tok.model.save(folder)
        pair = [folder + "/vocab.json", folder + "/merges.txt"]
        encode = lambda t: tok.encode(t, add_special_tokens=False).ids
        compare("tokenizers, vocab.json and merges.txt", pair, sample, encode)
        tok.save(folder + "/tokenizer.json")
        compare("tokenizers, tokenizer.json", [folder + "/tokenizer.json"], sample, encode)
        check_tiktoken(tok, pair, sample)
        added_tokens(texts, rng, folder)
        for ignore in (False, True):
            split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                             pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
            other = train(texts, 5000, split, ignore)
            path = folder + "/llama3.json"
            other.save(path)
            if ignore:  # a few tokens that no merge produces
                data = json.load(open(path))
                for i, word in enumerate(("\u0120zebrafish", "ocelots", "'LLx", "the" * 20)):
                    data["model"]["vocab"][word] = 6000 + i
                json.dump(data, open(path, "w"))
                other = Tokenizer.from_file(path)
            compare("tokenizers, Llama 3's pattern, ignore_merges %s" % ignore, [path],
                    sample + [" zebrafish ocelots zebrafishes"], lambda t: other.encode(t, add_special_tokens=False).ids)


if __name__ == "__main__":
    main()
