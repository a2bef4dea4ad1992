"""Memory as kernels see it: allocations by address, and windows of generic addresses.

An allocation is a NumPy array of bytes at a base address; an access outside all of them is a fault.
Where an allocation knows which of its bytes were written, reading any other is a fault too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from baregrad.base.errors import ArgumentError
from baregrad.testing.virtual_gpu.ptx.races import SharedRaces
from baregrad.testing.virtual_gpu.ptx.types import UNSIGNED, Array

# Generic addresses in these windows mean a block's shared memory, and so on. The hardware's own
# are set by the driver; kernels must not know them.
SHARED_WINDOW: Final = 0x7294_0000_0000
LOCAL_WINDOW: Final = 0x7293_0000_0000
PARAM_WINDOW: Final = 0x7292_0000_0000
CONST_WINDOW: Final = 0x7291_0000_0000
MODULE_WINDOW: Final = 0x7290_0000_0000
WINDOW_NBYTES: Final = 1 << 32
# A cluster's address of shared memory: an offset, and above it the block's rank and one more. One
# without a rank is of the block that uses it.
RANK_SHIFT: Final = 24
_ONES: Final = MappingProxyType(
    {1: 0x01, 2: 0x0101, 4: 0x01010101, 8: 0x0101010101010101}
)


class Region:
    """Bytes at a base address; `written` holds 1 for each byte that has a value, or is None.

    `races` is told of all accesses; None where nobody checks them.
    """

    __slots__ = ("_views", "base", "data", "label", "races", "written")

    def __init__(
        self,
        base: int,
        data: npt.NDArray[np.uint8],
        written: npt.NDArray[np.uint8] | None = None,
        label: str = "allocation",
    ) -> None:
        self.base = base
        self.data = data
        self.written = written
        self.label = label
        self.races: SharedRaces | None = None
        self._views: dict[int, tuple[Array, Array | None]] = {}

    @property
    def nbytes(self) -> int:
        """Its size."""
        return len(self.data)

    def view(self, width: int) -> tuple[Array, Array | None]:
        """Return data and `written` as unsigned integers of `width` bytes."""
        found = self._views.get(width)
        if found is None:
            end = self.nbytes // width * width
            dtype = UNSIGNED[8 * width]
            written = None if self.written is None else self.written[:end].view(dtype)
            found = self._views[width] = self.data[:end].view(dtype), written
        return found

    def load(self, offsets: Array, width: int) -> Array:
        """Return the integers of `width` bytes at byte offsets, which must be aligned."""
        return np.asarray(self.view(width)[0][offsets // width])

    def store(self, offsets: Array, values: Array, width: int) -> None:
        """Write integers of `width` bytes at byte offsets, which must be aligned."""
        data, written = self.view(width)
        places = offsets // width
        data[places] = values
        if written is not None:
            written[places] = _ONES[width]

    def unwritten(self, offsets: Array, width: int) -> Array | None:
        """Return which accesses read bytes that nobody wrote, None for none of them."""
        written = self.view(width)[1]
        if written is None:
            return None
        bad = written[offsets // width] != _ONES[width]
        return bad if bad.any() else None


class PtxMemory:
    """Device memory: allocations by base address.

    `PtxMemory({address: bytes_array})` takes arrays of uint8 that others own; all their bytes count
    as written. `allocate` makes allocations whose first read must come after a write.
    """

    def __init__(self, allocations: Mapping[int, npt.NDArray[np.uint8]] | None = None) -> None:
        self._regions: dict[int, Region] = {}
        self._sorted: list[Region] = []
        self._bases = np.zeros(0, np.int64)
        self._next = 0x7F00_0000_0000
        # What kernels wrote since one began when all in front of it had ended: (addresses, bytes).
        self.recent: list[tuple[Array, int]] = []
        for base, data in (allocations or {}).items():
            self.map(base, data)

    @property
    def allocations(self) -> Mapping[int, npt.NDArray[np.uint8]]:
        """The bytes of each allocation, by base address."""
        return {base: region.data for base, region in self._regions.items()}

    def map(self, base: int, data: npt.NDArray[np.uint8], label: str = "allocation") -> None:
        """Make an array of bytes an allocation at `base`, all of it written."""
        self.insert(Region(base, data, None, label))

    def allocate(self, nbytes: int) -> int:
        """Make an allocation that nobody has written yet and return its address."""
        base = self._next
        data = np.full(nbytes, 0xA5, np.uint8)
        self.insert(Region(base, data, np.zeros(nbytes, np.uint8)))
        # The gap catches accesses just past the end.
        self._next += (nbytes + 4095) // 4096 * 4096 + 4096
        return base

    def put(self, array: npt.NDArray[Any]) -> int:
        """Copy an array into an allocation of its own and return its address."""
        base = self.allocate(array.nbytes)
        region = self._regions[base]
        region.data[:] = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        assert region.written is not None
        region.written[:] = 1
        return base

    def get(self, base: int, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return a copy of the start of an allocation as an array."""
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self._regions[base].data[:count].copy().view(dtype).reshape(shape)

    def free(self, base: int) -> None:
        """Forget an allocation; what still points there faults."""
        place = self._sorted.index(self._regions.pop(base))
        del self._sorted[place]
        self._bases = np.delete(self._bases, place)

    def overlaps_recent(self, count: int, addresses: Array, nbytes: int) -> Array:
        """Return which accesses touch what the first `count` of the recent writes wrote."""
        found = np.zeros(len(addresses), bool)
        for others, width in self.recent[:count]:
            begins = np.sort(others)
            # The last write that begins ahead of an access' end is the one that reaches furthest.
            place = np.searchsorted(begins, addresses + nbytes, "left") - 1
            found |= (place >= 0) & (begins[place] + width > addresses)
        return found

    def find(self, address: int) -> Region | None:
        """Return the allocation that holds an address, None where there is none."""
        place = int(np.searchsorted(self._bases, address, "right")) - 1
        if place < 0:
            return None
        region = self._sorted[place]
        return region if address < region.base + region.nbytes else None

    def near(self, address: int) -> str:
        """Say where an address lies relative to the allocation before it."""
        place = int(np.searchsorted(self._bases, address, "right")) - 1
        if place < 0:
            return "below all allocations"
        region = self._sorted[place]
        size = region.nbytes
        after = address - region.base - size
        if after < 0:
            return f"it reaches past the end of the {region.label} {region.base:#x} of {size} bytes"
        return f"{after} bytes past the end of the {region.label} {region.base:#x} of {size} bytes"

    def locate(self, addresses: Array, nbytes: int) -> tuple[list[tuple[Region, Array]], int]:
        """Split accesses of `nbytes` bytes by region: [(region, which)], first one outside or -1.

        `addresses` is (n,) int64; `which` is (n,) bool. Empty where an access is outside.
        """
        if not self._sorted:
            return [], 0
        low, high = int(addresses.min()), int(addresses.max())
        region = self.find(low)
        if region is not None and high + nbytes <= region.base + region.nbytes:
            return [(region, np.ones(len(addresses), bool))], -1
        places = np.searchsorted(self._bases, addresses, "right") - 1
        found = []
        for place in np.unique(places):
            which = places == place
            if place < 0:
                return [], int(np.argmax(which))
            region = self._sorted[place]
            beyond = which & (addresses + nbytes > region.base + region.nbytes)
            if beyond.any():
                return [], int(np.argmax(beyond))
            found.append((region, which))
        return found, -1

    def insert(self, region: Region) -> None:
        """Make a region an allocation; raise ArgumentError where it overlaps another."""
        end = region.base + region.nbytes
        place = bisect_left(self._sorted, region.base, key=lambda one: one.base)
        for other in self._sorted[max(place - 1, 0) : place + 1]:
            if region.base < other.base + other.nbytes and other.base < end:
                raise ArgumentError(
                    "allocations overlap", found=f"{region.base:#x} and {other.base:#x}"
                )
        self._regions[region.base] = region
        self._sorted.insert(place, region)
        self._bases = np.insert(self._bases, place, region.base)
