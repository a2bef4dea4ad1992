"""Convolutions to few channels, and gradients by images of few, as products of columns of taps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from baregrad.dtypes import dtypes
from baregrad.graph import canonicalise
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.tensor_level import evaluate_all
from baregrad.ir.verify.verify import verify
from baregrad.tensor import Tensor
from baregrad.testing.ptx_device import ptx_session
from tests.graph.graphs.gpu_graphs import argument
from tests.kernel.gpu_kernels import HOPPER
from tests.schedule.graphs import param, sink
from tests.schedule.whole.resnet import convolve, input_gradient, weight_gradient

RNG = np.random.default_rng(3)
TOLERANCES = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 2e-2}


def drawn(shape: tuple[int, ...], dtype: str, scale: float) -> tuple[Tensor, Any]:
    """The same numbers of a dtype as a tensor of ours and one of PyTorch's, as float64."""
    numbers = torch.tensor(RNG.standard_normal(shape) * scale).to(getattr(torch, dtype))
    ours = Tensor(numbers.float().numpy()).cast(getattr(dtypes, dtype))
    return ours.realize().requires_grad_(), numbers.double().requires_grad_()


@pytest.mark.parametrize(("name", "channels", "taps", "stride", "padding", "dtype"), [
    ("conv2d", (17, 1), (3, 3), 1, (1, 1), "float16"),
    ("conv2d", (1, 20), (5, 3), 1, (2, 0), "float32"),
    ("conv_transpose2d", (20, 3), (3, 4), 1, (0, 2), "bfloat16"),
    ("conv1d", (2, 24), (9,), 1, (4,), "bfloat16"),
    *[pytest.param(*case, marks=pytest.mark.slow) for case in (
        ("conv2d", (70, 2), (3, 3), 2, (1, 1), "float32"),
        ("conv2d", (3, 18), (3, 3), 2, (1, 0), "float32"),
        ("conv2d", (20, 7), (2, 5), 1, (1, 4), "bfloat16"),
        ("conv_transpose2d", (1, 33), (5, 5), 1, (2, 1), "float16"),
        ("conv_transpose2d", (3, 18), (3, 3), 2, (1, 1), "float32"),
        ("conv1d", (40, 1), (5,), 1, (0,), "float32"),
    )],
])  # fmt: skip
def test_values_and_gradients_are_those_of_convolutions(
    name: str, channels: tuple[int, int], taps: tuple[int, ...], stride: int,
    padding: tuple[int, ...], dtype: str,
) -> None:  # fmt: skip
    before, after = channels
    pair = (before, after) if "transpose" in name else (after, before)
    with ptx_session():
        x, peer = drawn((2, before, *(7, 9)[: len(taps)]), dtype, 1.0)
        w, factors = drawn((*pair, *taps), dtype, before**-0.5)
        y = getattr(x, name)(w, stride=stride, padding=padding)
        wanted = getattr(torch.nn.functional, name)(peer, factors, stride=stride, padding=padding)
        y.float().square().sum().backward()
        wanted.square().sum().backward()
        y.realize(x.grad, w.grad)
        for one, other in ((y, wanted), (x.grad, peer.grad), (w.grad, factors.grad)):
            assert one is not None and other is not None
            found, exact = one.detach().float().numpy(), other.detach().numpy()
            assert np.abs(found - exact).max() <= TOLERANCES[dtype] * np.abs(exact).max()


@pytest.mark.parametrize("stride", (1, 2))
@pytest.mark.parametrize("zeros", (
    (0, 3), (0, 5), (1, 2), (2, 4), (4, 0), (2, -1), (-2, 4),
), ids=str)  # fmt: skip
def test_zeros_may_be_more_on_one_side(zeros: tuple[int, int], stride: int) -> None:
    images, filters = RNG.standard_normal((2, 16, 6)), RNG.standard_normal((3, 16, 3))
    padded = torch.nn.functional.pad(torch.tensor(images), zeros)
    wanted = torch.nn.functional.conv1d(padded, torch.tensor(filters), stride=stride).numpy()
    x, w = (Tensor._make(argument(slot, dtypes.float32, *one.shape), "NV")
            for slot, one in enumerate((images, filters)))
    y = x.pad(zeros).conv1d(w, stride=stride).node
    made = canonicalise(Node(Ops.SINK, dtypes.token, (y,)), None, HOPPER)
    verify(made, "tensor")
    given = {0: images.astype(np.float32), 1: filters.astype(np.float32)}
    (found,) = evaluate_all(made.src, given)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def stored_sums(*values: Any) -> list[Node]:
    """The sums of products that a GPU stores for each tap of a window."""
    made = canonicalise(sink(*values), None, HOPPER)
    return [
        node for node in toposort(made) if node.op is Ops.CONTIGUOUS
        and node.dtype is dtypes.float32 and node.mask & Ops.REDUCE.bit
    ]


