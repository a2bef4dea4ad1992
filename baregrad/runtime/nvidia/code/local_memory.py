"""Local memory: the stacks of all threads that a GPU can run at once, one pool for a channel.

The pool's size follows from the widest stack: it grows while the channel is idle, and every launch
descriptor then names the same bytes a thread. Seen to work on an H200 with a driver of release 580.
"""

from __future__ import annotations

from dataclasses import dataclass

from baregrad.base.bits import round_up
from baregrad.base.errors import ArgumentError

# What the system keeps at the top of each stack, and the grain of stacks.
STACK_RESERVED = 0x240
_THREAD_GRAIN = 32
_WARP_LANES = 32
_WARP_GRAIN = 0x200
_TPC_GRAIN = 0x8000
_POOL_GRAIN = 0x20000
# The window of addresses through which a thread sees its own.
WINDOW_NBYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class LocalPool:
    """Bytes of one thread, of one pair of multiprocessors (a TPC), and of the whole pool."""

    thread_nbytes: int
    tpc_nbytes: int
    nbytes: int


def thread_nbytes(stack_nbytes: int) -> int:
    """Return the local memory of a thread whose code needs `stack_nbytes` of stack.

    Raises ArgumentError for more than its window has.
    """
    wanted = round_up(stack_nbytes + STACK_RESERVED, _THREAD_GRAIN)
    if wanted > WINDOW_NBYTES:
        raise ArgumentError(
            "a kernel needs more stack than a thread can have",
            found=f"{stack_nbytes} bytes",
            wanted=f"at most {WINDOW_NBYTES - STACK_RESERVED}",
        )
    return wanted


def local_pool(
    nbytes_per_thread: int, *, warps_per_unit: int, units_per_tpc: int, tpcs_per_gpc: int, gpcs: int
) -> LocalPool:
    """Return the pool for threads that each need `nbytes_per_thread` bytes.

    The counts are the most that the chip can have, whatever is fused off, since places in the pool
    are found by number.
    """
    warp = round_up(nbytes_per_thread * _WARP_LANES, _WARP_GRAIN)
    tpc = round_up(warp * warps_per_unit * units_per_tpc, _TPC_GRAIN)
    return LocalPool(nbytes_per_thread, tpc, round_up(tpc * tpcs_per_gpc * gpcs, _POOL_GRAIN))
