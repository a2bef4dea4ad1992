"""Convolutions, their gradients, pools: no copy of windows is ever made."""

from __future__ import annotations

import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import Ops
from baregrad.schedule import Plan
from tests.schedule.graphs import A, check, param, value
from tests.schedule.resnet import (
    batch_norm,
    batch_norm_back,
    convolve,
    input_gradient,
    weight_gradient,
)


def contractions(plan: Plan) -> list[object]:
    return [k for k in plan.kernels if any(n.op is Ops.REDUCE for n in toposort(k))]


def largest_buffer(plan: Plan) -> int:
    return max(int(b.nbytes) for b in plan.buffers)


@pytest.mark.parametrize("pad", [0, 1])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
def test_forward(pad: int, stride: int, dilation: int) -> None:
    x, k, b = param(0, 4, 3, 12, 12), param(1, 8, 3, 3, 3), param(2, 8)
    y = convolve(x, k, pad, stride, dilation)
    plan = check([(y + b.reshape(1, 8, 1, 1)).relu()], kernels=1 + (pad > 0))
    assert len(contractions(plan)) == 1


@pytest.mark.parametrize(
    ("extent", "taps", "pad", "stride", "dilation"),
    [
        (12, 3, 1, 1, 1),
        (12, 3, 0, 1, 1),
        (12, 3, 2, 1, 2),
        (12, 3, 1, 2, 1),
        (13, 3, 1, 2, 1),
        (11, 5, 2, 3, 1),
        (12, 1, 0, 2, 1),
        (12, 2, 0, 2, 1),
    ],
)
def test_input_gradient(extent: int, taps: int, pad: int, stride: int, dilation: int) -> None:
    x, k = param(0, 4, 6, extent, extent), param(1, 8, 6, taps, taps)
    places = (extent + 2 * pad - dilation * (taps - 1) - 1) // stride + 1
    dy = param(2, 4, 8, places, places)
    plan = check([input_gradient(x, k, dy, pad, stride, dilation)], most=3)
    # One contraction, no condition in it, and no array of columns.
    assert len(contractions(plan)) == 1
    reduction = next(n for n in toposort(contractions(plan)[0]) if n.op is Ops.REDUCE)
    if extent % stride == 0:
        assert not reduction.mask & (Ops.GUARD.bit | Ops.FLOORDIV.bit)
    columns = 4 * 4 * 6 * places * places * taps * taps
    assert taps <= stride or largest_buffer(plan) < columns


def test_dilated_and_strided_input_gradient_is_one_sum_with_conditions() -> None:
    x, k, dy = param(0, 2, 3, 12, 12), param(1, 4, 3, 3, 3), param(2, 2, 4, 5, 5)
    plan = check([input_gradient(x, k, dy, 1, 2, 2)], kernels=1)
    assert sum(n.op is Ops.REDUCE for n in toposort(plan.kernels[0])) == 1


def test_weight_gradient() -> None:
    x, k, dy = param(0, 4, 3, 12, 12), param(1, 8, 3, 3, 3), param(2, 4, 8, 12, 12)
    check([weight_gradient(x, k, dy)], kernels=2)


def test_groups() -> None:
    x, k = param(0, 4, 2, 5, 10, 10), param(1, 2, 7, 5, 3, 3)
    slid = x.pad((0, 0), (0, 0), (0, 0), (1, 1), (1, 1)).window(3, 3).window(4, 3)
    product = slid.reshape(4, 2, 1, 5, 10, 10, 3, 3) * k.reshape(1, 2, 7, 5, 1, 1, 3, 3)
    check([product.sum(3, 6, 7).reshape(4, 14, 10, 10)], kernels=2)


def test_a_convolution_writes_into_the_padded_array_of_the_next() -> None:
    x, k1, k2 = param(0, 4, 8, 10, 10), param(1, 8, 8, 3, 3), param(2, 8, 8, 3, 3)
    plan = check([convolve(convolve(x, k1).relu(), k2)])
    # Pad; zeros; the first with its relu; the second.
    assert len(plan.kernels) == 4
    assert sum(1 for k in plan.kernels if not k.mask & Ops.INDEX.bit) == 1


def test_max_pool_and_its_gradient() -> None:
    x, dy = param(0, 4, 3, 12, 12), param(1, 4, 3, 6, 6)
    windows = x.window(2, 2, 2).window(3, 2, 2)
    best = windows.max(4, 5)
    hit = windows.eq(best.reshape(4, 3, 6, 6, 1, 1))
    taps = hit.where(dy.reshape(4, 3, 6, 6, 1, 1).to(windows.shape), 0)
    check([best, taps.fold(3, 12, 2).fold(2, 12, 2)], most=2)


