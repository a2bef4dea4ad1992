"""Images of a shape are stored in one order, with their channels innermost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from baregrad.base.options import options
from baregrad.engine.session import Session, use_session
from baregrad.graph import canonicalise
from baregrad.ir.core.node import Node
from baregrad.schedule import make_plan
from baregrad.target import gpu_row
from baregrad.tensor import Tensor
from baregrad.testing.ptx_device import ptx_session
from benchmarks.kernel_digests import listening


def block(convolve: Any, x: Any, w: Any, v: Any) -> Any:
    """Two convolutions of what is computed, each with what makes its results be stored."""
    x = x.tanh()
    y = convolve(x, w)
    y = (y - y.mean((0, 2, 3), keepdim=True)).tanh()
    return (convolve(y, v) + x).tanh()


def parts(side: int) -> list[Any]:
    """An image of so many rows and columns, and the filters of a block."""
    rng = np.random.default_rng(0)
    shapes = (2, 64, side, side), (128, 64, 1, 1), (64, 128, 1, 1)
    scales = 1.0, 0.125, 0.09
    return [
        (scale * rng.standard_normal(shape)).astype(np.float16)
        for shape, scale in zip(shapes, scales, strict=True)
    ]


@pytest.mark.parametrize(("side", "is_turned"), [(6, True), (8, False)])
def test_images_of_a_shape_are_stored_in_one_order(side: int, is_turned: bool) -> None:
    """With their channels innermost, where places are no whole chunks."""
    sinks: dict[Node, None] = {}
    with options.override(device="NULL"), use_session(Session()):
        inputs = [Tensor(one).realize().requires_grad_() for one in parts(side)]
        with listening(sinks):
            y = block(Tensor.conv2d, *inputs)
            y.backward(y.detach())
            first, second = (one.grad for one in inputs[1:])
            assert first is not None
            assert second is not None
            first.realize(second)
    target = gpu_row("sm_90a")
    (sink,) = sinks
    plan = make_plan(canonicalise(sink, target=target), target=target)
    names = [kernel.arg.name for kernel in plan.kernels]
    assert any(name.startswith(f"reduce_2x{side}x{side}x128") for name in names) == is_turned


def test_images_in_another_order_have_the_same_values() -> None:
    arrays = parts(6)
    theirs = [torch.tensor(one.astype(np.float64), requires_grad=True) for one in arrays]
    wanted = block(torch.nn.functional.conv2d, *theirs)
    wanted.backward(wanted.detach())
    with ptx_session():
        ours = [Tensor(one).requires_grad_() for one in arrays]
        y = block(Tensor.conv2d, *ours)
        y.backward(y.detach())
        gradients = [one.grad for one in ours]
        found = [one.numpy() for one in (y.detach(), *gradients) if one is not None]
    for one, other in zip(found, (wanted.detach(), *[each.grad for each in theirs]), strict=True):
        assert np.abs(one - other.numpy()).max() < 2.0**-8 * float(other.abs().max())
