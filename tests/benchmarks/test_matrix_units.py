"""What is a contraction of 16-bit floats, and that none of six models' is outside matrix units."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import prod

import numpy as np
import pytest

from baregrad import nn, optim
from baregrad.apps.models import train, training_steps
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.graph import canonicalise
from baregrad.ir.core.node import Node, alu, cast, const, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose
from baregrad.kernel.language.schedule import StreamTiles
from baregrad.schedule import make_plan
from baregrad.schedule.plan import Plan
from baregrad.target import gpu_row
from baregrad.tensor import Tensor
from benchmarks.kernel_digests import listening
from benchmarks.matrix_units import (
    contractions,
    kernels_with_contractions,
    not_compiled,
    outside,
    plans,
)
from tests.kernel import kernels as k

TARGET = gpu_row("sm_90a")


class AttentionByHand(nn.Module):
    """Attention of heads of `width / heads`, as it is written without a function for it."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.mix = nn.Linear(width, width, bias=False)
        self.register_buffer("seen", Tensor.ones(length, length).tril())

    def forward(self, x: Tensor) -> Tensor:
        """(N, L, width) -> (N, L, width)."""
        length, width = x.shape[1:]
        parts = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                 for part in self.qkv(x).split(width, 2)]  # fmt: skip
        q, k, v = parts
        scores = (q @ k.transpose(-2, -1)) * (1.0 / k.shape[-1] ** 0.5)
        hidden = self.seen[:length, :length] == 0
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1).dropout(0.1)
        result: Tensor = self.mix((weights @ v).transpose(1, 2).contiguous().flatten(2))
        return result.dropout(0.1)


class LanguageModelByHand(nn.Module):
    """Two blocks of attention and a layer, whose scores share the words' weights."""

    def __init__(self, width: int, heads: int, words: int, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(4)])
        self.attend = nn.ModuleList([AttentionByHand(width, heads, length) for _ in range(2)])
        self.up = nn.ModuleList([nn.Linear(width, 4 * width, bias=False) for _ in range(2)])
        self.down = nn.ModuleList([nn.Linear(4 * width, width, bias=False) for _ in range(2)])

    def forward(self, ids: Tensor) -> Tensor:
        """The scores of every next word."""
        x = self.words(ids)
        for block in range(2):
            x = x + self.attend[block](self.norms[2 * block](x))
            x = x + self.down[block](self.up[block](self.norms[2 * block + 1](x)).gelu())
        return x.linear(self.words.weight)


@cache
def plans_of(name: str) -> list[Plan]:
    """The plans of a model's training step, for all tests that ask for them."""
    found = plans(name, TARGET)
    assert found, "nothing was planned"
    return found


def planned(*results: Tensor) -> Plan:
    """The plan of some values for the target."""
    sinks: dict[Node, None] = {}
    with listening(sinks):
        results[0].realize(*results[1:])
    (sink,) = sinks
    return make_plan(canonicalise(sink, target=TARGET), target=TARGET)


def counted(*results: Tensor) -> list[tuple[int, int, int, int]]:
    """Rows, columns, steps and the number of each contraction of 16-bit floats."""
    found = []
    for _, every in kernels_with_contractions(planned(*results)):
        found += [one[:4] for one in every if one.counts]
    return found


@pytest.fixture(autouse=True)
def _nothing_is_computed() -> Iterator[None]:
    with options.override(device="NULL", cache=False):
        yield


def drawn(*shape: int, dtype: str = "bfloat16") -> Tensor:
    return Tensor.rand(*shape).cast(dtype).realize()


def test_sides_are_counted_over_all_their_axes() -> None:
    assert counted(drawn(4, 32, 64) @ drawn(64, 48)) == [(128, 48, 64, 1)]
    assert counted(drawn(4, 32, 64) @ drawn(4, 64, 48)) == [(32, 48, 64, 4)]
    image, taps = drawn(2, 16, 8, 8), drawn(24, 16, 3, 3)
    assert counted(image.conv2d(taps, padding=1)) == [(2 * 8 * 8, 24, 16 * 9, 1)]


def test_what_is_small_wide_or_no_product_does_not_count() -> None:
    assert counted(drawn(8, 64) @ drawn(64, 48)) == []
    assert counted(drawn(64, 8) @ drawn(8, 48)) == []
    assert counted(drawn(64, 64, dtype="float32") @ drawn(64, 64, dtype="float32")) == []
    assert counted((drawn(64, 64).float() * drawn(64, 64).float()).sum()) == []


