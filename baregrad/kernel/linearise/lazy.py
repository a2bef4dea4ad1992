"""Guarded values without loads, which some lowerings make: computed only where they are wanted.

Of a vector, a short value is computed for all lanes as soon as one wants it; a long one, such as
the reduction of a huge argument by pi, lane by lane in a loop, which keeps the code small.
"""

from __future__ import annotations

from typing import Any

from baregrad.dtypes import dtypes
from baregrad.ir.core.attrs import Alloc
from baregrad.ir.core.node import Node, const, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel.linearise.access import access_of
from baregrad.kernel.linearise.reader import Reader
from baregrad.kernel.linearise.scopes import MOMENT, ZERO

OPAQUE = frozenset((Ops.LOAD, Ops.GUARD, Ops.REDUCE, Ops.SCAN, Ops.RANGE))
# From this many ops on, a loop over the lanes is worth its trips through memory.
LONG = 32
# Beyond the ids of a kernel's own buffers and axes.
SPARE_ID = 1 << 22


def is_transparent(node: Node) -> bool:
    """Whether the walk over an expression goes on below a node."""
    return node.op not in OPAQUE


def is_lazy(guard: Node) -> bool:
    """Whether what a GUARD covers is computed, not read: then only where it is wanted."""
    return guard.src[1].op is not Ops.LOAD


def shared_by_guards(order: list[Node]) -> list[Node]:
    """What lazy guards read of the expression around them: it is to be computed once."""
    guards = [n for n in order if n.op is Ops.GUARD and is_lazy(n)]
    if not guards:
        return []
    around = {node for node in order if is_transparent(node)}

    def is_inner(node: Node) -> bool:
        return is_transparent(node) and node not in around

    below = [node for guard in guards for node in toposort(*guard.src, enter=is_inner)]
    return [node for node in below if node in around and node.src]


def lazy(values: Reader, node: Node) -> Any:
    """The value of a GUARD without loads.

    Guards of one condition in one expression share the branch.
    """
    cond = node.src[0]
    mask = values.value(cond)
    group = [step[0] for step in values.plan.steps if step[0].op is Ops.GUARD]
    group = [g for g in group if g.src[0] is cond and is_lazy(g)]
    inputs = _inputs(values, group) if mask.shape else None
    if inputs is None:
        found = _at_once(values, group, mask)
    else:
        found = _by_lane(values, group, mask, inputs)
    for guard, value in zip(group, found, strict=True):
        if guard is not node:
            values.scopes.remember(values.key(guard), value)
    return found[group.index(node)]


def is_branch(values: Reader, load: Node, mask: Node) -> bool:
    """Whether a guarded LOAD is left out by a branch: many accesses, and one condition for all."""
    if values.gpu or values.masks or mask.shape or mask.op is Ops.CONST:
        return False
    return values.memory.addresses[load].is_scattered


def lazy_load(values: Reader, node: Node, mask: Node) -> Node:
    """A GUARD of lanes that are not adjacent, under a condition that is the same for all."""
    (found,) = _at_once(values, [node], mask, values.memory.addresses[node.src[1]].width)
    return found


def _at_once(values: Reader, group: list[Node], mask: Node, lanes: int = 0) -> list[Node]:
    """A register for each guard, set for all lanes, those of the mask, if any lane wants it."""
    scopes = values.scopes
    lanes = lanes or (mask.shape[0] if mask.shape else 1)
    wanted = scopes.emit(Ops.ANY, dtypes.bool, (mask,)) if mask.shape else mask
    registers = []
    for guard in group:
        register = values.fresh_register(guard.dtype, lanes)
        registers.append(register)
        start = values.vector(const(0, guard.dtype), lanes)
        scopes.append(Node(Ops.SET, dtypes.token, (register, start)))
    mark = scopes.mark()
    lasts = scopes.depth.get(wanted) != MOMENT
    scopes.open(Node(Ops.TEST, dtypes.token, (wanted,)), True, lazy=True)
    for guard, register in zip(group, registers, strict=True):
        value = values.vector(values.value(guard.src[1]), lanes)
        if mask.shape:
            zero = const(0, guard.dtype)
            value = values.apply(Ops.WHERE, guard.dtype, mask, value, zero)
        lasts = lasts and scopes.depth.get(value) != MOMENT
        scopes.append(Node(Ops.SET, dtypes.token, (register, value)))
    scopes.close()
    scopes.forget_since(mark)
    if lasts:
        # Set for good: later statements of this scope may read these registers too.
        for register in registers:
            scopes.settle(register)
    return registers


