"""Decoders on the virtual GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from baregrad import Tensor, bind, jit, variable
from baregrad.base.options import options
from baregrad.engine.session import Session, use_session
from baregrad.io.gguf import PackedWeight, by_name
from baregrad.llm.models import feed_forward
from baregrad.llm.models.cache import ContiguousCache
from baregrad.llm.models.loading import open_model
from baregrad.llm.models.traits import ExpertTraits, LayerTraits
from tests.io.gguf.packed import random_rows
from tests.llm.models.plain_decoder import FAMILIES, WORDS, Experts

PACKED = replace(FAMILIES["mixtral"], width=64, head=16, hidden=96, experts=Experts(hidden=96))


@pytest.mark.parametrize(("plain", "kind", "dtype", "error"), [
    pytest.param(FAMILIES["gemma2"], None, "float32", 2e-5, id="gemma2"),
    pytest.param(FAMILIES["deepseek3"], None, "float32", 2e-5, id="deepseek3"),
    pytest.param(
        PACKED, "Q4_1", "float16", 0.02, id="packed experts", marks=pytest.mark.slow
    ),
])  # fmt: skip
def test_scores_are_those_of_pytorch(
    plain: object, kind: str | None, dtype: str, error: float, tmp_path: Path
) -> None:
    assert isinstance(plain, type(PACKED))
    packing = None if kind is None else GGMLQuantizationType[kind]
    held = plain.write(tmp_path / "model.gguf", plain.draw(), packing)
    words = np.random.default_rng(1).integers(0, WORDS, 6).astype(np.int32)
    session = Session()
    with use_session(session), options.override(device="NV", nv_port="virtual"):
        decoder = open_model(tmp_path / "model.gguf").decoder(dtype=dtype)
        cache = ContiguousCache(decoder.traits, 8, dtype)
        rows = []
        for begin, end in ((0, 5), (5, 6)):
            cache.place(begin)
            places = Tensor(np.arange(begin, end, dtype=np.int32))
            scores = decoder.logits(decoder(Tensor(words[begin:end]), places, cache.layers))
            cache.realize(scores)
            rows.append(scores.numpy())
        del decoder, cache, scores
    session.close()
    np.testing.assert_allclose(np.concatenate(rows), plain.forward(held, words), atol=error)


def test_tokens_get_the_same_bits_from_experts_whatever_is_beside_them() -> None:
    random = np.random.default_rng(2)
    row, some = by_name("Q4_1"), ExpertTraits(count=4, used=2, hidden=32)
    layer = LayerTraits(2, 2, 32, 32, 32, 0.2, None, experts=some)
    shapes = {"gate": (4, 32, 64), "up": (4, 32, 64), "down": (4, 64, 32)}
    session = Session()
    with use_session(session), options.override(device="NV", nv_port="virtual"):
        router = random.standard_normal((4, 64)).astype(np.float32)
        weights = {"ffn_gate_inp.weight": PackedWeight(by_name("F32"), (4, 64), Tensor(router))}
        for name, shape in shapes.items():
            packed = Tensor(random_rows(row, shape[0] * shape[1], shape[2]))
            packed = packed.reshape(*shape[:2], -1).contiguous().realize()
            weights[f"ffn_{name}_exps.weight"] = PackedWeight(row, shape, packed).in_planes()
        call = jit(feed_forward.Experts(layer, some, weights, {}).__call__)
        x = Tensor(random.standard_normal((12, 64)).astype(np.float32)).cast("bfloat16").realize()
        at = variable("tokens", 1, 12)
        found = [
            call(x[: bind(at, count)]).bitcast("uint16").cast("int32").numpy()
            for count in (12, 3)
        ]
        del weights, call, x, packed
    session.close()
    assert all(np.array_equal(one, found[0][: len(one)]) for one in found[1:])
