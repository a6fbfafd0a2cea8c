#!/usr/bin/env python3
"""unicode_generate.py >unicode_tables.inc: prints the tables of common/data/unicode.c.

Needs tokenizers 0.23.3, unicodedata2 16.0.0 and regex 2026.11.19, and refuses other versions. General categories,
decompositions and combining classes are those of Unicode 16.0 (unicodedata2). The components of tokenizers were built
with several versions of Unicode, and ids must be equal to theirs, so the other tables are read out of tokenizers: one
call for each code point.
"""
import importlib.metadata
import sys

import regex
import tokenizers
import unicodedata2 as ucd
from tokenizers import normalizers, pre_tokenizers

PINNED = {"tokenizers": "0.23.3", "unicodedata2": "16.0.0", "regex": "2026.11.19"}
CHARS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CATEGORIES = "Cn Cc Cf Co Cs Ll Lm Lo Lt Lu Mc Me Mn Nd Nl No Pc Pd Pe Pf Pi Po Ps Sc Sk Sm So Zl Zp Zs".split()
SCRIPTS = ["Han", "Hiragana", "Katakana", "Hangul", "Latin", "Cyrillic", "Greek", "Arabic", "Hebrew", "Thai", "Devanagari"]


def ranges(chars):
    out = []
    for c in sorted(chars):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def lines(items):
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > 118:
            print(line)
            line = "   "
        line += " " + item + ","
    print(line)


def print_ranges(name, chars, why):
    print("\n/* %s */\nstatic const struct unicode_range %s[] = {" % (why, name))
    lines("{0x%x, 0x%x}" % tuple(r) for r in ranges(chars))
    print("};")


def onig(what):
    """The characters that a regular expression of tokenizers matches, one at a time."""
    text = "".join(map(chr, CHARS))
    split = pre_tokenizers.Split(tokenizers.Regex(what), "removed")
    kept = bytearray(len(text))
    for piece, _ in split.pre_tokenize_str(text):
        for ch in piece:
            c = ord(ch)
            kept[c if c < 0xD800 else c - 0x800] = 1
    return {c for c, k in zip(CHARS, kept) if not k}


def print_categories():
    print("\nstatic const struct unicode_category_range categories[] = {")
    rows = []
    for c in range(0x110000):
        cat = CATEGORIES.index(ucd.category(chr(c)))
        if rows and rows[-1][2] == cat:
            rows[-1][1] = c
        else:
            rows.append([c, c, cat])
    lines("{0x%x, 0x%x, %d}" % tuple(r) for r in rows if r[2])
    print("};")


def print_strings(name, table, why):
    """A table of strings: the code points that have one, ascending, and where it starts in a common list."""
    pool, rows = [], []
    for c in sorted(table):
        rows.append("{0x%x, %d, %d}" % (c, len(pool), len(table[c])))
        pool += table[c]
    print("\n/* %s */\nstatic const uint32_t %s_text[] = {" % (why, name))
    lines("0x%x" % c for c in pool)
    print("};\nstatic const struct unicode_string %s[] = {" % name)
    lines(rows)
    print("};")


def mapped(normalizer, skip=()):
    out = {}
    for c in CHARS:
        text = normalizer.normalize_str(chr(c))
        if text != chr(c) and c not in skip:
            out[c] = [ord(ch) for ch in text]
    return out


def known_marks():
    """The characters whose combining class the normalizers of tokenizers know: they are sorted before U+0345, whose class is the
    largest. It was built with an old version of Unicode, where later marks count as class 0."""
    nfd = normalizers.NFD()
    for c in CHARS:
        class_ = ucd.combining(chr(c))
        if class_ and (c == 0x345 or nfd.normalize_str("a\u0345" + chr(c)) == "a" + nfd.normalize_str(chr(c)) + "\u0345"):
            yield c, class_


