"""The fusion rules: what is computed where it is read, what is stored, and where.

A value is stored when something forbids computing it inside its readers (`obstacle`), or when
storing it costs less than computing it again and again. Costs are in plain vectorised operations;
moving one byte counts as one, a launch as LAUNCH. The constants are rough on purpose: decisions
that are close do not matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node, make_node
from baregrad.ir.core.op import ELEMENTWISE, Ops, mask_of
from baregrad.schedule.drafts.access import Idx
from baregrad.schedule.drafts.draft import (
    Draft,
    Request,
    extent_points,
    is_identity,
    loop_extents,
    points_of,
    ranges_of,
)
from baregrad.schedule.facts.packed_factors import WHY as WHY_PACKED
from baregrad.schedule.facts.survey import READ_BY_STREAM, is_tuple, own_work
from baregrad.schedule.facts.traffic import GPU_LAUNCH, is_little
from baregrad.schedule.fusing import padded
from baregrad.schedule.fusing.costs import LAUNCH, costs_on_gpu, exceeds, is_moved, marginal_work
from baregrad.schedule.fusing.fusion import Fusion, Neighbours
from baregrad.schedule.fusing.narrow import narrower_source
from baregrad.schedule.plan import Reason

MAX_OPS = 200  # values computed in one kernel; dear ones count several times
MAX_LOADS, MAX_GPU_LOADS = 24, 40  # arrays read by one kernel; a GPU joins those of neighbours
# So many times as many of both on a GPU where a kernel has few points, or multiplies words.
FEW_POINTS, FEW_MORE = 1 << 14, 2
LONG_NEST = 16384.0  # steps for one result of a sum of sums, on a GPU
# Arrays that are written and read beside a tile of results, which lies in registers meanwhile.
EPILOGUE_OUTS, EPILOGUE_READS = 2, 4
# An array this many times smaller than the results does not count: a row or a column of numbers.
EPILOGUE_REUSE = 16.0
ROWS = 16  # independent rows that keep a small machine busy
SERIAL_WORK = 65536.0  # operations that one thread may as well do alone
# Operations of a sum that each block may as well make: of any, and on a GPU of the only result of
# one in a kernel of few points, as a norm of a row is.
SMALL_WORK, SMALL_GPU_WORK = 4096.0, 32768.0
LONG_WORK = 1 << 20  # operations of a sum that no single thread is to do
# Operations that a GPU makes in no time, as all its threads do: where each would be stored to be
# read so many times.
SOON_MADE, OFTEN = 1 << 22, 4.0
FUNCTION_WORK = 16.0  # operations of a value that has a function in it
NO_READS_WORK = 32.0  # places and masks are computed wherever they are wanted
SAME_KERNEL = 1.5  # keeping a kernel whole is worth some recomputation
SIBLINGS = 8  # drafts of one shape that are looked at
_READS = Ops.PARAM.bit | Ops.BUFFER.bit
_FOLDS = Ops.REDUCE.bit | Ops.FOLD.bit
_ELEMENTWISE = mask_of(ELEMENTWISE)
WHY_CHEAP = "made anew by all threads in less time than a launch takes"


class Verdict(NamedTuple):
    """The decision about one value; `home` is the request whose kernel computes and writes it."""

    stored: bool
    reason: Reason = ""
    home: Request | None = None


_FUSED = Verdict(False)


class _Dearer(NamedTuple):
    """Storing is cheaper; put in words when somebody asks, since most decisions are not read."""

    rate: float
    times: float

    def __str__(self) -> str:
        return (
            f"{self.rate:.3g} evaluations an element cost {self.times:.2g} times what storing does"
        )


def decide(fusion: Fusion, node: Node, requests: list[Request]) -> Verdict:
    """Whether to store `node`, given all the requests for it; not asked where it `is_plain`."""
    if is_tuple(node) or node in fusion.streamed:
        return _FUSED
    reason: Reason = fusion.must.get(node, "")
    obstacles = []
    for request in requests:
        found = obstacle(fusion, node, request)
        obstacles.append(found)
        if not reason:
            reason = found
    if not reason and len(requests) > 1 and node in fusion.compared:
        reason = "compared with what is made of it elsewhere"
    if not reason and node.op is Ops.PAD and padded.is_copied_in_bands(fusion, node, requests):
        return Verdict(False, "copied by the convolution, some rows at a time")
    if not reason and node.op is Ops.PAD and padded.is_shared_by_threads(fusion, node, requests):
        return Verdict(False, "read by windows, each thread for several at once")
    if not reason and node.op is Ops.PAD and padded.is_read_in_chunks(fusion, node, requests):
        return Verdict(False, "read in chunks, each of which is there or not")
    if not reason and node in fusion.packed and _is_in_one_kernel(requests):
        return Verdict(False, WHY_PACKED)
    if not reason and fusion.gpu and (
        _is_cheaper_than_a_launch(fusion, node, requests)
        or _is_soon_made(fusion, node, requests, obstacles)
    ):
        return Verdict(False, WHY_CHEAP)
    if not reason:
        reason = _dearer_inline(fusion, node, requests)
    if not reason:
        why = _why_fused(node, requests)
        return _fused(why) if why else _FUSED
    if node not in fusion.must:
        source = narrower_source(fusion, node)
        if source is not None:
            if source.op is not Ops.PARAM:
                fusion.must.setdefault(source, "what is made of it is cheap and takes more bytes")
            return Verdict(False, "its narrower source is stored")
    # A stream's kernel writes its own results alone.
    home = None if reason is READ_BY_STREAM else _find_home(fusion, node, requests, obstacles)
    return Verdict(True, reason, home)


def _is_in_one_kernel(requests: list[Request]) -> bool:
    """Whether one kernel alone wants a value, within its reductions."""
    return len({request.draft for request in requests}) == 1 and all(
        request.above for request in requests
    )


def _is_cheaper_than_a_launch(fusion: Fusion, node: Node, requests: list[Request]) -> bool:
    """Whether a sum's threads make a few operations on a row of 16 bits in less than a launch.

    Tiles of matrix units copy what they multiply, and cannot.
    """
    if not node.op.bit & _ELEMENTWISE or not _is_in_one_kernel(requests):
        return False
    if requests[0].draft.contraction in fusion.matrix_products or not is_little(node):
        return False
    return own_work(node) * sum(request.evals for request in requests) < GPU_LAUNCH


def _is_soon_made(
    fusion: Fusion, node: Node, requests: list[Request], obstacles: list[str]
) -> bool:
    """Whether all readers make a few operations sooner than a kernel of their own begins.

    Those behind the value count: none of a chain of functions is stored either. Tiles of products
    hold what they multiply, and would compute it between their copies.
    """
    if not node.op.bit & _ELEMENTWISE:
        return False
    if any(request.draft.contraction is not None for request in requests):
        return False
    evals = sum(request.evals for request in requests)
    if evals < OFTEN * fusion.survey.size[node.shape]:
        return False
    if exceeds(fusion, node, SOON_MADE / max(evals, 1.0)):
        return False
    return _find_home(fusion, node, requests, obstacles) is None


def is_plain(fusion: Fusion, node: Node, requests: list[Request]) -> bool:
    """Whether it is the usual case: arithmetic that one kernel computes once, with room for it."""
    if len(requests) != 1 or not node.op.bit & _ELEMENTWISE or node in fusion.must:
        return False
    request = requests[0]
    draft = request.draft
    if fusion.gpu and _is_anew_in_each_thread(fusion, node, request):
        return False
    loads = draft.loads + draft.pending + len(node.src)
    if draft.count >= _most_ops(fusion, draft) or loads > _most_loads(fusion, draft):
        return False
    return request.evals <= fusion.survey.size[node.shape] * 1.001


def _most_ops(fusion: Fusion, draft: Draft) -> int:
    """How many values a kernel may compute."""
    return MAX_OPS * _times_more(draft) if fusion.gpu else MAX_OPS


def _most_loads(fusion: Fusion, draft: Draft) -> int:
    """How many arrays a kernel may read."""
    return MAX_GPU_LOADS * _times_more(draft) if fusion.gpu else MAX_LOADS


def _times_more(draft: Draft) -> int:
    return FEW_MORE if draft.words or points_of(draft.loops) <= FEW_POINTS else 1


def _why_fused(node: Node, requests: list[Request]) -> str:
    """A reason worth showing, or nothing for the plain case of one elementwise reader."""
    if node.op.bit & _FOLDS:
        return "part of the sum around it" if requests[0].merges else "computed where it is read"
    return _cheap(len(requests)) if len(requests) > 1 else ""


@cache
def _fused(why: str) -> Verdict:
    return Verdict(False, why)


@cache
def _cheap(times: int) -> str:
    return f"cheap enough to compute {times} times"


# --- obstacles ------------------------------------------------------------------------------------


def _arrays_read(node: Node) -> int:
    """How many sources of `node` read memory."""
    count = 0
    for child in node.src:
        if child.mask & _READS:
            count += 1
    return count


def obstacle(fusion: Fusion, node: Node, request: Request) -> str:
    """What forbids computing `node` at this request; empty if nothing does."""
    op = node.op
    draft = request.draft
    if op is Ops.CONTIGUOUS:
        return "contiguous asked for"
    most = _most_ops(fusion, draft)
    if draft.count >= most and node not in fusion.packed:
        return f"the kernel computes {most} values already"
    others = draft.loads + draft.pending - 1
    most = _most_loads(fusion, draft)
    if len(node.src) > 1 and others + len(node.src) > most:
        reads = _arrays_read(node)
        if reads > 1 and others + reads > most and node not in fusion.packed:
            return f"the kernel reads {most} arrays already"
    if op.bit & _ELEMENTWISE:
        if fusion.gpu and _is_anew_in_each_thread(fusion, node, request):
            return "a function in float64, which each thread would compute anew"
        return ""
    running = _running_fold(node)
    if running is not None:
        is_ordered = draft.sealed and not all(out.how.apart for out in draft.outs)
        if is_ordered or not is_identity(request.idx, node.shape, draft.outer):
            return "a running fold is read in another order"
        if _crosses(running, request.idx, draft):
            return "a running fold beside one along another axis"
    if fusion.gpu and (op.bit & _FOLDS or running is not None):
        # A block's threads share a running fold's row, and sums have rows and threads of their own.
        if draft.folded if running is not None else draft.scanned is not None:
            return "a sum beside a running fold"
    if op.bit & _FOLDS and fusion.gpu and _is_long_nest(fusion, node, request):
        return "a reduction of long reductions would run in few blocks"
    if op.bit & _FOLDS and not request.merges:
        return _reduction_obstacle(fusion, node, request)
    if op is Ops.PROJ and fusion.survey.size[node.shape] > SMALL_WORK:
        if request.share < 1.0:
            return "a reduction inside a guard"
        if draft.contraction is not None:
            return "a reduction beside a contraction"
    return ""


def _is_long_nest(fusion: Fusion, node: Node, request: Request) -> bool:
    """Whether one result of a kernel would take many steps of reductions inside each other."""
    inside = ranges_of(request.idx) - frozenset(request.draft.loops)
    if not inside:
        return False
    points = points_of(inside)
    return points > 1 and points * fusion.survey.work[node] >= LONG_NEST


def _running_fold(node: Node) -> Node | None:
    """The SCAN that a value is, or is one of the states of."""
    node = node.src[0] if node.op is Ops.PROJ else node
    return node if node.op is Ops.SCAN else None


def _crosses(scan: Node, idx: Idx, draft: Draft) -> bool:
    """Whether a kernel folds along another axis than a SCAN at `idx` does, or is about to.

    What a SCAN carries from step to step is one element, so its axis is the innermost loop.
    """
    axis = idx[scan.arg.axis]
    if axis.op is not Ops.RANGE:
        return False
    if draft.scanned is not None:
        return axis is not draft.scanned
    # Read at two places of one kernel, it must not fold along an axis at each.
    return any(
        _running_fold(other.node) is scan and other.idx[scan.arg.axis] is not axis
        for other in draft.requests.values()
    )


def _reduction_obstacle(fusion: Fusion, node: Node, request: Request) -> str:
    draft = request.draft
    survey = fusion.survey
    work = survey.work[node] * survey.size[node.shape]
    outer = frozenset(draft.loops)
    if fusion.gpu and draft.contraction not in (None, node):
        # The threads of its tiles have no rows for others.
        return "a reduction beside a contraction"
    if work <= SMALL_WORK:
        return ""
    if fusion.gpu and survey.size[node.shape] == 1 and points_of(outer) <= FEW_POINTS:
        if work <= SMALL_GPU_WORK:
            return ""
    if request.share < 1.0:
        return "a reduction inside a guard"
    free = ranges_of(request.idx)
    if node in survey.contractions or node.src[0].op is Ops.MUL:
        if draft.sealed and not all(out.how.apart for out in draft.outs) and not fusion.gpu:
            return "a sum of products beside writes that keep their order"
    if node in survey.contractions:
        # A contraction's tiles want the whole kernel: its axes are the output's, and nothing else
        # is reduced. What follows it elementwise is its epilogue.
        if free != outer:
            return "a contraction whose reader runs over other axes"
        if draft.contraction is not node and (draft.reductions or _wants_tuple(draft)):
            return "a contraction beside another reduction"
        if node in fusion.matrix_products and _exceeds_epilogue(fusion, node, draft):
            return "its kernel writes or reads more than the epilogue of a matrix unit's tiles does"
    elif draft.contraction is not None:
        return "a reduction beside a contraction"
    everything = points_of(outer)
    if free >= outer:
        if free > outer and everything < ROWS and work > LONG_WORK and not fusion.gpu:
            return f"folded further on, {everything:.0f} rows of it would run in parallel"
        return ""
    rows = _rows(request, free, outer)
    best = max(everything, survey.size[node.shape])
    if rows < ROWS and rows < best and work + everything > SERIAL_WORK:
        return f"fused it would leave {rows:.0f} rows to run in parallel"
    return ""


def _exceeds_epilogue(fusion: Fusion, node: Node, draft: Draft) -> bool:
    """Whether a kernel has more arrays beside a contraction than may follow a tile of results."""
    if len(draft.outs) > EPILOGUE_OUTS:
        return True
    arrays: set[Node] = set()
    for (value, _), request in draft.requests.items():
        if request.read:
            arrays.add(value)
        elif not request.parts and value is not node:
            arrays |= fusion.traffic.arrays(value)
    size = fusion.survey.size
    large = size[node.shape] / EPILOGUE_REUSE
    return sum(size[value.shape] > large for value in arrays) > EPILOGUE_READS


def _wants_tuple(draft: Draft) -> bool:
    """Whether a kernel is about to compute a reduction of several parts."""
    return any(is_tuple(node) for node, _ in draft.requests)


def _rows(request: Request, free: frozenset[Node], outer: frozenset[Node]) -> float:
    """How many independent rows a kernel has when this reduction is hoisted in it."""
    rows = 1.0
    reached = 1.0
    for axis in request.scope:
        if axis in outer:
            rows *= extent_points(axis)
        if axis in free:
            reached = rows
    return reached


# --- cost -----------------------------------------------------------------------------------------


def _dearer_inline(fusion: Fusion, node: Node, requests: list[Request]) -> Reason:
    """Why storing `node` is cheaper than computing it at every request; empty if it is not."""
    survey = fusion.survey
    size = survey.size[node.shape]
    total = 0.0
    for request in requests:
        total += request.evals
    if total <= size * 1.001:
        return ""
    work = survey.work[node]
    if not node.mask & _READS and work <= NO_READS_WORK:
        return ""
    if fusion.gpu:
        has_home = _has_home(fusion, node, requests)
        inline, stored = costs_on_gpu(fusion, node, requests, total, has_home)
        return _Dearer(total / max(size, 1.0), inline / stored) if inline > stored else ""
    itemsize = node.dtype.itemsize
    inline = work * total
    stored = work * size + itemsize * (size + total) + LAUNCH
    if len(requests) > 1:
        draft = requests[0].draft
        if not [request for request in requests if request.draft is not draft]:
            stored *= SAME_KERNEL
        if inline > stored and node.op.bit & _ELEMENTWISE:
            inline = 0.0
            for request in requests:
                inline += request.evals * marginal_work(fusion, request, work)
    if inline <= stored:
        return ""
    return _Dearer(total / max(size, 1.0), inline / stored)


def _has_home(fusion: Fusion, node: Node, requests: list[Request]) -> bool:
    """Whether one of a GPU's kernels that read a value computes it as well, or may do so.

    Of what memory decides about, one that no other one has to run before.
    """
    if is_moved(fusion, node):
        return _find_home(fusion, node, requests, [""] * len(requests)) is not None
    return any(is_identity(one.idx, node.shape, one.draft.outer) for one in requests)


def _is_anew_in_each_thread(fusion: Fusion, node: Node, request: Request) -> bool:
    """Whether all threads of a large kernel would compute the same dear scalar.

    A power in float64 is a thousand instructions: those of an Adam step over 16 MiB, of each of
    its threads, took ten times as long on an H100 as all else.
    """
    if node.shape or node.dtype is not dtypes.float64 or fusion.survey.work[node] < FUNCTION_WORK:
        return False
    return points_of(request.draft.loops) > SERIAL_WORK


# --- where a stored value is computed -------------------------------------------------------------


def _find_home(
    fusion: Fusion, node: Node, requests: list[Request], obstacles: list[str]
) -> Request | None:
    """A request that computes each element once, over its kernel's own axes, without a cycle.

    Not one whose kernel would run in a row for it, as an optimizer's for a counter of its steps;
    nor, on a GPU, one whose threads read what one is to write over, or that others wait for.
    """
    size = fusion.survey.size[node.shape]
    counts = fusion.gpu and node in fusion.over
    for request, found in zip(requests, obstacles, strict=True):
        draft = request.draft
        if found or draft.sealed or request.evals > size * 1.001:
            continue
        if draft.contraction in fusion.matrix_products and len(draft.outs) >= EPILOGUE_OUTS:
            continue
        readers = [other.draft for other in requests if other is not request]
        points = points_of(draft.loops)
        if size < ROWS and (points > SERIAL_WORK or (counts and (readers or points > size))):
            continue
        if not is_identity(request.idx, node.shape, draft.outer):
            continue
        if draft not in readers and not dependents_of(readers) >> draft.number & 1:
            return request
    return None


def dependents_of(readers: Iterable[Draft]) -> int:
    """Bit set of the drafts that depend on `readers`: none of them may write what these read."""
    below = 0
    for reader in readers:
        below |= reader.dependents
    return below


def find_sibling(
    fusion: Fusion, node: Node, shape: tuple[Any, ...], requests: list[Request]
) -> Draft | None:
    """A kernel over axes of this shape that reads the same arrays and may write `node` as well."""
    extents = loop_extents(shape)
    candidates = fusion.by_shape.get(extents)
    if not candidates or node in fusion.survey.contractions:
        return None
    below = dependents_of(readers := {request.draft for request in requests})
    own = _kernels_of_parts(fusion, node, extents)
    running = _running_fold(node)
    for draft in (*own, *reversed(candidates[-SIBLINGS:])):
        if draft.sealed or draft.contraction is not None or draft in readers:
            continue
        if draft.count > MAX_OPS // 2 or draft.loads + draft.pending > MAX_LOADS // 2:
            continue
        if below >> draft.number & 1:
            continue
        if running is not None and _crosses(running, draft.place_of(shape), draft):
            continue
        if draft in own or _is_alike(fusion, node, draft):
            return draft
    return None


def _is_alike(fusion: Fusion, node: Node, draft: Draft) -> bool:
    """Whether a kernel computes some output from what `node` is computed from, in the same way.

    On a CPU the first: there an array that is read again mostly comes from a cache.
    """
    near = fusion.neighbours(node)
    targets = [out.target for out in draft.outs[: None if fusion.gpu else 1]]
    if any(_sum_separately(fusion, node, target) for target in targets):
        return False
    return any(
        _share_values(fusion, near, other) and _reduce_alike(fusion, near, other)
        for other in [fusion.neighbours(target) for target in targets]
    )


def _kernels_of_parts(fusion: Fusion, node: Node, extents: tuple[Any, ...]) -> list[Draft]:
    """The kernels over `extents` of other parts of the tuple of `node`, or of what it pads."""
    part = node.src[0] if node.op is Ops.PAD else node
    if part.op is not Ops.PROJ:
        return []
    states = enumerate(part.src[0].arg.monoid.states)
    parts = [make_node(Ops.PROJ, dtype, part.src, place) for place, dtype in states]
    homes = [fusion.homes.get(part) for part in parts]
    return [home for home in homes if home is not None and home.extents == extents]


def _sum_separately(fusion: Fusion, left: Node, right: Node) -> bool:
    """Whether two values are computed from sums of their own, and one of them wants a kernel.

    A contraction wants tiles of its own; what makes a part of a tuple is to make the others too.
    """
    ours, theirs = fusion.sums_of(left), fusion.sums_of(right)
    if not ours or not theirs or ours == theirs:
        return False
    contractions = fusion.survey.contractions
    return any(node in contractions or is_tuple(node) for node in ours | theirs)


def _share_values(fusion: Fusion, left: Neighbours, right: Neighbours) -> bool:
    """Whether a value that is no smaller than either is close below both.

    Where one of them reduces and the other does not, a handful of values is no reason: the schedule
    of a reduction would hang on whether the other is wanted, as the next state of a random
    generator is inside `jit` alone, and with it the last bits of the sum.
    """
    both = left.values & right.values
    if not both:
        return False
    size, least = fusion.survey.size, max(left.least, right.least)
    if bool(_reduced(fusion, left)) is not bool(_reduced(fusion, right)):
        least = max(least, ROWS)
    return any(size[one.shape] >= least for one in both)


def _reduce_alike(fusion: Fusion, left: Neighbours, right: Neighbours) -> bool:
    """Whether two neighbourhoods reduce the same axes of one shape, or one of them reduces none."""
    ours, theirs = _reduced(fusion, left), _reduced(fusion, right)
    return not ours or not theirs or not ours.isdisjoint(theirs)


def _reduced(fusion: Fusion, near: Neighbours) -> frozenset[tuple[Any, ...]]:
    """The shape and axes of each reduction among some neighbours."""
    if not near.reduced:
        size, least = fusion.survey.size, near.least
        found = [one for one in near.values if one.op is Ops.REDUCE and size[one.shape] >= least]
        near.reduced.append(frozenset([(one.src[0].shape, one.arg.axes) for one in found]))
    return near.reduced[0]
