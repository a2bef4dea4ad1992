"""How each op hands its index on to its sources, when it is computed where it is read."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.op import ELEMENTWISE, Op, Ops
from baregrad.schedule.drafts.access import VIEWS, Idx, through_fold
from baregrad.schedule.drafts.draft import Part, Request, hoisted
from baregrad.schedule.facts.survey import COSTLY
from baregrad.schedule.facts.traffic import is_half
from baregrad.schedule.fusing.fusion import Fusion

_CONST = Ops.CONST
_INDEX = dtypes.index
# Of arrays of these a request is made as they are, at the index of what reads them.
COMPUTED = ~(VIEWS | Ops.CONST.bit | Ops.IOTA.bit)
_POINTWISE = ELEMENTWISE | frozenset((Ops.PROJ, Ops.CONTIGUOUS))


def _expand_pointwise(fusion: Fusion, request: Request) -> None:
    node = request.node
    idx, draft, scope, share = request.idx, request.draft, request.scope, request.share
    evals, above = request.evals, request.above
    wanted, resolve = fusion.request, fusion.resolve
    parts: list[Part] = []
    for child in node.src:
        if child.op.bit & COMPUTED and child.shape and child.dtype is not _INDEX:
            parts.append(wanted(child, idx, draft, scope, share, evals, above))
        elif child.op is _CONST:
            parts.append(child)
        else:
            parts.append(resolve(child, idx, draft, scope, share, evals, above))
    request.parts = tuple(parts)


def _expand_pad(fusion: Fusion, request: Request) -> None:
    node = request.node
    condition, idx = fusion.through_pad(node, request.idx)
    survey = fusion.survey
    part = survey.size[node.src[0].shape] / max(survey.size[node.shape], 1.0)
    request.extra = condition
    share = request.share * part
    request.parts = (
        fusion.resolve(
            node.src[0], idx, request.draft, request.scope, share, None, request.above
        ),
    )
    if request.merges:
        # Zeros around an addend of a sum: what is added further in may be part of it too.
        _mark_merge(request)


def _inner_scope(request: Request, axes: Idx) -> Idx:
    """The ranges around the body of a reduction: those that it is hoisted to, then its own."""
    own = [axis for axis in axes if axis.op is Ops.RANGE]
    return (*request.scope[: hoisted(request.scope, request.idx)], *own)


def _expand_reduce(fusion: Fusion, request: Request) -> None:
    node, draft = request.node, request.draft
    shape = node.src[0].shape
    closed = node.arg.axes
    extents = tuple([shape[axis] for axis in closed])
    axes, above = draft.fold(request, extents)
    kept = iter(request.idx)
    own = iter(axes)
    idx = tuple([next(own if axis in closed else kept) for axis in range(len(shape))])
    scope = _inner_scope(request, axes)
    request.extra = axes
    request.parts = tuple(
        [fusion.resolve(value, idx, draft, scope, request.share, None, above) for value in node.src]
    )
    _note_reduction(fusion, request)
    inner = request.parts[0]
    if isinstance(inner, Request) and inner.node.op is Ops.REDUCE and not inner.read:
        # A sum of sums is one sum, unless the inner one deserves a contraction's tiles.
        if inner.node not in fusion.survey.contractions:
            inner.merges = inner.fresh and inner.node.arg.monoid is node.arg.monoid


def _expand_fold(fusion: Fusion, request: Request) -> None:
    node, draft = request.node, request.draft
    survey = fusion.survey
    tap = draft.axis(node.arg.taps)
    condition, idx = through_fold(node, request.idx, tap)
    part = survey.size[node.src[0].shape] / max(survey.size[node.shape] * node.arg.taps, 1.0)
    request.extra = ((tap,), condition)
    scope = _inner_scope(request, (tap,))
    share = request.share * part
    request.parts = (
        fusion.resolve(node.src[0], idx, draft, scope, share, None, request.above),
    )
    _note_reduction(fusion, request)
    _mark_merge(request)


def _note_reduction(fusion: Fusion, request: Request) -> None:
    draft = request.draft
    draft.reductions += 1
    if draft.contraction is None and request.node in fusion.survey.contractions:
        draft.contraction = request.node


def _mark_merge(request: Request) -> None:
    """Tell a sum inside a FOLD's sum that it may become part of it."""
    inner = request.parts[0]
    if not isinstance(inner, Request) or inner.read or not inner.fresh:
        return
    op = inner.node.op
    if op is Ops.REDUCE:
        inner.merges = inner.node.arg.monoid.primitive is Ops.ADD
    else:
        inner.merges = op is Ops.FOLD or op is Ops.PAD


def _expand_gather(fusion: Fusion, request: Request) -> None:
    array, *places = request.node.src
    draft, scope, share = request.draft, request.scope, request.share
    above = request.above
    found = [fusion.place(place, request.idx, draft, scope, share, above) for place in places]
    conditions = []
    for place, extent in zip(found, array.shape, strict=True):
        conditions.append(index.at_least(place, 0))
        conditions.append(index.less(place, extent))
    request.extra = index.both(*conditions)
    request.parts = (fusion.resolve(array, tuple(found), draft, scope, share, None, above),)


def _expand_scan(fusion: Fusion, request: Request) -> None:
    axis = request.extra = request.idx[request.node.arg.axis]
    request.draft.reductions += 1
    if axis.op is Ops.RANGE:
        request.draft.scanned = axis
    _expand_pointwise(fusion, request)


Expansion = Callable[[Fusion, Request], None]
EXPANSIONS: MappingProxyType[Op, Expansion] = MappingProxyType(
    {
        **dict.fromkeys(_POINTWISE, _expand_pointwise),
        Ops.PAD: _expand_pad,
        Ops.REDUCE: _expand_reduce,
        Ops.FOLD: _expand_fold,
        Ops.GATHER: _expand_gather,
        Ops.SCAN: _expand_scan,
        Ops.SCATTER: _expand_pointwise,
    }
)

_COUNTS = MappingProxyType({op: 1 + int(work) // 4 for op, work in COSTLY.items()})
# Asked faster than read-only views of them.
_count_of = dict(_COUNTS).get
_expansion_of = dict(EXPANSIONS).__getitem__


def expand(fusion: Fusion, request: Request) -> None:
    """Compute a value where it is wanted: hand its index on to its sources."""
    draft = request.draft
    draft.pending -= 1
    op = request.node.op
    if request.node in fusion.row_factors:
        # Made once for many rows: neither that nor what it reads bounds a kernel.
        draft.loads -= sum(map(is_half, request.node.src))
    else:
        # A sine is dozens of instructions: kernels are bounded by those, not by nodes.
        draft.count += _count_of(op, 1)
    _expansion_of(op)(fusion, request)
