"""Which padded images and filters a convolution reads where they lie, without the padding stored.

Its kernel copies a few rows of the image at a time, with the zeros around them, so that storing the
padded image would only take time. What this asks is what the schedules of such kernels want.

The gradient of a strided convolution's input has taps of its own for each residue of a place: a
filter filled up with zeros to as many for each. Where the zeros are known, nothing is added there.
"""

from __future__ import annotations

from baregrad.dtypes import dtypes
from baregrad.ir.core.attrs import Pad
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.schedule.drafts.draft import Request, extent_points, points_of, ranges_of
from baregrad.schedule.facts.survey import LEAVES, base_of
from baregrad.schedule.fusing.fusion import Fusion

# Channels of the output, which are to fill vectors; steps of the sum, a panel of whose filter is to
# fit the second cache, as some rows of the image are.
LEAST_LANES = 16
MOST_STEPS = 4096
MOST_NBYTES = 1 << 18
# Taps of a window that a GPU's threads read for neighbours at once; results of a product's side.
MOST_SHARED, LEAST_OTHERS = 64, 8
# Taps of all residues of a place.
MOST_TAPS = 8
# Elements that are copied together for a matrix unit, and results of each that pay for storing the
# zeros beside it: an engine copies whole panels of what is stored, threads of what is not.
CHUNK, MANY_RESULTS = 8, 1 << 13


def is_copied_in_bands(fusion: Fusion, node: Node, requests: list[Request]) -> bool:
    """Whether `node`, a PAD, is of an image in memory that one convolution reads by windows."""
    if fusion.gpu or len(requests) != 1 or node.dtype is not dtypes.float32:
        return False
    (request,) = requests
    total = request.draft.contraction
    if total is None or total.op is not Ops.REDUCE or total.src[0].op is not Ops.MUL:
        return False
    # The zeros around a band are counted when the kernel is made.
    if not all(_is_known(pad) for pad in node.arg) or _padded(node).op not in LEAVES:
        return False
    operands = [base_of(operand) for operand in total.src[0].src]
    if operands.count(node) == 1 and base_of(node.src[0]).op in LEAVES and _slides(request):
        return True
    # Of several axes of taps each was padded by itself.
    return [_padded(operand) for operand in operands].count(_padded(node)) == 1 and _has_residues(
        request
    )


def is_shared_by_threads(fusion: Fusion, node: Node, requests: list[Request]) -> bool:
    """Whether `node`, a PAD of an image in memory, is read on a GPU by short windows alone.

    A thread loads what several of them reach once, and asks once whether a row or a column is
    there. Where other results are made of the same windows, the kernel is a product of matrices.
    """
    image = _padded(node)
    while image.op is Ops.CAST:
        image = base_of(image.src[0])
    if not fusion.gpu or image.op not in LEAVES:
        return False
    for request in requests:
        loops = frozenset(request.draft.loops)
        window, slides = 1.0, False
        for place in request.idx:
            inside, outside = place.ranges & loops, place.ranges - loops
            if inside and outside:
                slides = True
                window *= min(points_of(inside), points_of(outside))
        others = loops - ranges_of(request.idx)
        if not slides or window > MOST_SHARED or points_of(others) >= LEAST_OTHERS:
            return False
    return True


def is_read_in_chunks(fusion: Fusion, node: Node, requests: list[Request]) -> bool:
    """Whether `node`, a PAD on a GPU, is of what products of matrices read in whole chunks.

    That is stored with an axis innermost that is not padded, or an array that lies so: of each
    chunk that is copied for a matrix unit one condition says whether it is there.
    """
    below = node.src[0]
    inner = len(node.shape) - 1
    if below.op is Ops.PERMUTE:
        inner = below.arg.index(inner)
        below = below.src[0]
    is_stored = below.op is Ops.CONTIGUOUS or below.op in LEAVES
    if not fusion.gpu or not is_stored or any(p.interior for p in node.arg):
        return False
    extent, pad = node.shape[inner], node.arg[inner]
    if extent.__class__ is not int or extent % CHUNK or pad.lo or pad.hi:
        return False
    products = fusion.matrix_products
    if not all(request.draft.contraction in products for request in requests):
        return False
    # Of what was stored for windows the graph decided that, by their taps.
    return below.op is Ops.CONTIGUOUS or all(_results(one) < MANY_RESULTS for one in requests)


def _results(request: Request) -> float:
    """The results of a kernel that each element of what is requested is multiplied for."""
    return points_of(frozenset(request.draft.loops) - ranges_of(request.idx))


def _is_known(pad: Pad) -> bool:
    return isinstance(pad.lo, int) and isinstance(pad.hi, int) and not pad.interior


def _padded(node: Node) -> Node:
    """The value below views and paddings."""
    node = base_of(node)
    while node.op is Ops.PAD:
        node = base_of(node.src[0])
    return node


def _has_residues(request: Request) -> bool:
    """Whether what is padded are taps, of which each residue of a place has its own."""
    loops = frozenset(request.draft.loops)
    node, idx = request.node, request.idx
    for place, pad, extent in zip(idx, node.arg, node.shape, strict=True):
        if not pad.lo and not pad.hi:
            continue
        if len(place.ranges) != 2 or len(place.ranges & loops) != 1:
            return False
        if extent.__class__ is not int or extent > MOST_TAPS:
            return False
    axes = ranges_of(idx)
    return _fills_tiles(loops & axes, axes - loops)


def _slides(request: Request) -> bool:
    """Whether windows slide along the last axis, and along each that is padded, and how far."""
    loops = frozenset(request.draft.loops)
    node, idx = request.node, request.idx
    rows = 1.0
    for place, pad, extent in zip(idx, node.arg, node.shape, strict=True):
        if place is not idx[-1] and not pad.lo and not pad.hi:
            continue
        outer = [extent_points(axis) for axis in place.ranges if axis in loops]
        taps = [extent_points(axis) for axis in place.ranges if axis not in loops]
        if len(outer) != 1 or len(taps) != 1 or taps[0] > outer[0] or extent.__class__ is not int:
            return False
        rows *= 2.0 * taps[0] if place is not idx[-1] else extent
    for place in idx:
        if place.op is Ops.RANGE and place not in loops:
            rows *= extent_points(place)
    axes = ranges_of(idx)
    return _fills_tiles(loops - axes, axes - loops) and rows * 4 <= MOST_NBYTES


def _fills_tiles(lanes: frozenset[Node], summed: frozenset[Node]) -> bool:
    """Whether one of the first axes fills vectors, and a panel over all of the others is small."""
    widest = max([extent_points(axis) for axis in lanes], default=1.0)
    return widest >= LEAST_LANES and points_of(summed) <= MOST_STEPS
