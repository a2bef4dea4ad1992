"""What is a contraction of 16-bit floats, and that none of five models' is outside matrix units."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import prod

import pytest

from baregrad.apps.models import training_steps
from baregrad.base.options import options
from baregrad.graph import canonicalise
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.schedule import make_plan
from baregrad.schedule.plan import Plan
from baregrad.target import gpu_row
from baregrad.tensor import Tensor
from benchmarks.kernel_digests import listening
from benchmarks.matrix_units import kernels_with_contractions, not_compiled, outside, plans

TARGET = gpu_row("sm_90a")


@cache
def plans_of(name: str) -> list[Plan]:
    """The plans of a model's training step, for all tests that ask for them."""
    return plans(name, TARGET)


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


def test_a_plain_product_is_inside() -> None:
    assert outside(planned(drawn(256, 256) @ drawn(256, 256)), TARGET) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", training_steps())
def test_all_kernels_of_a_training_step_are_compiled(name: str) -> None:
    failed = [one for plan in plans_of(name) for one in not_compiled(plan, TARGET)]
    assert not failed, [(kernel.arg.name, str(error)) for kernel, error in failed]


@pytest.mark.parametrize("name", [
    "GPT-2", "ViT-S", "U-Net", "LSTM", pytest.param("ResNet-50", marks=pytest.mark.slow)
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
