"""How ordinary arrays are copied, and how whoever copies them waits for the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from baregrad.runtime.nvidia.copies.copy_code import copy_code

if TYPE_CHECKING:
    from baregrad.runtime.nvidia.queue.channel import Channel

Wait = Callable[["Channel", int], None]


class Watch(Protocol):
    """Makes what is called again and again while a channel's work is waited for."""

    def __call__(self, channel: Channel, progress: Callable[[], int]) -> Callable[[], None]:
        """Return what raises DriverError for a fault, or where nothing moves for too long."""
        ...


class StagingOptions(NamedTuple):
    """How ordinary arrays are copied.

    From `shared_from` bytes on, `workers` threads (0: half of the processors, 8 at most) copy
    pieces of `piece_nbytes` at most, each with `depth` of them under way, and cut what is left so
    that each would get `rounds` pieces of it at least. `large_pages`: pieces lie in pages of 2 MiB
    of the driver's own, where there are some. `native`: threads run machine code; `pipelined`: a
    piece of theirs may begin before the one in front has ended.
    """

    workers: int = 0
    piece_nbytes: int = 2 << 20
    depth: int = 4
    rounds: int = 1
    shared_from: int = 4 << 20
    large_pages: bool = True
    pipelined: bool = True
    native: bool = True


# In Python a piece costs more, and so does waking a thread.
PYTHON_OPTIONS = StagingOptions(depth=2, rounds=4, native=False)


def default_options() -> StagingOptions:
    """Return what is best for this machine."""
    return PYTHON_OPTIONS if copy_code() is None else StagingOptions()
