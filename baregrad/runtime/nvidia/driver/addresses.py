"""GPU virtual addresses: which ranges we use, and who has what of them."""

from __future__ import annotations

import bisect
import threading

from baregrad.base.bits import round_up
from baregrad.base.errors import ArgumentError, OutOfMemory

# Launch descriptors and pushbuffers are reached with 40 bits on every generation; nobody's heap or
# stack lies in either range. The shader's windows onto shared and local memory are above them.
LOW_RANGE = range(0x10_0000_0000, 0x100_0000_0000)
HIGH_RANGE = range(0x100_0000_0000, 0x4000_0000_0000)


class AddressRange:
    """Hands out aligned pieces of a range of addresses, lowest first; freed neighbours merge."""

    def __init__(self, addresses: range) -> None:
        self._free = [(addresses.start, addresses.stop)]
        self._taken: dict[int, int] = {}
        self._lock = threading.Lock()

    def take(self, nbytes: int, alignment: int) -> int:
        """Return the address of `nbytes` free bytes; raise OutOfMemory if there are none."""
        with self._lock:
            for place, (start, stop) in enumerate(self._free):
                address = round_up(start, alignment)
                if address + nbytes <= stop:
                    pieces = [(start, address), (address + nbytes, stop)]
                    self._free[place : place + 1] = [p for p in pieces if p[0] < p[1]]
                    self._taken[address] = nbytes
                    return address
        raise OutOfMemory("no GPU addresses are left", found=f"{nbytes} bytes")

    def give(self, address: int) -> None:
        """Take back what `take` returned."""
        with self._lock:
            nbytes = self._taken.pop(address, None)
            if nbytes is None:
                raise ArgumentError("the address was not handed out", found=hex(address))
            start, stop = address, address + nbytes
            place = bisect.bisect(self._free, (start, stop))
            if place < len(self._free) and self._free[place][0] == stop:
                stop = self._free.pop(place)[1]
            if place and self._free[place - 1][1] == start:
                place -= 1
                start = self._free.pop(place)[0]
            self._free.insert(place, (start, stop))

    @property
    def taken_nbytes(self) -> int:
        """How many bytes are handed out."""
        return sum(self._taken.values())
