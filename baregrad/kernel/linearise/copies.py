"""Asynchronous copies of a GPU's threads as instructions: begun, closed as a group, waited for."""

from __future__ import annotations

from types import MappingProxyType

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import dtypes
from baregrad.ir.core.attrs import Machine
from baregrad.ir.core.node import Node, const, make_node
from baregrad.ir.core.op import Ops
from baregrad.kernel.linearise.access import access_of
from baregrad.kernel.linearise.phases import commit_filled, copy_box
from baregrad.kernel.linearise.scopes import END
from baregrad.kernel.linearise.values import Values

ENGINE = "async"
# The unit of copies in bulk, in bytes.
BULK, UNIT = "bulk", 16
# How those are waited for that run beside their threads.
_WAITS: MappingProxyType[str, str] = MappingProxyType(
    {"copy": "cp.async.wait", "mma": "wgmma.wait", BULK: "bulk.wait"}
)


def copy_to(values: Values, node: Node) -> None:
    """A COPYTO: each thread, at each point, some adjacent elements at once."""
    target, value, *indices = node.src
    if node.arg.box is not None:
        copy_box(values, node)
        return
    if node.arg.engine == BULK:
        _store_runs(values, node)
        return
    if not values.gpu or node.arg.engine != ENGINE:
        raise CompilerBug("not a statement of an ordinary kernel", found=node)
    conditions: tuple[Node, ...] = ()
    if value.op is Ops.GUARD:
        conditions, value = (value.src[0],), value.src[1]
    places = (*indices, *value.src[1:], *conditions, *values.masks)
    ranges = frozenset[Node]().union(*[place.ranges for place in places])
    to, origin = values.memory.addresses[node], values.memory.addresses[value]
    lanes = values.tiles.lanes_of(ranges)
    for address in (to, origin):
        even = address.is_regular(lanes) and address.stride == (1 if lanes > 1 else 0)
        if not even or (lanes > 1 and (address.constant % lanes or not address.is_even(lanes))):
            raise CompilerBug("an asynchronous copy of elements that are not adjacent", found=node)
    scopes = values.scopes
    for point in values.tiles.points(values.tiles.axes_of(ranges), values.point):
        values.point = point
        test = values.mask(values.masks) if values.masks else None
        if test is not None and test.op is Ops.CONST:
            continue
        taken = values.mask((*values.masks, *conditions)) if conditions else None
        shared, at = values.offset(to)
        array, first = values.offset(origin)
        if test is not None:
            scopes.append(make_node(Ops.TEST, dtypes.token, (test,)))
        if taken is not None and taken.op is Ops.CONST:
            # Nothing is there to be copied.
            zeros = values.vector(const(0, target.dtype), lanes)
            access = access_of(lanes, 1, at, lanes * target.dtype.itemsize)
            scopes.append(make_node(Ops.VSTORE, dtypes.token, (target, shared, zeros), access))
        else:
            lines = (1,) if node.arg.lines else ()
            one = Machine("cp.async", (lanes * target.dtype.itemsize, at, first, *lines))
            src = (target, shared, value.src[0], array, *(() if taken is None else (taken,)))
            scopes.append(make_node(Ops.MACHINE, dtypes.token, src, one))
        if test is not None:
            scopes.append(END)
    values.point = {}
    scopes.end_statement()


def _store_runs(values: Values, node: Node) -> None:
    """A COPYTO from shared memory: one lane of each warp, at each point, a run of elements."""
    target, value, *indices = node.src
    ranges = frozenset[Node]().union(*[place.ranges for place in (*indices, *value.src[1:])])
    to, origin = values.memory.addresses[node], values.memory.addresses[value]
    lanes = values.tiles.lanes_of(ranges)
    size = target.dtype.itemsize
    unit = UNIT // size
    for address in (to, origin):
        even = address.is_regular(lanes) and address.stride == 1 and lanes % unit == 0
        if not even or address.constant % unit or not address.is_even(unit) or values.masks:
            raise CompilerBug("a bulk copy of no whole words", found=node)
    scopes = values.scopes
    runs: list[Node] = []
    for point in values.tiles.points(values.tiles.axes_of(ranges), values.point):
        values.point = point
        array, first = values.offset(to)
        shared, at = values.offset(origin)
        one = Machine("bulk.store", (lanes * size, first, at))
        src = (target, array, value.src[0], shared)
        runs.append(make_node(Ops.MACHINE, dtypes.token, src, one))
    elected = make_node(Ops.MACHINE, dtypes.bool, (), Machine("elect"))
    closed = make_node(Ops.MACHINE, dtypes.token, (), Machine("bulk.commit"))
    for each in (elected, make_node(Ops.TEST, dtypes.token, (elected,)), *runs, closed, END):
        scopes.append(each)
    values.point = {}
    scopes.end_statement()


def commit(values: Values, node: Node) -> None:
    """A COMMIT of the copies so far, or of a slot of a pipe."""
    if node.src and node.src[0].op is Ops.PIPE:
        commit_filled(values, node)
        return
    if node.src:
        raise CompilerBug("not a statement of an ordinary kernel", found=node)
    values.scopes.append(make_node(Ops.MACHINE, dtypes.token, (), Machine("cp.async.commit")))


def done(values: Values, node: Node) -> None:
    """A DONE: of what threads copied themselves, there is nothing to wait for."""
    if node.arg.engine not in (*_WAITS, "lanes", "slots"):
        raise CompilerBug("not a statement of an ordinary kernel", found=node)
    if node.arg.engine in _WAITS:
        values.scopes.end_statement()
        how = (int(node.arg.reads_only),) if node.arg.engine == BULK else ()
        wait = Machine(_WAITS[node.arg.engine], (node.arg.keep, *how))
        values.scopes.append(make_node(Ops.MACHINE, dtypes.token, (), wait))


def fence(values: Values, node: Node) -> None:
    """A FENCE: what threads wrote to shared memory is seen by what runs beside them."""
    if (node.arg.source, node.arg.target) != ("generic", "async"):
        raise CompilerBug("not a statement of an ordinary kernel", found=node)
    values.scopes.end_statement()
    what = Machine("fence.proxy.async")
    values.scopes.append(make_node(Ops.MACHINE, dtypes.token, (), what))

