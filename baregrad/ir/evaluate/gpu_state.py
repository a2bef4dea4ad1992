"""State of a simulated GPU: mbarriers, blocks with two views of shared memory, what is in flight.

Everything that hardware may delay is delayed: bytes land in random pieces, matrix instructions read
their operands when they retire, stores read shared memory when they complete.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from baregrad.ir.core.node import Node
from baregrad.ir.evaluate.loop_level import poisoned
from baregrad.ir.protocol.attributes import HOPPER, ProtocolError

Array = npt.NDArray[Any]


class MBarrier:
    """A phase ends when as many arrivals as `count` came and the bytes announced have landed.

    Waits know parities only: the wait for parity P passes when the current phase's parity is not P.
    """

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.count = count
        self.pending = count
        self.nbytes = 0
        self.phase = 0

    def arrive(self, times: int = 1) -> None:
        """Count arrivals; raises ProtocolError for more than the phase takes."""
        if times > self.pending:
            raise ProtocolError(
                f"{self.name}: an arrival too many", found=times, wanted=f"at most {self.pending}"
            )
        self.pending -= times
        self._turn()

    def expect(self, nbytes: int) -> None:
        """Announce bytes of the current phase."""
        self._add(nbytes)

    def complete(self, nbytes: int) -> None:
        """Bytes have landed."""
        self._add(-nbytes)
        self._turn()

    def passes(self, parity: int) -> bool:
        """Whether a wait for this parity would pass now."""
        return self.phase & 1 != parity

    def _add(self, nbytes: int) -> None:
        self.nbytes += nbytes
        if abs(self.nbytes) > HOPPER.barrier_transfer_bytes:
            raise ProtocolError(f"{self.name}: too many bytes in one phase", found=self.nbytes)

    def _turn(self) -> None:
        if self.pending == 0 and self.nbytes == 0:
            self.phase += 1
            self.pending = self.count

    def __str__(self) -> str:
        return (
            f"{self.name} (phase {self.phase}, {self.pending} of {self.count} arrivals and "
            f"{self.nbytes} bytes to come)"
        )


@dataclass(eq=False)
class Block:
    """One block: its barriers and its shared memory as lanes and as engines see it."""

    rank: int
    number: int
    barriers: dict[tuple[str, str, int], MBarrier] = field(default_factory=dict)
    lanes_view: dict[Node, Array] = field(default_factory=dict)
    async_view: dict[Node, Array] = field(default_factory=dict)
    ready: bool = False
    running: int = 0

    def memory(self, buffer: Node, view: str = "lanes") -> Array:
        """The flat memory of a shared buffer in one view; poison until written."""
        if buffer not in self.lanes_view:
            count = int(np.prod(buffer.shape, dtype=np.int64)) * buffer.arg.depth
            self.lanes_view[buffer] = poisoned(count, buffer.dtype)
            self.async_view[buffer] = poisoned(count, buffer.dtype)
        return (self.lanes_view if view == "lanes" else self.async_view)[buffer]

    def barrier(self, pipe: str, side: str, slot: int) -> MBarrier:
        """A slot's `full` or `empty` barrier; the block must be alive and have made it."""
        self.touch(f"the {side} barrier of {pipe}")
        return self.barriers[pipe, side, slot]

    def touch(self, what: str) -> None:
        """Raise ProtocolError unless this block has started and not exited."""
        if not self.ready:
            raise ProtocolError(f"block {self.number} is touched before it is set up", found=what)
        if not self.running:
            raise ProtocolError(f"block {self.number} is touched after it exited", found=what)

    def __str__(self) -> str:
        return f"block {self.number}"


@dataclass
class Event:
    """Something that will happen by itself, at a time nobody knows."""

    what: str
    fire: Callable[[], None]


@dataclass
class MmaGroup:
    """Matrix instructions in flight: `retire` computes, reading the operands then."""

    total: Node
    retire: Callable[[], None]
    retired: bool = False


@dataclass
class StoreGroup:
    """A bulk store in flight. It reads `places` of a shared buffer until `read`.

    `awaited`: the issuing thread has waited for that.
    """

    buffer: Node
    places: frozenset[int]
    complete: Callable[[], None]
    read: bool = False
    awaited: bool = False


@dataclass(frozen=True)
class Blocked:
    """What a thread of control waits for."""

    what: Callable[[], str]
    over: Callable[[], bool]


class Meeting:
    """A barrier of threads: who has come, and how often it opened."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self.here = 0
        self.opened = 0

    def arrive(self) -> Blocked | None:
        """Come to the barrier; None when it opens at once."""
        self.here += 1
        turn = self.opened
        if self.here == self.size:
            self.here = 0
            self.opened += 1
            return None
        return Blocked(
            lambda: f"the barrier of the {self.name} ({self.here} of {self.size} are there)",
            lambda: self.opened > turn,
        )
