"""Queries, keys and values as one matrix, where blocks are planes."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad import Tensor
from baregrad.io.gguf import PackedWeight, by_name
from baregrad.llm.models.heads import fuse_heads
from tests.io.gguf.packed import random_rows

ROWS = {"attn_q": 8, "attn_k": 4, "attn_v": 4}


def drawn(types: tuple[str, str, str], *, planar: bool = True) -> dict[str, PackedWeight]:
    weights = {}
    for seed, ((name, rows), kind) in enumerate(zip(ROWS.items(), types, strict=True)):
        row = by_name(kind)
        weight = PackedWeight(row, (rows, 256), Tensor(random_rows(row, rows, 256, seed)))
        weights[f"{name}.weight"] = weight.in_planes() if planar else weight
    return weights


@pytest.mark.parametrize("biased", [False, True])
def test_matrices_of_one_type_are_one(biased: bool) -> None:
    weights = drawn(("Q6_K",) * 3)
    wanted = np.concatenate([one.dense().numpy() for one in weights.values()])
    vectors = {f"{name}.bias": Tensor.full((rows,), float(rows)) for name, rows in ROWS.items()}
    found = vectors if biased else {}
    fuse_heads(weights, found)
    assert list(weights) == ["attn_qkv.weight"]
    np.testing.assert_array_equal(weights["attn_qkv.weight"].dense().numpy(), wanted)
    assert list(found) == ["attn_qkv.bias"] * biased
    if biased:
        np.testing.assert_array_equal(found["attn_qkv.bias"].numpy(), [8.0] * 8 + [4.0] * 8)


def test_others_stay_apart() -> None:
    several = drawn(("Q4_K", "Q4_K", "Q6_K"))
    whole = drawn(("Q6_K",) * 3, planar=False)
    some = drawn(("Q6_K",) * 3)
    for weights, vectors in (
        (several, {}), (whole, {}), (some, {"attn_q.bias": Tensor.zeros(8)}),
    ):
        fuse_heads(weights, vectors)
        assert list(weights) == [f"{name}.weight" for name in ROWS]
