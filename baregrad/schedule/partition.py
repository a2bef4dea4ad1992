"""Kernels out of drafts: cut, named, ordered so that little memory is alive at a time."""

from __future__ import annotations

from dataclasses import dataclass

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import dtypes
from baregrad.ir.core.attrs import KernelInfo
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.schedule.drafts.axes import Settled, settle_axes
from baregrad.schedule.drafts.build import Arrays, Mentioned, build
from baregrad.schedule.drafts.draft import Draft, Written
from baregrad.schedule.fusing.fusion import Fusion

# The kernels of one plan by their OUT nodes as they were built: layers repeat. With each, which of
# the slots that were built for reading it reads.
Kernels = dict[tuple[Node, ...], tuple[Node, list[int]]]
# Kernels between two that read nothing, at most, where the second is moved to the first.
NEAR = 4


@dataclass(slots=True, eq=False)
class Step:
    """One kernel over stored values: those it writes, then those it reads."""

    draft: Draft
    kernel: Node
    written: tuple[Node, ...]
    read: tuple[Node, ...]


def partition(fusion: Fusion) -> list[Step]:
    """The steps of a fused graph, in the order in which they run."""
    arrays: Arrays = {}
    known: Kernels = {}
    drafts = [draft for draft in fusion.drafts if draft.outs]
    steps = {draft: _built_step(draft, draft.outs, arrays, known) for draft in drafts}
    return [steps[draft] for draft in _run_order(fusion, steps)]


def remake(step: Step, order: tuple[Node, ...]) -> Step:
    """The same step with its outputs written in another order."""
    outs = sorted(step.draft.outs, key=lambda out: order.index(out.target))
    return _built_step(step.draft, outs, {}, {})


def _built_step(
    draft: Draft, outs_wanted: list[Written], arrays: Arrays, known: Kernels
) -> Step:
    built = build(draft, outs_wanted, arrays)
    first = len(built.written)
    found = known.get(built.outs)
    if found is None:
        found = known[built.outs] = kernel_of(built.outs, first, built.plain)
    kernel, slots = found
    read = built.read
    if len(slots) < len(read):
        read = tuple([read[slot - first] for slot in slots])
    return Step(draft, kernel, built.written, read)


def kernel_of(
    outs: tuple[Node, ...], first: int, plain: Mentioned | None = None
) -> tuple[Node, list[int]]:
    """The KERNEL of some OUT nodes, and which slots, behind the `first` that it writes, it reads.

    PARAMs that simplification has left without use are gone; those behind them have moved up.
    plain: what the OUTs mention, where that is known.
    """
    settled = settle_axes(outs, plain)
    slots = sorted([slot for slot in settled.params if slot >= first])
    moved: dict[Node, Node] = {}
    for position, slot in enumerate(slots, first):
        if slot != position:
            param = settled.params[slot]
            arg = param.arg._replace(slot=position)
            moved[param] = Node(Ops.PARAM, param.dtype, (), arg)
    kept = tuple([substitute(out, moved) for out in settled.outs]) if moved else settled.outs
    return Node(Ops.KERNEL, dtypes.token, kept, KernelInfo(kernel_name(settled))), slots


def kernel_name(settled: Settled) -> str:
    """A name that says what a kernel does and over which extents; equal for equal kernels."""
    mask = 0
    for out in settled.outs:
        mask |= out.mask
    if any(out.arg.monoid is not None for out in settled.outs):
        kind = "scatter"
    elif mask & Ops.SCAN.bit:
        kind = "scan"
    elif mask & Ops.REDUCE.bit:
        kind = "reduce"
    else:
        kind = "map"
    for sizes in (settled.data, settled.reduced):
        if sizes:
            kind += "_" + _extents(sizes)
    return kind


def _extents(sizes: list[Dim]) -> str:
    return "x".join([str(size) if size.__class__ is int else "n" for size in sizes])


# --- order ----------------------------------------------------------------------------------------


def _run_order(fusion: Fusion, steps: dict[Draft, Step]) -> list[Draft]:
    """Depth first from the shallowest outputs, deepest needs first.

    So the backward pass follows the forward pass, a layer's update follows its gradient, and what
    depends on arguments alone (random masks, casts of weights) waits until it is wanted. What
    turned out to be read by nobody is left out.
    """
    needs = {draft: _needs(fusion, draft, step) for draft, step in steps.items()}
    depth = _depths(needs)
    wanted = frozenset(fusion.memory_of(value) for value in fusion.outputs)
    finals = [
        draft
        for draft, step in steps.items()
        if any(fusion.memory_of(value) in wanted for value in step.written)
    ]
    stack = sorted(finals, key=lambda d: (-depth[d], -d.number))
    order: list[Draft] = []
    state: dict[Draft, int] = {}
    while stack:
        draft = stack[-1]
        if state.get(draft) is None:
            state[draft] = 1
            below = [one for one in needs[draft] if one not in state]
            stack.extend(sorted(below, key=lambda d: (depth[d], d.number)))
            continue
        stack.pop()
        if state[draft] == 1:
            state[draft] = 2
            order.append(draft)
    return _fills_together(order, steps, needs) if fusion.gpu else order


def _fills_together(
    order: list[Draft], steps: dict[Draft, Step], needs: dict[Draft, list[Draft]]
) -> list[Draft]:
    """What reads nothing beside such a kernel shortly before it: a GPU launches them as one."""
    found: list[Draft] = []
    last: int | None = None
    for draft in order:
        is_fill = not steps[draft].read and not needs[draft]
        if is_fill and last is not None and len(found) - last <= NEAR:
            last += 1
            found.insert(last, draft)
            continue
        if is_fill:
            last = len(found)
        found.append(draft)
    return found


def _needs(fusion: Fusion, draft: Draft, step: Step) -> list[Draft]:
    """The drafts that must run before this one."""
    found = {fusion.homes[value]: None for value in step.read if value.op is not Ops.PARAM}
    for other in draft.after:
        found[other] = None
    if draft in found:
        raise CompilerBug("a kernel reads what it writes", found=[repr(v) for v in step.written])
    return list(found)


def _depths(needs: dict[Draft, list[Draft]]) -> dict[Draft, int]:
    """The longest chain of kernels below each; raises CompilerBug where they form a cycle."""
    depth: dict[Draft, int] = {}
    entered: set[Draft] = set()
    for root in needs:
        stack = [root]
        while stack:
            draft = stack[-1]
            if draft in depth:
                stack.pop()
                continue
            missing = [one for one in needs[draft] if one not in depth]
            if not missing:
                depth[draft] = 1 + max([depth[one] for one in needs[draft]], default=0)
                stack.pop()
            elif draft in entered:
                raise CompilerBug("kernels form a cycle", found=[d.number for d in missing])
            else:
                entered.add(draft)
                stack.extend(missing)
    return depth
