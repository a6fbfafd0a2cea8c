"""Finds the documents of the tree and their parts: prose, tables, code. Used by the tests of this folder."""

import pathlib
import re


def pages(tree):
    """Returns all Markdown files that are documents, in a fixed order."""
    tree = pathlib.Path(tree)
    return sorted(tree.glob("*.md")) + sorted(tree.glob("docs/**/*.md"))


def is_generated(text):
    return "This page is generated from the table" in text


def lines(text):
    """Yields (number, kind, line); kind is prose, table, code or fence."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            yield number, "fence", line
        elif fenced or line.startswith("    "):
            yield number, "code", line
        elif line.startswith("|"):
            yield number, "table", line
        else:
            yield number, "prose", line


def commands(text):
    """Yields (number, command): each line of code, without its prompt and comment, and each word in backticks."""
    joined = ""
    for number, kind, line in lines(text):
        if kind == "code":
            line = joined + line.strip()
            if line.endswith("\\"):
                joined = line[:-1] + " "
                continue
            joined = ""
            line = re.sub(r"^[a-z0-9]*@?[a-z0-9]*[$#] ", "", line)
            for part in re.split(r" \| |; |&& |\|\| |\$\(|   +", re.sub(r"\s# .*", "", line)):
                yield number, part.strip()
        else:
            for word in re.findall(r"`([^`]+)`", line):
                yield number, word.strip()
