"""Small pieces of the loop level: accesses, guards, and what accumulators are made of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from baregrad.dtypes import dtypes
from baregrad.ir.analysis.words import byte_products
from baregrad.ir.core import index
from baregrad.ir.core.axes import TILE_BINDS
from baregrad.ir.core.monoid import Monoid, filled, primitive
from baregrad.ir.core.node import (
    Node,
    alu,
    cast,
    const,
    extent_of,
    instruction,
    make_node,
    scalar,
    toposort,
    toposort_having,
)
from baregrad.ir.core.op import WORD_PRODUCTS, Ops, mask_of
from baregrad.kernel.facts.analysis import Facts, in_bounds

SCOPED = Ops.REDUCE.bit | Ops.SCAN.bit | Ops.STAGE.bit
# Instructions that add up the products of the numbers in words, and what their last source is.
DOTS = (*WORD_PRODUCTS, Ops.DOT2)
_BYTES = mask_of(WORD_PRODUCTS)
_BELOW = "kernel.scoped"
_VALUES = "kernel.values"
_PLAIN = "kernel.plain"
# Dtypes that machines have in memory as well as in registers.
PLAIN = frozenset((
    dtypes.float32, dtypes.float64, dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64,
    dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64,
))
_CONVERTING = mask_of((Ops.CAST, Ops.BITCAST, Ops.GUARD, Ops.SCAN))
# What loop-level nodes hold beside constants and arithmetic on positions.
HOLD_VALUES = mask_of((
    Ops.CAST, Ops.BITCAST, Ops.PARAM, Ops.ALLOC, Ops.LOAD, Ops.GUARD, Ops.REDUCE, Ops.SCAN,
    Ops.STORE,
))


def widened(monoid: Monoid, values: tuple[Node, ...]) -> tuple[Monoid, tuple[Node, ...]]:
    """Sums and products of narrow floats are accumulated in float32."""
    op, state = monoid.primitive, monoid.states[0]
    if op not in (Ops.ADD, Ops.MUL) or state.kind != "float" or state.bits >= 32:
        return monoid, values
    return primitive(op, dtypes.float32), (cast(values[0], dtypes.float32),)


def narrowed(parts: tuple[Node, ...], monoid: Monoid) -> tuple[Node, ...]:
    """Finished states in the monoid's own dtypes."""
    return tuple([cast(part, dtype) for part, dtype in zip(parts, monoid.states, strict=True)])


def register_places(tiles: tuple[Node, ...]) -> tuple[Node, ...]:
    """Tile axes as the axes of a register array: a vector lies in adjacent elements."""
    if len(tiles) < 2:
        return tiles
    return tuple(sorted(tiles, key=lambda axis: bool(axis.arg.bind == "vector")))


def shape_of(places: tuple[Node, ...]) -> tuple[int, ...]:
    """The shape of a register array over tile axes."""
    return tuple([int(axis.src[0].arg) for axis in places])


def places_of_states(
    monoid: Monoid, values: tuple[Node, ...], places: tuple[Node, ...], own: tuple[Node, ...]
) -> list[tuple[Node, ...]]:
    """The places, of some, that each state of a sum of values is kept at; at those of `own` all.

    Where a block's threads share a sum of several states, none of them is kept along an axis that
    nothing it is made of differs along: of a maximum and sums relative to it, the maximum is one
    for all columns.
    """
    count = len(monoid.states)
    if count == 1 or not any(axis.arg.is_thread for axis in own):
        return [places] * count
    made = [
        {n} | {one.arg % count for one in toposort(*parts) if one.op is Ops.SLOT}
        for n, parts in enumerate(zip(monoid.combine, monoid.lift, strict=True))
    ]
    for _ in range(count):
        made = [set[int]().union(*[made[other] for other in each]) for each in made]
    return [
        tuple([a for a in places if a in own or any(a in values[n].ranges for n in each)])
        for each in made
    ]


def looped(axes: Iterable[Node]) -> list[Node]:
    """The axes that are no tile axes."""
    return [axis for axis in axes if axis.arg.bind not in TILE_BINDS]


def load(buffer: Node, places: tuple[Node, ...]) -> Node:
    """One element of a buffer."""
    return scalar(Ops.LOAD, buffer.dtype, (buffer, *places))


def store(buffer: Node, value: Node, places: tuple[Node, ...]) -> Node:
    """Write one element of a buffer."""
    return instruction(Ops.STORE, dtypes.token, (buffer, value, *places))


def cleared(start: Node, within: Node | None, axes: list[Node]) -> Node:
    """A STORE in loops over `axes`, where `within` holds."""
    if within is not None:
        start = instruction(Ops.IF, dtypes.token, (within, start))
    for axis in reversed(axes):
        start = instruction(Ops.LOOP, dtypes.token, (axis, start))
    return start


def stays_inside(read: Node) -> bool:
    """Whether a LOAD reads an element of an argument, whatever its axes are."""
    return read.src[0].op is Ops.PARAM and in_bounds(read)