def surrounded(x: A, fill: float) -> A:
    """`x` with one element of `fill` around its last two axes."""
    pads = ((0, 0), (0, 0), (1, 1), (1, 1))
    inside = value(True, dtypes.bool).to(x.shape).pad(*pads)
    return inside.where(x.pad(*pads), fill)


def test_the_gradient_of_overlapping_windows_is_one_sum() -> None:
    """Rows and columns of windows that overlap are folded together, padding is never computed."""
    x, dy = param(0, 4, 3, 12, 12), param(1, 4, 3, 6, 6)
    best = param(2, 4, 3, 6, 6)
    windows = surrounded(x, -9.0).window(2, 3, 2).window(3, 3, 2)
    hit = (windows - best.reshape(4, 3, 6, 6, 1, 1)) < 0.0
    taps = hit.where(dy.reshape(4, 3, 6, 6, 1, 1).to(windows.shape), 0)
    folded = taps.fold(3, 14, 2).fold(2, 14, 2)
    inside = value(True, dtypes.bool).to(x.shape).pad((0, 0), (0, 0), (1, 1), (1, 1))
    gradient = inside.where(folded, 0.0).shrink((0, 4), (0, 3), (1, 13), (1, 13))
    plan = check([gradient], kernels=1)
    (kernel,) = plan.kernels
    assert not kernel.mask & (Ops.FLOORDIV.bit | Ops.MOD.bit)
    assert sum(node.op is Ops.REDUCE for node in toposort(kernel)) == 1


def test_pool_under_a_pad_is_no_conditional_reduction() -> None:
    x = param(0, 32, 8, 16, 16)
    pooled = x.window(2, 2, 2).window(3, 2, 2).max(4, 5)
    plan = check([convolve(pooled, param(1, 8, 8, 3, 3))])
    for kernel in plan.kernels:
        for node in toposort(kernel):
            assert node.op is not Ops.GUARD or not node.src[1].mask & Ops.REDUCE.bit


def test_batch_norm_backward_is_two_kernels() -> None:
    x, g, b, dy = param(0, 8, 32, 8, 8), param(1, 32), param(2, 32), param(3, 8, 32, 8, 8)
    _, saved = batch_norm(x, g, b)
    stored = tuple(one.contiguous() for one in saved)
    dx, dg, db = batch_norm_back(stored, g, dy)
    plan = check([dx, dg, db])
    wide = [k for k in plan.kernels if k.arg.name.startswith(("reduce_32_8x8x8", "map_8x32x8x8"))]
    assert len(wide) == len(plan.kernels) - 2 + 1 or len(plan.kernels) <= 5


def test_a_chain_of_sums_waits_for_no_other() -> None:
    """The gradient of x through (x - mean(x)) * rate(x): one kernel of sums, one that writes."""
    x, w = param(0, 16, 32, 8, 8), param(1, 16, 32, 8, 8)
    mean = x.mean(0, 2, 3, keep=True)
    away = x - mean
    d_rate = (w * away).sum(0, 2, 3).reshape(1, 32, 1, 1)
    through = w * 0.5 + away * d_rate
    d_mean = through.sum(0, 2, 3).reshape(1, 32, 1, 1)
    check([through - d_mean], kernels=2, tolerance=1e-3)


def test_a_padded_image_in_memory_is_read_where_it_lies() -> None:
    x, k, more = param(0, 2, 4, 10, 10), param(1, 16, 4, 3, 3), param(2, 16, 4, 3, 3)
    check([convolve(x, k)], kernels=1)
    # Two convolutions share one that is stored; few outputs are no vector.
    check([convolve(x, k), convolve(x, more)], kernels=3)
    check([convolve(x, param(1, 4, 4, 3, 3))], kernels=2)


@pytest.mark.parametrize("extent", [8, 9])
def test_taps_of_residues_are_read_where_they_lie(extent: int) -> None:
    x, k = param(0, 2, 16, extent, extent), param(1, 8, 16, 3, 3)
    dy = param(2, 2, 8, (extent + 1) // 2, (extent + 1) // 2)
    plan = check([input_gradient(x, k, dy, 1, 2, 1)], kernels=1)
    assert largest_buffer(plan) == 4 * 2 * 16 * extent * extent
