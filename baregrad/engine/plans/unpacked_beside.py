"""Factors that are unpacked on GPUs beside the product in front of the one that they are for.

To store a packed matrix as numbers is memory's work, and a product with many rows is the matrix
units'. What is unpacked hangs on nothing that is computed, so it may be stored while the product in
front is under way: launches that touch nothing of each other run beside each other, and a product's
last round of tiles leaves multiprocessors free. It must lie elsewhere then than what that product
reads.

On an H200 two feed-forward layers of 4,096 and 14,336 in Q4_K took 950 us so with 512 rows and
1,024 without, 2,567 and 2,641 with 2,048. One product cut in two, so that a sixth to a third of the
multiprocessors unpacked a part while the others multiplied, took as long as both in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from baregrad.base.bits import round_up
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, extent_of, toposort
from baregrad.ir.core.op import Ops, mask_of
from baregrad.schedule.plan import Launch, Plan, PlannedBuffer
from baregrad.target.gpu import GpuTarget

# Bytes of numbers that are worth it; how many times what is read they are; multiply-adds of a
# product beside which it is.
LEAST_NBYTES, LEAST_RATIO, LEAST_PRODUCT = 1 << 25, 1.5, 1 << 34
# Bytes of temporaries more, at most; of what number of bytes each begins at a multiple.
MOST_MORE, ALIGNMENT = 1 << 28, 1 << 8
_HALVES = (dtypes.bfloat16, dtypes.float16)
_LOOPS = mask_of((Ops.REDUCE, Ops.SCAN, Ops.FOLD, Ops.STAGE))


def unpacked_beside(plan: Plan, target: GpuTarget) -> Plan:
    """The plan with what unpacks a factor right behind the product in front of it.

    What is unpacked lies where there is room among all that is in memory meanwhile, for which the
    temporaries may get more of it. Only where groups of warps multiply: other products keep memory
    about as busy.
    """
    steps, buffers = list(plan.steps), list(plan.buffers)
    arena = plan.arena_nbytes
    unpacking = [step for step in steps if _unpacks(step, buffers)]
    if not unpacking or not target.warpgroup_warps or not isinstance(arena, int):
        return plan
    most = arena + MOST_MORE
    # Layers have kernels in common: each is looked at once.
    products = {kernel for kernel in set(plan.kernels) if _is_long_product(kernel)}
    for step in unpacking:
        at = steps.index(step)
        front = next((n for n in reversed(range(at)) if steps[n].kernel in products), None)
        (place,) = (step.buffers[slot] for slot in step.writes)
        users = [n for n, one in enumerate(steps) if place in one.buffers]
        if front is None or users[0] != at:
            continue
        old = buffers[place]
        nbytes = index.upper(old.nbytes)
        offset = room(nbytes, old.offset, taken(steps, buffers, place, front, users[-1]))
        if offset + nbytes > most:
            continue
        buffers[place] = old._replace(offset=offset)
        arena = max(arena, offset + nbytes)
        del steps[at]
        product = _marked(steps[front])
        products.add(product.kernel)
        steps[front : front + 1] = product, _marked(step)
    if steps == list(plan.steps):
        return plan
    return replace(plan, steps=tuple(steps), buffers=tuple(buffers), arena_nbytes=arena)


def _marked(step: Launch) -> Launch:
    """A launch that is to run beside another one."""
    return step._replace(kernel=step.kernel.replace(arg=step.kernel.arg._replace(beside=True)))


def _unpacks(step: Launch, buffers: Sequence[PlannedBuffer]) -> bool:
    """Whether a launch stores numbers made of fewer bytes of arguments, and many of them."""
    if len(step.writes) != 1 or len(step.kernel.src) != 1 or step.kernel.mask & _LOOPS:
        return False
    written = buffers[step.buffers[step.writes[0]]]
    read = [buffers[one] for slot, one in enumerate(step.buffers) if slot not in step.writes]
    if written.kind != "temp" or not read or any(one.kind != "param" for one in read):
        return False
    nbytes = written.nbytes
    if not isinstance(nbytes, int) or nbytes < LEAST_NBYTES or written.dtype not in _HALVES:
        return False
    return nbytes >= LEAST_RATIO * _bytes_read(step.kernel)


def _bytes_read(kernel: Node) -> int:
    """Bytes that a kernel without sums reads, where no place reads what another one does."""
    return sum(
        prod([index.upper(extent_of(axis)) for axis in node.ranges]) * node.dtype.itemsize
        for node in toposort(kernel) if node.op is Ops.INDEX
    )


def _is_long_product(kernel: Node) -> bool:
    """Whether a kernel is a product of matrices that takes about as long as one is unpacked."""
    for node in toposort(kernel):
        if node.op is not Ops.REDUCE:
            continue
        body = node.src[0]
        while body.op is Ops.CAST:
            (body,) = body.src
        if body.op is not Ops.MUL:
            continue
        left, right = (factor.ranges for factor in body.src)
        if left - right and right - left:
            points = prod([index.upper(extent_of(axis)) for axis in left | right])
            return points >= LEAST_PRODUCT
    return False


def taken(
    steps: Sequence[Launch], buffers: Sequence[PlannedBuffer], own: int, first: int, last: int
) -> list[tuple[int, int]]:
    """The stretches of the temporaries' memory that hold something during some steps, in order.

    own: the buffer that is not asked about.
    """
    before = {place for step in steps[: last + 1] for place in step.buffers}
    behind = {place for step in steps[first:] for place in step.buffers}
    return sorted(
        (one.offset, one.offset + index.upper(one.nbytes))
        for place in before & behind - {own} if (one := buffers[place]).kind == "temp"
    )


def room(nbytes: int, wanted: int, taken: Sequence[tuple[int, int]]) -> int:
    """Where so many bytes have room between stretches that are taken: where wanted, or first."""
    if all(end <= wanted or wanted + nbytes <= begin for begin, end in taken):
        return wanted
    offset = 0
    for begin, end in taken:
        if offset + nbytes <= begin:
            break
        offset = max(offset, round_up(end, ALIGNMENT))
    return offset
