"""What storing a value costs and what computing it anew does, of a GPU's kernels."""

from __future__ import annotations

from baregrad.ir.core.node import Node
from baregrad.ir.core.op import ELEMENTWISE, Ops, mask_of
from baregrad.schedule.drafts.draft import Draft, Request
from baregrad.schedule.facts.survey import own_work
from baregrad.schedule.facts.traffic import OPERATIONS_PER_BYTE
from baregrad.schedule.fusing.fusion import Fusion

LAUNCH = 4000.0  # about a microsecond
# Elements that memory takes longer to move than a launch takes, and operations on one meanwhile.
# With functions, as of silu and its gradient, it was slower to compute them anew.
LARGE, MOVED_WORK, WIDE_NBYTES = 1 << 20, 6.0, 4
_READS = Ops.PARAM.bit | Ops.BUFFER.bit
_AT_HAND = _READS | mask_of((Ops.REDUCE, Ops.FOLD, Ops.SCAN, Ops.CONTIGUOUS))
_ELEMENTWISE = mask_of(ELEMENTWISE)


def costs_on_gpu(
    fusion: Fusion, node: Node, requests: list[Request], total: float, has_home: bool
) -> tuple[float, float]:
    """What computing a value at every request costs, and what storing it does.

    total: evaluations. has_home: one of several kernels that read it computes it as well.
    """
    survey = fusion.survey
    size, work = max(survey.size[node.shape], 1.0), survey.work[node]
    nbytes = node.dtype.itemsize
    moved = OPERATIONS_PER_BYTE * sum(fusion.traffic.behind(node).values())
    is_large = is_moved(fusion, node)
    # The share of it that each kernel reads what it does not read anyway for.
    shares: dict[Draft, float] = {}
    inline = 0.0
    for request in requests:
        marginal = marginal_work(fusion, request, work) if node.op.bit & _ELEMENTWISE else work
        inline += request.evals * marginal
        if marginal == work and not (is_large and _reads_anyway(fusion, node, request)):
            shares[request.draft] = shares.get(request.draft, 0.0) + request.evals / size
    inline += sum(moved * min(1.0, share) for share in shares.values())
    kernels = len({request.draft for request in requests})
    if kernels > 1 and has_home:
        kernels -= 1
    through = OPERATIONS_PER_BYTE * nbytes * size * (1 + kernels)
    return inline, work * size + moved + through + nbytes * total + LAUNCH


def is_moved(fusion: Fusion, node: Node) -> bool:
    """Whether a value takes as long as what is moved for it: large, and quick to compute.

    Narrow ones are best stored before others are, of which they are made.
    """
    is_wide = bool(node.op.bit & _ELEMENTWISE) and node.dtype.itemsize >= WIDE_NBYTES
    if not is_wide or fusion.survey.size[node.shape] < LARGE:
        return False
    return not exceeds(fusion, node, MOVED_WORK)


def _reads_anyway(fusion: Fusion, node: Node, request: Request) -> bool:
    """Whether a kernel reads all that a value is computed from for others, as far as is known."""
    behind = fusion.traffic.behind(node)
    size = fusion.survey.size[node.shape]
    found: set[Node] = set()
    for other, _ in request.draft.requests:
        if other is not node and fusion.survey.size[other.shape] >= size:
            found |= fusion.traffic.arrays(other)
    return found.issuperset(behind)


def marginal_work(fusion: Fusion, request: Request, work: float) -> float:
    """What a value adds to a kernel: little, where its operands are wanted there anyway."""
    for child in request.node.src:
        if child.mask & _READS and not fusion.is_wanted(child, request.idx, request.draft):
            return work
    return own_work(request.node)


def exceeds(fusion: Fusion, node: Node, most: float) -> bool:
    """Whether an element takes so many operations, from what is in memory and sums on."""
    work = own_work(node)
    near, seen = [node], {node}
    for value in near:
        if work >= most:
            return True
        for child in value.src:
            if child in seen or child in fusion.must or child.op.bit & _AT_HAND:
                continue
            seen.add(child)
            near.append(child)
            work += own_work(child) if child.op.bit & _ELEMENTWISE else 0.0
    return work >= most
