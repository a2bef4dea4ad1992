"""A pipeline as a picture: slots over iterations, where threads meet, and what bounds it.

What an iteration takes is counted three ways, as if nothing else were to be done: products of the
matrix unit, bytes that come from the second cache (which brings more where multiprocessors ask for
the same at about the same time), and bytes that pass shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from types import MappingProxyType

from baregrad.base.bits import human_bytes
from baregrad.ir.analysis.outline import extent_text, texts_of
from baregrad.ir.core.node import Node, extent_of, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.protocol.attributes import Done, is_box
from baregrad.kernel.facts.analysis import by_id, iterations
from baregrad.kernel.gpu.absent_tiles import told_apart
from baregrad.kernel.gpu.barriers import sequence
from baregrad.kernel.gpu.boxes import ENGINE, as_box
from baregrad.kernel.gpu.clusters import nbytes_of, slice_of
from baregrad.kernel.gpu.pipelines import FEW_SLOTS
from baregrad.kernel.gpu.roles import BARRIERS
from baregrad.kernel.gpu.threads import grid_axes, grid_size, tile_of
from baregrad.kernel.instructions import wgmma
from baregrad.target.gpu import GpuTarget

# Who fills slots, by the engine.
_BY_THREADS = ("copy", "lanes")
_HOW: MappingProxyType[str, str] = MappingProxyType({
    "copy": "by copies beside the threads", "lanes": "by the threads",
    ENGINE: "by an engine with boxes of arrays",
})  # fmt: skip
# Iterations that are drawn beyond those that fill the slots.
MORE = 1
WIDTH = 12
# Bytes of a factor's row that four warps' unit multiplies with another row in a cycle.
GROUP_BYTES_PER_CYCLE = 4096


def pipeline_lines(kernel: Node, target: GpuTarget) -> list[str]:
    """The pipelines of a loop-level KERNEL of a block, each as a few lines of text."""
    lines: list[str] = []
    for loop in toposort(kernel):
        if loop.op is Ops.LOOP and (rings := _rings(loop)):
            lines += _picture(loop, rings, target, kernel)
    if lines and kernel.arg.grid:
        lines.append(
            f"blocks: {grid_size(kernel)}, each does its tiles one after the other, and copies "
            "what the next needs first before it stores"
        )
        if kernel.arg.cut:
            lines.append(
                "cut: of the last round's tiles some blocks do heads, all others what is left, and "
                "who has a head waits for that and adds it up"
            )
        if kernel.arg.teams > 1:
            lines.append(
                f"teams: {kernel.arg.teams} of a block's threads, each with a tile of its own; one "
                "stores while another multiplies"
            )
        # Blocks of a cluster, along the last axis, have as many tiles each.
        axes = grid_axes(kernel)[: -1 if kernel.arg.cluster > 1 else None]
        if len(told_apart(axes, sequence(tile_of(kernel)))) > 1:
            lines.append("tiles that are not there, as memory says: stored behind all others")
    return [*lines, *_stored(kernel)] if lines else []


def _rings(loop: Node) -> tuple[Node, ...]:
    """The arrays whose slots the iterations of a loop take in turns."""
    if _wait(loop) is None:
        return ()
    arrays = {one for one in toposort(loop) if one.op is Ops.ALLOC and one.arg.depth > 1}
    return tuple(sorted(arrays, key=lambda one: one.arg.id))


def _wait(loop: Node) -> Done | None:
    """What an iteration of a pipeline's loop waits for first: that its slot is filled."""
    items = loop.src[1].src if loop.src[1].op is Ops.SEQ else (loop.src[1],)
    waits = [one.arg for one in items if one.op is Ops.DONE]
    boxes = waits and waits[0].engine == ENGINE
    if not waits or not (
        boxes or (items[0].op is Ops.DONE and waits[0].engine in _BY_THREADS)
    ):
        return None
    found: Done = waits[0]
    return found


def _nbytes(array: Node) -> int:
    """Bytes of one slot."""
    return int(prod(array.arg.shape) * array.dtype.itemsize)


def _shared(loop: Node, cluster: int) -> int:
    """Bytes of a slot that are the same for all blocks of a cluster."""
    boxes = [slice_of(as_box(one), cluster) for one in toposort(loop) if is_box(one)]
    return sum(nbytes_of(box, cluster) for box in boxes if box.arg.multicast)