def _inputs(values: Reader, group: list[Node]) -> list[Node] | None:
    """The vectors that long guarded values are computed from; None to compute all lanes at once."""
    shared = values.shared
    order = toposort(
        *(guard.src[1] for guard in group), enter=lambda n: is_transparent(n) and n not in shared
    )
    if len(order) < LONG:
        return None
    found = []
    for node in order:
        if values.tiles.lanes_of(node.ranges) == 1:
            continue
        if node in shared and node.dtype.kind != "bool":
            found.append(node)
        elif not is_transparent(node) or node in shared:
            return None
    return found


def _by_lane(values: Reader, group: list[Node], mask: Node, inputs: list[Node]) -> list[Node]:
    """A loop over the lanes that computes the guarded values of those that want them."""
    scopes = values.scopes
    lanes = mask.shape[0]
    wanted = scopes.emit(Ops.ANY, dtypes.bool, (mask,))
    flags = scopes.emit(Ops.CAST, dtypes.uint8, (mask,))
    vectors = [flags, *(values.value(node) for node in inputs)]
    lasts = all(scopes.depth.get(vector) != MOMENT for vector in vectors)
    kept = [_spilled(values, vector, lanes) for vector in vectors]
    results = [
        _spilled(values, values.vector(const(0, guard.dtype), lanes), lanes) for guard in group
    ]
    mark = scopes.mark()
    scopes.open(Node(Ops.TEST, dtypes.token, (wanted,)), True, lazy=True)
    span = (ZERO, const(lanes, dtypes.int64))
    counter = Node(Ops.BEGIN, dtypes.int64, span, SPARE_ID + values.spare())
    scopes.open(counter, False)
    flag = _lane(values, kept[0], counter)
    chosen = values.apply(Ops.CMPNE, dtypes.bool, flag, const(0, dtypes.uint8))
    scopes.open(Node(Ops.TEST, dtypes.token, (chosen,)), True)
    keys = [values.key(node) for node in inputs]
    before = [scopes.memo.get(key) for key in keys]
    for key, alloc in zip(keys, kept[1:], strict=True):
        scopes.memo[key] = _lane(values, alloc, counter)
    for guard, alloc in zip(group, results, strict=True):
        access = access_of(1, 1, 0, guard.dtype.itemsize)
        src = (alloc, counter, values.value(guard.src[1]))
        scopes.append(Node(Ops.VSTORE, dtypes.token, src, access))
    for _ in range(3):
        scopes.close()
    scopes.forget_since(mark)
    for key, value in zip(keys, before, strict=True):
        scopes.memo.pop(key, None)
        if value is not None:
            scopes.memo[key] = value
    floor = len(scopes.stack) - 1 if lasts else MOMENT
    found = []
    for alloc in results:
        access = access_of(lanes, 1, 0, alloc.dtype.itemsize)
        found.append(scopes.emit(Ops.VLOAD, alloc.dtype, (alloc, ZERO), access, floor))
    return found


def _spilled(values: Reader, vector: Node, lanes: int) -> Node:
    """Private memory that holds a vector's lanes."""
    where = Alloc(SPARE_ID + values.spare(), "register", (lanes,))
    alloc = Node(Ops.ALLOC, vector.dtype, (), where)
    access = access_of(lanes, 1, 0, vector.dtype.itemsize)
    values.scopes.append(Node(Ops.VSTORE, dtypes.token, (alloc, ZERO, vector), access))
    return alloc


def _lane(values: Reader, alloc: Node, counter: Node) -> Node:
    """The lane that a loop has come to."""
    access = access_of(1, 1, 0, alloc.dtype.itemsize)
    floor = len(values.scopes.stack) - 1
    return values.scopes.emit(Ops.VLOAD, alloc.dtype, (alloc, counter), access, floor)
