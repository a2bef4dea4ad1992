"""From a SINK of tensor values to a plan: fuse, partition, place in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import dtypes
from baregrad.ir.algebra.passes import Pass
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.schedule.fusing.fuse import fuse
from baregrad.schedule.fusing.image_order import in_one_order
from baregrad.schedule.memory import plan_memory
from baregrad.schedule.partition import partition
from baregrad.schedule.plan import Plan

NO_DONATION: Mapping[int, int] = MappingProxyType({})


def make_plan(
    sink: Node,
    *,
    donate: Mapping[int, int] = NO_DONATION,
    target: Any = None,
    origins: Mapping[Node, Node] | None = None,
) -> Plan:
    """The plan that computes every source of `sink`.

    sink: a SINK of tensor-level values over PARAMs, canonicalised by `baregrad.graph`. donate:
    output position -> slot of an argument over which it may be written, where that is safe. target:
    the machine's row, a CPU's by default. origins: what each rewritten node stands for, where
    `Launch.origins` is wanted. Raises CompilerBug for a graph that is not of the tensor level, or
    that has a COPY.
    """
    if sink.op is not Ops.SINK:
        raise CompilerBug("a plan is made of a SINK", found=repr(sink))
    if sink.mask & Ops.COPY.bit:
        raise CompilerBug("a plan is of one device", found="a COPY, which is done before planning")
    is_gpu = target is not None and target.kind == "gpu"
    fusion = fuse(sink, is_gpu, is_gpu and bool(target.warp_products), donate)
    if is_gpu and target.bulk_copies:
        fusion, origins = in_one_order(fusion, donate, origins)
    return plan_memory(fusion, partition(fusion), donate, origins)


def _to_kernels(sink: Node) -> Node:
    """The SINK of the kernels of a plan, in order."""
    return Node(Ops.SINK, dtypes.token, make_plan(sink).kernels)


passes = (
    Pass(
        "fuse",
        "values become kernels: indices for views, one kernel where storing would cost more",
        "tensor",
        "kernel",
        _to_kernels,
    ),
)


# What is shown of the choices that fusion made, beside the pass itself.
DECISIONS = ("decisions", "why each value was stored or fused")


def stages(sink: Node) -> Iterator[tuple[str, str, Any]]:
    """(name, why, result) of each stage of scheduling a canonicalised SINK."""
    plan = make_plan(sink)
    yield *DECISIONS, plan.explain()
    yield passes[0].name, passes[0].why, Node(Ops.SINK, dtypes.token, plan.kernels)
