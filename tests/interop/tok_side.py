"""The part of interop_tok.py that runs in the Python with tokenizers: tokenizer files with the settings of known models and
with every supported step, trained here, and hostile texts. dtd's ids must equal those of tokenizers."""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers as N, pre_tokenizers as P, processors, trainers

from bpe_side import LLAMA3, corpus

TOOL, SIZE = sys.argv[1], int(os.environ.get("DTD_TOK_TEXTS", "400"))
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
NEMO = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}"
        r"\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"
            r"|\s+(?!\S)|\s+"]
MARK = "\u2581"
SPECIALS = ["<unk>", "<s>", "</s>", "<|end|>"]
BYTES = ["<0x%02X>" % i for i in range(256)]


def byte_level(regex=True, prefix=False):
    return P.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def split(pattern, how="isolated", invert=False):
    return P.Split(Regex(pattern), how, invert)


def hostile(rng, lines, count):
    """Characters of all planes, much white space, marks without a base, special tokens typed by a user, and real lines."""
    everything = [chr(c) for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
    assigned = "".join(lines)
    spaces = list(" \t\n\r\x0b\x0c\x85\xa0\u1680\u2003\u2028\u2029\u202f\u3000") + ["\u180e", "\u200b", "\ufeff", "\x1c", "\u200d"]
    marks = [chr(c) for c in (*range(0x300, 0x345), 0x345, 0x338, 0x5b0, 0x64b, 0x93c, 0x9be, 0x9c7, 0xe47, 0x1abf, 0x1dfa, 0x20d0,
                              0x3099, 0x1161, 0x11a8, 0x11930, 0x11935, 0x1e8d0)]
    cases = list("İıſßﬁﬀŉǰᾳΣσςÅＡ①㍿﷼豈각ᄀ각½Ⅷ٣९") + ["\U0001F1E9\U0001F1EA", "\U0001F468\u200d\U0001F469", "क्षि", "ก็", "\u0600a"]
    parts = ["the", " the", "  ", "\n\n", "\r\n", "123", "1234", "...", "'s", "'LL", "don't", "<0x41>", "<s>", " <s> ", "</s>", "<unk>",
             "<|end|>", " <|end|>\n\n", "<|end", MARK, MARK + MARK, " " + MARK, "Hello World", "HelloWorld", "naïve", "中文字", "Ġthe", "##ing",
             "a" * 40, "-=", "x.y", "[MASK]", "abc", "abcabc", "\u2e43", "\U00011de0"]
    for _ in range(count):
        pools = rng.choice([(everything,), (spaces, parts), (marks, list("aeiouAEIOU "), cases), (parts, assigned, spaces), (cases, parts),
                            (everything, marks, spaces, parts, cases, assigned)])
        yield "".join(rng.choice(rng.choice(pools)) for _ in range(rng.randrange(0, 40)))
    yield from rng.sample(lines, min(len(lines), count // 3))
    for n in range(20):
        yield " " * n + "x" + " " * n
    yield from ("a" * 5000, "the" * 3000, " " * 3000 + "x", "-=" * 2500, "\u0301" * 3000, "\u0323\u0301" * 800, MARK * 500, "中" * 2000)


def ours(path, texts, options=()):
    blob = b"".join(struct.pack("=I", len(b)) + b for b in (t.encode() for t in texts))
    run = subprocess.run([TOOL, *options, path], input=blob, capture_output=True)
    if run.returncode:
        sys.exit("bpe_tool: " + run.stderr.decode())
    at, out = 0, []
    while at < len(run.stdout):
        (n,) = struct.unpack_from("=I", run.stdout, at)
        out.append(list(struct.unpack_from("=%dI" % n, run.stdout, at + 4)))
        at += 4 + 4 * n
    return out


def compare(name, path, texts, encode, *options):
    ids = 0
    for text, mine in zip(texts, ours(path, texts, ["--respelled", *options]), strict=True):
        try:
            theirs = encode(text)
        except BaseException as e:  # tokens whose white space overlaps make tokenizers panic
            if type(e).__name__ != "PanicException":
                raise
            continue
        ids += len(theirs)
        if mine != theirs:
            at = next((i for i, (a, b) in enumerate(zip(mine, theirs)) if a != b), min(len(mine), len(theirs)))
            sys.exit("%s: %r\n  from the id %d on\n  ours   %s\n  theirs %s" % (name, text, at, mine[at:at + 20], theirs[at:at + 20]))
    print("%s: %d texts, %d ids, the same" % (name, len(texts), ids))


def train(texts, model, trainer, norm, pre):
    tok = Tokenizer(model)
    if norm:
        tok.normalizer = norm
    if pre:
        tok.pre_tokenizer = pre
    tok.train_from_iterator(texts, trainer)
    return tok


def bpe_trainer(size, byte=True, more=()):
    return trainers.BpeTrainer(vocab_size=size, special_tokens=[*SPECIALS, *more], show_progress=False, limit_alphabet=300,
                               initial_alphabet=P.ByteLevel.alphabet() if byte else [])


def sentencepiece_like(texts, norm, pre, trained_on, **flags):
    """A BPE of characters with byte fallback, as Llama 2, Mistral and Gemma have it."""
    more = BYTES if flags.get("byte_fallback") else []
    model = models.BPE(unk_token="<unk>", fuse_unk=flags.pop("fuse_unk", True), **flags)
    tok = train(trained_on, model, bpe_trainer(2500, False, more), None, P.Metaspace(prepend_scheme="never", split=True))
    data = json.loads(tok.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] not in BYTES]
    tok = Tokenizer.from_str(json.dumps(data))
    if norm:
        tok.normalizer = norm
    tok.pre_tokenizer = pre if pre else None
    return tok


def families(texts):
    """Settings of models as their files have them, on small vocabularies."""
    lines = [line for t in texts[:60] for line in t.splitlines(keepends=True)]
    byte = lambda norm, pre, **flags: train(lines, models.BPE(**flags), bpe_trainer(2000), norm, pre)
    legacy = N.Sequence([N.Prepend(MARK), N.Replace(" ", MARK)])
    sp = lambda norm, pre, **flags: sentencepiece_like(texts, norm, pre, lines, **flags)
    yield "GPT-2", byte(None, byte_level())
    yield "GPT-NeoX", byte(N.NFC(), byte_level())
    yield "Llama 3", byte(None, P.Sequence([split(LLAMA3), byte_level(False)]), ignore_merges=True)
    yield "Qwen 2", byte(N.NFC(), P.Sequence([split(QWEN), byte_level(False)]))
    yield "SmolLM2, StarCoder2", byte(None, P.Sequence([P.Digits(True), byte_level()]))
    yield "Mistral Nemo", byte(None, P.Sequence([split(NEMO), byte_level(False)]), ignore_merges=True)
    yield "DeepSeek", byte(N.Sequence([]), P.Sequence([*map(split, DEEPSEEK), byte_level(False)]))
    yield "Falcon", byte(None, P.Sequence([P.Punctuation("contiguous"), byte_level(), P.Digits(False), split("[0-9][0-9][0-9]")]))
    yield "RoBERTa", byte(None, byte_level(prefix=True))
    yield "Llama 2", sp(legacy, None, byte_fallback=True)
    yield "Mistral, Metaspace", sp(None, P.Metaspace(prepend_scheme="first", split=False), byte_fallback=True)
    yield "Phi-3", sp(legacy, None, byte_fallback=True)
    yield "Gemma", sp(N.Replace(" ", MARK), P.Split(" ", "merged_with_previous"), byte_fallback=True)
    yield "BPE without byte fallback", sp(legacy, None)
    yield "BPE with single unknown tokens", sp(N.Replace(" ", MARK), P.Metaspace(), fuse_unk=False)
    bert = lambda **k: train(lines, models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(
        vocab_size=1500, special_tokens=["[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False), N.BertNormalizer(**k),
        P.BertPreTokenizer())
    yield "BERT", bert()
    yield "BERT, cased", bert(lowercase=False, strip_accents=False)
    yield "BERT, cased without accents", bert(lowercase=False, strip_accents=True, handle_chinese_chars=False)
    yield "words", train(lines, models.WordLevel(unk_token="<unk>"), trainers.WordLevelTrainer(
        vocab_size=2000, special_tokens=SPECIALS, show_progress=False), N.Sequence([N.NFKC(), N.Lowercase()]), P.Whitespace())
    yield "Unigram, T5", unigram(lines, N.Sequence([N.NFKC(), N.Strip(left=False), N.Replace(Regex(" {2,}"), MARK)]), P.Metaspace())
    yield "Unigram with byte fallback", unigram(lines, N.Replace(" ", MARK), None, True)


def unigram(lines, norm, pre, byte_fallback=False):
    tok = train(lines, models.Unigram(), trainers.UnigramTrainer(
        vocab_size=1500, special_tokens=SPECIALS, unk_token="<unk>", show_progress=False), norm, pre or P.Metaspace())
    data = json.loads(tok.to_str())
    if byte_fallback:
        data["model"]["byte_fallback"] = True
        data["model"]["vocab"] += [[b, 0.0] for b in BYTES]
    if not pre:
        data["pre_tokenizer"] = None
    return Tokenizer.from_str(json.dumps(data))


def steps(base):
    """One tokenizer for each step and option that the families above do not have."""
    pre = byte_level()
    for name, norm in (("NFD", N.NFD()), ("NFKD", N.NFKD()), ("NFKC", N.NFKC()), ("StripAccents", N.Sequence([N.NFD(), N.StripAccents()])),
                       ("Strip", N.Strip()), ("Lowercase", N.Lowercase()), ("Replace", N.Replace(Regex("[a-e]+|\\s{2,}"), "_")),
                       ("Replace, a text", N.Replace("the", "<s>")), ("Prepend", N.Prepend("ab ")), ("ByteLevel", N.ByteLevel())):
        yield name, norm, (None if name == "ByteLevel" else pre)
    for how in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in False, True:
            yield "Split, %s, %s" % (how, invert), None, P.Sequence([split("[aeiou]|\\s+", how, invert), byte_level(False)])
        yield "Punctuation, " + how, None, P.Sequence([P.Punctuation(how), byte_level(False)])
        yield "Split at a text, " + how, None, P.Sequence([P.Split("th", how), byte_level(False)])
    for name, step in (("Digits", P.Digits(False)), ("Whitespace", P.Whitespace()), ("WhitespaceSplit", P.WhitespaceSplit()),
                       ("CharDelimiterSplit", P.CharDelimiterSplit("e")), ("BertPreTokenizer", P.BertPreTokenizer())):
        yield name, None, P.Sequence([step, byte_level(False)])
    for scheme in "always", "first", "never":
        for cut in False, True:
            yield "Metaspace, %s, %s" % (scheme, cut), None, P.Metaspace(prepend_scheme=scheme, split=cut)
            yield "Metaspace and Digits, %s, %s" % (scheme, cut), None, P.Sequence([P.Digits(True), P.Metaspace(prepend_scheme=scheme, split=cut)])


def add_tokens(tok, rng):
    """Tokens with every flag, of which some contain others."""
    for content in ("<|a|>", " b ", "abc", "abcabc", MARK + "x", "  ", "\n", "é", "[MASK]", "THE", "don"):
        if tok.normalizer and not tok.normalizer.normalize_str(content):
            continue  # refused
        tok.add_tokens([AddedToken(content, single_word=rng.random() < .4, lstrip=rng.random() < .4, rstrip=rng.random() < .4,
                                   normalized=rng.random() < .5, special=rng.random() < .3)])


def characters(folder):
    """Every code point between letters, with the components that have tables. A short run leaves out planes without characters."""
    everything = [chr(c) for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000 and (SIZE >= 3000 or c < 0x33500 or 0xE0000 <= c < 0xE0200)]
    texts = ["".join("a%sb" % c for c in everything[i:i + 700]) for i in range(0, len(everything), 700)]
    level = P.ByteLevel.alphabet()
    vocab = {c: i for i, c in enumerate(sorted(level))}
    for name, norm, pre in (("NFC", N.NFC(), None), ("NFD", N.NFD(), None), ("NFKC", N.NFKC(), None), ("NFKD", N.NFKD(), None),
                            ("Lowercase", N.Lowercase(), None), ("StripAccents", N.StripAccents(), None), ("BertNormalizer", N.BertNormalizer(), None),
                            ("Whitespace", None, P.Whitespace()), ("Digits and Punctuation", None, P.Sequence([P.Digits(True), P.Punctuation()])),
                            ("WhitespaceSplit", None, P.WhitespaceSplit()), ("\\p{L}", None, split(r"\p{L}", "removed")),
                            ("\\p{N}", None, split(r"\p{N}", "removed")), ("\\p{M}|\\p{P}|\\p{S}", None, split(r"\p{M}|\p{P}|\p{S}", "removed")),
                            ("\\w|\\d", None, split(r"\w|\d", "removed")), ("\\p{Lu}|\\p{Han}", None, split(r"\p{Lu}|\p{Han}", "removed"))):
        tok = Tokenizer(models.BPE(vocab=vocab, merges=[]))
        if norm:
            tok.normalizer = norm
        tok.pre_tokenizer = P.Sequence(([pre] if pre else []) + [byte_level(False)])
        path = folder + "/characters.json"
        tok.save(path)
        compare("all code points, " + name, path, texts, lambda t: tok.encode(t).ids, "--whole")


def main():
    texts, rng = corpus(), random.Random(11)
    lines = [line for text in texts for line in text.splitlines(keepends=True)]
    sample = list(hostile(rng, lines, SIZE)) + [texts[0][:20000], texts[1][:50000]]
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/tokenizer.json"

        def check(name, tok, some):
            tok.save(path)
            tok = Tokenizer.from_file(path)
            compare(name, path, some, lambda t: tok.encode(t, add_special_tokens=False).ids)

        for name, tok in families(texts):
            check(name, tok, sample)
            for _ in range(2):
                add_tokens(tok, rng)
                check(name + ", added tokens", tok, sample[:SIZE // 2])
        base = train(lines[:20000], models.BPE(unk_token="<unk>"), bpe_trainer(1500), None, byte_level())
        for name, norm, pre in steps(base):
            tok = Tokenizer.from_str(base.to_str())
            tok.normalizer, tok.pre_tokenizer = norm or N.Sequence([]), pre or P.Sequence([])
            check(name, tok, sample[:SIZE])
        characters(folder)


if __name__ == "__main__":
    main()
