"""The gradient of a convolution's input, a FOLD, as a contraction of windows."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.graph import canonicalise
from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.tensor_level import evaluate_all
from baregrad.ir.verify.verify import verify
from baregrad.target import gpu_row
from tests.schedule.graphs import A, check, contractions, largest_buffer, param, sink, value
from tests.schedule.whole.resnet import input_gradient


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


@pytest.mark.parametrize(("places", "taps", "stride", "start"), [
    (1, 4, 3, 1), (2, 5, 2, 3), (1, 3, 2, 0),
])  # fmt: skip
def test_elements_behind_all_windows_are_zeros(
    places: int, taps: int, stride: int, start: int
) -> None:
    """What is folded is no contraction, and more is wanted than residues of windows reach."""
    extent = (places - 1) * stride + taps + 2 * stride
    fold = param(0, 2, places, taps).fold(1, extent, stride, 1).shrink((0, 2), (start, extent))
    made = canonicalise(sink(fold), None, gpu_row("sm_90a"))
    verify(made, "tensor")
    given = np.random.default_rng(0).standard_normal((2, places, taps)).astype(np.float32)
    wanted = np.zeros((2, extent), np.float32)
    for place in range(places):
        wanted[:, place * stride : place * stride + taps] += given[:, place]
    (found,) = evaluate_all(made.src, {0: given})
    np.testing.assert_allclose(found, wanted[:, start:], rtol=1e-6)


def test_dilated_and_strided_input_gradient_is_one_sum_with_conditions() -> None:
    x, k, dy = param(0, 2, 3, 12, 12), param(1, 4, 3, 3, 3), param(2, 2, 4, 5, 5)
    plan = check([input_gradient(x, k, dy, 1, 2, 2)], kernels=1)
    assert sum(n.op is Ops.REDUCE for n in toposort(plan.kernels[0])) == 1


def input_gradient_of_16_bits(x: A, k: A, dy: A, pad: int, stride: int) -> A:
    """As autograd makes it: each sum is rounded to 16 bits and widened again."""
    n, c, h, w = x.shape
    o, _, kh, kw = k.shape
    oh, ow = dy.shape[2:]
    wide = [one.cast(dtypes.float32) for one in (dy, k)]
    left, right = wide[0].reshape(n, o, 1, oh, ow, 1, 1), wide[1].reshape(1, o, c, 1, 1, kh, kw)
    columns = (left * right).sum(1)
    for axis, extent in ((3, w + 2 * pad), (2, h + 2 * pad)):
        columns = columns.cast(dtypes.float16).cast(dtypes.float32).fold(axis, extent, stride, 1)
    folded = columns.cast(dtypes.float16)
    return folded.shrink((0, n), (0, c), (pad, pad + h), (pad, pad + w))


@pytest.mark.parametrize(("taps", "pad", "stride"), [(3, 1, 1), (3, 1, 2), (5, 2, 3)])
def test_what_is_cut_of_a_rounded_gradient_is_never_computed(
    taps: int, pad: int, stride: int
) -> None:
    places = (12 + 2 * pad - taps) // stride + 1
    shapes = (4, 6, 12, 12), (8, 6, taps, taps), (4, 8, places, places)
    x, k, dy = (
        param(slot, *shape, dtype=dtypes.float16) for slot, shape in enumerate(shapes)
    )
    made = canonicalise(sink(input_gradient_of_16_bits(x, k, dy, pad, stride)))
    assert not any(node.op is Ops.FOLD for node in toposort(made))
    # Each residue of a place has as many places of its own: 12 / stride, nothing around them.
    sums = [node for node in toposort(made) if node.op is Ops.REDUCE]
    assert [12 // stride in node.shape for node in sums] == [True]
    assert prod(sums[0].shape) == 4 * 6 * 12 * 12


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
