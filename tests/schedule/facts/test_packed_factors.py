"""Factors made of fewer bytes are never stored as numbers."""

from __future__ import annotations

from typing import Any

import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core.op import Ops
from baregrad.schedule import Plan
from tests.kernel.gpu_kernels import HOPPER
from tests.schedule.graphs import F32, A, check, iota_along, param

I32 = dtypes.int32


def numbers(packed: A, scales: A) -> A:
    """(out, blocks, 16) bytes and (out, blocks) scales -> (out, blocks * 32): two codes a byte."""
    out, blocks, _ = packed.shape
    shifts = iota_along((1, 1, 2, 1), 2).cast(I32) * 4
    codes = packed.cast(I32).reshape(out, blocks, 1, 16).alu(Ops.SHR, shifts).alu(Ops.AND, 15)
    scaled = scales.reshape(out, blocks, 1, 1) * (codes - 8).cast(F32)
    return scaled.reshape(out, blocks * 32)


def temporaries(plan: Plan) -> list[str]:
    return [buffer.dtype.name for buffer in plan.buffers if buffer.kind == "temp"]


@pytest.mark.parametrize("target", [None, HOPPER])
@pytest.mark.parametrize("rows", [1, 2, 16, 64])
def test_a_product_reads_packed_bytes(rows: int, target: Any) -> None:
    packed, scales = param(1, 24, 4, 16, dtype=dtypes.uint8), param(2, 24, 4)
    x = param(0, rows, 128)
    check([x @ numbers(packed, scales).permute(1, 0)], kernels=1, target=target)


def test_the_scales_are_made_where_they_are_read() -> None:
    packed, scales = param(1, 24, 4, 16, dtype=dtypes.uint8), param(2, 24, 4, dtype=dtypes.float16)
    made = scales.cast(F32) * 0.5 + 1.0
    check([param(0, 64, 128) @ numbers(packed, made).permute(1, 0)], kernels=1)


def test_numbers_that_two_kernels_want_are_decided_by_cost() -> None:
    packed, scales = param(1, 64, 4, 16, dtype=dtypes.uint8), param(2, 64, 4)
    weight = numbers(packed, scales)
    x, y = param(0, 64, 128), param(3, 64, 64)
    plan = check([x @ weight.permute(1, 0), y @ weight])
    assert temporaries(plan) in ([], ["float32"])


def test_numbers_of_as_many_bytes_are_stored_where_that_is_cheaper() -> None:
    weight, scale = param(1, 64, 128), param(2, 64, 128)
    made = (weight * 2.0 + 1.0) * scale + 0.5
    plan = check([param(0, 64, 128) @ (made * made).permute(1, 0)])
    assert temporaries(plan) == ["float32"]


@pytest.mark.parametrize(("rows", "target", "stored"), [
    (128, HOPPER, ["bfloat16"]), (64, HOPPER, []), (2048, None, []),
])  # fmt: skip
def test_numbers_are_stored_for_many_rows_of_matrix_units(
    rows: int, target: Any, stored: list[str]
) -> None:
    packed, scales = param(1, 24, 4, 16, dtype=dtypes.uint8), param(2, 24, 4)
    half = dtypes.bfloat16
    weight = numbers(packed, scales).cast(half)
    x = param(0, rows, 128, dtype=half)
    product = (x.reshape(rows, 1, 128).cast(F32) * weight.reshape(1, 24, 128).cast(F32)).sum(2)
    assert temporaries(check([product], target=target)) == stored


def test_repeated_numbers_are_no_packed_ones() -> None:
    """A resized image has fewer elements behind it, each of which is read several times."""
    rows = param(1, 24, 1, 1, 128).expand(24, 2, 2, 128)
    weights = param(2, 1, 2, 2, 1).expand(24, 2, 2, 128)
    made = ((rows * weights + 0.5) * weights + 1.0).reshape(96, 128)
    plan = check([param(0, 64, 128) @ made.permute(1, 0)])
    assert temporaries(plan) == ["float32"]
