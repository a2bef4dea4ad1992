"""Rows laid side by side by the experts that they take: each is there once, in its own tile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad import Tensor, bind, dtypes, jit, variable
from baregrad.base.options import options
from baregrad.engine.backends import CompiledBackend
from baregrad.graph import canonicalise
from baregrad.io.gguf import PackedWeight, by_name
from baregrad.kernel import choose
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.gpu.pictures import pipeline_lines
from baregrad.kernel.loops.sharing import prepare
from baregrad.kernel.planning.gpu.gpu_schedule import choose_gpu_schedule
from baregrad.llm.models import expert_groups
from baregrad.llm.models.expert_groups import ExpertGroups, rows_of_tile
from baregrad.llm.models.feed_forward import Experts
from baregrad.llm.models.traits import ExpertTraits, LayerTraits
from baregrad.schedule import make_plan
from baregrad.schedule.plan import Plan
from tests.graph.streams.test_passes import graph_of
from tests.kernel.gpu_kernels import HOPPER, lowered


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


def test_a_captured_call_tells_tiles_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are there from those that are not, which no product takes a step for."""
    sinks: list[Any] = []
    real = CompiledBackend.prepare

    def prepare(self: CompiledBackend, program: Any, donated: Any) -> Any:
        sinks.append(program.sink)
        return real(self, program, donated)

    with options.override(device="NULL"):
        groups = ExpertGroups(Tensor.zeros(4096, 1, dtype="int32").contiguous().realize(), 8, 128)
        x, matrices = (
            Tensor.zeros(*shape, dtype=dtypes.bfloat16).contiguous().realize()
            for shape in ((groups.tiles, 128, 4096), (8, 2048, 4096))
        )
        groups.realize()
        weight = PackedWeight(by_name("BF16"), (8, 2048, 4096), matrices)
        monkeypatch.setattr(CompiledBackend, "prepare", prepare)
        jit(lambda x: groups.times(weight, x))(x)
    (sink,) = sinks
    (kernel,) = make_plan(canonicalise(sink, target=HOPPER), target=HOPPER).kernels
    loop, _ = lowered(kernel, choose(kernel, HOPPER).schedule)
    assert "stored behind all others" in pipeline_lines(loop, HOPPER)[-1]


def test_rows_of_nobody_are_zeros() -> None:
    groups = ExpertGroups(Tensor([[2], [0], [2]]), 3, 16)
    found = groups.spread(Tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])).numpy()
    assert found.shape == (3, 16, 2)
    filled = found[0, 0].tolist(), found[1, 0].tolist(), found[1, 1].tolist()
    assert filled == ([3.0, 4.0], [1.0, 2.0], [5.0, 6.0])
    assert np.abs(found).sum() == 21


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
    # Those of whole tiles of numbers that are not packed any more.
    assert rows_of_tile(Tensor.zeros(2048, 2, dtype="int32", device="NV"), 8) == 128
    # No expert has two rows, about.
    assert rows_of_tile(index[:4], 8) == 0
    assert rows_of_tile(Tensor.zeros(256, 2, dtype="int32"), 8) == 0


@pytest.mark.parametrize("tokens", [1, 64])
def test_experts_are_read_packed_by_products_of_their_own(
    tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = {"gate": (4, 512, 256), "up": (4, 512, 256), "down": (4, 256, 512)}
    row = by_name("Q4_K")
    plan = plan_of_experts(tokens, shapes, monkeypatch)
    kept = [buffer.nbytes for buffer in plan.buffers if buffer.kind == "temp"]
    # Rows and what is made of them, but no expert's numbers, packed or not.
    assert max(kept) < shapes["up"][1] * row.row_nbytes(256) * max(tokens // 16, 1)
    assert products_on_units(plan) == (3 if tokens > 1 else 0)


def test_numbers_of_experts_with_many_rows_are_stored_once(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = {"gate": (4, 512, 256), "up": (4, 512, 256), "down": (4, 256, 512)}
    plan = plan_of_experts(512, shapes, monkeypatch)
    numbers = [buffer for buffer in plan.buffers
               if buffer.kind == "temp" and buffer.shape in shapes.values()]  # fmt: skip
    assert [buffer.dtype for buffer in numbers] == [dtypes.bfloat16] * 3
    # What tiles read of them is not copied.
    tiles = (1024 + 4 * 127) // 128
    copies = ((tiles, 512, 256), (tiles, 256, 512))
    assert not any(buffer.shape in copies for buffer in plan.buffers)
    assert products_on_units(plan) == 3


def plan_of_experts(
    tokens: int, shapes: dict[str, tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> Plan:
    """The plan of a layer of four experts in Q4_K, of which each token takes two."""
    monkeypatch.setattr(expert_groups, "is_gpu", lambda device: True)
    row = by_name("Q4_K")
    with options.override(device="NULL", cache=False):
        ones = Tensor.ones(4, 256).contiguous().realize()
        weights = {"ffn_gate_inp.weight": PackedWeight(by_name("F32"), (4, 256), ones)}
        for name, shape in shapes.items():
            packed = Tensor.zeros(*shape[:-1], row.row_nbytes(shape[-1]), dtype=dtypes.uint8)
            weight = PackedWeight(row, shape, packed.contiguous().realize()).in_planes()
            weights[f"ffn_{name}_exps.weight"] = weight
        some = ExpertTraits(count=4, used=2, hidden=512)
        layer = LayerTraits(4, 4, 64, 64, 512, 0.125, None, experts=some)
        x = Tensor.ones(tokens, 256, dtype=dtypes.bfloat16).contiguous().realize()
        sink = graph_of(Experts(layer, some, weights, {})(x), [x])
    return make_plan(canonicalise(sink, None, HOPPER), target=HOPPER)


def products_on_units(plan: Plan) -> int:
    """How many kernels are given to matrix units."""
    choices = [choose_gpu_schedule(facts_of(prepare(one, HOPPER)), HOPPER)[1]
               for one in plan.kernels]  # fmt: skip
    return sum(any("matrix units" in text for text, *_ in each) for each in choices)
