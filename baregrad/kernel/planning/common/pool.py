"""Which loop the threads share, and how much of it is one chunk."""

from __future__ import annotations

from baregrad.ir.core import index
from baregrad.ir.core.node import Node
from baregrad.kernel.facts.analysis import Facts, itemsize, out_axes
from baregrad.kernel.language.schedule import Bind
from baregrad.kernel.planning.common.tiling import CpuPlan, PlannedAxis
from baregrad.target.cpu import CpuTarget

# More leave less to wait for at the end, where threads share what is left.
MOST_CHUNKS = 256


def estimate_ns(facts: Facts, target: CpuTarget) -> float:
    """How long one core takes for a kernel, roughly, if it is vectorised well."""
    total_bytes = 0
    sizes: dict[tuple[index.Dim, ...], int] = {}
    for access in facts.accesses:
        touched = facts.points(access.axes)
        if facts.reductions:
            # What is read again is near by then.
            shape = access.array.shape
            size = sizes.get(shape)
            if size is None:
                size = sizes[shape] = index.upper(index.product(shape))
            touched = min(touched, size)
        total_bytes += touched * itemsize(access.array.dtype)
    operations = sum([count * facts.points(axes) for axes, count in facts.work.items()])
    computing = operations / target.lanes(4) / target.vector_ops_per_ns
    return max(total_bytes / target.bytes_per_ns, computing)


def choose_pool(plan: CpuPlan, order: list[PlannedAxis]) -> Bind | None:
    """The bind of the one of the data axes that threads share; None for one chunk.

    An axis is shared only if every output and every large reduction runs along it. Its chunks are
    the outermost loop, the iterations of a chunk stay where the axis stands.
    """
    facts = plan.facts
    total = estimate_ns(facts, plan.target)
    # The estimate is of full vectors.
    lanes = plan.target.lanes(4)
    total *= lanes // min(max([axis.size for axis in plan.vectors], default=1), lanes)
    if total < plan.target.alone_ns:
        plan.because("one thread: about {:.1f} us of work is not worth waking others", total / 1e3)
        return None
    best: PlannedAxis | None = None
    enough = 2 * max(plan.target.cores, 2)
    for axis in order:
        if not axis.loops or axis.loops[0][1] < 2 or not _shared(facts, axis.nodes[-1]):
            continue
        least = 0 if best is None else 2 * best.loops[0][1]
        if least < 2 * enough and axis.loops[0][1] >= least:
            best = axis
    if best is None:
        if order:
            plan.because("one thread: no axis runs through every output and every large reduction")
        return None
    name, trips = best.loops[0]
    # Each chunk of an inner loop does anew what stands between the loops outside it.
    outermost = best is next(axis for axis in order if axis.loops)
    chunk = max(total / (MOST_CHUNKS if outermost else enough), plan.target.chunk_ns)
    grain = max(1, min(round(chunk * trips / total), (trips + 1) // 2))
    # One near it that divides the trip count, if there is one.
    near = range(grain, min(2 * grain, trips // 2, grain + 65) + 1)
    grain = next((size for size in near if trips % size == 0), grain)
    plan.because("threads share {}: about {:.0f} us on one core, {} chunks",
                 name, total / 1e3, -(-trips // grain))
    return Bind(name, "pool", grain)


def _shared(facts: Facts, node: Node) -> bool:
    return all(node in out_axes(out) for out in facts.outs) and all(
        node in each.free or facts.points(each.free.union(each.own)) <= 256
        for each in facts.reductions
    )
