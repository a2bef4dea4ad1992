"""Which form of a value is stored: the narrowest one that says the same.

A value that is a cheap function of one narrower value is computed from that where it is read, and
the narrower one is stored: of a bfloat16 that is widened for arithmetic, the bfloat16. A reduction
that is stored only to be narrowed by its one reader is stored as the reader makes it.

A value of which only what is above 0 is stored has its masks taken from that: y = (0 where x <= 0,
else x) is at most 0 where x is, NaN included, and a gradient asks where x is.
"""

from __future__ import annotations

from collections.abc import Callable

from baregrad.ir.core.node import Node
from baregrad.ir.core.op import ELEMENTWISE, Ops, mask_of
from baregrad.schedule.drafts.draft import Draft, Request, Written
from baregrad.schedule.facts.survey import base_of, only_operand, own_work
from baregrad.schedule.fusing.expand import expand
from baregrad.schedule.fusing.fusion import Fusion

# Operations that are done anew at each read of a narrower value.
CHEAP = 4.0
_READS = Ops.PARAM.bit | Ops.BUFFER.bit
_ELEMENTWISE = mask_of(ELEMENTWISE)


def narrower_source(fusion: Fusion, node: Node) -> Node | None:
    """What `node` is a cheap function of, and of nothing else, that takes fewer bytes."""
    nbytes = _nbytes(fusion, node)
    work = 0.0
    value = node
    in_order = False
    while value.op.bit & _ELEMENTWISE or value.op is Ops.CONTIGUOUS:
        below = only_operand(value)
        if below is None:
            return None
        work += 0.0 if value.op is Ops.CONTIGUOUS else own_work(value)
        in_order = in_order or value.op is Ops.CONTIGUOUS
        value = base_of(below)
        if work > CHEAP or not value.mask & _READS:
            return None
        if in_order and value is not _flattened(below):
            return None
        # Integers and bools stay as they are where lanes of one width are read fastest.
        if value.dtype.kind != "float" and not fusion.gpu:
            return None
        if _nbytes(fusion, value) < nbytes:
            # Matrix units take 16-bit floats: who asks for those in memory reads them often.
            asked = node.op is Ops.CONTIGUOUS and value.dtype.is_float and value.dtype.bits == 8
            return None if asked else value
    return None


def _flattened(value: Node) -> Node:
    """What lies below reshapes, in the same order in memory."""
    while value.op is Ops.RESHAPE:
        value = value.src[0]
    return value


def _nbytes(fusion: Fusion, value: Node) -> float:
    return fusion.survey.size[value.shape] * value.dtype.itemsize


def narrowed_by(fusion: Fusion, node: Node) -> list[Node]:
    """What is made of `node` step by step, each the only reader of the one before, up to narrower.

    Empty where nothing narrower is made of it, or where that has more elements.
    """
    chain: list[Node] = []
    value = node
    while (reader := fusion.only_readers.get(value)) is not None:
        chain.append(reader)
        if reader.dtype.itemsize < node.dtype.itemsize:
            fewer = fusion.survey.size[reader.shape] <= fusion.survey.size[node.shape]
            return chain if fewer else []
        value = reader
    return []


def store_narrowed(
    fusion: Fusion, node: Node, requests: list[Request], chain: list[Node],
    open_draft: Callable[[], Draft],
) -> Request | None:
    """Let another kernel write the last of `chain`, which those read that computed it so far.

    open_draft: gives that kernel. Return the request for `node` there; None, with nothing changed,
    where that cannot be.
    """
    last = chain[-1]
    paths = [_path_to(request, [*chain[::-1], node]) for request in requests]
    owners = [path[0] for path in paths if path]
    if len(set(owners)) < len(requests) or any(value in fusion.homes for value in chain[:-1]):
        return None
    before = fusion.homes.get(last)
    if before is not None:
        written = [out for out in before.outs if out.target is last]
        if len(written) != 1 or written[0].value not in owners or len(before.outs) == 1:
            return None
        before.outs.remove(written[0])
    for owner, *below in paths:
        for request in below:
            del request.draft.requests[request.node, request.idx]
        owner.parts = ()
        owner.draft.count -= len(chain)
    draft = open_draft()
    home = fusion.request(last, draft.place_of(last.shape), draft, draft.loops)
    draft.outs.append(Written(last, home, home.idx))
    fusion.store(last, draft, owners)
    request = home
    for value in (*reversed(chain[:-1]), node):
        del fusion.wanted[request.node]
        expand(fusion, request)
        (request,) = fusion.wanted[value]
    del fusion.wanted[node]
    return request


def _path_to(request: Request, values: list[Node]) -> list[Request]:
    """The requests for some values, each made for the one before, down to `request`; or none."""
    for first in request.draft.requests.values():
        if first.node is not values[0] or first.read:
            continue
        path = [first]
        while path[-1] is not request:
            parts = [part for part in path[-1].parts if isinstance(part, Request)]
            if len(parts) != 1 or not parts[0].fresh or parts[0].node is not values[len(path)]:
                break
            path.append(parts[0])
        else:
            return path
    return []


def take_from_result(fusion: Fusion, node: Node, requests: list[Request]) -> list[Request]:
    """Let masks of `node` read what it was held above 0 as; what still wants `node` itself."""
    held = fusion.held_above_zero.get(node)
    if held is None or held not in fusion.homes:
        return requests
    home = fusion.homes[held]
    mask = held.src[0]
    left = []
    for request in requests:
        draft = request.draft
        owner = draft.requests.get((mask, request.idx))
        is_upstream = draft.dependents >> home.number & 1
        if draft is home or is_upstream or not request.fresh or owner is None:
            left.append(request)
            continue
        if request not in owner.parts:
            left.append(request)
            continue
        del draft.requests[node, request.idx]
        draft.pending -= 1
        read = fusion.read(held, request)
        owner.parts = tuple([read if part is request else part for part in owner.parts])
    return left