def _picture(
    loop: Node, rings: tuple[Node, ...], target: GpuTarget, kernel: Node
) -> list[str]:
    axis = loop.src[0]
    cluster = kernel.arg.cluster
    depth = rings[0].arg.depth
    shown, last = depth + MORE, None
    extent = extent_of(axis)
    # Blocks that do several tiles go on with panels of the next one.
    if isinstance(extent, int) and not kernel.arg.grid:
        shown, last = min(shown, extent), extent - 1
    first = _wait(loop)
    assert first is not None
    lead = first.keep + 1 if first.engine == "copy" else depth - 1
    each = sum(_nbytes(array) for array in rings)
    sizes = " + ".join([human_bytes(_nbytes(array)) for array in rings])
    units = [one for one in toposort(loop) if one.op is Ops.MMA]
    beside = any(one.arg.name == wgmma.INSTRUCTION for one in units)
    how = _HOW[first.engine]
    lines = [
        f"ring over {axis.arg.axis} of {extent_text(axis, texts_of(axis))}: {depth} slots of "
        f"{human_bytes(each)} ({sizes}), filled {how}",
        f"under way: {lead} of them, {human_bytes(lead * each)} a block",
        _row("iteration", [str(number) for number in range(shown)]),
    ]
    for slot in range(depth):
        cells = [_cell(slot, iteration, (depth, lead, last)) for iteration in range(shown)]
        lines.append(_row(f"slot {slot}", cells))
    if first.engine == ENGINE:
        (copiers, few), (others, many) = kernel.arg.roles
        lines.append(
            f"roles: one of {copiers} warps copies once a slot is empty, {others} others multiply "
            f"once it is full; they meet in {BARRIERS * depth} barriers of phases, two of each slot"
        )
        if few:
            lines.append(f"registers: {few} of a thread that copies, {many} of one that multiplies")
    else:
        meets = ", and once the products of the iteration before are done"
        lines.append("barriers: once a slot is filled" + meets * (beside and depth <= FEW_SLOTS))
    shared = _shared(loop, cluster)
    if shared:
        lines.append(
            f"clusters of {cluster} blocks: {human_bytes(shared)} of a slot are the same for all, "
            f"and each copies {human_bytes(shared // cluster)} of it for all"
        )
    return [*lines, *_bounds(loop, units, (each, each - shared + shared // cluster), target)]


def _cell(slot: int, iteration: int, ring: tuple[int, int, int | None]) -> str:
    """What goes on in a slot: the panel whose copy to it has begun last is read, or comes.

    ring: its depth, by how many iterations copies are ahead, and the last panel, if there is one.
    """
    depth, lead, last = ring
    begun = iteration + lead
    panel = begun - (begun - slot) % depth
    if panel < 0 or (last is not None and panel > last):
        return ""
    return f"{'multiply' if panel <= iteration else 'copy'} {panel}"


def _row(name: str, cells: list[str]) -> str:
    return "".join([cell.ljust(WIDTH) for cell in (name, *cells)]).rstrip()


def _bounds(
    loop: Node, units: list[Node], nbytes: tuple[int, int], target: GpuTarget
) -> Iterator[str]:
    """What an iteration takes, and which of that takes longest.

    nbytes: of a slot, and what of these a block copies.
    """
    each, copied = nbytes
    if not units:
        return
    taken = {
        "matrix unit": sum(_cycles(loop, unit, target) for unit in units),
        "second cache": copied / target.cache_bytes_per_cycle,
        "shared memory": (each + sum(_read(loop, unit) for unit in units))
        / target.shared_bytes_per_cycle,
    }
    longest = max(taken, key=lambda name: taken[name])
    counts = ", ".join([f"{name} {cycles:.0f}" for name, cycles in taken.items()])
    yield f"cycles of an iteration: {counts}"
    yield f"bound by: {longest}"


def _inside(loop: Node, axes: frozenset[Node]) -> list[Node]:
    """Axes that an iteration of a loop runs over: tiles and the loops inside it."""
    inner = {one.src[0] for one in toposort(loop.src[1]) if one.op is Ops.LOOP}
    return [axis for axis in by_id(set(axes)) if axis.arg.is_tile or axis in inner]


def _factors(unit: Node) -> list[Node]:
    return [one.src[0] if one.op is Ops.CAST else one for one in unit.src[1:3]]


def _cycles(loop: Node, unit: Node, target: GpuTarget) -> float:
    """Cycles that the matrix unit multiplies for in an iteration."""
    left, right = _factors(unit)
    products = iterations(_inside(loop, left.ranges | right.ranges))
    if unit.arg.name == wgmma.INSTRUCTION:
        # A first factor in registers may be shown as what it is rounded of.
        return products * right.dtype.itemsize / GROUP_BYTES_PER_CYCLE
    return products / target.warp_macs_per_cycle


def _read(loop: Node, unit: Node) -> int:
    """Bytes of shared memory that the matrix unit, or warps for it, read in an iteration.

    Warps that share a factor read it each, and four warps' unit reads columns anew for each of its
    tiles of rows.
    """
    total = 0
    every = frozenset[Node]().union(*[factor.ranges for factor in _factors(unit)])
    groups = unit.arg.name == wgmma.INSTRUCTION
    for factor in _factors(unit):
        if factor.src[0].op is not Ops.ALLOC or factor.src[0].arg.space != "shared":
            continue
        own = _inside(loop, factor.ranges)
        apart = [axis for axis in _inside(loop, every) if axis not in own]
        tiles = groups and factor is _factors(unit)[1]
        again = [a for a in apart if a.arg.is_thread or (tiles and a.arg.bind == "unroll")]
        total += iterations(own) * iterations(again) * factor.dtype.itemsize
    return total


def _stored(kernel: Node) -> Iterator[str]:
    """How results go through shared memory."""
    for copy in toposort(kernel):
        if copy.op is Ops.COPYTO and copy.arg.engine == "bulk":
            array = copy.src[1].src[0]
            runs = [axis for axis in copy.src[2].ranges if axis.arg.bind == "vector"]
            nbytes = iterations(runs) * array.dtype.itemsize
            yield (
                f"results: {human_bytes(_nbytes(array))} of shared memory, stored from there in "
                f"{array.arg.shape[0]} runs of {human_bytes(nbytes)} beside what follows"
            )
