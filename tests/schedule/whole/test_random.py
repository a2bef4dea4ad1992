"""Random graphs: whatever fusion decides, the values are those of the tensor-level evaluator."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.tensor_level import to_raw
from baregrad.schedule.fusing import rules
from tests.kernel.gpu_kernels import HOPPER
from tests.schedule.graphs import check, sink
from tests.schedule.whole.random_graphs import exact_outputs, random_outputs

pytestmark = pytest.mark.property


@settings(max_examples=300)
@given(st.integers(0, 1 << 40))
def test_random_graph(seed: int) -> None:
    check(random_outputs(seed), canonical=seed % 4 != 3, tolerance=3e-4)


@pytest.fixture
def eager_to_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Storing costs nothing, so that small graphs are cut as large ones are."""
    for name in ("LAUNCH", "SMALL_WORK", "SERIAL_WORK", "NO_READS_WORK"):
        monkeypatch.setattr(rules, name, 0.0)
    yield


@pytest.mark.usefixtures("eager_to_store")
@pytest.mark.parametrize("part", range(4))
def test_random_graph_cut_by_cost(part: int) -> None:
    for seed in range(part * 1000, part * 1000 + 60):
        check(random_outputs(seed), canonical=seed % 4 != 3, tolerance=3e-4)


@pytest.mark.usefixtures("eager_to_store")
@pytest.mark.parametrize("part", range(4))
def test_random_graph_cut_at_random(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(part)
    plain = rules._dearer_inline
    monkeypatch.setattr(
        rules, "_dearer_inline", lambda *a: "chance" if dice.random() < 0.3 else plain(*a)
    )
    for seed in range(part * 777, part * 777 + 60):
        check(random_outputs(seed), canonical=seed % 4 != 3, tolerance=3e-4)


@pytest.mark.parametrize("part", range(4))
def test_random_graph_in_small_kernels(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_OPS", 3)
    monkeypatch.setattr(rules, "MAX_LOADS", 3)
    for seed in range(part * 555, part * 555 + 60):
        check(random_outputs(seed), canonical=seed % 4 != 3, tolerance=3e-4)


@pytest.mark.usefixtures("eager_to_store")
@pytest.mark.parametrize("target", [None, HOPPER])
@pytest.mark.parametrize("part", range(4))
def test_random_graph_of_rounded_integers(part: int, target: Any) -> None:
    """Bits are the same whatever is stored, and in whichever dtype."""
    for seed in range(part * 1000, part * 1000 + 80):
        outputs = exact_outputs(seed)
        rng = np.random.default_rng(seed)
        arrays = {
            node.arg.slot: to_raw(rng.integers(-2, 3, node.shape).astype(np.float64), node.dtype)
            for node in toposort(sink(*outputs)) if node.op is Ops.PARAM
        }  # fmt: skip
        check(outputs, arrays, canonical=seed % 4 != 3, tolerance=0.0, target=target)


@pytest.mark.usefixtures("eager_to_store")
@pytest.mark.parametrize("part", range(2))
def test_random_graph_on_a_gpu(part: int) -> None:
    for seed in range(part * 1000, part * 1000 + 60):
        check(random_outputs(seed), canonical=seed % 4 != 3, tolerance=3e-4, target=HOPPER)
