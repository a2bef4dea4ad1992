"""Which form of a value is stored: the narrowest one that says the same.

A value that is a cheap function of one narrower value is computed from that where it is read, and
the narrower one is stored: of a bfloat16 that is widened for arithmetic, the bfloat16. A reduction
that is stored only to be narrowed by its one reader is stored as the reader makes it.
"""

from __future__ import annotations

from baregrad.ir.core.node import Node
from baregrad.ir.core.op import ELEMENTWISE, Ops, mask_of
from baregrad.schedule.draft import Draft, Request, Written
from baregrad.schedule.expand import expand
from baregrad.schedule.fusion import Fusion
from baregrad.schedule.survey import base_of, only_operand, own_work

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
            return value
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

    Empty where nothing narrower is made of it.
    """
    chain: list[Node] = []
    value = node
    while (reader := fusion.only_readers.get(value)) is not None:
        chain.append(reader)
        if reader.dtype.itemsize < node.dtype.itemsize:
            return chain
        value = reader
    return []


def store_narrowed(
    fusion: Fusion, node: Node, requests: list[Request], chain: list[Node], draft: Draft
) -> Request | None:
    """Let `draft` compute and write the last of `chain`, which those read that computed it so far.

    Return the request for `node` there; None, with nothing changed, where that cannot be.
    """
    last = chain[-1]
    made = [request.draft.requests.get((last, request.idx)) for request in requests]
    owners = [request for request in made if request is not None]
    if len(owners) < len(requests) or any(request.read for request in owners):
        return None
    if any(value in fusion.homes for value in chain[:-1]):
        return None
    before = fusion.homes.get(last)
    if before is not None:
        written = [out for out in before.outs if out.target is last]
        if len(written) != 1 or written[0].value not in owners or len(before.outs) == 1:
            return None
        before.outs.remove(written[0])
    for request, owner in zip(requests, owners, strict=True):
        for value in (node, *chain[:-1]):
            del request.draft.requests[value, request.idx]
        owner.parts = ()
        request.draft.count -= len(chain)
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
