"""The cache of one sequence."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baregrad import Tensor
from baregrad.base.errors import ShapeError
from baregrad.llm.models.cache import ContiguousCache
from baregrad.llm.models.traits import DecoderTraits, LatentTraits, LayerTraits


def one_layer(**more: object) -> DecoderTraits:
    layer = LayerTraits(2, 1, 4, 4, 8, 0.5, **more)  # type: ignore[arg-type]
    return DecoderTraits("llama", 8, 10, 32, "rms", 1e-5, (layer,))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_calls_wrote_is_attended_to_by_later_ones(dtype: str) -> None:
    cache = ContiguousCache(one_layer(), 8, dtype=dtype)
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=(7, n, 4)).astype(dtype) for n in (2, 1, 1))
    parts = []
    for begin, end in ((0, 3), (3, 4), (4, 7)):
        cache.place(begin)
        rows = [Tensor(x[begin:end].astype(np.float32)) for x in (query, key, value)]
        found = cache.layers[0].attend(*rows, scale=0.5)
        cache.realize(found)
        parts.append(found.numpy())
    q, k, v = (torch.from_numpy(x).double().transpose(0, 1) for x in (query, key, value))
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k.expand(2, -1, -1), v.expand(2, -1, -1), is_causal=True
    )
    np.testing.assert_allclose(np.concatenate(parts), expected.transpose(0, 1), atol=1e-6)


def test_latents_are_kept_once() -> None:
    latent = LatentTraits(rank=6, rope_width=2, plain_width=4, value_width=4)
    traits = one_layer(latent=latent)
    row = traits.layers[0].cache_row
    assert (row.heads, row.key_width, row.value_width, row.count) == (1, 8, 6, 8)
    cache = ContiguousCache(traits, 8)
    rng = np.random.default_rng(0)
    query, key = (rng.normal(size=(3, n, 8)).astype(np.float32) for n in (2, 1))
    found = cache.layers[0].attend(Tensor(query), Tensor(key), None, scale=0.5).numpy()
    q, k = (torch.from_numpy(x).double().transpose(0, 1) for x in (query, key))
    k = k.expand(2, -1, -1)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, k[..., :6], is_causal=True, scale=0.5
    )
    np.testing.assert_allclose(found, expected.transpose(0, 1), atol=1e-6)


def test_a_cache_holds_a_token_at_least() -> None:
    with pytest.raises(ShapeError, match="1 token or more"):
        ContiguousCache(one_layer(), 0)
