"""Values that are stored in a way of their own: views, scatters, padded arrays."""

from __future__ import annotations

from baregrad.ir.analysis.stream import is_stream
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Out
from baregrad.ir.core.index import as_node
from baregrad.ir.core.node import Node, const, make_node, toposort
from baregrad.ir.core.op import ELEMENTWISE, Ops
from baregrad.ir.core.shape import is_zero
from baregrad.schedule.drafts.access import VIEW_RULES, Idx
from baregrad.schedule.drafts.draft import Draft, Request, Written, loop_extents
from baregrad.schedule.facts.survey import base_of
from baregrad.schedule.fusing import rules
from baregrad.schedule.fusing.fusion import Fusion
from baregrad.schedule.plan import Decision

_COMPUTED = ELEMENTWISE | frozenset((Ops.REDUCE, Ops.FOLD, Ops.PROJ))


def store_view(fusion: Fusion, root: Node) -> None:
    """An output that is a view, or made of constants alone: a kernel that copies it."""
    draft = fusion.open_draft(root.shape)
    value = fusion.resolve(root, draft.outer, draft, draft.loops)
    draft.outs.append(Written(root, value, draft.outer))
    fusion.homes[root] = draft
    fusion.decisions.append(Decision(root, True, "output"))


def store_scatter(fusion: Fusion, node: Node, requests: list[Request]) -> None:
    """Two kernels on one array: the base is written, unless all of it is again, then the values."""
    base, values, *places = node.src
    draft = fusion.open_draft(values.shape or places[0].shape)
    draft.sealed = True
    here, loops = draft.outer, draft.loops
    value = fusion.resolve(values, here, draft, loops)
    idx = tuple([fusion.place(place, here, draft, loops) for place in places])
    draft.outs.append(Written(node, value, idx, Out(*node.arg)))
    fusion.store(node, draft, requests)
    later = fusion.before.get(node)
    if later is not None:
        fusion.run_before(draft, later)
    fusion.decisions.append(Decision(node, True, "scatter writes in place"))
    if node.arg.whole:
        return
    if base.op is Ops.SCATTER and fusion.survey.readers[base] == 1 and base not in fusion.must:
        fusion.aliases[base] = node
        fusion.must[base] = "scatter into the same array"
        fusion.wanted.pop(base, None)
        fusion.before[base] = draft
        return
    first = fusion.open_draft(node.shape)
    first.sealed = True
    written = fusion.resolve(base, first.outer, first, first.loops)
    first.outs.append(Written(node, written, first.outer))
    fusion.run_before(first, draft)


# --- padded arrays --------------------------------------------------------------------------------


def stream_beside(
    fusion: Fusion, node: Node, requests: list[Request]
) -> tuple[Draft, Idx] | None:
    """The kernel of a stream that can write a state that its columns share, and its index there."""
    below = node.src[0] if node.op is Ops.CONTIGUOUS else node
    state = base_of(below)
    if below.op is not Ops.SHRINK or state.op is not Ops.PROJ or not is_stream(state.src[0]):
        return None
    if node.shape != (*state.shape[:-1], 1):
        return None
    fold = state.src[0]
    draft = fusion.streams.get(fold)
    if draft is None:
        written = [one for one in fusion.order if one.op is Ops.CONTIGUOUS and _sums(one, fold)]
        # None that needs, beside the last sum, what is made of the state.
        later = rules.dependents_of(request.draft for request in requests)
        homes = [fusion.homes[one] for one in written if one in fusion.homes]
        homes = [home for home in homes if not later >> home.number & 1]
        if not written:
            return None
        # What is written at every column may have its turn later.
        draft = homes[0] if homes else fusion.open_draft(state.shape)
        fusion.streams[fold] = draft
    return draft, draft.place_of(state.shape)


def stream_below(fusion: Fusion, node: Node) -> Draft | None:
    """The kernel of a stream that writes a state already, if a value is made of its last sum."""
    for fold, draft in fusion.streams.items():
        if _sums(node, fold) and draft.extents == loop_extents(node.shape):
            return draft
    return None


def _sums(node: Node, fold: Node) -> bool:
    """Whether a value is made, element by element, of the last sum of a stream.

    Not if it needs other elements of the sum as well, as what a reduction makes of them: these are
    stored before, and no kernel reads what it writes.
    """
    last = make_node(Ops.PROJ, fold.dtype, (fold,), fold.arg.monoid.arity - 1)
    if node.shape != last.shape:
        return False
    made = toposort(node, enter=_is_arithmetic)
    if last not in made:
        return False
    beside = [one for one in made if one is not last and not _is_arithmetic(one)]
    return last not in toposort(*beside)


def _is_arithmetic(node: Node) -> bool:
    return node.op in ELEMENTWISE or node.op is Ops.CONTIGUOUS


def is_worth_padding_in_place(fusion: Fusion, node: Node) -> bool:
    """Whether a PAD is of something computed, which can be written between the zeros at once.

    A negative pad cuts elements off, and there is no place for them.
    """
    if node.op is not Ops.PAD or any(
        index.lower(side) < 0 for pad in node.arg for side in (pad.lo, pad.hi)
    ):
        return False
    below = node.src[0]
    while below.op in VIEW_RULES:
        below = below.src[0]
    return below.op in _COMPUTED and below not in fusion.must


def store_padded(fusion: Fusion, node: Node, requests: list[Request]) -> None:
    """Zeros everywhere, then the values where they belong, by the kernel that computes them.

    So no inner loop has a condition, and a contraction's epilogue may write into the padded array.
    """
    source = node.src[0]
    draft = rules.find_sibling(fusion, node, source.shape, requests)
    if draft is None:
        draft = fusion.open_draft(source.shape)
    place = draft.place_of(source.shape)
    value = fusion.resolve(source, place, draft, draft.loops)
    draft.outs.append(Written(node, value, _padded_place(node, place)))
    fusion.store(node, draft, requests)
    zeros = fusion.open_draft(node.shape)
    zeros.sealed = True
    zeros.outs.append(Written(node, const(0, node.dtype), zeros.outer))
    fusion.run_before(zeros, draft)


def _padded_place(node: Node, place: Idx) -> Idx:
    """Where element `place` of the source lies in the padded array."""
    found = []
    for at, pad in zip(place, node.arg, strict=True):
        if pad.interior or not is_zero(pad.lo):
            at = as_node(index.add(index.mul(at, pad.interior + 1), pad.lo))
        found.append(at)
    return tuple(found)
