"""Rows laid side by side by the experts that they take: each is there once, in its own tile."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad import Tensor, bind, jit, variable
from baregrad.llm.models.expert_groups import ExpertGroups, rows_of_tile


def multiply(x: Tensor, index: Tensor, weight: Tensor, rows: int) -> Tensor:
    groups = ExpertGroups(index, weight.shape[0], rows)
    return groups.gather(groups.spread(x) @ weight[groups.experts].mT)


@pytest.mark.parametrize(("tokens", "used", "count", "rows"), [
    (1, 1, 1, 16), (5, 2, 6, 16), (40, 3, 4, 16), (33, 8, 40, 32),
])  # fmt: skip
def test_each_row_is_multiplied_by_its_expert(
    tokens: int, used: int, count: int, rows: int
) -> None:
    random = np.random.default_rng(tokens)
    # Some experts take many rows, some none.
    index = np.stack([random.permutation(count)[:used] for _ in range(tokens)])
    index[: tokens // 2] = index[0]
    x = random.integers(-4, 5, (tokens, 8)).astype(np.float32)
    weight = random.integers(-4, 5, (count, 3, 8)).astype(np.float32)
    found = multiply(Tensor(x), Tensor(index), Tensor(weight), rows).numpy()
    assert np.array_equal(found, np.einsum("tk,tunk->tun", x, weight[index]))


def test_a_symbolic_number_of_tokens() -> None:
    at = variable("at", 1, 48)
    random = np.random.default_rng(3)
    x = Tensor(random.integers(-4, 5, (48, 8)).astype(np.float32))
    index = Tensor(random.integers(0, 5, (48, 2)))
    weight = Tensor(random.integers(-4, 5, (5, 3, 8)).astype(np.float32))
    call = jit(lambda x, index: multiply(x, index, weight, 16))
    for tokens in (48, 1, 17, 30):
        size = bind(at, tokens)
        found = call(x[:size], index[:size]).numpy()
        wanted = weight.numpy()[index.numpy()[:tokens]]
        assert np.array_equal(found, np.einsum("tk,tunk->tun", x.numpy()[:tokens], wanted))


def test_tiles_follow_from_the_most_tokens_that_there_may_be() -> None:
    size = bind(variable("tokens", 1, 256), 2)
    index = Tensor.zeros(256, 2, dtype="int32", device="NV")
    assert rows_of_tile(index, 8) == rows_of_tile(index[:size], 8) == 64
    assert rows_of_tile(index[:16], 8) == 16
    # No expert has two rows, about.
    assert rows_of_tile(index[:4], 8) == 0
    assert rows_of_tile(Tensor.zeros(256, 2, dtype="int32"), 8) == 0
