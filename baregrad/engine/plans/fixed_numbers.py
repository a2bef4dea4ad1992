"""Arrays of a few whole numbers that no launch of a plan writes, on GPUs.

Positions and tables of pages say where kernels read. Kernels that begin before the one in front has
ended read them meanwhile, if nothing in front writes them: then what they name is asked for at once
when that one has ended, not two loads later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from baregrad.ir.core.node import Node
from baregrad.schedule.plan import Launch, Plan, PlannedBuffer

# Bytes of an array that is all numbers like these, at most: larger ones are data.
MOST_NBYTES = 1 << 16
# What places are made of has at least so many bits.
LEAST_BITS = 32


def with_fixed(plan: Plan) -> Plan:
    """The plan whose kernels say which of their arrays are such (`KernelInfo.fixed`)."""
    written = {step.buffers[slot] for step in plan.steps for slot in step.writes}
    written.update(param for _, param in plan.over)
    fixed = {
        place for place, one in enumerate(plan.buffers)
        if one.kind == "param" and place not in written and _is_small(one)
    }  # fmt: skip
    return replace(plan, steps=tuple([_marked(step, fixed) for step in plan.steps]))


def _is_small(buffer: PlannedBuffer) -> bool:
    dtype, nbytes = buffer.dtype, buffer.nbytes
    is_whole = dtype.kind in ("int", "uint") and dtype.bits >= LEAST_BITS
    return is_whole and isinstance(nbytes, int) and nbytes <= MOST_NBYTES


def _marked(step: Launch, fixed: set[int]) -> Launch:
    part = step.part and (_with_slots(*step.part, fixed), step.part[1])
    return step._replace(kernel=_with_slots(step.kernel, step.buffers, fixed), part=part)


def _with_slots(kernel: Node, buffers: Sequence[int], fixed: set[int]) -> Node:
    slots = tuple([slot for slot, place in enumerate(buffers) if place in fixed])
    if not slots:
        return kernel
    return kernel.replace(arg=kernel.arg._replace(fixed=slots))
