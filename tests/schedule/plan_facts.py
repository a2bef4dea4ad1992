"""What is counted in plans."""

from __future__ import annotations

from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import Ops
from baregrad.schedule import Plan


def contractions(plan: Plan) -> list[object]:
    return [k for k in plan.kernels if any(n.op is Ops.REDUCE for n in toposort(k))]


def largest_buffer(plan: Plan) -> int:
    return max(int(b.nbytes) for b in plan.buffers)
