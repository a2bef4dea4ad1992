"""Memory behind GPU addresses: pages that somebody holds, and page tables that say who sees them.

All of it lies in this process, so host and virtual GPU share it. Of a GPU's own memory that the
host does not see it is known which bytes were written; the others read as `POISON`.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from baregrad.testing.virtual_gpu.machine.faults import MMU_FAULT, GpuFault
from baregrad.testing.virtual_gpu.ptx.memory import PtxMemory, Region
from baregrad.testing.virtual_gpu.ptx.types import Array

POISON = 0xA5
Bytes = npt.NDArray[np.uint8]

# Linux; pages that are never touched take nothing.
_NO_RESERVE = 0x4000


def fresh_pages(nbytes: int) -> Bytes:
    """Return zeroed pages, which take no memory before they are touched."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    return np.frombuffer(mmap.mmap(-1, nbytes, flags=flags), np.uint8)


def pages_at(address: int, nbytes: int) -> Bytes:
    """Return memory of this process that somebody else holds."""
    held = (ctypes.c_ubyte * nbytes).from_address(address)
    return np.ctypeslib.as_array(held)


def address_of(pages: npt.NDArray[Any]) -> int:
    """Return where an array's bytes lie in this process."""
    return int(pages.ctypes.data)


class Backing:
    """Pages of a GPU (`owner` is its index) or of the host (None), held by a count of users.

    `written` has 1 for each byte that has a value, None where the host writes too.
    """

    def __init__(
        self, data: Bytes, page_nbytes: int, owner: int | None, *, tracked: bool, label: str
    ) -> None:
        self.data = data
        self.page_nbytes = page_nbytes
        self.owner = owner
        self.label = label
        self.written: Bytes | None = fresh_pages(len(data)) if tracked else None
        self.holders = 1

    @property
    def nbytes(self) -> int:
        """Its size."""
        return len(self.data)


class MappedRegion(Region):
    """A mapping of a backing, or of part of it, into one address space."""

    __slots__ = ("backing", "offset", "read_only")

    def __init__(
        self, base: int, nbytes: int, backing: Backing, offset: int, read_only: bool
    ) -> None:
        end = offset + nbytes
        written = None if backing.written is None else backing.written[offset:end]
        super().__init__(base, backing.data[offset:end], written, backing.label)
        self.backing = backing
        self.offset = offset
        self.read_only = read_only

    def store(self, offsets: Array, values: Array, width: int) -> None:
        """Write integers as a kernel does; a mapping to be read only faults."""
        if self.read_only:
            address = self.base + int(offsets.min())
            raise GpuFault(
                MMU_FAULT, f"a kernel writes to {address:#x}, which is mapped to be read",
                address=address, kind="FAULT_RO_VIOLATION",
            )  # fmt: skip
        super().store(offsets, values, width)


class AddressSpace:
    """The page tables of one GPU for one process."""

    def __init__(self) -> None:
        self.memory = PtxMemory()
        self._bases: list[int] = []
        self._regions: dict[int, MappedRegion] = {}

    def map(self, region: MappedRegion) -> None:
        """Enter a mapping; nothing else may be mapped there."""
        self.memory.insert(region)
        bisect.insort(self._bases, region.base)
        self._regions[region.base] = region

    def unmap(self, base: int) -> None:
        """Remove the mapping that begins at an address."""
        self.memory.free(base)
        self._bases.remove(base)
        del self._regions[base]

    def find(self, address: int) -> MappedRegion | None:
        """Return the mapping that holds an address."""
        place = bisect.bisect_right(self._bases, address) - 1
        if place < 0:
            return None
        region = self._regions[self._bases[place]]
        return region if address < region.base + region.nbytes else None

    def pieces(
        self, address: int, nbytes: int, what: str, *, write: bool = False
    ) -> Iterator[tuple[MappedRegion, int, int]]:
        """Yield (mapping, offset, bytes) that a range consists of; raise GpuFault outside."""
        while nbytes > 0:
            region = self.find(address)
            if region is None or (write and region.read_only):
                raise self.fault(address, what, write=write, mapped=region is not None)
            offset = address - region.base
            count = min(nbytes, region.nbytes - offset)
            yield region, offset, count
            address += count
            nbytes -= count

    def fault(self, address: int, what: str, *, write: bool, mapped: bool = False) -> GpuFault:
        """Return the fault of an access to an address that is not mapped for it."""
        kind = "FAULT_RO_VIOLATION" if mapped else "FAULT_PDE"
        access = "ACCESS_TYPE_VIRT_WRITE" if write else "ACCESS_TYPE_VIRT_READ"
        where = "" if mapped else f", {self.memory.near(address)}"
        return GpuFault(
            MMU_FAULT,
            f"MMU Fault: {what} faulted @ {address >> 32:#x}_{address & 0xFFFFFFFF:08x}. "
            f"Fault is of type {kind} {access}{where}",
            address=address,
            kind=kind,
        )

    def read(self, address: int, nbytes: int, what: str) -> bytes:
        """Return bytes at a GPU address; raise GpuFault where it is not mapped."""
        parts = self.pieces(address, nbytes, what)
        return b"".join(
            region.data[offset : offset + count].tobytes() for region, offset, count in parts
        )

    def write(self, address: int, data: bytes, what: str) -> None:
        """Put bytes to a GPU address; raise GpuFault where it is not mapped."""
        self.put(address, np.frombuffer(data, np.uint8), what)

    def put(self, address: int, data: Bytes, what: str) -> None:
        """Put an array of bytes to a GPU address, all of which count as written."""
        at = 0
        for region, offset, count in self.pieces(address, len(data), what, write=True):
            region.data[offset : offset + count] = data[at : at + count]
            if region.written is not None:
                region.written[offset : offset + count] = 1
            at += count

    def copy(self, target: int, source: int, nbytes: int, what: str) -> None:
        """Copy bytes from one address to another; what nobody wrote stays so, or is poison."""
        begin = 0
        for region, offset, count in self.pieces(source, nbytes, what):
            at = 0
            for into, where, length in self.pieces(target + begin, count, what, write=True):
                _copy_piece(into, where, region, offset + at, length)
                at += length
            begin += count


def _copy_piece(
    into: MappedRegion, where: int, region: MappedRegion, offset: int, count: int
) -> None:
    values = region.data[offset : offset + count]
    known = None if region.written is None else region.written[offset : offset + count]
    into.data[where : where + count] = values
    if into.written is not None:
        into.written[where : where + count] = 1 if known is None else known
    elif known is not None and not known.all():
        into.data[where : where + count][known == 0] = POISON
