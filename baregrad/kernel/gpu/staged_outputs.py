"""Results that go through shared memory, from where runs of them are stored beside the threads.

The threads write a tile of results to shared memory, in rows as they lie in the output. Then one
lane of each warp begins the stores of a few runs (bulk copies), and all go on: to the next tile, if
their block has one. They wait only before they write another tile over what is read.
"""

from __future__ import annotations

from math import gcd, prod

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Alloc
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import (
    Node,
    const,
    extent_of,
    make_node,
    range_node,
    rebuild,
    toposort,
)
from baregrad.ir.core.op import STATEMENTS, Ops, mask_of
from baregrad.ir.core.substitution import substitute
from baregrad.ir.protocol.attributes import CopyTo, Done
from baregrad.kernel.facts.analysis import by_id
from baregrad.kernel.gpu.barriers import WARP, sequence
from baregrad.kernel.gpu.shared_copies import thread_axes
from baregrad.kernel.gpu.shared_layouts import BANK_BYTES
from baregrad.kernel.instructions.mma_sync import TILE
from baregrad.kernel.instructions.wgmma import sums_by_groups
from baregrad.kernel.language.schedule import StageOutput, illegal
from baregrad.kernel.loops.loop_pieces import load, store

ENGINE = "bulk"
# The unit of such copies, in bytes, and of their addresses.
UNIT = 16
# Beyond the ids of all other axes.
FIRST_ID = 1 << 27
_STATEMENTS = mask_of(STATEMENTS)


def stage_outputs(kernel: Node, step: StageOutput) -> Node:
    """The loop-level KERNEL in which the stores to an output go through shared memory.

    Raises ScheduleError where that is not one statement, of whole tiles, in runs of 16 bytes, or
    where no groups of four warps make products: those alone say what bulk copies are to see.
    """
    if not sums_by_groups((kernel,)):
        raise illegal(
            step, "results of groups of four warps are stored so",
            wanted="tensorize(..., instruction='wgmma')",
        )
    found = [
        node for node in toposort(kernel)
        if node.op is Ops.STORE and node.src[0].op is Ops.PARAM
        and node.src[0].arg.slot == step.param
    ]
    if len(found) != 1 or found[0].arg is not None or _is_conditional(kernel, found[0]):
        raise illegal(
            step, "wanted one store to the output, of whole tiles", found=f"{len(found)} stores"
        )
    number = 1 + max([n.arg.id for n in toposort(kernel) if n.op is Ops.ALLOC], default=0)
    staged = _staged(kernel, found[0], number, step)
    return rebuild(
        kernel, lambda node: staged if node is found[0] else None,
        enter=lambda node: bool(node.mask & _STATEMENTS),
    )


def _pitch(run: int, beside: int, dtype: DType) -> int:
    """Elements from a run to the next, of which a lane has `beside`.

    Four lanes have a row, and as many the next one: those of both write to all banks.
    """
    half = BANK_BYTES // 2
    nbytes = run * dtype.itemsize
    pads = [
        pad for pad in range(0, BANK_BYTES, UNIT) if beside * (nbytes + pad) % BANK_BYTES == half
    ]
    return run + min(pads, default=0) // dtype.itemsize


def _is_conditional(kernel: Node, store: Node) -> bool:
    """Whether a store is inside a condition."""
    stack = [kernel]
    while stack:
        node = stack.pop()
        if node.op is Ops.IF and store in toposort(node):
            return True
        stack.extend(child for child in node.src if child.mask & _STATEMENTS)
    return False


