"""Small pieces of memory that the host writes and the GPU reads: code, tables."""

from __future__ import annotations

from dataclasses import dataclass

from baregrad.base.bits import round_up
from baregrad.base.errors import OutOfMemory
from baregrad.runtime.nvidia.driver.addresses import AddressRange
from baregrad.runtime.nvidia.driver.memory import HUGE_PAGE_NBYTES, Allocation, MemoryManager


@dataclass(eq=False)
class Suballocation:
    """Bytes of the GPU's memory at `gpu_va`, for the host to write."""

    gpu_va: int
    nbytes: int
    _block: Allocation
    _addresses: AddressRange
    _held: bool = True

    @property
    def view(self) -> memoryview:
        """The bytes; what is made of it must not be used once the GPU is closed."""
        begin = self.gpu_va - self._block.gpu_va
        return self._block.view[begin : begin + self.nbytes]

    @property
    def host_address(self) -> int:
        """Where the host sees the bytes, as long as the GPU is open."""
        return self._block.host_address + self.gpu_va - self._block.gpu_va

    def write(self, offset: int, data: bytes | bytearray) -> None:
        """Put bytes there."""
        begin = self.gpu_va - self._block.gpu_va + offset
        self._block.view[begin : begin + len(data)] = data

    def close(self) -> None:
        """Give the piece back; nothing on the GPU may use it any more."""
        if self._held:
            self._held = False
            self._addresses.give(self.gpu_va)


class Suballocator:
    """Cuts blocks of visible memory into pieces; the blocks stay until the GPU is closed."""

    def __init__(self, memory: MemoryManager) -> None:
        self._memory = memory
        self._blocks: list[tuple[Allocation, AddressRange]] = []

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks."""
        return sum(block.nbytes for block, _ in self._blocks)

    def take(self, nbytes: int, alignment: int) -> Suballocation:
        """Return a piece of its own, whatever was in there before."""
        for block, addresses in self._blocks:
            try:
                return Suballocation(addresses.take(nbytes, alignment), nbytes, block, addresses)
            except OutOfMemory:
                continue
        block = self._memory.visible(round_up(nbytes, HUGE_PAGE_NBYTES))
        addresses = AddressRange(range(block.gpu_va, block.gpu_va + block.nbytes))
        self._blocks.append((block, addresses))
        return Suballocation(addresses.take(nbytes, alignment), nbytes, block, addresses)
