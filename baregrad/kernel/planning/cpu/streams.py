"""How arrays that the caches of a core do not hold are read and written."""

from __future__ import annotations

from baregrad.ir.core.index import product, upper
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import (
    ArrayAccess,
    Facts,
    itemsize,
    iterations,
    op_flops,
    out_axes,
)
from baregrad.kernel.language.schedule import Prefetch, StreamOutput
from baregrad.kernel.planning.common.tiling import CpuPlan, PlannedAxis
from baregrad.target.cpu import CpuTarget, crowding_bytes

# Bytes that an access is ahead of: memory answers about when this much has been worked on.
AHEAD_NBYTES = 2048
# Of what passes the caches by for its size alone, the part that does beside many reads.
CROWDED_SHARE = 8
# The part of the second cache that what is asked for a row ahead may take.
ROW_SHARE = 8
# The part of a row that loops ask for, at least, or they do not share it out.
LEAST_SHARED = 0.75


def stream_outputs(plan: CpuPlan) -> None:
    """Store without the caches what does not fit them, unless it is read as well.

    That is less than the last cache is said to hold: many cores share it, and what is read has its
    part. On a server of 300 MiB x+1 of 64 MiB took 6.1 ms by way of it, and 3.4 past it (a
    transposed copy 16.3 and 5.0).

    What is read leaves less room: two cores of Zen 4 with 32 MiB of last cache take 0.45 ms by way
    of it for x+1 of 12 MiB and 0.50 past it, for that of 16 MiB 0.99 and 0.64, for x*y of 8 MiB
    each 0.51 and 0.34, of 16 MiB 2.06 and 0.97, and for y * (g - (g * y).sum(1)) of 8 MiB 0.73 and
    0.30. That is beside others who use that cache too; alone, x+1 of 16 MiB takes 0.34 by way of it
    in a bare loop, and 0.5 between steps of the interpreter. Of 16 cores with second caches of
    2 MiB x+1 of 16 MiB took 0.07 and 0.11 ms, x*y of 16 MiB each 0.20 and 0.14.
    """
    facts = plan.facts
    if facts.ordered:
        return
    least = plan.target.streamed_row_bytes if facts.reductions else plan.target.streamed_bytes
    least = min(plan.target.l3_bytes, least)
    read: dict[Node, int] = {}
    for access in facts.accesses:
        if not access.write:
            read[access.array] = max(read_nbytes(access), read.get(access.array, 0))
    room = crowding_bytes(plan.target.l2_bytes, plan.target.l3_bytes, plan.target.cores)
    crowded = sum(read.values()) >= room
    for access in facts.accesses:
        if not access.write or access.array in read:
            continue
        slot, nbytes = access.array.arg.slot, nbytes_of(access)
        if nbytes >= least:
            plan.because("array {} is written past the caches: it does not fit them", slot)
        elif crowded and nbytes >= least // CROWDED_SHARE:
            plan.because("array {} is written past the caches: what is read fills them", slot)
        else:
            continue
        plan.stages.append(StreamOutput(slot))


def prefetch_arrays(plan: CpuPlan, gone: PlannedAxis | None = None) -> None:
    """Ask ahead of time for the lines of arrays that a core's caches do not hold.

    Most machines notice by themselves that lines are read one after the other, but not beyond a
    page; where one does better alone it is left alone. None notices while a row is worked on that
    is in the caches already: an array that is read several times a row is asked for a row ahead, by
    all loops over the row, so that memory is never idle. Lines that are written are read first, and
    it does not wait for those if they are asked for.

    gone: an axis without a loop of its own, since another loop makes its stores.
    """
    streamed = [step.param for step in plan.stages if isinstance(step, StreamOutput)]
    copied = len(streamed) < len(plan.stages)
    every = plan.facts.accesses
    large = {
        access.array.arg.slot: None
        for access in every
        if plan.facts.points(access.axes) * itemsize(access.array.dtype) >= plan.target.l2_bytes
    }
    for slot in large:
        if slot in streamed:
            continue
        accesses = [access for access in every if access.array.arg.slot == slot]
        # Vectors of an access may lie one after the other.
        if not all(any(a.stride(access) == 1 for a in plan.vectors) for access in accesses):
            continue
        row = _row_nbytes(accesses, plan.target)
        if not row and not plan.target.asks_ahead:
            continue
        shares = _shares(plan, accesses, row, gone) if row and not copied else ()
        ahead = row or AHEAD_NBYTES
        plan.because("array {} is asked for {} bytes ahead: it is in memory", slot, ahead)
        if shares:
            plan.because("the loops over a row of it ask for the next: memory is never idle")
        plan.stages.append(Prefetch(slot, ahead, shares))


