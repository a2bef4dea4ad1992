"""Decoders on the virtual GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from baregrad import Tensor
from baregrad.base.options import options
from baregrad.engine.session import Session, use_session
from baregrad.llm.models.cache import ContiguousCache
from baregrad.llm.models.loading import open_model
from tests.llm.models.plain_decoder import FAMILIES, WORDS, Experts

PACKED = replace(FAMILIES["mixtral"], width=64, head=16, hidden=96, experts=Experts(hidden=96))


@pytest.mark.parametrize(("plain", "kind", "dtype", "error"), [
    pytest.param(FAMILIES["gemma2"], None, "float32", 2e-5, id="gemma2"),
    pytest.param(FAMILIES["deepseek3"], None, "float32", 2e-5, id="deepseek3"),
    pytest.param(PACKED, "Q4_1", "float16", 0.02, id="packed experts"),
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
