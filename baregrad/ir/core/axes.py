"""Axes and variables: the attributes of what index arithmetic is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from baregrad.base.errors import ShapeError
from baregrad.ir.core.op import ATTRIBUTES, Ops

# The dimensions of a block's threads, the one in which neighbours are adjacent first.
THREAD_BINDS = ("thread", "thread_y", "thread_z")
TILE_BINDS = frozenset(("unroll", "vector", "lane", "warp", "reg", "tile", *THREAD_BINDS))
# What blocks lie along, and those of a cluster.
BLOCK_BINDS = ("grid", "cluster")
BINDS = TILE_BINDS | {"loop", "pool", "warpgroup", *BLOCK_BINDS}


@ATTRIBUTES(Ops.RANGE)
class Range(NamedTuple):
    """An axis of a kernel.

    `id` is canonical within a kernel; `axis` names its class for schedules, as in "M" or "K".
    `bind` says how the axis runs: `loop` (serial), `pool` (chunks over the CPU's threads),
    `unroll`, `vector`, and on GPUs `grid` (blocks), `thread`, `thread_y`, `thread_z` (the threads
    of a block, which are one tile), `cluster`, `warpgroup`, `warp`, `lane`, and `tile`: spread over
    lanes, warps and registers as the layout of the buffer says.
    """

    id: int
    axis: str = ""
    bind: str = "loop"

    @property
    def is_tile(self) -> bool:
        """True when the axis is never looped over but spread over registers, lanes or warps."""
        return self.bind in TILE_BINDS

    @property
    def is_thread(self) -> bool:
        """True when the axis lies across the threads of a GPU's block."""
        return self.bind in THREAD_BINDS


@ATTRIBUTES(Ops.VAR)
@dataclass(frozen=True, slots=True)
class Var:
    """A symbolic integer with inclusive bounds."""

    name: str
    lo: int
    hi: int


def named(name: str, lo: int, hi: int) -> Var:
    """What a user's variable is: its name and its bounds.

    Raises ShapeError unless `name` is an identifier of ASCII letters, and lo <= hi are ints.
    """
    if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
        raise ShapeError("a variable has a name", found=repr(name), wanted="an identifier, as 'n'")
    known = all(isinstance(end, int) and not isinstance(end, bool) for end in (lo, hi))
    if not known or lo > hi:
        raise ShapeError(
            f"the variable {name} has no such bounds",
            found=f"{lo!r} to {hi!r}",
            wanted="two integers, the smaller one first",
        )
    return Var(name, lo, hi)
