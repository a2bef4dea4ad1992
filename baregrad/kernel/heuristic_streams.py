"""How arrays that the caches of a core do not hold are read and written."""

from __future__ import annotations

from baregrad.kernel.analysis import Access, itemsize, iterations
from baregrad.kernel.schedule_value import Prefetch, StreamOutput
from baregrad.kernel.tiling import Plan
from baregrad.target.cpu import CpuTarget

# Bytes that an access is ahead of: memory answers about when this much has been worked on.
AHEAD_NBYTES = 2048
# An array this large is written past the caches even where the last cache is said to hold it: many
# cores share it, and on a server of 300 MiB x+1 of 64 MiB took 6.1 ms by way of it, and 3.4 past it
# (a transposed copy 16.3 and 5.0); at 16 MiB there was no gain.
STREAMED_NBYTES = 32 << 20
# The part of the second cache that what is asked for a row ahead may take.
ROW_SHARE = 8


def stream_outputs(plan: Plan, target: CpuTarget) -> None:
    """Write past the caches what does not fit them, unless it is read as well."""
    facts = plan.facts
    if facts.ordered:
        return
    read = {access.array for access in facts.accesses if not access.write}
    for access in facts.accesses:
        if not access.write or access.array in read:
            continue
        if _nbytes(access) >= min(target.l3_bytes, STREAMED_NBYTES):
            plan.stages.append(StreamOutput(access.array.arg.slot))


def prefetch_arrays(plan: Plan, target: CpuTarget) -> None:
    """Ask ahead of time for the lines of arrays that a core's caches do not hold.

    The machine notices by itself that lines are read one after the other, but not beyond a page,
    and not while a row is worked on that is in the caches already: an array that is read several
    times a row is asked for a row ahead. Lines that are written are read first, and it does not
    wait for those if they are asked for.
    """
    every = plan.facts.accesses
    large = {
        access.array.arg.slot: None
        for access in every
        if plan.facts.points(access.axes) * itemsize(access.array.dtype) >= target.l2_bytes
    }
    for step in plan.stages:
        if isinstance(step, StreamOutput):
            large.pop(step.param, None)
    for slot in large:
        accesses = [access for access in every if access.array.arg.slot == slot]
        if not all(_in_line(plan, access) for access in accesses):
            continue
        ahead = _row_nbytes(plan, accesses, target) or AHEAD_NBYTES
        plan.because("array {} is asked for {} bytes ahead: it is in memory", slot, ahead)
        plan.stages.append(Prefetch(slot, ahead))


def _nbytes(access: Access) -> int:
    return iterations(access.axes) * itemsize(access.array.dtype)


def _in_line(plan: Plan, access: Access) -> bool:
    """Whether vectors of an access lie one after the other."""
    return any(axis.stride(access) == 1 for axis in plan.vectors)


def _row_nbytes(plan: Plan, accesses: list[Access], target: CpuTarget) -> int:
    """Bytes from a row to the next of an array that is read several times a row; else 0."""
    if len(accesses) < 2:
        return 0
    common = frozenset.intersection(*[access.axes for access in accesses])
    if any(access.axes == common for access in accesses):
        return 0
    first = accesses[0]
    strides = [first.stride(axis) for axis in common]
    nbytes = min([stride for stride in strides if stride], default=0)
    nbytes *= itemsize(first.array.dtype)
    return nbytes if AHEAD_NBYTES <= nbytes <= target.l2_bytes // ROW_SHARE else 0