def test_a_widened_copy_counts_as_what_it_holds() -> None:
    wide = (drawn(64, 64) + 1).float().contiguous()
    assert counted(wide @ drawn(64, 64).float()) == [(64, 64, 64, 1)]
    exact = (drawn(64, 64) + 1).float().relu().contiguous()
    assert counted(exact @ drawn(64, 64).float()) == [(64, 64, 64, 1)]
    assert counted(wide.exp().contiguous() @ drawn(64, 64).float()) == []


def test_each_product_of_a_sum_of_several_counts() -> None:
    """As a gradient by what two matrices are multiplied by would be, were it one sum."""
    i, j, r = range_node(64, 0), range_node(48, 1), range_node(32, 2)

    def product(slot: int) -> Node:
        first = k.at(k.param(slot, 64, 32, dtype=dtypes.bfloat16), i, r)
        second = k.at(k.param(slot + 1, 48, 32, dtype=dtypes.bfloat16), j, r)
        return alu(Ops.MUL, cast(first, k.F32), cast(second, k.F32))

    scaled = alu(Ops.MUL, product(1), const(2.0, k.F32))
    total = k.reduce(Ops.ADD, alu(Ops.SUB, scaled, product(3)), r)
    kernel = k.kernel(k.out(k.param(0, 64, 48), total, i, j))
    assert [one[:4] for one in contractions(kernel) if one.counts] == [(64, 48, 32, 1)] * 2


def test_a_plain_product_is_inside() -> None:
    assert outside(planned(drawn(256, 256) @ drawn(256, 256)), TARGET) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", training_steps())
def test_all_kernels_of_a_training_step_are_compiled(name: str) -> None:
    failed = [one for plan in plans_of(name) for one in not_compiled(plan, TARGET)]
    assert not failed, [(kernel.arg.name, str(error)) for kernel, error in failed]


@pytest.mark.few(3)
@pytest.mark.parametrize("name", [
    "GPT-2", "Llama", "ViT-S", "U-Net", "LSTM", pytest.param("ResNet-50", marks=pytest.mark.slow)
])  # fmt: skip
def test_no_contraction_of_a_training_step_is_outside(name: str) -> None:
    found = [one for plan in plans_of(name) for one in outside(plan, TARGET)]
    assert not found, [(one.kernel.arg.name, one.contractions, one.why) for one in found]


@pytest.mark.parametrize(("name", "batch", "heads", "length"), [
    ("GPT-2", 8, 12, 1024), ("ViT-S", 64, 6, 197),
])  # fmt: skip
def test_a_training_step_stores_no_scores_of_keys_and_queries(
    name: str, batch: int, heads: int, length: int
) -> None:
    sizes = {prod(node.arg.shape) for plan in plans_of(name) for kernel in plan.kernels
             for node in toposort(kernel) if node.op is Ops.PARAM}  # fmt: skip
    assert batch * heads * length * 64 in sizes
    assert not [size for size in sizes if size % (batch * heads * length * length) == 0]


def test_attention_by_hand_stores_no_scores_in_a_training_step() -> None:
    sinks: dict[Node, None] = {}
    with listening(sinks):
        model = LanguageModelByHand(96, 3, 64, 160).to("bfloat16")
        optimiser = optim.AdamW(list(model.parameters()), lr=1e-3)
        ids = np.random.default_rng(0).integers(0, 64, (2, 160))
        for _ in range(2):
            sinks.clear()
            train(model, optimiser, Tensor(ids), Tensor(ids.reshape(-1))).realize()
    found = [make_plan(canonicalise(sink, target=TARGET), target=TARGET) for sink in sinks]
    kernels = [kernel for plan in found for kernel in plan.kernels]
    sizes = {prod(node.arg.shape) for kernel in kernels for node in toposort(kernel)
             if node.op is Ops.PARAM}  # fmt: skip
    assert 2 * 3 * 160 * 32 in sizes
    assert not [size for size in sizes if size % (2 * 3 * 160 * 160) == 0]
    assert not [one for plan in found for one in outside(plan, TARGET)]
    # Maxima and sums of powers; the result; a sum for each row; the query's gradient; the others.
    steps = [step for kernel in kernels for step in choose(kernel, TARGET).schedule.steps]
    assert sum(isinstance(step, StreamTiles) for step in steps) == 2 * 5