def print_normalization():
    hangul = range(0xAC00, 0xD7A4)
    nfd, nfkd, nfc = mapped(normalizers.NFD(), hangul), mapped(normalizers.NFKD(), hangul), normalizers.NFC()
    print_strings("canonical", nfd, "full canonical decompositions, without Hangul syllables")
    print_strings("compatible", {c: t for c, t in nfkd.items() if nfd.get(c) != t},
                  "full compatibility decompositions that differ from the canonical ones")
    print("\nstatic const struct unicode_category_range classes[] = {")
    rows = []
    for c, class_ in known_marks():
        if rows and rows[-1][1] == c - 1 and rows[-1][2] == class_:
            rows[-1][1] = c
        else:
            rows.append([c, c, class_])
    lines("{0x%x, 0x%x, %d}" % tuple(r) for r in rows)
    print("};")
    pairs = []
    for c in nfd:
        two = ucd.decomposition(chr(c)).split()
        if len(two) == 2 and not two[0].startswith("<"):
            a, b = int(two[0], 16), int(two[1], 16)
            if nfc.normalize_str(chr(a) + chr(b)) == chr(c):
                pairs.append((a, b, c))
    print("\n/* compositions, sorted by both parts */\nstatic const struct unicode_pair pairs[] = {")
    lines("{0x%x, 0x%x, 0x%x}" % p for p in sorted(pairs))
    print("};")


def print_bert():
    clean = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    chinese = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=True, strip_accents=False, lowercase=False)
    accents = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False)
    print_ranges("bert_removed", [c for c in CHARS if clean.normalize_str(chr(c)) == ""], "removed by BertNormalizer, clean_text")
    print_ranges("bert_space", [c for c in CHARS if c != 32 and clean.normalize_str(chr(c)) == " "], "made a space by BertNormalizer, clean_text")
    print_ranges("bert_chinese", [c for c in CHARS if chinese.normalize_str(chr(c)) == " %c " % c], "put between spaces by BertNormalizer, handle_chinese_chars")
    print_ranges("bert_accents", [c for c in CHARS if accents.normalize_str(chr(c)) == ""], "removed by BertNormalizer, strip_accents")


def print_sets():
    white = pre_tokenizers.Whitespace()
    words, space = set(), set()
    for c in CHARS:
        n = len(white.pre_tokenize_str("a%ca" % c))
        if n == 1:
            words.add(c)
        elif n == 2:
            space.add(c)
    assert space == {c for c in CHARS if chr(c).isspace() and not 0x1C <= c <= 0x1F}, "White_Space"
    assert space == onig(r"\s"), r"\s"
    print_ranges("white_space", space, "White_Space; the same in every component")
    print_ranges("word", words, r"\w of the regular expressions of Rust: Whitespace, and added tokens with single_word")
    print_ranges("word_onig", onig(r"\w"), r"\w of Oniguruma: Split and Replace")
    punctuation, digits = pre_tokenizers.Punctuation("isolated"), pre_tokenizers.Digits(True)
    print_ranges("punctuation", [c for c in CHARS if len(punctuation.pre_tokenize_str("a%ca" % c)) == 3], "Punctuation and BertPreTokenizer")
    print_ranges("numeric", [c for c in CHARS if len(digits.pre_tokenize_str("a%ca" % c)) == 3], "Digits")
    strip = normalizers.StripAccents()
    print_ranges("mark", [c for c in CHARS if strip.normalize_str(chr(c)) == ""], "removed by StripAccents")
    for cat in CATEGORIES[5:]:
        assert onig(r"\p{%s}" % cat) == {c for c in CHARS if ucd.category(chr(c)) == cat}, cat
    for script in SCRIPTS:
        print_ranges("script_" + script.lower(), onig(r"\p{%s}" % script), "the script " + script)
    for what in "Cased", "Case_Ignorable":
        pattern = regex.compile(r"\p{%s}" % what)
        print_ranges(what.lower(), [c for c in CHARS if pattern.match(chr(c))], what + ", for the final sigma")
    for what in "Extend", "SpacingMark", "Prepend", "Control":
        pattern = regex.compile(r"\p{Grapheme_Cluster_Break=%s}" % what)
        print_ranges("grapheme_" + what.lower(), [c for c in CHARS if pattern.match(chr(c))], "Grapheme_Cluster_Break " + what)


def main():
    for package, version in PINNED.items():
        found = importlib.metadata.version(package)
        if found != version:
            sys.exit("unicode_generate.py: %s %s is needed, and %s is installed" % (package, version, found))
    print("/* Made by unicode_generate.py. Do not edit. */\n// clang-format off")
    print_categories()
    print_sets()
    print_strings("lower", mapped(normalizers.Lowercase()), "Lowercase")
    print_normalization()
    print_bert()


main()
