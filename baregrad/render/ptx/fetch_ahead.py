"""What a block fetches into the second cache while the kernels in front still run.

A kernel that begins early waits before it touches memory, as the one in front may be writing what
it reads. To fetch into the second cache touches none: what is written later is written there too.
So the first thread of a block asks for what the block is going to read of packed numbers, which no
kernel in front writes, and memory is busy while small kernels follow each other. These ask for
whole arrays: of a norm's weights nothing is in the cache by the time that their turn comes.
Source: PTX ISA, "cp.async.bulk.prefetch" and "griddepcontrol".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from operator import attrgetter
from typing import NamedTuple

from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.render.gpu import BLOCK, THREAD
from baregrad.render.ptx.text import PtxText

# Bytes that are worth asking for, and those that are, in their order, far from that of the loads;
# and the unit of what is asked for.
LEAST_NBYTES, MOST_NBYTES, UNIT = 4 << 10, 64 << 10, 16
# What threads do together for a sum.
FOLDS = ("shfl.sync.bfly", "bar.sync")
# Registers of a thread, about, which say how many blocks begin at once.
REGISTERS = 64
# Bytes of the widest loads of all generations.
WIDE = 16
# The first version of PTX whose loads say what caches keep.
HINTS = (7, 4)
# The share of the second cache that all blocks at once ask for, as (part, of). More of it keeps the
# kernel in front from what it still reads: on an H200 a step of eight layers in four bits took 568
# us with this share and 587 with twice as much, one of a billion weights in six bits 685 and 703.
SHARE = (1, 8)


class BlockPlaces(NamedTuple):
    """Integers `stride` times the number of the block on from `low` to `high`, at most."""

    stride: int
    low: int
    high: int


class BlockRun(NamedTuple):
    """Elements of an array that a block reads: those that are its own, and no others."""

    buffer: Node
    places: BlockPlaces

    @property
    def nbytes(self) -> int:
        """Bytes of a block."""
        return (self.places.high + 1 - self.places.low) * self.buffer.dtype.itemsize

    @property
    def blocks(self) -> int:
        """How many blocks read no further than the array reaches."""
        count: int = prod(self.buffer.arg.shape)
        return (count - 1 - self.places.high) // self.places.stride + 1


def fetch_ahead(f: PtxText) -> None:
    """Write what asks for a block's runs, or whole small arrays, where kernels may begin early."""
    if not any(map(_reads_packed, f.program.src)):
        _fetch_small(f)
        return
    runs = [run for run in runs_of(f.program, f.signature.threads) if run.blocks > 1]
    total = sum(run.nbytes for run in runs)
    if any(run.buffer in f.signature.written for run in runs):
        return
    if total < LEAST_NBYTES:
        return
    warps = -(-f.signature.threads // f.target.warp_lanes)
    resident = f.target.units * max(f.target.resident_blocks(warps, REGISTERS, 0), 1)
    most = f.target.cache_bytes * SHARE[0] // SHARE[1] // min(resident, runs[0].blocks)
    most = min(most, MOST_NBYTES)
    thread, block = (f.made("%r", "mov.u32", special) for special in ("%tid.x", "%ctaid.x"))
    # Those that begin when others have ended wait for nothing: what they asked for, they would only
    # read twice. Others than the first thread do not even find out where.
    is_other = f.made("%p", "setp.ne.u32", thread, "0")
    passes = f.made("%p", "setp.ge.or.u32", block, str(min(runs[0].blocks, resident)), is_other)
    label = f"A{f.fresh_label()}"
    f.emit("bra", label, guard=passes)
    for run in runs:
        nbytes = run.nbytes * min(most, total) // total // UNIT * UNIT
        if not nbytes:
            continue
        size, places = run.buffer.dtype.itemsize, run.places
        inside = f.made("%p", "setp.lt.u32", block, str(run.blocks))
        start = f.made("%rd", "mad.wide.u32", block, str(places.stride * size), f.one(run.buffer))
        start = f.made("%rd", "add.s64", start, str(places.low * size))
        start = f.made("%rd", "and.b64", start, str(-UNIT))
        f.emit("cp.async.bulk.prefetch.L2.global", f"[{start}]", str(nbytes), guard=inside)
    f.label(label)


def _fetch_small(f: PtxText) -> None:
    """Write what asks for all arrays of a kernel that folds sums of a few small ones."""
    folds = any(node.op is Ops.MACHINE and node.arg.name in FOLDS for node in f.program.src)
    reads = dict.fromkeys([
        node.src[0] for node in f.program.src
        if node.op is Ops.VLOAD and node.src[0].op is Ops.PARAM
    ])  # fmt: skip
    sizes = {each: _nbytes(each) for each in reads if each not in f.signature.written}
    if not folds or not all(sizes.values()) or sum(sizes.values()) > MOST_NBYTES:
        return
    large = [each for each, nbytes in sizes.items() if nbytes >= LEAST_NBYTES]
    if not large:
        return
    thread, block = (f.made("%r", "mov.u32", special) for special in ("%tid.x", "%ctaid.x"))
    number = f.made("%r", "or.b32", thread, block)
    is_first = f.made("%p", "setp.eq.u32", number, "0")
    for each in large:
        start = f.made("%rd", "and.b64", f.one(each), str(-UNIT))
        nbytes = str(sizes[each] // UNIT * UNIT)
        f.emit("cp.async.bulk.prefetch.L2.global", f"[{start}]", nbytes, guard=is_first)


def _nbytes(array: Node) -> int:
    """Bytes of an array; 0 where that is not known."""
    shape = array.arg.shape
    known = all(isinstance(size, int) for size in shape)
    return prod(shape) * array.dtype.itemsize if known else 0


def _reads_packed(node: Node) -> bool:
    if node.op is not Ops.VLOAD or node.src[0].op is not Ops.PARAM:
        return False
    return node.src[0].dtype.kind in ("int", "uint")


def runs_of(program: Node, threads: int) -> Iterator[BlockRun]:
    """The runs of packed numbers that each block of a PROGRAM reads for itself alone.

    There may be several of an array, as where two matrices lie in one.
    """
    known: dict[Node, BlockPlaces | None] = {}
    found: dict[Node, list[BlockPlaces | None]] = {}
    for node in program.src:
        known[node] = _places(node, known, threads)
        if node.op is not Ops.VLOAD or node.src[0].op is not Ops.PARAM:
            continue
        buffer, offset = node.src[:2]
        at = None if offset.shape else _of(offset, known, threads)
        if at is not None and buffer.dtype.kind in ("int", "uint"):
            access = node.arg
            low, high = at.low + access.at, at.high + access.at + access.stride * (access.width - 1)
            at = BlockPlaces(at.stride, low, high)
        found.setdefault(buffer, []).append(at if buffer.dtype.kind in ("int", "uint") else None)
    for buffer, places in found.items():
        if all(isinstance(size, int) for size in buffer.arg.shape):
            yield from [BlockRun(buffer, each) for each in joined(places)]


def read_once(program: Node, threads: int) -> frozenset[Node]:
    """The arrays of packed numbers of which each thread of a PROGRAM reads its own, and that once.

    All loads of such an array have together what is a block's own, and are others in each
    iteration of the loops around them. Each is as wide as may be: of lines that several loads have
    parts of, the cache is what brings them once. What is stored as it is is no number but a copy's
    words, which come no sooner so: 1 GiB took 523 us, 513 without.
    """
    sizes: dict[Node, int] = {}
    again: set[Node] = set()
    loops: list[Node] = []
    for node in program.src:
        if node.op is Ops.BEGIN or node.op is Ops.TEST:
            loops.append(node)
        elif node.op is Ops.END:
            loops.pop()
        elif _reads_packed(node):
            buffer, offset = node.src[:2]
            nbytes = node.arg.width * buffer.dtype.itemsize
            sizes[buffer] = sizes.get(buffer, 0) + threads * nbytes
            made = set(toposort(offset)) if loops else set()
            is_narrow = min(nbytes, node.arg.align) < WIDE
            if is_narrow or any(one.op is Ops.BEGIN and one not in made for one in loops):
                again.add(buffer)
        elif node.op is Ops.VSTORE and _reads_packed(node.src[2]):
            again.add(node.src[2].src[0])
    own = dict.fromkeys(sizes, 0)
    for run in runs_of(program, threads) if sizes.keys() - again else ():
        own[run.buffer] = own.get(run.buffer, 0) + run.nbytes
    return frozenset([one for one, nbytes in sizes.items() if nbytes <= own[one]]) - again


def joined(places: Sequence[BlockPlaces | None]) -> list[BlockPlaces]:
    """What accesses read of an array, those that begin within a stride as one; none if unknown."""
    each = [one for one in places if one is not None]
    strides = {one.stride for one in each}
    stride = min(strides, default=0)
    if len(each) < len(places) or len(strides) > 1 or stride <= 0:
        return []
    found = list[BlockPlaces]()
    for one in sorted(each, key=attrgetter("low")):
        # What lies further is the next block's: conditions keep this one from it, or it shares.
        if found and one.low < found[-1].low + stride:
            one = one._replace(low=found[-1].low, high=max(found.pop().high, one.high))
        found.append(one._replace(high=min(one.high, one.low + stride - 1)))
    return [one for one in found if 0 <= one.low <= one.high]


def _of(node: Node, known: dict[Node, BlockPlaces | None], threads: int) -> BlockPlaces | None:
    return known[node] if node in known else _places(node, known, threads)


def _places(node: Node, known: dict[Node, BlockPlaces | None], threads: int) -> BlockPlaces | None:
    """What an integer of a PROGRAM may be; None where nothing simple is known."""
    if node.op is Ops.CONST and isinstance(node.arg, int):
        return BlockPlaces(0, node.arg, node.arg)
    if node.op is Ops.VAR:
        if node.arg.name == BLOCK:
            return BlockPlaces(1, 0, 0)
        return BlockPlaces(0, 0, threads - 1) if node.arg.name == THREAD else None
    if node.op not in (Ops.BEGIN, Ops.ADD, Ops.MUL, Ops.AND, Ops.SHR, Ops.CAST):
        return None
    if node.dtype.kind not in ("int", "uint", "index"):
        return None
    parts = [_of(child, known, threads) for child in node.src]
    if any(part is None for part in parts):
        return None
    x, *others = [part for part in parts if part is not None]
    if node.op is Ops.CAST:
        return x
    y = others[0]
    if node.op is Ops.ADD:
        return BlockPlaces(x.stride + y.stride, x.low + y.low, x.high + y.high)
    if node.op is Ops.BEGIN:
        return None if x.stride or y.stride else BlockPlaces(0, x.low, max(y.high - 1, x.low))
    if y.stride or y.low != y.high or y.low < 0 or x.low < 0:
        return None
    if node.op is Ops.MUL:
        return BlockPlaces(*[y.low * each for each in x])
    if x.stride:
        return None
    if node.op is Ops.SHR:
        return BlockPlaces(0, x.low >> y.low, x.high >> y.low)
    return BlockPlaces(0, 0, min(x.high, y.low))
