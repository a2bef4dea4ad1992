"""The memory plan: which buffer every stored value has, and where temporaries lie in the arena."""

from __future__ import annotations

from collections.abc import Mapping

from baregrad.ir.analysis.liveness import Interval, pack
from baregrad.ir.core import index
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.schedule.donation import changed_part, settle_donations
from baregrad.schedule.fusing.fusion import Fusion
from baregrad.schedule.partition import Step, kernel_of
from baregrad.schedule.plan import Launch, Plan, PlannedBuffer

# Of the largest temporary: a model's many small vectors are half of what is to be placed.
SPARE = 1 / 128


def plan_memory(
    fusion: Fusion,
    steps: list[Step],
    donate: Mapping[int, int],
    origins: Mapping[Node, Node] | None,
) -> Plan:
    """The plan of `steps`; outputs may be written over donated arguments where that is safe."""
    steps = [step for step in steps if not _is_empty(step)]
    donated = settle_donations(fusion, steps, donate)
    buffers: list[PlannedBuffer] = []
    place: dict[Node, int] = {}
    params = {node.arg.slot: node for node in fusion.order if node.op is Ops.PARAM}
    for slot, param in sorted(params.items()):
        place[param] = len(buffers)
        buffers.append(
            PlannedBuffer("param", param.dtype, param.shape, nbytes_of(param), slot=slot)
        )
    count = 0
    for value in dict.fromkeys(fusion.outputs):
        if value not in place:
            place[value] = len(buffers)
            buffers.append(
                PlannedBuffer("output", value.dtype, value.shape, nbytes_of(value), slot=count)
            )
            count += 1
    arena = _place_temporaries(fusion, steps, place, buffers)
    return Plan(
        tuple(buffers),
        tuple(_final_step(fusion, step, place, donated, origins) for step in steps),
        tuple(place[value] for value in fusion.outputs),
        arena,
        tuple([(place[value], place[param]) for value, param in donated.items()]),
        tuple(fusion.decisions),
    )


def nbytes_of(value: Node) -> Dim:
    """The size of a stored value in bytes."""
    nbytes: int = value.dtype.itemsize
    for extent in value.shape:
        if extent.__class__ is not int:
            break
        nbytes *= extent
    else:
        return nbytes
    return index.mul(index.product(value.shape), value.dtype.itemsize)


def _is_empty(step: Step) -> bool:
    """Whether a step writes arrays without elements only."""
    return all(0 in value.shape for value in step.written)


def _place_temporaries(
    fusion: Fusion, steps: list[Step], place: dict[Node, int], buffers: list[PlannedBuffer]
) -> int:
    """Give every other stored value a part of the arena; the arena's size in bytes."""
    first: dict[Node, int] = {}
    last: dict[Node, int] = {}
    aliases = fusion.aliases
    for position, step in enumerate(steps):
        for value in (*step.written, *step.read):
            memory = value if value not in aliases else fusion.memory_of(value)
            if memory in last:
                last[memory] = position
            elif memory not in place:
                first[memory] = last[memory] = position
    sizes = [nbytes_of(value) for value in first]
    packing = pack(
        [
            Interval(start, last[value], size if size.__class__ is int else index.upper(size))
            for (value, start), size in zip(first.items(), sizes, strict=True)
        ],
        spare=SPARE,
    )
    for value, size, offset in zip(first, sizes, packing.offsets, strict=True):
        place[value] = len(buffers)
        buffers.append(PlannedBuffer("temp", value.dtype, value.shape, size, -1, offset))
    return packing.nbytes


def _final_step(
    fusion: Fusion,
    step: Step,
    place: dict[Node, int],
    donated: Mapping[Node, Node],
    origins: Mapping[Node, Node] | None,
) -> Launch:
    made_from = () if origins is None else _made_from(step, origins)
    values = (*step.written, *step.read)
    aliased = fusion.aliases
    buffers = tuple(
        [place[one if one not in aliased else fusion.memory_of(one)] for one in values]
    )
    part = _part(step, donated, buffers)
    return Launch(step.kernel, buffers, tuple(range(len(step.written))), made_from, part)


def _part(
    step: Step, donated: Mapping[Node, Node], buffers: tuple[int, ...]
) -> tuple[Node, tuple[int, ...]] | None:
    """The kernel that writes what changes alone, over arguments, and its buffers."""
    first = len(step.written)
    olds: list[int] = []
    for value in step.written:
        param = donated.get(value)
        if param is None or param not in step.read:
            return None
        olds.append(first + step.read.index(param))
    outs = changed_part(step.kernel, olds)
    if outs is None:
        return None
    kernel, slots = kernel_of(outs, first)
    return kernel, (*buffers[:first], *[buffers[slot] for slot in slots])


def _made_from(step: Step, origins: Mapping[Node, Node]) -> tuple[Node, ...]:
    """The tensor nodes that a step computes, as they were before they were rewritten."""
    requests = step.draft.requests.values()
    computed = dict.fromkeys(step.written)
    computed.update(dict.fromkeys([one.node for one in requests if not one.read]))
    return tuple([origins.get(node, node) for node in computed])
