"""Narrow floats by integer arithmetic: every code decoded, and what rounds to which code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import DType, decode, dtypes, encode
from baregrad.ir.core.node import Node
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.kernel.legalise.narrow_floats import (
    decode_float,
    encode_float,
    is_nan,
    round_bfloat16,
    storage_dtype,
)
from tests.render.harness import F32, elementwise

NARROW = (
    dtypes.float16, dtypes.bfloat16, dtypes.float8_e4m3fn, dtypes.float8_e5m2,
    dtypes.float4_e2m1fn, dtypes.float8_e8m0fnu,
)  # fmt: skip
EACH = pytest.mark.parametrize("dtype", NARROW, ids=str)


def computed(function: Callable[[Node], Node], source: DType, values: Any, made: Any) -> Any:
    """A function of one argument over an array, by the evaluator of the loop level."""
    found = np.zeros(len(values), made)
    with np.errstate(all="ignore"):
        evaluate_loop(elementwise([function], len(values), [source], len(values)), [found, values])
    return found


def every_code(dtype: DType) -> Any:
    storage = storage_dtype(dtype).numpy
    assert storage is not None
    return np.arange(1 << dtype.bits, dtype=np.uint32).astype(storage)


def same(found: Any, wanted: Any) -> None:
    """Equal, zeros by their signs too, and NaN for NaN."""
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(found[~nan].view(np.uint32), wanted[~nan].view(np.uint32))


@EACH
def test_every_code_has_its_value(dtype: DType) -> None:
    codes = every_code(dtype)
    found = computed(lambda code: decode_float(code, dtype), storage_dtype(dtype), codes, "f4")
    same(found, decode(codes, dtype).astype(np.float32))


@EACH
def test_what_is_rounded_already_gets_its_code_back(dtype: DType) -> None:
    codes = every_code(dtype)
    values = decode(codes, dtype).astype(np.float32)
    numbers = ~np.isnan(values)
    found = computed(lambda value: encode_float(value, dtype, True), F32, values, codes.dtype)
    np.testing.assert_array_equal(found[numbers], codes[numbers])
    assert np.isnan(decode(found[~numbers], dtype)).all()


@EACH
def test_values_go_to_the_nearest_code_and_ties_to_the_even_one(dtype: DType) -> None:
    """Any bits, and on either side of the middle between two codes, as `dtypes.encode` has it."""
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 32, 4096, dtype=np.uint32).view(np.float32)
    numbers = decode(every_code(dtype), dtype)
    numbers = np.unique(numbers[np.isfinite(numbers)].astype(np.float64))
    middles = ((numbers[1:] + numbers[:-1]) / 2)[:: max(len(numbers) // 2048, 1)]
    middles = middles.astype(np.float32)
    beyond = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-45])
    with np.errstate(over="ignore"):
        far = (numbers[-1] * np.array([1.0, 1.001, 1.01, 1.03125, 1.0625])).astype(np.float32)
    values = np.concatenate([
        bits, middles, np.nextafter(middles, np.float32(np.inf)),
        np.nextafter(middles, np.float32(-np.inf)), beyond, far, -far,
    ])  # fmt: skip
    storage = storage_dtype(dtype).numpy
    found = computed(lambda value: encode_float(value, dtype, False), F32, values, storage)
    with np.errstate(all="ignore"):
        wanted = encode(values, dtype)
    # Where there is no NaN it is a zero, whose sign nobody relies on.
    known = slice(None) if np.isnan(decode(every_code(dtype), dtype)).any() else ~np.isnan(values)
    got, right = (decode(codes, dtype).astype(np.float32) for codes in (found, wanted))
    same(got[known], right[known])
    assert not got[np.isnan(values) & ~np.isnan(got)].any()


def test_bfloat16_is_rounded_in_place() -> None:
    rng = np.random.default_rng(2)
    values = rng.integers(0, 1 << 32, 4096, dtype=np.uint32).view(np.float32)
    found = computed(round_bfloat16, F32, values, np.float32)
    assert not (found.view(np.uint32) & 0xFFFF).any()
    same(found, decode(encode(values, dtypes.bfloat16), dtypes.bfloat16).astype(np.float32))


def test_nothing_equals_what_is_no_number() -> None:
    values = np.float32([0.0, np.nan, np.inf, -np.nan])
    found = computed(is_nan, F32, values, np.bool_)
    assert found.tolist() == [False, True, False, True]
