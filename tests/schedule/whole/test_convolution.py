"""Convolutions, their gradients, pools: no copy of windows is ever made."""

from __future__ import annotations

import pytest

from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import Ops
from tests.schedule.graphs import check, contractions, param
from tests.schedule.whole.resnet import batch_norm, batch_norm_back, convolve, weight_gradient


@pytest.mark.parametrize("pad", [0, 1])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
def test_forward(pad: int, stride: int, dilation: int) -> None:
    x, k, b = param(0, 4, 3, 12, 12), param(1, 8, 3, 3, 3), param(2, 8)
    y = convolve(x, k, pad, stride, dilation)
    plan = check([(y + b.reshape(1, 8, 1, 1)).relu()], kernels=1 + (pad > 0))
    assert len(contractions(plan)) == 1


def test_weight_gradient() -> None:
    x, k, dy = param(0, 4, 3, 12, 12), param(1, 8, 3, 3, 3), param(2, 4, 8, 12, 12)
    check([weight_gradient(x, k, dy)], kernels=2)


def test_groups() -> None:
    x, k = param(0, 4, 2, 5, 10, 10), param(1, 2, 7, 5, 3, 3)
    slid = x.pad((0, 0), (0, 0), (0, 0), (1, 1), (1, 1)).window(3, 3).window(4, 3)
    product = slid.reshape(4, 2, 1, 5, 10, 10, 3, 3) * k.reshape(1, 2, 7, 5, 1, 1, 3, 3)
    check([product.sum(3, 6, 7).reshape(4, 14, 10, 10)], kernels=2)


def test_max_pool_and_its_gradient() -> None:
    x, dy = param(0, 4, 3, 12, 12), param(1, 4, 3, 6, 6)
    windows = x.window(2, 2, 2).window(3, 2, 2)
    best = windows.max(4, 5)
    hit = windows.eq(best.reshape(4, 3, 6, 6, 1, 1))
    taps = hit.where(dy.reshape(4, 3, 6, 6, 1, 1).to(windows.shape), 0)
    check([best, taps.fold(3, 12, 2).fold(2, 12, 2)], most=2)


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