def stepped(monoid: Monoid, state: Node, value: Node, fma: bool) -> Node:
    """One accumulation by an op; with `fma`, a product that is summed is not rounded before."""
    assert monoid.primitive is not None
    if value.op in DOTS and monoid.primitive is Ops.ADD and value.src[2].arg == 0:
        return make_node(value.op, value.dtype, (*value.src[:2], state))
    if fma and monoid.primitive is Ops.ADD and value.dtype in (dtypes.float32, dtypes.float64):
        condition, inner = value.src if value.op is Ops.GUARD else (None, value)
        if inner.op is Ops.MUL:
            a, b = inner.src
            if condition is not None:
                a, b = factor_where(condition, a), factor_where(condition, b)
            return scalar(Ops.FMA, value.dtype, (a, b, state))
        if value.op is Ops.ADD and value.mask & _BYTES and byte_products(value):
            for addend in value.src:
                state = stepped(monoid, state, addend, fma)
            return state
    return scalar(monoid.primitive, value.dtype, (state, value))


def added_once(
    monoid: Monoid, value: Node, loops: Sequence[Node], lanes: tuple[Node, ...]
) -> bool:
    """Whether elements side by side are folded before they are added to nothing.

    All of a sum of floats: 0 + x is x, but for a zero's sign, which is the same if 0 is added to
    the sum of all. And what threads fold to several states, each its elements of one turn.
    """
    if monoid.arity > 1:
        is_one = all(extent_of(axis) == 1 for axis in loops)
        return is_one and any(axis.arg.is_thread for axis in lanes)
    if monoid.primitive is not Ops.ADD or not monoid.states[0].is_float or loops or not lanes:
        return False
    return all(axis.arg.bind == "unroll" for axis in lanes) and not value.mask & _BYTES


def factor_where(condition: Node, factor: Node) -> Node:
    """A factor that is 0 where the condition is false; a finite constant needs no guard."""
    if factor.op is Ops.CONST and math.isfinite(factor.arg):
        return factor
    return guarded(condition, factor)


def guarded(condition: Node, value: Node) -> Node:
    """`value` where the condition holds, else 0; constants need no guard."""
    if condition.op is Ops.CONST:
        return value if condition.arg else const(0, value.dtype)
    return scalar(Ops.GUARD, value.dtype, (condition, value))


def split_by_tiles(condition: Node) -> tuple[Node, ...]:
    """A condition in two: what whole tiles share, which is asked first, and the rest of it."""
    parts: tuple[list[Node], list[Node]] = [], []
    for part in index.conjuncts(condition):
        parts[any(axis.arg.is_tile for axis in part.ranges)].append(part)
    return tuple([index.both(*some) for some in parts if some])


def peeled_guards(
    monoid: Monoid, values: tuple[Node, ...]
) -> tuple[list[Node], tuple[Node, ...]]:
    """Conditions that may skip an element, and the values without them.

    Where a guard is false the value is 0, so only monoids with identity 0 can skip it. What
    depends on tile axes stays a guard, and so does a condition inside another that reads memory: it
    may be read where the outer one holds alone.
    """
    value = values[0]
    if monoid.primitive not in (Ops.ADD, Ops.OR, Ops.XOR) or value.op is not Ops.GUARD:
        return [], values
    scalar: list[Node] = []
    tiled: list[Node] = []
    while value.op is Ops.GUARD:
        if (scalar or tiled) and value.src[0].has(Ops.LOAD):
            break
        for part in index.conjuncts(value.src[0]):
            tile = any(axis.arg.is_tile for axis in part.ranges)
            (tiled if tile else scalar).append(part)
        value = value.src[1]
    if any(part.has(Ops.REDUCE, Ops.SCAN, Ops.STAGE) for part in scalar):
        return [], values
    if tiled:
        value = guarded(index.both(*tiled), value)
    return scalar, (value,)


# What conditions with lanes are split into: conditions of reduced lanes, and what is left.
Masks = dict[tuple[Node, frozenset[Node]], tuple[list[Node], list[Node]]]


def peeled_masks(
    monoid: Monoid, values: tuple[Node, ...], lanes: frozenset[Node], known: Masks
) -> tuple[list[Node], tuple[Node, ...]]:
    """Conditions on the tile axes `lanes` that are reduced, and what is reduced without them.

    Where one fails the accumulator is left as it is: no value has to be made up for it. What was
    split before is in `known`.
    """
    value = values[0]
    if monoid.primitive is None:
        return [], values
    if value.op is Ops.WHERE and value.src[2] is monoid.identity[0]:
        if value.src[1].op is Ops.GUARD and value.src[1].src[0] is value.src[0]:
            value = value.src[1]
    elif monoid.primitive not in (Ops.ADD, Ops.OR, Ops.XOR):
        return [], values
    if value.op is not Ops.GUARD:
        return [], values
    key = (value.src[0], lanes)
    if key not in known:
        known[key] = _taken_apart(*key)
    masks, others = known[key]
    covered = value.src[1]
    while covered.op is Ops.GUARD and covered.src[0] is value.src[0]:
        covered = covered.src[1]
    if not others:
        return masks, (covered,)
    if not masks or value is not values[0]:
        return [], values
    return masks, (guarded(index.both(*others), covered),)