def _staged(kernel: Node, node: Node, number: int, step: StageOutput) -> Node:
    """What stands for a store: its results in shared memory, and the stores of their runs."""
    array, value, place = node.src
    unit = UNIT // max(array.dtype.itemsize, 1)
    rows, columns = _sides(node, step)
    run = prod([_size(axis) for axis in columns])
    terms, constant = index.linear(place)
    others = [scale for atom, scale in terms.items() if atom not in columns]
    if run % unit or any(each % unit for each in (constant, *others)):
        raise illegal(
            step, "results are stored in runs of 16 bytes",
            found=f"runs of {run} results, {gcd(constant, *others)} apart",
        )
    height = prod([_size(axis) for axis in rows])
    beside = prod([_size(axis) for axis in rows if axis.arg.bind == "unroll"])
    shape = (height, _pitch(run, beside, array.dtype))
    where = Alloc(number, "shared", shape, name=f"s{number}")
    buffer = Node(Ops.ALLOC, array.dtype, (), where)
    row = index.as_node(index.flatten(rows, [_size(axis) for axis in rows]))
    column = index.as_node(index.flatten(columns, [_size(axis) for axis in columns]))
    wait = make_node(Ops.DONE, dtypes.token, (), Done(ENGINE, 0, True))
    kept = store(buffer, value, (row, column))
    return sequence([wait, kept, _copied(kernel, node, buffer, rows, columns)])


def _copied(
    kernel: Node, node: Node, buffer: Node, rows: tuple[Node, ...], columns: tuple[Node, ...]
) -> Node:
    """The bulk copies of a tile, of which each warp begins as many."""
    array, _, place = node.src
    sizes = [_size(axis) for axis in rows]
    lanes = prod([_size(axis) for axis in columns])
    lane = range_node(lanes, FIRST_ID, "", "vector")
    own: Dim = 0
    count = 1
    for at, axis in enumerate(thread_axes([kernel])):
        each: Dim = range_node(_size(axis), FIRST_ID + 1 + at, "", axis.arg.bind)
        extent = _size(axis)
        if at == 0:
            # All lanes of a warp say the same.
            each, extent = index.floordiv(each, WARP), extent // WARP
        own = index.add(own, index.mul(each, count))
        count *= extent
    pieces = prod(sizes)
    rounds = -(-pieces // count)
    if rounds > 1:
        again = range_node(rounds, FIRST_ID + 5, "", "unroll")
        own = index.add(index.mul(own, rounds), again)
    digits = dict(zip(rows, map(index.as_node, index.unflatten(own, tuple(sizes))), strict=True))
    # Its columns are a run of the output, whatever axes they were.
    first = dict.fromkeys(columns, const(0, dtypes.index))
    target = index.as_node(index.add(substitute(place, {**digits, **first}), lane))
    read = load(buffer, (index.as_node(own), lane))
    copied = make_node(Ops.COPYTO, dtypes.token, (array, read, target), CopyTo(ENGINE))
    if pieces % count:
        copied = make_node(Ops.IF, dtypes.token, (index.less(own, pieces), copied))
    return copied


def _sides(node: Node, step: StageOutput) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """The axes of a tile's rows and of its columns, which lie together in the output."""
    _, value, place = node.src
    tiles = {axis for axis in place.ranges | value.ranges if axis.arg.is_tile}
    terms, _ = index.linear(place)
    mixed = frozenset[Node]().union(*[atom.ranges for atom in terms if atom.op is not Ops.RANGE])
    columns: list[Node] = []
    run = 1
    while True:
        beside = [axis for axis in tiles - mixed if terms.get(axis) == run and axis not in columns]
        if len(beside) != 1 or [one.arg.bind for one in (*columns, *beside)].count(TILE) > 1:
            break
        columns.insert(0, beside[0])
        run *= _size(beside[0])
    # A lane's own runs lie beside each other.
    order = {"unroll": 2, TILE: 1}
    rows = by_id(tiles.difference(columns))
    rows = tuple(sorted(rows, key=lambda axis: order.get(axis.arg.bind, 0)))
    if not columns or not rows:
        raise illegal(step, "a tile of results has rows, and columns that lie together")
    if not tiles <= place.ranges:
        raise illegal(step, "several threads have the same results")
    return rows, tuple(columns)


def _size(axis: Node) -> int:
    extent = extent_of(axis)
    if not isinstance(extent, int):
        raise ScheduleError("a tile of a size that is not known", found=axis)
    return extent