def nbytes_of(access: ArrayAccess) -> int:
    """The bytes of all elements that an access meets, once for each place of its axes."""
    return iterations(access.axes) * itemsize(access.array.dtype)


def read_nbytes(access: ArrayAccess) -> int:
    """The bytes of what an access meets, at most: windows meet some elements several times."""
    array = access.array
    return min(nbytes_of(access), upper(product(array.shape)) * itemsize(array.dtype))


def _row_nbytes(accesses: list[ArrayAccess], target: CpuTarget) -> int:
    """Bytes from a row to the next of an array that is read several times a row; else 0."""
    common = frozenset.intersection(*[access.axes for access in accesses])
    if any(access.axes == common for access in accesses):
        return 0
    first = accesses[0]
    strides = [first.stride(axis) for axis in common]
    nbytes = min([stride for stride in strides if stride], default=0)
    nbytes *= itemsize(first.array.dtype)
    return nbytes if AHEAD_NBYTES <= nbytes <= target.l2_bytes // ROW_SHARE else 0


def _shares(
    plan: CpuPlan, accesses: list[ArrayAccess], row: int, gone: PlannedAxis | None
) -> tuple[tuple[str, int], ...]:
    """What the loops over a row of bytes ask for in each iteration, by the time that they take.

    Whole lines or vectors, and no more than a row has; () where most of it would be left over.
    """
    unit = min(plan.target.line_bytes, plan.target.vector_bytes)
    units = row // unit
    rows = frozenset.intersection(*[access.axes for access in accesses])
    work = _work(plan.facts, rows)
    of_nodes = {axis.nodes[-1]: axis for axis in plan.axes if axis.loops and axis is not gone}
    loops = []
    for node, each in work.items():
        axis = of_nodes.get(node)
        if axis is not None and isinstance(axis.extent, int) and axis.loops[0][1] > 1:
            loops.append((*axis.loops[0], each * axis.extent))
    total = sum([each for _, _, each in loops])
    taken = 0
    counts: dict[str, int] = {}
    rests: list[tuple[float, str, int]] = []
    for name, trips, each in loops:
        wanted = units * each / total / trips
        counts[name] = int(wanted)
        taken += counts[name] * trips
        rests.append((wanted - counts[name], name, trips))
    for _, name, trips in sorted(rests, reverse=True):
        if taken + trips <= units:
            counts[name] += 1
            taken += trips
    if not taken or taken < LEAST_SHARED * units:
        return ()
    return tuple([(name, count * unit) for name, count in counts.items() if count])


def _work(facts: Facts, rows: frozenset[Node]) -> dict[Node, int]:
    """Of the axes that loops inside the rows run along, as they run: what an element costs.

    That is operations and accesses.
    """
    work: dict[Node, int] = {}
    own: frozenset[Node] | tuple[Node, ...]
    reductions = {each.node: each for each in facts.reductions}
    outside: set[Node] = set()
    for node in facts.order:
        if node in reductions:
            own, free = reductions[node].own, reductions[node].free
        elif node.op is Ops.STAGE:
            own, free = node.src[1:], node.ranges
        elif node.op is Ops.OUT:
            free = out_axes(node)
            own = free - rows
        else:
            continue
        if not rows <= free:
            outside.update(own)
        for axis in own:
            work[axis] = work.get(axis, 0) + 1
    for node in facts.order:
        cost = 1 if node.op is Ops.INDEX else op_flops(node)
        if cost:
            for axis in node.ranges:
                if axis in work:
                    work[axis] += cost
    return {axis: cost for axis, cost in work.items() if axis not in outside}