def _taken_apart(
    condition: Node, lanes: frozenset[Node]
) -> tuple[list[Node], list[Node]]:
    masks: list[Node] = []
    others: list[Node] = []
    for part in index.conjuncts(condition):
        tiles = {axis for axis in part.ranges if axis.arg.is_tile}
        if tiles and tiles <= lanes and not part.has(Ops.REDUCE, Ops.SCAN, Ops.STAGE):
            masks.append(_lanes_apart(part))
        else:
            others.append(part)
    return masks, others


def _lanes_apart(condition: Node) -> Node:
    """A comparison of positions with the lanes alone on its left: they are never added up."""
    if condition.op is not Ops.CMPLT:
        return condition
    terms, constant = index.linear(condition.src[0])
    lanes = {a: scale for a, scale in terms.items() if a.op is Ops.RANGE and a.arg.is_tile}
    if len(lanes) in (0, len(terms)):
        return condition
    others = {atom: scale for atom, scale in terms.items() if atom not in lanes}
    limit = index.sub(condition.src[1], index.from_linear(others, constant))
    return alu(Ops.CMPLT, index.from_linear(lanes, 0), index.as_node(limit))


def is_carried(stage: Node) -> bool:
    """Whether a STAGE keeps the sums of a REDUCE whose loops stand outside of its own."""
    value, *axes = stage.src
    if value.op is not Ops.REDUCE or value.arg.monoid.primitive is None:
        return False
    own = [child for child in value.src if child.op is Ops.RANGE]
    return all(k.arg.id < axis.arg.id for k in own for axis in axes)


def values_below(kernel: Node) -> list[Node]:
    """What is below a loop-level KERNEL but constants and positions, as `nodes_having` has it.

    It is kept: of most kernels the passes change nothing, and each asks for it.
    """
    memo = kernel.memo
    found: list[Node] | None = memo.get(_VALUES)
    if found is None:
        # Without the kernel: a node that held itself would never be freed.
        found = memo[_VALUES] = nodes_having(HOLD_VALUES, kernel.src)
    return found


def nodes_having(mask: int, roots: tuple[Node, ...]) -> list[Node]:
    """The nodes at or below which an op of `mask` stands, each once: users may come after sources.

    For questions that no order matters to, at half the price of `toposort_having`.
    """
    found = [root for root in dict.fromkeys(roots) if root.mask & mask]
    seen = set(found)
    add, mark = found.append, seen.add
    for node in found:
        for child in node.src:
            if child.mask & mask and child not in seen:
                mark(child)
                add(child)
    return found


def note_plain(loop: Node, facts: Facts) -> None:
    """Note of the loop level of a kernel that all it has in memory and folds is plain, if so."""
    if loop.mask & _CONVERTING:
        return
    held = [access.array for access in facts.accesses]
    if not PLAIN.issuperset([one.dtype for one in (*held, *facts.stages)]):
        return
    folds = [reduction.node for reduction in facts.reductions]
    if any(fold.arg.monoid.primitive is None or fold.dtype not in PLAIN for fold in folds):
        return
    if not any(out.arg.monoid is not None for out in facts.outs):
        loop.memo[_PLAIN] = True


def is_plain(loop: Node) -> bool:
    """Whether a loop-level KERNEL certainly has no dtype or fold that a machine lacks."""
    return _PLAIN in loop.memo


def scoped_below(roots: tuple[Node, ...]) -> tuple[Node, ...]:
    """Every REDUCE, SCAN and STAGE at or below `roots`, sources first; kept on each root."""
    scoped = [root for root in roots if root.mask & SCOPED]
    if not scoped:
        return ()
    found: dict[Node, None] = {}
    for root in scoped:
        memo = root.memo
        known: tuple[Node, ...] | None = memo.get(_BELOW)
        if known is None:
            order = toposort_having(SCOPED, root)
            known = tuple([node for node in order if node.op.bit & SCOPED and node is not root])
            memo[_BELOW] = known
        if len(scoped) == 1:
            return (*known, root) if root.op.bit & SCOPED else known
        found.update(dict.fromkeys(known))
        if root.op.bit & SCOPED:
            found[root] = None
    return tuple(found)


def moves_reductions(roots: tuple[Node, ...], axes: Iterable[Node]) -> bool:
    """Whether a REDUCE, SCAN or STAGE at or below `roots` differs along one of `axes`."""
    return any(not node.ranges.isdisjoint(axes) for node in scoped_below(roots))


def state_parts(node: Node, monoid: Monoid) -> tuple[Node, ...]:
    """Each state of a reduction."""
    if monoid.arity == 1:
        return (node,)
    states = enumerate(monoid.states)
    return tuple([make_node(Ops.PROJ, dtype, (node,), position) for position, dtype in states])


def combined(
    monoid: Monoid, left: tuple[Node, ...], right: tuple[Node, ...]
) -> tuple[Node, ...]:
    """The combination of two tuples of states, as expressions."""
    if monoid.primitive is not None:
        return (alu(monoid.primitive, left[0], right[0]),)
    return filled(monoid.combine, left + right)
