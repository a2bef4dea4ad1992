"""Weights in the form that their device reads best."""

from __future__ import annotations

import numpy as np

from baregrad import Tensor
from baregrad.base.options import options
from baregrad.engine.session import Session, use_session
from baregrad.io.gguf import PackedWeight, by_name
from baregrad.io.gguf.weight import PlanarWeight
from baregrad.llm.models.weights import DeviceWeights
from tests.io.gguf.packed import random_rows, reference


class OneWeight:
    """A source of one weight."""

    def __init__(self, row: str) -> None:
        self.row = by_name(row)
        self.packed = random_rows(self.row, 6, 256)
        self.shapes = {"w": (6, 256)}
        self.types = {"w": self.row}

    def weight(self, name: str) -> PackedWeight:
        return PackedWeight(self.row, self.shapes[name], Tensor(self.packed))

    def vector(self, name: str) -> Tensor:
        return Tensor.ones(6)


def test_fields_lie_apart_on_gpus_alone() -> None:
    source = OneWeight("Q6_K")
    assert not isinstance(DeviceWeights(source).weight("w"), PlanarWeight)
    session = Session()
    with use_session(session), options.override(device="NV", nv_port="virtual"):
        found = DeviceWeights(source).weight("w")
        assert isinstance(found, PlanarWeight)
        assert DeviceWeights(source).shapes == source.shapes
        x = np.random.default_rng(0).standard_normal((1, 256)).astype(np.float32)
        product = found.linear(Tensor(x)).numpy()
        del found
    session.close()
    wanted = x.astype(np.float64) @ reference(source.row, source.packed).T
    np.testing.assert_allclose(product, wanted, rtol=1e-5, atol=1e-5)
