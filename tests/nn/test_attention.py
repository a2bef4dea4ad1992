"""Attention with projections of their own, learnt positions and zeros, against PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from baregrad import Tensor, nn
from baregrad.base.errors import ShapeError

KINDS: dict[str, dict[str, Any]] = {
    "sizes": {"kdim": 6, "vdim": 10},
    "learnt": {"add_bias_kv": True},
    "zeros": {"add_zero_attn": True, "bias": False},
    "all": {"kdim": 6, "vdim": 10, "add_bias_kv": True, "add_zero_attn": True},
}


@pytest.mark.differential
@pytest.mark.parametrize("kind", KINDS)
def test_layers_with_more_than_heads_equal_pytorchs(kind: str) -> None:
    words = KINDS[kind]
    torch.manual_seed(0)
    theirs, ours = torch.nn.MultiheadAttention(8, 2, **words), nn.MultiheadAttention(8, 2, **words)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict({name: Tensor(t.numpy()) for name, t in theirs.state_dict().items()})
    rng = np.random.default_rng(0)
    sides = [rng.standard_normal((n, 3, m)).astype(np.float32)
             for n, m in ((4, 8), (5, words.get("kdim", 8)), (5, words.get("vdim", 8)))]
    mask, padding = np.triu(np.ones((4, 5), bool), 2), rng.random((3, 5)) > 0.8
    padding[:, 0] = False
    for need_weights in (True, False):
        results = []
        for model, made in ((theirs, torch.tensor), (ours, Tensor)):
            model.zero_grad()
            out, weights = model(
                *[made(side) for side in sides], need_weights=need_weights,
                attn_mask=made(mask), key_padding_mask=made(padding),
            )
            (out * made(sides[0])).sum().backward()
            results.append([out, *([weights] if need_weights else []),
                            *[each.grad for each in model.parameters()]])
        for wanted, found in zip(*results, strict=True):
            np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), 1e-4, 1e-5)


@pytest.mark.differential
def test_the_function_equals_pytorchs() -> None:
    rng = np.random.default_rng(1)

    def drawn(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    query, key = drawn(4, 8), drawn(5, 8)
    weight, bias, out, more = drawn(24, 8), drawn(24), drawn(8, 8), drawn(8)
    static = drawn(2, 7, 4)
    for words in ({}, {"static_k": static, "static_v": static * 2},
                  {"use_separate_proj_weight": True, "q_proj_weight": weight[:8],
                   "k_proj_weight": weight[8:16], "v_proj_weight": weight[16:]}):
        found, wanted = (
            library.multi_head_attention_forward(
                made(query), made(key), made(key), 8, 2, made(weight), made(bias), None, None,
                False, 0.5, made(out), made(more), training=False, **{
                    name: made(value) if isinstance(value, np.ndarray) else value
                    for name, value in words.items()},
            ) for library, made in ((nn.functional, Tensor), (torch.nn.functional, torch.tensor))
        )  # fmt: skip
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one.numpy(), other.detach().numpy(), 1e-4, 1e-5)
    with pytest.raises(ShapeError, match="heads divide"):
        nn.functional.multi_head_attention_forward(
            Tensor(query), Tensor(key), Tensor(key), 8, 3, Tensor(weight), None, None, None, False,
            0.0, Tensor(out), None,
        )
