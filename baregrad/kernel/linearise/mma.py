"""Products of a warp's matrix unit as instructions: matrices to registers, and their product."""

from __future__ import annotations

from math import prod
from typing import Any

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import dtypes
from baregrad.ir.analysis.words import PRODUCTS
from baregrad.ir.core.attrs import Machine
from baregrad.ir.core.node import Node, make_node
from baregrad.ir.core.op import Ops
from baregrad.kernel.instructions.mma_sync import (
    DEEP,
    HALVES,
    ROW_NBYTES,
    of_octets,
    paired_axis,
    registers_of,
)
from baregrad.kernel.instructions.wgmma import INSTRUCTION
from baregrad.kernel.linearise.group_products import Registers, multiply_group, rounded
from baregrad.kernel.linearise.values import Values


def multiply(values: Values, node: Node) -> None:
    """An MMA: for each point of the unrolled axes, of which factors are loaded once."""
    if node.arg.name in PRODUCTS:
        _multiply_words(values, node)
        return
    if not values.gpu or node.arg.name not in ("mma.sync", INSTRUCTION) or values.masks:
        raise CompilerBug("not a statement of an ordinary kernel", found=node)
    if node.arg.name == INSTRUCTION:
        multiply_group(values, node)
        return
    total, left, right = node.src[:3]
    mma = node.arg
    deep = mma.shape[2] * mma.operand.itemsize // ROW_NBYTES
    beside = int(node.src[5].src[0].arg) // 2
    alone = registers_of(0, beside).alone
    paired = paired_axis(mma, total, left, beside)
    ranges = total.ranges | left.ranges | right.ranges
    if paired is not None:
        ranges |= {paired}
    axes = tuple([axis for axis in values.tiles.axes_of(ranges) if axis not in (HALVES, DEEP)])
    known: dict[Any, Registers] = {}
    accumulators = values.memory.addresses[total]
    for point in values.tiles.points(axes, values.point):
        values.point = point
        if left.op is Ops.CAST:
            a = rounded(values, known, left)
        else:
            a = _matrices(values, known, left, 2 * deep, mma.a_major != "k")
        if of_octets(mma):
            b = _widened(values, known, node, paired)
        elif paired is None:
            b = _matrices(values, known, right, deep, mma.b_major != "k")
        else:
            both = _matrices(values, known, right, 2 * deep, mma.b_major != "k", paired)
            b = both[deep:] if point[paired] % 2 else both[:deep]
        c = [values.register(total.src[0], accumulators.at({**point, HALVES: half}))
             for half in range(2)]
        tile = point.get(alone, 0)
        lanes: tuple[int, ...] = (tile, beside + tile) if beside > 1 else ()
        if mma.exchanged:
            lanes = (*lanes, 1)
        what = Machine("mma.sync", (mma.shape[2], mma.operand.name, *lanes))
        values.scopes.append(make_node(Ops.MACHINE, dtypes.token, (*a, *b, *c), what))
    values.point = {}
    values.scopes.end_statement()


def _widened(
    values: Values, known: dict[Any, Registers], node: Node, paired: Node | None
) -> Registers:
    """The words of the second factor's present tile, of two tiles of 8-bit floats at once.

    Each word of those has two neighbours in steps, or columns of both tiles, for each of two words.
    """
    right, mma = node.src[2], node.arg
    if paired is None:
        raise CompilerBug("8-bit floats of one tile of columns", found=node)
    turned, odd = mma.b_major != "k", values.point[paired] % 2
    words = _matrices(values, known, right, 2, turned, paired)
    made = known.get(words)
    if made is None:
        what = Machine("cvt.widen", (mma.beside.name, mma.operand.name, int(turned)))
        fresh = [values.fresh_register(dtypes.uint32, 1) for _ in range(2 * len(words))]
        made = known[words] = tuple(fresh)
        for place, word in enumerate(words):
            src = (word, *made[2 * place : 2 * place + 2])
            values.scopes.append(make_node(Ops.MACHINE, dtypes.token, src, what))
    return made[odd::2] if turned else made[2 * odd : 2 * odd + 2]


def _multiply_words(values: Values, node: Node) -> None:
    """A run of products of tiles of words, as one instruction that names all it reads and writes.

    Its operands and immediates are what `evaluate_linear` says of them.
    """
    if values.masks:
        raise CompilerBug("not a statement of an ordinary kernel", found=node)
    total, left, right, keep, *axes = node.src
    values.point = dict.fromkeys(axes, 0)
    operands: list[Node] = [values.value(keep)]
    rows, columns, words, *steps = axes
    sizes = [int(axis.src[0].arg) for axis in (rows, columns)]
    sizes.append(prod([int(axis.src[0].arg) for axis in steps]))
    for load, along in ((total, rows), (left, rows), (right, words)):
        address = values.memory.addresses[load]
        offset, at = values.offset(address)
        operands += [load.src[0], offset]
        strides = dict(address.unrolled)
        sizes += [at, *[sum(strides.get(axis, 0) for axis in each) for each in ([along], steps)]]
    what = Machine(node.arg.name, tuple(sizes))
    values.scopes.append(make_node(Ops.MACHINE, dtypes.token, tuple(operands), what))
    values.point = {}
    values.scopes.end_statement()


def _matrices(
    values: Values, known: dict[Any, Registers], load: Node, count: int, turned: bool,
    paired: Node | None = None,
) -> Registers:
    """The registers that hold a factor's matrices at the present point.

    paired: an axis of which the matrices of two points come together.
    """
    axes = [axis for axis in values.tiles.axes_of(load.ranges) if axis is not paired]
    pair = 0 if paired is None else values.point[paired] // 2
    key = (load, pair, tuple([values.point[axis] for axis in axes]))
    found = known.get(key)
    if found is None:
        offset, at = values.offset(values.memory.addresses[load])
        registers = [values.fresh_register(dtypes.uint32, 1) for _ in range(count)]
        found = known[key] = tuple(registers)
        what = Machine("ldmatrix", (count, int(turned), at))
        src = (load.src[0], offset, *found)
        values.scopes.append(make_node(Ops.MACHINE, dtypes.token, src, what))
    return found
