from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from baregrad.base.errors import UnsupportedError
from baregrad.base.options import options
from baregrad.bridges.aten import OPERATORS
from baregrad.bridges.torch_graph import TorchGraph
from baregrad.bridges.torch_memory import give, lend
from tests.bridges.aten.cases import check, draw

X = draw(5, 4)
ROWS = torch.tensor([[0, 2], [2, 4]])


@pytest.mark.parametrize(
    ("name", "overload", "arguments"),
    [
        ("index", "Tensor", (X, [ROWS])),
        ("index", "Tensor", (X, [ROWS, ROWS % 4])),
        ("index", "Tensor", (X, [None, ROWS % 4])),
        ("index_put", "default", (X, [ROWS[0]], draw(2, 4), False)),
        ("index_put", "default", (X, [ROWS], draw(2, 2, 4), True)),
        ("index_put", "default", (X, [None, ROWS % 4], draw(5, 2, 2), True)),
        ("index_put", "default", (X, [X[:, 0] > 0], torch.tensor(7.0), False)),
        ("index_put", "default", (X, [None, X[0] > 0], torch.tensor([7.0]), True)),
        ("embedding", "default", (X, ROWS)),
        ("embedding_dense_backward", "default", (draw(2, 2, 4), ROWS, 5, -1, False)),
        ("embedding_dense_backward", "default", (draw(2, 2, 4), ROWS, 5, 2, False)),
        ("gather", "default", (X, 0, ROWS)),
        ("scatter", "src", (X, 0, torch.tensor([[0, 3]]), draw(1, 2))),
        ("scatter", "value", (X, 0, torch.tensor([[0, 3]]), 2.0)),
        ("scatter_add", "default", (X, 0, ROWS, draw(2, 2))),
        ("index_select", "default", (X, 1, ROWS[0])),
    ],
)
def test_operators(name: str, overload: str, arguments: tuple[Any, ...]) -> None:
    check(name, *arguments, overload=overload)


WORDS = torch.tensor([1, 2, 4, 4, 4, 3, 2, 0])
# One bag is empty; with an end, that of the indices is there too.
STARTS, ENDED = torch.tensor([0, 4, 4, 6]), torch.tensor([0, 4, 4, 6, 8])


@pytest.mark.parametrize(("mode", "has_end", "padding", "by_frequency", "is_weighted"), [
    (0, False, -1, False, False), (0, True, 4, False, True), (0, False, 2, True, False),
    (1, False, 4, False, False), (1, True, -1, False, False),
    (2, False, -1, False, False), (2, True, 4, False, False),
])  # fmt: skip
def test_bags_and_their_gradients(
    mode: int, has_end: bool, padding: int, by_frequency: bool, is_weighted: bool
) -> None:
    """What the forward pass keeps for the backward pass is of our own form."""
    offsets = ENDED if has_end else STARTS
    weight, scales = X.clone().requires_grad_(), draw(8, seed=1).requires_grad_()
    scaled = scales if is_weighted else None
    wanted = torch.ops.aten._embedding_bag(
        weight, WORDS, offsets, False, mode, False, scaled, has_end, padding
    )[0]
    grad = draw(*wanted.shape, seed=2)
    wanted.backward(grad)
    assert weight.grad is not None
    if by_frequency:
        # As documented: on CPUs PyTorch divides by the count of another row.
        weight.grad /= WORDS.bincount().clamp(min=1).unsqueeze(1)
    with options.override(device="CPU"):
        given = [lend(one.detach(), "CPU") for one in (weight, WORDS, offsets, grad, scales)]
        table, words, starts, pulled, factors = given
        factor = factors if is_weighted else None
        found, bags, sizes, maxima = OPERATORS["_embedding_bag"](
            table, words, starts, by_frequency, mode, False, factor, has_end, padding
        )
        torch.testing.assert_close(give(found), wanted.detach())
        pull = OPERATORS["_embedding_bag_backward"]
        kept = (pulled, words, starts, bags, sizes, maxima, 5, by_frequency, mode)
        torch.testing.assert_close(give(pull(*kept, False, factor, padding)), weight.grad)
        with pytest.raises(UnsupportedError, match="dense"):
            pull(*kept, True, factor, padding)
        if is_weighted:
            pull = OPERATORS["_embedding_bag_per_sample_weights_backward"]
            made = pull(pulled, table, words, starts, bags, mode, padding)
            torch.testing.assert_close(give(made), scales.grad)


def test_a_mask_written_with_one_value_is_replayed() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.index_put((x > 0,), torch.tensor(7.0))

    with options.override(device="CPU"):
        run = TorchGraph(make_fx(function)(X))
        for _ in range(4):
            x = torch.randn(5, 4)
            assert torch.equal(run(x)[0], function(x))
