"""The walk that assigns ranges and fuses: from the outputs to the leaves, each value once.

When a value's turn comes, all its readers have said at which indices they want it. Either it is
computed at each of them, inside the readers' kernels, and hands its own indices on to its sources;
or it is stored: computed once, over its own ranges, in a kernel that is already there or in a new
one, and read by the others. `rules.py` decides which.
"""

from __future__ import annotations

from collections.abc import Collection

from baregrad.base.errors import CompilerBug
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import SPELLED, Ops
from baregrad.schedule.drafts.access import ZERO
from baregrad.schedule.drafts.draft import Draft, Request, Written
from baregrad.schedule.facts.compared import compared_sums
from baregrad.schedule.facts.survey import read_in_place, streamed, take_survey
from baregrad.schedule.fusing import narrow, rules, stores
from baregrad.schedule.fusing.expand import EXPANSIONS, expand
from baregrad.schedule.fusing.fusion import Fusion
from baregrad.schedule.plan import Decision

_FOLDS = Ops.REDUCE.bit | Ops.FOLD.bit


def fuse(
    sink: Node, gpu: bool = False, matrix_units: bool = False, over: Collection[int] = ()
) -> Fusion:
    """The kernels of a SINK of tensor values, in the making: every value visited, readers first.

    gpu, matrix_units: whether the machine is one, and has units for products of 16-bit floats.
    over: the outputs, by position, that may be written over arguments.
    """
    fusion = Fusion(sink, gpu, matrix_units)
    _name_outputs(fusion)
    fusion.over.update(fusion.outputs[place] for place in over if place < len(fusion.outputs))
    fusion.streamed = streamed(fusion.order, fusion.must)
    fusion.survey = take_survey(fusion.order, fusion.must, fusion.gpu)
    fusion.streamed |= read_in_place(fusion.survey)
    fusion.compared = compared_sums(fusion.sink, fusion.order, fusion.survey)
    for root in dict.fromkeys(fusion.outputs):
        if root not in fusion.must and root.op is not Ops.PARAM:
            stores.store_view(fusion, root)
    wanted, must, homes = fusion.wanted.pop, fusion.must, fusion.homes
    is_plain = rules.is_plain
    for node in reversed(fusion.order):
        requests = wanted(node, None)
        if requests is None:
            if node in must and node not in homes:
                _visit(fusion, node, [])
        elif is_plain(fusion, node, requests):
            expand(fusion, requests[0])
        else:
            _visit(fusion, node, requests)
    if fusion.wanted:
        raise CompilerBug("values were wanted after their turn", found=list(fusion.wanted)[:3])
    return fusion


def _name_outputs(fusion: Fusion) -> None:
    """The value behind each output: reshapes share its memory, since arrays are row-major."""
    # What others read from memory as well is not stored twice.
    kept = {
        child for node in fusion.order if node is not fusion.sink
        for child in node.src if child.op is Ops.CONTIGUOUS
    }
    for root in fusion.sink.src:
        while root.op in (Ops.RESHAPE, Ops.DETACH, Ops.CONTIGUOUS) and root not in kept:
            root = root.src[0]
        fusion.outputs.append(root)
        if root.op in EXPANSIONS and root.mask & ~SPELLED:
            fusion.must[root] = "output"


def _visit(fusion: Fusion, node: Node, requests: list[Request]) -> None:
    if node in fusion.homes:
        # An output made of constants alone, which has its kernel: others spell it out.
        for request in requests:
            expand(fusion, request)
        return
    if node.op is Ops.SCATTER:
        stores.store_scatter(fusion, node, requests)
        return
    verdict = rules.decide(fusion, node, requests)
    if verdict.stored and fusion.gpu and node not in fusion.must:
        left = narrow.take_from_result(fusion, node, requests)
        if len(left) < len(requests):
            _visit(fusion, node, left)
            return
    if verdict.reason:
        fusion.decisions.append(Decision(node, verdict.stored, verdict.reason))
    if not verdict.stored:
        for request in requests:
            expand(fusion, request)
        return
    if verdict.home is None and stores.is_worth_padding_in_place(fusion, node):
        stores.store_padded(fusion, node, requests)
        return
    home = verdict.home
    if home is None and node.op.bit & _FOLDS and _is_stored_narrowed(fusion, node, requests):
        return
    beside = stores.stream_beside(fusion, node, requests) if home is None else None
    if beside is not None:
        # What a stream's columns share is computed at each of them, and written at the first.
        draft, idx = beside
        home = fusion.request(node, idx, draft, draft.loops)
        place = (*idx[:-1], ZERO)
    if home is None:
        found = stores.stream_below(fusion, node) if fusion.streams else None
        found = found or rules.find_sibling(fusion, node, node.shape, requests)
        draft = found or fusion.open_draft(node.shape)
        home = fusion.request(node, draft.place_of(node.shape), draft, draft.loops)
    others = [request for request in requests if request is not home]
    if home.read:
        raise CompilerBug("a kernel reads what it is to compute", found=repr(node))
    home.draft.outs.append(Written(node, home, home.idx if beside is None else place))
    fusion.store(node, home.draft, others)
    fusion.wanted.pop(node, None)
    expand(fusion, home)


def _is_stored_narrowed(fusion: Fusion, node: Node, requests: list[Request]) -> bool:
    """Store what a reduction's reader makes of it instead, where that is narrower."""
    chain = narrow.narrowed_by(fusion, node)
    if not chain:
        return False

    def open_draft() -> Draft:
        shape, found = chain[-1].shape, None
        if node not in fusion.survey.contractions:
            found = rules.find_sibling(fusion, chain[-1], shape, requests)
        return found or fusion.open_draft(shape)

    request = narrow.store_narrowed(fusion, node, requests, chain, open_draft)
    if request is None:
        return False
    fusion.decisions.append(Decision(chain[-1], True, "a reduction stored as it is narrowed"))
    _visit(fusion, node, [request])
    return True
