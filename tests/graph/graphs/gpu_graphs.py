"""Graphs for a GPU, each checked to give what it gave before."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.graph import canonicalise, sorts
from baregrad.ir.core.attrs import Param
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.tensor_level import evaluate_all
from baregrad.ir.verify.verify import verify
from baregrad.target import gpu_row

HOPPER = gpu_row("sm_90a")
F32, F64, I32 = dtypes.float32, dtypes.float64, dtypes.int32
RNG = np.random.default_rng(3)


def argument(slot: int, dtype: DType, *shape: Dim) -> Node:
    return Node(Ops.PARAM, dtype, (), Param(slot, shape))


def changed(value: Node, arrays: list[Any]) -> Node:
    """The graph for a GPU, after a check that it gives what the graph as it was gives."""
    sink = Node(Ops.SINK, dtypes.token, (value,))
    made = canonicalise(sink, None, HOPPER)
    verify(made, "tensor")
    given = dict(enumerate(arrays))
    (wanted,) = evaluate_all(sink.src, given)
    (found,) = evaluate_all(made.src, given)
    assert found.shape == wanted.shape
    if value.dtype.kind == "float":
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    else:
        np.testing.assert_array_equal(found, wanted)
    return made


def merge_at(monkeypatch: pytest.MonkeyPatch, run: int, levels: int) -> None:
    """Let rows be sorted as short runs, merged in so many levels."""

    def merging(shape: tuple[int, ...], words: int) -> Any:
        *front, extent = shape
        power = (-(-extent // run) - 1).bit_length()
        ways = sorts._ways(power, min(levels, power)) if levels and power else ()
        return sorts._merging_by(prod(front), words, -(-extent // prod(ways)), ways)

    monkeypatch.setattr(sorts, "_merging", merging)