def test_each_element_of_an_image_is_multiplied_once_for_all_taps() -> None:
    x, w = param(0, 2, 64, 12, 12), param(1, 1, 64, 5, 5)
    (sums,) = stored_sums(convolve(x, w, 2))
    # Those of a tap lie beside each other; padding is not multiplied.
    assert [extent for extent in sums.shape if extent != 1] == [5, 5, 2, 12, 12]
    assert not sums.mask & (Ops.WINDOW.bit | Ops.PAD.bit)
    image, filters = param(0, 2, 1, 12, 12), param(1, 64, 1, 5, 5)
    (sums,) = stored_sums(input_gradient(image, filters, param(2, 2, 64, 12, 12), 2, 1, 1))
    assert [extent for extent in sums.shape if extent != 1] == [5, 5, 2, 12, 12]


@pytest.mark.parametrize(("before", "after", "taps"), [
    (64, 8, 3),  # as many columns as a tile has
    (7, 1, 5),  # sums that are too short
    (64, 1, 1), (64, 2, 1),  # nothing to add up
])
def test_other_convolutions_stay_sums_over_windows(before: int, after: int, taps: int) -> None:
    x, w = param(0, 2, before, 12, 12), param(1, after, before, taps, taps)
    made = canonicalise(sink(convolve(x, w, taps // 2)), None, HOPPER)
    assert not any(node.op is Ops.FOLD for node in toposort(made))


@pytest.mark.parametrize(("after", "is_narrow", "folds"), [
    (16, True, True), (17, True, False), (8, False, False),
])  # fmt: skip
def test_more_columns_are_few_beside_long_sums_of_16_bits(
    after: int, is_narrow: bool, folds: bool
) -> None:
    """A matrix unit reads more for each tap of a window than a product stores for it."""
    dtype = dtypes.bfloat16 if is_narrow else dtypes.float32
    shapes = (2, 128, 12, 12), (after, 128, 3, 3)
    x, w = (param(at, *shape, dtype=dtype).cast(dtypes.float32) for at, shape in enumerate(shapes))
    made = canonicalise(sink(convolve(x, w, 1)), None, HOPPER)
    assert any(node.op is Ops.FOLD for node in toposort(made)) == folds


def test_a_processor_s_convolution_stays_a_sum_over_windows() -> None:
    x, w = param(0, 2, 64, 12, 12), param(1, 1, 64, 5, 5)
    made = canonicalise(sink(convolve(x, w, 2)))
    assert not any(node.op is Ops.FOLD for node in toposort(made))


def slid(before: int, after: int, stride: int = 1) -> set[int]:
    """Which arrays windows slide along in a filter's gradient: 0 the image, 2 the results'."""
    x, w = param(0, 2, before, 12, 12), param(1, after, before, 3, 3)
    dy = param(2, 2, after, 12 // stride, 12 // stride)
    made = canonicalise(sink(weight_gradient(x, w, dy, 1, stride)), None, HOPPER)
    windows = [node for node in toposort(made) if node.op is Ops.WINDOW]
    return {leaf.arg.slot for node in windows for leaf in toposort(node) if leaf.op is Ops.PARAM}


def test_windows_of_a_filter_s_gradient_are_of_the_factor_that_has_fewer_channels() -> None:
    assert slid(256, 16) == slid(40, 1) == {2}
    assert slid(16, 256) == slid(64, 64) == {0}
    # A place of the results has a stride of the image's.
    assert slid(256, 16, stride=2) == {0}
