"""Which form of a value is stored: the narrowest that says the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import alu, toposort
from baregrad.ir.core.op import Ops
from baregrad.schedule import Plan
from tests.kernel.gpu_kernels import HOPPER
from tests.schedule.graphs import F32, A, check, param, value

BF16 = dtypes.bfloat16


def half(slot: int, *shape: int) -> A:
    return param(slot, *shape, dtype=BF16)


def product(left: A, right: A) -> A:
    """Summed in float32, rounded once."""
    return (left.cast(F32) @ right.cast(F32)).cast(BF16)


def temporaries(plan: Plan) -> list[str]:
    return [buffer.dtype.name for buffer in plan.buffers if buffer.kind == "temp"]


@pytest.mark.parametrize("target", [None, HOPPER])
def test_the_second_product_reads_the_narrow_result_of_the_first(target: Any) -> None:
    x, a, b = half(0, 64, 64), half(1, 64, 64), half(2, 64, 64)
    plan = check([product(product(x, a), b)], kernels=2, target=target, tolerance=2e-2)
    assert temporaries(plan) == ["bfloat16"]


@pytest.mark.parametrize("target", [None, HOPPER])
def test_what_a_cast_and_a_maximum_are_made_of_is_stored(target: Any) -> None:
    x, a, b = half(0, 64, 64), half(1, 64, 64), half(2, 64, 64)
    widened = product(x, a).cast(F32).relu()
    plan = check([(widened @ b.cast(F32)).cast(BF16)], target=target, tolerance=2e-2)
    assert temporaries(plan) == ["bfloat16"]


def test_a_widened_argument_is_not_stored() -> None:
    x = half(0, 64, 64).cast(F32)
    plan = check([x @ param(1, 64, 64), x.permute(1, 0) @ param(2, 64, 64)], kernels=2)
    assert temporaries(plan) == []


def test_a_dear_function_is_stored_as_it_is() -> None:
    x = (half(0, 64, 64) + half(1, 64, 64)).cast(F32).exp()
    plan = check([x @ param(2, 64, 64), x.permute(1, 0) @ param(3, 64, 64)], tolerance=2e-2)
    assert temporaries(plan) == ["float32"]


def test_a_function_of_two_values_is_stored_as_it_is() -> None:
    x = half(0, 64, 64).cast(F32).exp() + half(1, 64, 64).cast(F32).exp()
    plan = check([x @ param(2, 64, 64)], tolerance=1e-3)
    assert temporaries(plan) == ["float32"]


def test_what_is_asked_to_be_contiguous_keeps_its_order() -> None:
    """The narrow value lies the other way round, where views stand between."""
    x = product(half(0, 64, 48), half(1, 48, 32))
    plan = check([x.permute(1, 0).cast(F32).contiguous() + 1.0], tolerance=2e-2)
    assert [(one.shape, one.dtype) for one in plan.buffers if one.kind == "temp"] == [
        ((32, 64), F32)
    ]


@pytest.mark.parametrize("target", [None, HOPPER])
def test_a_product_stored_for_other_axes_is_stored_as_it_is_narrowed(target: Any) -> None:
    """Its reader sums columns, so that its sums are no epilogue's."""
    x, a = half(0, 64, 64), half(1, 64, 64)
    plan = check([product(x, a).cast(F32).sum(0)], kernels=2, target=target, tolerance=5e-2)
    assert temporaries(plan) == ["bfloat16"]


def test_what_is_cut_off_a_product_is_not_computed() -> None:
    x, a = half(0, 72, 64), half(1, 64, 72)
    inner = (x.cast(F32) @ a.cast(F32)).shrink((4, 68, 1), (8, 72, 1)).cast(BF16)
    plan = check([inner.cast(F32).sum(0)], kernels=2, target=HOPPER, tolerance=5e-2)
    assert [(one.dtype.name, one.shape) for one in plan.buffers if one.kind == "temp"] == [
        ("bfloat16", (64, 64))
    ]


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_a_scaled_product_is_narrowed_through_the_scale(scale: float) -> None:
    x, a = half(0, 64, 64), half(1, 64, 64)
    scaled = ((x.cast(F32) @ a.cast(F32)) * scale).cast(BF16)
    plan = check([scaled.cast(F32).sum(0)], kernels=2, tolerance=5e-2)
    assert temporaries(plan) == ["bfloat16"]


