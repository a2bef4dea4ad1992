from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from baregrad.base.options import options
from baregrad.bridges.torch_graph import TorchGraph
from tests.bridges.aten.cases import check, draw

X = draw(2, 4, 6, 6)
W = draw(6, 4, 3, 3)
PLAIN = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)


@pytest.mark.parametrize(
    ("name", "overload", "arguments"),
    [
        ("addmm", "default", (draw(3), draw(2, 5), draw(5, 3))),
        ("bmm", "default", (draw(2, 3, 4), draw(2, 4, 5))),
        ("convolution", "default", (X, W, draw(6), *PLAIN)),
        ("convolution", "default",
         (X, draw(4, 3, 3, 3), None, [2, 2], [1, 1], [1, 1], True, [1, 1], 1)),
        ("convolution_backward", "default",
         (draw(2, 6, 6, 6), X, W, [6], *PLAIN, [True, True, True])),
        ("convolution_backward", "default",
         (draw(2, 6, 6, 6), X, W, [6], *PLAIN, [False, True, False])),
        ("max_pool2d_with_indices", "default", (X, [3, 3], [2, 2], [1, 1])),
        ("avg_pool2d", "default", (X, [2, 2])),
        ("_adaptive_avg_pool2d", "default", (X, [3, 2])),
        ("adaptive_max_pool2d", "default", (X, [3, 2])),
        ("adaptive_max_pool2d", "default", (X, [4, 5])),
        ("adaptive_max_pool3d", "default", (X, [3, 2, 4])),
        ("max_pool3d_with_indices_backward", "default",
         (draw(4, 1, 1, 2), draw(4, 2, 2, 4), [2, 2, 2], [], [0, 0, 0], [1, 1, 1], False,
          torch.tensor([[[[1, 7]]], [[[0, 2]]], [[[9, 3]]], [[[13, 15]]]]))),
        ("_adaptive_avg_pool2d_backward", "default", (draw(2, 4, 3, 2), X)),
        ("native_layer_norm", "default", (X, [6, 6], draw(6, 6), draw(6, 6), 1e-5)),
        ("native_group_norm", "default", (X, draw(4), draw(4), 2, 4, 36, 2, 1e-5)),
        ("_native_batch_norm_legit_functional", "default",
         (X, draw(4), draw(4), draw(4), draw(4).abs(), True, 0.1, 1e-5)),
        ("_native_batch_norm_legit", "no_stats", (X, draw(4), draw(4), True, 0.1, 1e-5)),
        ("_scaled_dot_product_flash_attention_for_cpu", "default",
         (draw(2, 3, 5, 8), draw(2, 3, 5, 8, seed=1), draw(2, 3, 5, 8, seed=2), 0.0, True)),
        ("replication_pad2d_backward", "default", (draw(2, 4, 8, 9), X, [1, 2, 0, 2])),
    ],
)
def test_operators(name: str, overload: str, arguments: tuple[Any, ...]) -> None:
    check(name, *arguments, overload=overload)


def test_max_pool_backward_adds_where_windows_meet() -> None:
    result, places = torch.ops.aten.max_pool2d_with_indices.default(X, [3, 3], [1, 1], [1, 1])
    grad = torch.ones_like(result)
    window = ([3, 3], [1, 1], [1, 1], [1, 1], False)
    check("max_pool2d_with_indices_backward", grad, X, *window, places)


def test_adaptive_max_pool_backward() -> None:
    result, places = torch.ops.aten.adaptive_max_pool2d.default(X, [4, 5])
    check("adaptive_max_pool2d_backward", draw(*result.shape), X, places)
    result, places = torch.ops.aten.adaptive_max_pool3d.default(X, [3, 4, 5])
    check("adaptive_max_pool3d_backward", draw(*result.shape), X, places)


def test_attention_backward() -> None:
    q, k, v = (draw(2, 3, 5, 8, seed=one) for one in range(3))
    result, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(q, k, v)
    grad = draw(2, 3, 5, 8, seed=4)
    check("_scaled_dot_product_flash_attention_for_cpu_backward",
          grad, q, k, v, result, sums, 0.0, False)


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_labels_whose_places_are_not_known(zero_infinity: bool) -> None:
    """The losses and the gradients; the third sample has more labels than steps."""
    scores = draw(7, 3, 5).log_softmax(2)
    labels, steps = torch.tensor([[1, 2, 2], [3, 1, 0], [4, 4, 4]]), torch.tensor([7, 5, 3])
    counts, grad = torch.tensor([3, 2, 3]), draw(3)
    given = (scores, labels, steps, counts, 0, zero_infinity)

    def losses(*arguments: Any) -> Any:
        return torch.ops.aten._ctc_loss.Tensor(*arguments, 0, zero_infinity)[0]

    graph = make_fx(losses)(*given[:4])
    wanted, alpha = torch.ops.aten._ctc_loss.Tensor(*given)
    with options.override(device="CPU"):
        torch.testing.assert_close(TorchGraph(graph)(*given[:4])[0], wanted)
    check("_ctc_loss_backward", grad, *given[:4], wanted, alpha, 0, zero_infinity,
          overload="Tensor")
