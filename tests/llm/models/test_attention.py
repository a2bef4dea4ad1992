"""Attention over a cache's keys, against PyTorch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from baregrad import Tensor
from baregrad.llm.models.attention import attention


@pytest.mark.parametrize(("window", "soft_cap"), [(0, 0.0), (3, 0.0), (3, 1.5)])
@pytest.mark.parametrize("count", [1, 4])
def test_tokens_attend_to_what_they_may_see(window: int, soft_cap: float, count: int) -> None:
    rng = np.random.default_rng(0)
    query = rng.normal(size=(count, 6, 8)).astype(np.float32)
    keys = rng.normal(size=(9, 2, 8)).astype(np.float32)
    values = rng.normal(size=(9, 2, 5)).astype(np.float32)
    places = np.arange(9 - count, 9)
    given = None if count == 1 else Tensor(places)
    found = attention(Tensor(query), Tensor(keys), Tensor(values), given,
                      scale=0.4, window=window, soft_cap=soft_cap).numpy()  # fmt: skip
    q, k, v = (torch.from_numpy(x).double().transpose(0, 1) for x in (query, keys, values))
    k, v = k.repeat_interleave(3, 0), v.repeat_interleave(3, 0)
    scores = q @ k.mT * 0.4
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    age = torch.from_numpy(places[:, None] - np.arange(9))
    hidden = (age < 0) | (age >= (window or 99))
    expected = scores.masked_fill(hidden, -math.inf).softmax(-1) @ v
    np.testing.assert_allclose(found, expected.transpose(0, 1).numpy(), atol=1e-6)
