"""Typed attributes of nodes: small frozen values that compare by content.

Those of which every kernel has many are named tuples, which are hashed without running Python: a
node's attribute is hashed each time the node is looked up. `attribute_fields` distinguishes
attributes from plain tuples. The others are dataclasses.

Axes and variables are in `axes.py`, layouts in `layout.py`, roles and pipes in `ir/protocol`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from baregrad.ir.core.layout import Layout
from baregrad.ir.core.monoid import Monoid
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import ATTRIBUTES, Ops

_versions = itertools.count(1)


@ATTRIBUTES(Ops.BUFFER)
class BufferRef(NamedTuple):
    """A realised array: the runtime's buffer, its shape and its device's name.

    The graph keeps `handle` alive, so a buffer lives exactly as long as something can read it.
    `version` differs for what a buffer holds and what it held before it was overwritten in place,
    so that a value computed from the one is not taken for one computed from the other.
    """

    handle: Any
    shape: tuple[int | Node, ...]
    device: str
    version: int = 0

    def renewed(self, handle: Any = None) -> BufferRef:
        """The same array after its memory, or that of `handle`, was overwritten."""
        kept = self.handle if handle is None else handle
        return BufferRef(kept, self.shape, self.device, next(_versions))


@ATTRIBUTES(Ops.PARAM)
class Param(NamedTuple):
    """The `slot`-th argument array of a program, row-major with this shape.

    streamed: whole vectors are written to it by non-temporal stores. ahead: the prefetch distance
    in bytes, 0 for no prefetch. shares: loops that prefetch instead, each as the name of its axis,
    the first byte and how many bytes an iteration prefetches.
    """

    slot: int
    shape: tuple[int | Node, ...]
    name: str = ""
    streamed: bool = False
    ahead: int = 0
    shares: tuple[tuple[str, int, int], ...] = ()


class Pad(NamedTuple):
    """Zeros around one axis: `lo` before, `hi` after, `interior` between neighbours; all >= 0."""

    lo: int | Node = 0
    hi: int | Node = 0
    interior: int = 0


class Slice(NamedTuple):
    """start:stop:step of one axis, 0 <= start <= stop <= extent, step >= 1."""

    start: int | Node
    stop: int | Node
    step: int = 1


@ATTRIBUTES(Ops.WINDOW, Ops.FOLD)
class Window(NamedTuple):
    """Axis `axis`, of extent e, becomes (positions, taps): a sliding window.

    Element (o, k) is x[o*stride + k*dilation]; positions = (e - dilation*(taps - 1) - 1) // stride
    + 1; the taps axis comes last in the shape. For FOLD, `extent` is the extent of the axis that is
    rebuilt.
    """

    axis: int
    taps: int
    stride: int = 1
    dilation: int = 1
    extent: int | Node = 0


@ATTRIBUTES(Ops.REDUCE, Ops.ACROSS)
class Reduce(NamedTuple):
    """A reduction: its monoid and, at the tensor level, its axes (kept out of the result's shape).

    At the kernel level `axes` is empty and the sources are the values followed by the ranges.
    unrounded: whether products go into the sum as they are, where a schedule has cut off the axes
    that the value would show it by.
    """

    monoid: Monoid
    axes: tuple[int, ...] = ()
    unrounded: bool | None = None


@ATTRIBUTES(Ops.SCAN)
class Scan(NamedTuple):
    """A running fold: its monoid and, at the tensor level, its axis (-1 at the kernel level)."""

    monoid: Monoid
    axis: int = -1


@ATTRIBUTES(Ops.REPEAT)
class Repeat(NamedTuple):
    """One result of a loop over `body`, a SINK of results over PARAMs; slot i is source i.

    The first `carried` sources are what the first step takes, and the first results what the next
    one does; of the next `read` sources each step has its row, and all others are the same in each.
    length: of steps, None for as many as `conditional` has. conditional: a step is taken while the
    last carried value, a bool, holds. backwards: the last row comes first. part: which result, its
    carried values in the end, then those of all steps, stacked, then what each step began with.
    adjoint: of the gradient by source `part` of a conditional loop, the results whose gradients
    follow its sources; it has derivatives, and no value.
    """

    body: Node
    carried: int
    read: int
    length: int | Node | None
    part: int
    shape: tuple[int | Node, ...]
    backwards: bool = False
    conditional: bool = False
    adjoint: tuple[int, ...] | None = None


@ATTRIBUTES(Ops.CHOOSE)
class Choose(NamedTuple):
    """Result `part` of one of two bodies, SINKs of like results over PARAMs; slot i is source i."""

    body: Node
    other: Node
    part: int
    shape: tuple[int | Node, ...]


@ATTRIBUTES(Ops.CALL)
class TextKernel(NamedTuple):
    """Result `part` of a kernel whose text somebody wrote, over the first `taken` sources.

    body: its reference, a SINK of like results over PARAMs; slot i is source i. language: c, cuda
    or ptx. names: those of the kernel's arrays, results first. sizes: extents that the text names.
    grid, block: of a GPU's, three sizes each.
    """

    body: Node
    taken: int
    language: str
    entry: str
    text: str
    names: tuple[str, ...]
    sizes: tuple[tuple[str, int], ...]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_nbytes: int
    part: int
    shape: tuple[int | Node, ...]


@ATTRIBUTES(Ops.SCATTER)
class Scatter(NamedTuple):
    """How a SCATTER combines with what is there: a monoid, or None to overwrite (last one wins).

    apart: no two values have the same place, so that the order of writes does not matter, and a
    value whose place lies outside of the base is dropped. whole: beyond that, none does and every
    element is written, so that nobody reads what the base holds. atomic: values may meet, but the
    machine combines each with what is there in one step, so that the order does not matter either
    (they are integers, which wrap); a place outside is dropped. Whoever makes the node vouches for
    all three.
    """

    monoid: Monoid | None = None
    apart: bool = False
    whole: bool = False
    atomic: bool = False


@ATTRIBUTES(Ops.STAGE)
class StageInfo(NamedTuple):
    """Where a value is kept: the one node for every level of the memory hierarchy.

    `space` is register, shared, scratch (per thread host memory), device, host, peer or disk;
    `layout` None means row-major over the ranges; `depth` slots (1 plain, n a ring); `engine` moves
    it; `at` names the loop outside which the storage lives; `by` is the role that moves it; `id`
    differs for stages that must not be merged (0: merge freely). `ahead` is the prefetch distance
    in bytes, 0 for no prefetch.
    """

    space: str = "device"
    layout: Layout | None = None
    depth: int = 1
    engine: str = "lanes"
    at: str = ""
    by: str = ""
    id: int = 0
    ahead: int = 0


@ATTRIBUTES(Ops.OUT)
class Out(NamedTuple):
    """How OUT writes: None overwrites, a monoid accumulates into what is there.

    apart, whole, atomic: as of Scatter, whose values are the points of the OUT's ranges.
    """

    monoid: Monoid | None = None
    apart: bool = False
    whole: bool = False
    atomic: bool = False


@ATTRIBUTES(Ops.KERNEL, Ops.PROGRAM)
class KernelInfo(NamedTuple):
    """A kernel's name and launch facts.

    `block` has the threads of a block along each of its dimensions, once the code is that of one
    thread. `grid` are the blocks, of a kernel with a loop over them as many as there are at most.
    `grain` iterations of the pool's loop, which divide it, are one chunk. `roles` are two, of the
    warps behind those of `block` that make its copies and of all others: how many they are, and the
    registers of a thread once these have changed hands, 0 where they don't. `teams` of threads, one
    behind the other in `block`, take a block's iterations in turns. `resident` blocks at least a
    multiprocessor is to hold at once, which limits the registers of a thread; 0 where nobody said
    how many.
    `beside`: it may run beside another launch. `fixed`: slots of arrays of a few whole numbers that
    no launch of its plan writes. `sums`: how many of its last OUTs are sums of what the first one
    stores. `cut`: not empty where the last tiles of a grid are cut along what is summed; once the
    code is that of one thread: how many tiles that are, rounds of others, and panels of a tile.
    """

    name: str = "kernel"
    device: str = "CPU"
    grid: tuple[int, ...] = ()
    cluster: int = 1
    warps: int = 1
    shared_nbytes: int = 0
    block: tuple[int, ...] = ()
    grain: int = 1
    roles: tuple[tuple[int, int], ...] = ()
    teams: int = 1
    resident: int = 0
    beside: bool = False
    fixed: tuple[int, ...] = ()
    sums: int = 0
    cut: tuple[int, ...] = ()

    @property
    def copiers(self) -> int:
        """Warps behind those of `block` that make a block's copies."""
        return self.roles[0][0] if self.roles else 0


@ATTRIBUTES(Ops.ALLOC)
class Alloc(NamedTuple):
    """A buffer of the loop level, private to the kernel. `id` distinguishes equal ones.

    `ahead` is the prefetch distance in bytes, 0 for no prefetch.
    """

    id: int
    space: str
    shape: tuple[int, ...]
    layout: Layout | None = None
    depth: int = 1
    name: str = ""
    ahead: int = 0


@ATTRIBUTES(Ops.REG)
class Reg(NamedTuple):
    """A virtual register of the linear level; `width` lanes of the node's dtype.

    rows: of a tile, how many such registers it is; 0 for a single one.
    """

    id: int
    width: int = 1
    rows: int = 0


@ATTRIBUTES(Ops.VLOAD, Ops.VSTORE, Ops.PREFETCH, Ops.TURN)
class Access(NamedTuple):
    """A memory access of the linear level.

    `width` lanes at a stride of `stride` elements from the offset plus `at`; addresses are
    multiples of `align` bytes. `constant`: a load that may pass any store, because nothing that the
    kernel writes changes what it reads. `ahead`: the prefetch distance in bytes, 0 for no
    prefetch; it does no harm where there is no memory. `rows`: of a tile, how many
    elements after `at` each of its rows is; () for a single vector. `strays`: lanes that are masked
    off may lie pages away from the array, where there need be no memory. `order`: of a load, how
    many elements after `at` each lane is, where lanes are not neighbours themselves: all are among
    `width` neighbours, or few runs, as `run_of` has them, or as far from each other as is no
    multiple of what a lane reads.
    """

    width: int = 1
    stride: int = 1
    at: int = 0
    align: int = 1
    constant: bool = False
    ahead: int = 0
    rows: tuple[int, ...] = ()
    strays: bool = False
    order: tuple[int, ...] = ()


# Runs of lanes that a load reads apart, at most.
MOST_RUNS = 2


def run_of(order: tuple[int, ...], unit: int) -> int:
    """How many lanes are a run: as many as any, of `unit` elements side by side, or all of one."""
    size = len(order)
    while size > 1:
        parts = [order[first : first + size] for first in range(0, len(order), size)]
        steps = {(*[place - part[0] for place in part],) for part in parts}
        if len(order) % size == 0 and steps in ({(0,) * size}, {(*range(0, size * unit, unit),)}):
            break
        size -= 1
    return size


@ATTRIBUTES(Ops.TURNED)
class Turned(NamedTuple):
    """A copy that transposes: `rows` of `columns` neighbours each become columns.

    stride: elements between rows where they are read, from the offset plus `at` elements. pitch,
    start: the same of columns where they are written; a column's elements are neighbours there.
    """

    rows: int
    columns: int
    stride: int
    at: int
    pitch: int
    start: int


@ATTRIBUTES(Ops.MACHINE)
@dataclass(frozen=True, slots=True)
class Machine:
    """A target instruction by name, with its immediate operands."""

    name: str
    immediates: tuple[Any, ...] = field(default=())


ATTRIBUTES.add(tuple[Pad], Ops.PAD)
ATTRIBUTES.add(tuple[Slice], Ops.SHRINK)
ATTRIBUTES.add(Layout, Ops.CONVERT)
ATTRIBUTES.add(Monoid | None, Ops.STORE)
