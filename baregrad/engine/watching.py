"""Who watches a session's work, thread by thread."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from baregrad.engine.realised import Realised
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.node import Node
from baregrad.ir.core.requirements import note_in, noted


class Watching(threading.local):
    """What a session keeps for each thread by itself: watchers of what the thread does.

    observers: of runs. uploads, downloads: of data that comes and goes. writes: of storages that
    change in place. companions: storages to compute along with the next ones. isolated: the
    values that count as realised in this thread alone, while a function is captured in it. at_once:
    how many operations are being run that put off none of what they call. transforming: how many
    functions are being called on what stands for other values, so that nothing is to be computed
    or replayed. keeps_choices: a condition becomes a choice of the graph even where it could be
    read. touched: how often something was uploaded, read, written or computed so far.
    """

    def __init__(self) -> None:
        self.observers: list[Callable[[Any], None]] = []
        self.uploads: list[Callable[[BufferRef, np.ndarray[Any, Any]], None]] = []
        self.downloads: list[Callable[[BufferRef], None]] = []
        self.writes: list[Callable[[Any, Node], None]] = []
        self.companions: list[weakref.ref[Any]] = []
        self.isolated: Realised | None = None
        self.at_once = 0
        self.transforming = 0
        self.keeps_choices = False
        self.touched = 0

    def held(self) -> tuple[Any, ...]:
        """Who watches this thread now, for `put_back`."""
        lists = (self.observers, self.uploads, self.downloads, self.writes)
        return (*[(one, list(one)) for one in lists], self.isolated, self.at_once,
                self.transforming, self.keeps_choices, noted())

    def put_back(self, held: tuple[Any, ...]) -> None:
        """Let those watch again that did so when `held` was asked for, and nobody else.

        An interruption may come between two steps of entering or leaving a block, whose other steps
        are not taken then.
        """
        *lists, self.isolated, self.at_once, self.transforming, self.keeps_choices, notes = held
        self.observers, self.uploads, self.downloads, self.writes = [one for one, _ in lists]
        for one, members in lists:
            one[:] = members
        note_in(notes)

    @contextmanager
    def observing(self, note: Callable[[Any], None]) -> Iterator[None]:
        """Inside the block each run of the thread is told to `note`."""
        # The block may end where others watch: in another thread, or while nobody does.
        held = self.observers
        held.append(note)
        try:
            yield
        finally:
            held.remove(note)

    @contextmanager
    def standing_in(self) -> Iterator[None]:
        """Inside the block the thread calls a function on what stands for other values."""
        self.transforming += 1
        try:
            yield
        finally:
            self.transforming -= 1

    @contextmanager
    def standing_for_itself(self) -> Iterator[None]:
        """Inside the block all values are there, and are computed and replayed as usual."""
        held, self.transforming = self.transforming, 0
        try:
            yield
        finally:
            self.transforming = held

    @contextmanager
    def nobody(self) -> Iterator[None]:
        """Inside the block the thread has no watchers."""
        held = (self.observers, self.uploads, self.downloads, self.writes)
        self.observers, self.uploads, self.downloads, self.writes = [], [], [], []
        try:
            yield
        finally:
            self.observers, self.uploads, self.downloads, self.writes = held
