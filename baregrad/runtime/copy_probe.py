"""How fast the machine copies memory: what work that only moves bytes is measured against."""

from __future__ import annotations

import ctypes
import statistics
import threading
import time
from itertools import pairwise

import numpy as np


class CopyProbe:
    """The C library's memmove of an array of `nbytes`, a share of it on each of some threads.

    One `run` copies `repeats` times and moves `moved` bytes, half of them read and half written.
    Threads are started anew for each, which takes a hundredth of the time that 64 MiB do.
    """

    def __init__(self, nbytes: int, threads: int, repeats: int = 1) -> None:
        self.moved = 2 * nbytes * repeats
        self._repeats = repeats
        self.source = np.ones(nbytes, np.uint8)
        self.target = np.zeros(nbytes, np.uint8)
        edges = [nbytes * number // threads // 64 * 64 for number in range(threads)] + [nbytes]
        self._parts = list(pairwise(edges))

    def run(self) -> None:
        """Copy the array as often as was asked for."""
        others = [threading.Thread(target=self._copy, args=part) for part in self._parts[1:]]
        for thread in others:
            thread.start()
        self._copy(*self._parts[0])
        for thread in others:
            thread.join()

    def rate(self, runs: int = 9) -> float:
        """Return bytes read and written a second: the median of some runs after the first."""
        times = []
        for _ in range(runs + 1):
            begin = time.perf_counter()
            self.run()
            times.append(time.perf_counter() - begin)
        return self.moved / statistics.median(times[1:])

    def _copy(self, begin: int, end: int) -> None:
        # ctypes lets go of Python's lock for the time of the call.
        source, target = self.source.ctypes.data + begin, self.target.ctypes.data + begin
        for _ in range(self._repeats):
            ctypes.memmove(target, source, end - begin)
