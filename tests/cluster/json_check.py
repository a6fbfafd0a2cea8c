"""json_check PAGE SECTION: compares a JSON value, or several, on standard input with the table of a section of docs/formats/json-output.md.
Each key must be in the table with its type, and each row that says "always" must be in the output. A list at the top is a list
of such objects."""

import json
import re
import sys

page, section = sys.argv[1:3]
text = open(page, encoding="utf-8").read()


def table(name):
    part = re.search(rf"^## {re.escape(name)}$(.*?)(?=^## |\Z)", text, re.S | re.M)
    if not part:
        sys.exit(f"{page} has no section {name}")
    rows = re.findall(r"^\| `([^`]+)` \| (\w+) \| (yes|no) \|", part.group(1), re.M)
    return {key: (kind, always == "yes") for key, kind, always in rows}


rows = table(section)
for part, other in (("last", "metrics"), ("incident[]", "why"), ("start", "why")):
    if section == "status":
        rows.update({f"{part}.{key}": row for key, row in table(other).items()})

TYPES = {
    "text": (str,),
    "int": (int,),
    "real": (float, int, type(None)),
    "bool": (bool,),
    "list": (list,),
    "object": (dict,),
    "any": (str, int, float, bool, list, dict, type(None)),
}
problems = set()


def has_type(value, kind):
    return isinstance(value, TYPES[kind]) and (kind in ("bool", "any") or not isinstance(value, bool))


def children(prefix):
    """The rows one level below `prefix`."""
    for key, row in rows.items():
        rest = key[len(prefix) + 1 :] if prefix and key.startswith(prefix + ".") else key if not prefix else None
        if rest and "." not in rest and not rest.endswith("[]"):
            yield rest, row


def check(value, prefix):
    known = dict(children(prefix))
    for key, (kind, always) in known.items():
        if always and key not in value:
            problems.add(f"{section}: {prefix + '.' if prefix else ''}{key} is missing")
    for key, item in value.items():
        name = key if key in known else "*" if "*" in known else None
        path = f"{prefix}.{name or key}" if prefix else name or key
        if name is None:
            problems.add(f"{section}: {path} is not documented")
        elif not has_type(item, known[name][0]):
            problems.add(f"{section}: {path} is no {known[name][0]}: {item!r}")
        elif isinstance(item, dict) and name != "*":
            check(item, path)
        elif isinstance(item, list):
            for one in item:
                if isinstance(one, dict):
                    check(one, path + "[]")


decoder, data, at, count = json.JSONDecoder(), sys.stdin.read(), 0, 0
while data[at:].strip():
    at += len(data[at:]) - len(data[at:].lstrip())
    value, at = decoder.raw_decode(data, at)
    for one in value if isinstance(value, list) else [value]:
        check(one, "")
        count += 1
if not count:
    problems.add(f"{section}: nothing was printed")
if problems:
    sys.exit("\n".join(sorted(problems)))
