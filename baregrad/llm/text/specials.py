"""Cutting special tokens out of a text before the rest is tokenised."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SpecialToken:
    """A token that is cut out of a text as it stands.

    `is_control` says that it steers the model, so that a user's text never becomes it. The flags
    tell whether white space before and after it goes with it.
    """

    id: int
    text: str
    is_control: bool
    strips_left: bool = False
    strips_right: bool = False


class SpecialSplitter:
    """Finds special tokens in a text: the longest first, then the leftmost.

    A longer token wins over a shorter one that begins before it and overlaps it.
    """

    def __init__(self, tokens: Sequence[SpecialToken]) -> None:
        self._tokens = {token.text: token for token in tokens if token.text}
        lengths: dict[str, set[int]] = defaultdict(set)
        for text in self._tokens:
            lengths[text[:2]].add(len(text))
        self._lengths: Mapping[str, tuple[int, ...]] = {
            head: tuple(sorted(found, reverse=True)) for head, found in lengths.items()
        }
        self._heads = re.compile(_heads_pattern(self._lengths)) if self._tokens else None

    def split(
        self, text: str, is_template: Sequence[tuple[int, int]] = ()
    ) -> list[str | SpecialToken]:
        """Return the pieces of a text in order, of which none is empty.

        `is_template` are the ranges [start, stop) in which control tokens may lie, ascending;
        other tokens may lie anywhere.
        """
        chosen = self._choose(text, is_template)
        pieces: list[str | SpecialToken] = []
        start = 0
        for begin, token in chosen:
            between = text[start:begin]
            if token.strips_left:
                between = between.rstrip()
            if between:
                pieces.append(between)
            pieces.append(token)
            start = begin + len(token.text)
            while token.strips_right and start < len(text) and text[start].isspace():
                start += 1
        if text[start:]:
            pieces.append(text[start:])
        return pieces

    def _choose(
        self, text: str, is_template: Sequence[tuple[int, int]]
    ) -> list[tuple[int, SpecialToken]]:
        """Return the tokens of a text that do not overlap, with where each begins, ascending."""
        found = self._find(text, is_template)
        if len(found) < 2:
            return found
        found.sort(key=lambda match: (-len(match[1].text.encode("utf-8", "replace")), match[0]))
        taken: list[tuple[int, SpecialToken]] = []
        covered = bytearray(len(text))
        for begin, token in found:
            stop = begin + len(token.text)
            # What is taken already is at least as long: it would cover one of the ends.
            if covered[begin] or covered[stop - 1]:
                continue
            covered[begin:stop] = b"\1" * (stop - begin)
            taken.append((begin, token))
        taken.sort(key=lambda match: match[0])
        return taken

    def _find(
        self, text: str, is_template: Sequence[tuple[int, int]]
    ) -> list[tuple[int, SpecialToken]]:
        """Return every token at every place of a text where it may lie."""
        if self._heads is None:
            return []
        found = []
        regions = iter(is_template)
        region = next(regions, None)
        for head in self._heads.finditer(text):
            begin = head.start()
            while region is not None and region[1] <= begin:
                region = next(regions, None)
            limit = region[1] if region is not None and region[0] <= begin else 0
            for length in self._lengths.get(text[begin : begin + 2], ()):
                token = self._tokens.get(text[begin : begin + length])
                if token and (not token.is_control or begin + length <= limit):
                    found.append((begin, token))
            single = self._tokens.get(text[begin])
            if single and (not single.is_control or begin + 1 <= limit):
                found.append((begin, single))
        return found


def _heads_pattern(heads: Mapping[str, object]) -> str:
    """Return a pattern of no width that matches before the first two letters of any token."""
    seconds: dict[str, set[str]] = defaultdict(set)
    for head in heads:
        seconds[head[0]].add(head[1:])
    branches = []
    for first, letters in sorted(seconds.items()):
        branch = re.escape(first)
        if "" not in letters:
            branch += "[" + "".join(re.escape(letter) for letter in sorted(letters)) + "]"
        branches.append(branch)
    return f"(?={'|'.join(branches)})"
