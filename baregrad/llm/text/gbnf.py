"""Grammars in llama.cpp's notation, GBNF, rewritten in that of Lark.

Rules that lead to no cycle become terminals, which `llguidance` matches as one regular expression:
a grammar of such rules alone is enforced exactly. In one with a cycle each terminal takes the
longest text that it can, as terminals of Lark do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

_BEGIN = re.compile(r"^[ \t]*[\w-]+\s*::=", re.M)
_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*) | (?P<rule>[\w-]+)(?=\s*::=) | (?P<is>::=) | (?P<name>[\w-]+)
    | "(?P<literal>(?:[^"\\]|\\.)*)" | \[(?P<set>(?:[^\]\\]|\\.)*)\] | (?P<any>\.)
    | (?P<times>[?*+]|\{\s*\d+\s*(?:,\s*\d*\s*)?\}) | (?P<mark>[()|])""",
    re.X | re.S,
)
_CHARACTER = re.compile(
    r"""\\x([0-9a-fA-F]{2}) | \\u([0-9a-fA-F]{4}) | \\U([0-9a-fA-F]{8}) | \\([nrt\\"\[\]])
    | ([^\\])""",
    re.X | re.S,
)
_ESCAPES = MappingProxyType({"n": "\n", "r": "\r", "t": "\t"})


def is_gbnf(text: str) -> bool:
    """Whether some line begins a rule as GBNF does."""
    return _BEGIN.search(text) is not None


def lark_of_gbnf(text: str) -> str:
    """Return a grammar whose first rule is `root` as one of Lark. Raises ValueError."""
    rules: dict[str, list[tuple[str, str]]] = {}
    body: list[tuple[str, str]] | None = None
    for kind, word, at in _tokens(text):
        if kind == "rule":
            if word in rules:
                raise ValueError(f"the rule {word} is there twice")
            body = rules[word] = []
        elif body is None:
            raise _wrong(text, at)
        elif kind != "is":
            body.append((kind, word))
    if "root" not in rules:
        raise ValueError("no rule is named root")
    needs = {name: {word for kind, word in body if kind == "name"} for name, body in rules.items()}
    missing = set().union(*needs.values()) - rules.keys()
    if missing:
        raise ValueError(f"no rule is named {min(missing)}")
    flat = _without_cycles(needs)
    names = {name: f"T{at}" if name in flat else f"r{at}" for at, name in enumerate(rules)}
    lines = [f"{names[name]}: {_body(name, body, names)}" for name, body in rules.items()]
    return "\n".join([f"start: {names['root']}", *lines]) + "\n"


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _wrong(text, at)
        kind = found.lastgroup or ""
        if kind != "space":
            yield kind, found[kind], at
        at = found.end()


def _wrong(text: str, at: int) -> ValueError:
    line = text.count("\n", 0, at) + 1
    return ValueError(f"line {line} of the grammar cannot be read from {text[at : at + 40]!r} on")


def _without_cycles(needs: Mapping[str, set[str]]) -> set[str]:
    """Return the names from which no cycle is reached."""
    users: dict[str, list[str]] = {name: [] for name in needs}
    left = {name: len(wanted) for name, wanted in needs.items()}
    for name, wanted in needs.items():
        for other in wanted:
            users[other].append(name)
    ready = [name for name, count in left.items() if not count]
    found = set(ready)
    while ready:
        for user in users[ready.pop()]:
            left[user] -= 1
            if not left[user]:
                found.add(user)
                ready.append(user)
    return found


def _body(name: str, tokens: list[tuple[str, str]], names: Mapping[str, str]) -> str:
    """Return the right side of a rule; where nothing stands, a text of no letters does."""
    words: list[str] = []
    depth, is_empty = 0, True
    for kind, word in [*tokens, ("end", "")]:
        ends = kind == "end" or (kind == "mark" and word in ("|", ")"))
        if kind == "times" and is_empty:
            raise ValueError(f"nothing stands before {word} in the rule {name}")
        if ends and is_empty:
            words.append('""')
        depth += (word == "(") - (word == ")") if kind == "mark" else 0
        if depth < 0 or (kind == "end" and depth):
            raise ValueError(f"parentheses of the rule {name} do not match")
        is_empty = kind == "mark" and word in ("|", "(")
        if kind == "name":
            words.append(names[word])
        elif kind == "literal":
            words.append(json.dumps("".join(_characters(word)), ensure_ascii=False))
        elif kind == "set":
            words.append(_set(word))
        elif kind == "any":
            words.append(r"/(.|\n)/")
        elif kind == "times":
            words[-1] += re.sub(r"\s+", "", word)
        else:
            words.append(word)
    return " ".join(words)


def _set(text: str) -> str:
    """Return a class of characters as a regular expression; a last `-` stands for itself."""
    is_not = text.startswith("^")
    letters = list(_characters(text[is_not:]))
    found, at = "", 0
    while at < len(letters):
        found += _numbered(letters[at])
        if at + 2 < len(letters) and letters[at + 1] == "-":
            found += "-" + _numbered(letters[at + 2])
            at += 2
        at += 1
    return f"/[{'^' * is_not}{found}]/"


def _numbered(letter: str) -> str:
    return f"\\x{{{ord(letter):x}}}"


def _characters(text: str) -> Iterator[str]:
    """Yield the characters of what is quoted."""
    at = 0
    while at < len(text):
        found = _CHARACTER.match(text, at)
        number = found and (found[1] or found[2] or found[3])
        if found is None or (number and int(number, 16) > 0x10FFFF):
            raise ValueError(f"no character is written as {text[at : at + 10]!r}")
        if number:
            yield chr(int(number, 16))
        else:
            yield _ESCAPES.get(found[4], found[4]) if found[4] else found[5]
        at = found.end()
