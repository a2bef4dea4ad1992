"""Texts that end an answer: what may be the beginning of one is held back until it is decided."""

from __future__ import annotations

from collections.abc import Sequence


class StopFinder:
    """Finds the first of several texts in a text that comes in pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    def add(self, piece: str) -> str:
        """Return what of the text so far is certain to come before any stop."""
        if self.found is not None:
            return ""
        text = self._held + piece
        places = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if places:
            # Where several begin at one place, the longest is what was meant.
            at, self.found = min(places, key=lambda place: (place[0], -len(place[1])))
            self._held = ""
            return text[:at]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Return what was held back, since nothing follows any more."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """How many of the last characters of a text begin a stop."""
    for count in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:count]):
            return count
    return 0
