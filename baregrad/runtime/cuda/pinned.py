"""Pinned host memory that users hold as arrays: the copy engines reach it without a detour."""

from __future__ import annotations

import bisect
import functools
import threading
from collections import deque
from typing import Any

import numpy as np

from baregrad.base.bits import round_up
from baregrad.runtime.buffers import Memory, host_array
from baregrad.runtime.cuda import abi
from baregrad.runtime.cuda.context import Context

PAGE_NBYTES = 4096
# Pinning costs more than a copy, so pieces are kept, up to this much.
KEEP_NBYTES = 256 << 20


class PinnedMemory:
    """Arrays of pinned memory; those that nobody holds any more are handed out again."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._returned: deque[int] = deque()
        self._sizes: dict[int, tuple[int, int]] = {}
        self._bases: list[int] = []
        self._spare: dict[int, list[int]] = {}
        self._kept_nbytes = 0

    def array(self, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return `nbytes` bytes of pinned memory with any content; raise OutOfMemory."""
        size = round_up(max(nbytes, 1), PAGE_NBYTES)
        with self._lock:
            self._take_back()
            spare = self._spare.get(size)
            if spare:
                address = spare.pop()
                self._kept_nbytes -= size
            else:
                address = self._make(size)
        memory = Memory(address, nbytes, release=self._returned.append, token=address)
        return host_array(memory, address, nbytes)

    def holds(self, address: int, nbytes: int) -> bool:
        """Whether the bytes lie within one of the arrays."""
        place = bisect.bisect_right(self._bases, address) - 1
        if place < 0:
            return False
        base = self._bases[place]
        return address + nbytes <= base + self._sizes[base][0]

    def _make(self, size: int) -> int:
        context = self._context
        address = context.driver.handle("cuMemHostAlloc", size, abi.HOST_ALLOC_PORTABLE)
        free = functools.partial(context.release, "cuMemFreeHost", address)
        self._sizes[address] = (size, context.teardown.push("pinned memory", free))
        bisect.insort(self._bases, address)
        return address

    def _take_back(self) -> None:
        while self._returned:
            address = self._returned.popleft()
            size, token = self._sizes[address]
            if self._kept_nbytes + size <= KEEP_NBYTES:
                self._spare.setdefault(size, []).append(address)
                self._kept_nbytes += size
                continue
            del self._sizes[address]
            self._bases.remove(address)
            self._context.teardown.run(token)