def test_the_sums_of_two_products_are_stored_narrow() -> None:
    """One of them has no room in the kernel of the other."""
    x, a, b = half(0, 64, 64), half(1, 64, 64), half(2, 64, 64)
    plan = check([product(x, a) + product(x, b)], kernels=2, tolerance=2e-2)
    assert temporaries(plan) == ["bfloat16"]


def test_a_sum_that_is_read_wide_is_stored_wide() -> None:
    x, a = half(0, 64, 64), half(1, 64, 64)
    total = x.cast(F32) @ a.cast(F32)
    plan = check([total.cast(BF16).cast(F32).sum(0), total.sum(0)], tolerance=5e-2)
    assert "float32" in temporaries(plan)
    assert Ops.CAST not in {one.value.op for one in plan.decisions if one.stored}


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_gradient_of_weights_is_stored_apart_from_the_update(is_kept: bool) -> None:
    """Of 16-bit floats, on a machine with matrix units: their tiles are followed by little."""
    x, above = half(0, 256, 64), half(1, 256, 64)
    weight, mean, square = (param(slot, 64, 64) for slot in (2, 3, 4))
    gradient = product(x.permute(1, 0), above)
    wide = gradient.cast(F32)
    first = mean * 0.9 + wide * 0.1
    second = square * 0.99 + wide * wide * 0.01
    changed = weight - first / (second.sqrt() + 1e-6)
    outputs = [changed, first, second, changed.cast(BF16)] + [gradient] * is_kept
    plan = check(outputs, kernels=2, target=HOPPER, tolerance=2e-2)
    assert [len(kernel.src) for kernel in plan.kernels] == [1, 4]
    assert plan.kernels[0].src[0].src[0].dtype is BF16
    alone = check(outputs, target=None, tolerance=2e-2)
    assert len(alone.kernels) == 1


def test_a_few_arrays_are_written_and_read_after_a_product() -> None:
    x, weight, skip = half(0, 64, 64), half(1, 64, 64), half(2, 64, 64)
    y = product(x, weight) + half(3, 64)
    check([y, (y.cast(F32).relu().cast(BF16)) + skip], kernels=1, target=HOPPER, tolerance=2e-2)


# --- masks of what is held above 0 ----------------------------------------------------------------


def held(x: A) -> tuple[A, A]:
    """What is above 0 of a value, 0 for the rest, and where that is."""
    mask = x.alu(Ops.CMPLE, 0.0)
    return mask.where(value(0.0).to(x.shape), x), mask


def step(is_kept: bool = False) -> list[A]:
    """A product held above 0, multiplied once more, and the gradient of that for the first."""
    x, a, b, above = (param(slot, 64, 64) for slot in range(4))
    before = x @ a
    y, mask = held(before)
    gradient = mask.where(value(0.0).to(y.shape), above @ b.permute(1, 0))
    return [y @ b, gradient @ a.permute(1, 0), *[before] * is_kept]


def test_the_result_alone_is_stored() -> None:
    plan = check(step(), target=HOPPER)
    # What is held above 0, and the gradient before it is multiplied.
    assert temporaries(plan) == ["float32", "float32"]


def test_what_is_an_output_is_read_as_it_is() -> None:
    check(step(is_kept=True), target=HOPPER)


@pytest.mark.parametrize("special", [np.nan, -0.0, 0.0, np.inf, -np.inf, 1e-45])
def test_special_values_are_masked_alike(special: float) -> None:
    x = np.array([special], np.float32)
    y = np.where(x <= 0, np.float32(0), x)
    assert ((y <= 0) == (x <= 0)).all()


def test_of_special_values_the_gradient_is_that_of_the_value() -> None:
    rng = np.random.default_rng(0)
    arrays = {slot: rng.standard_normal((64, 64)).astype(np.float32) for slot in range(4)}
    arrays[0][3, 5] = np.nan
    arrays[0][7] = 0.0
    check(step(), arrays, target=HOPPER)


def test_another_bound_is_no_mask() -> None:
    x, a, b, above = (param(slot, 64, 64) for slot in range(4))
    before = x @ a
    mask = before.alu(Ops.CMPLE, 1.0)
    y = mask.where(value(0.0).to(before.shape), before)
    gradient = A(alu(Ops.WHERE, mask.node, value(0.0).to(y.shape).node, (above @ b).node))
    plan = check([y @ b, gradient @ a], target=HOPPER)
    assert any(Ops.CMPLE in {n.op for n in toposort(kernel)} for kernel in plan.kernels)
