from __future__ import annotations

import copy
import itertools
import math
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from baregrad.base.errors import DTypeError, UnsupportedDType
from baregrad.dtypes import (
    ALL,
    COMPLEX,
    COMPUTED,
    LATTICE,
    DType,
    as_dtype,
    dtypes,
    finfo,
    from_numpy,
    promote,
    promote_with_scalar,
    promotion_table,
    result_type,
    to_numpy,
)

PAIRS = list(itertools.product(COMPUTED, COMPUTED))
# PyTorch offers these for storage and refuses to mix them with other integers.
WIDE_UNSIGNED = (dtypes.uint16, dtypes.uint32, dtypes.uint64)
FLOATS = [row for row in ALL if row.is_float]


def to_torch(dtype: DType) -> torch.dtype:
    found = getattr(torch, dtype.name)
    assert isinstance(found, torch.dtype)
    return found


def ours(dtype: torch.dtype) -> DType:
    return as_dtype(str(dtype).removeprefix("torch."))


@pytest.mark.differential
@pytest.mark.parametrize("left,right", PAIRS)
def test_promotion_is_pytorchs(left: DType, right: DType) -> None:
    try:
        wanted = ours(torch.promote_types(to_torch(left), to_torch(right)))
    except RuntimeError:
        # PyTorch defines no result, which happens only for the wide unsigned integers.
        assert left in WIDE_UNSIGNED or right in WIDE_UNSIGNED
        return
    assert promote(left, right) is wanted


@pytest.mark.parametrize("left,right", PAIRS)
def test_integers_meet_in_the_smallest_type_that_holds_both(left: DType, right: DType) -> None:
    if not (left.is_int and right.is_int):
        return
    low, high = min(left.min, right.min), max(left.max, right.max)
    holds = [row for row in COMPUTED if row.is_int and row.min <= low and high <= row.max]
    if holds:
        assert promote(left, right) is min(holds, key=lambda row: row.bits)
    else:
        assert dtypes.uint64 in (left, right)
        with pytest.raises(DTypeError, match="no common dtype; cast one of them"):
            promote(left, right)


def test_promotion_is_a_semilattice() -> None:
    chain = [row for row in (*COMPUTED, *COMPLEX) if row is not dtypes.uint64]
    for a, b, c in itertools.product(chain, chain, chain):
        assert promote(a, b) is promote(b, a)
        assert promote(promote(a, b), c) is promote(a, promote(b, c)) is promote(a, b, c)
    for row in ALL:
        assert promote(row) is row is promote(row, row)
    assert {row for row, _ in LATTICE} == {*COMPUTED, *COMPLEX}


@pytest.mark.parametrize("row", [row for row in ALL if row not in COMPUTED])
def test_storage_and_internal_dtypes_meet_nothing_else(row: DType) -> None:
    with pytest.raises(DTypeError, match="no common dtype"):
        promote(row, dtypes.float32)


SCALARS: list[Any] = [True, 1, -3, 1.5, math.inf, np.float64(2), np.int8(1)]


@pytest.mark.differential
@pytest.mark.parametrize("scalar", SCALARS, ids=repr)
@pytest.mark.parametrize("row", COMPUTED)
def test_scalars_are_weak_as_in_pytorch(row: DType, scalar: Any) -> None:
    array = torch.zeros(2, dtype=to_torch(row))
    assert promote_with_scalar(row, scalar) is ours(torch.result_type(array, scalar))


@pytest.mark.differential
@pytest.mark.parametrize("left,right", PAIRS)
def test_zero_dimensional_arrays_are_weak_as_in_pytorch(left: DType, right: DType) -> None:
    array = torch.zeros(2, dtype=to_torch(left))
    single = torch.zeros((), dtype=to_torch(right))
    try:
        wanted = ours(torch.result_type(array, single))
    except RuntimeError:
        return
    assert result_type((left,), (right,)) is wanted


def test_all_three_tiers() -> None:
    # PyTorch takes NumPy's bool for a float; a bool is a bool.
    assert promote_with_scalar(dtypes.int8, np.bool_(True)) is dtypes.int8
    assert result_type((dtypes.int8,), (dtypes.float64,), (1.0,)) is dtypes.float64
    assert result_type((), (dtypes.int8,), (1.0,)) is dtypes.float32
    assert result_type(scalars=(1, True)) is dtypes.int64
    with pytest.raises(DTypeError, match="at least one"):
        result_type()
    assert promote_with_scalar(dtypes.float32, 1j) is dtypes.complex64
    assert promote_with_scalar(dtypes.float64, 1j) is dtypes.complex128


def test_the_table_shows_every_pair() -> None:
    rows = promotion_table().splitlines()
    assert rows[0].split() == [*map(str, COMPUTED), "int", "float"]
    assert len(rows) == len(COMPUTED) + 1
    assert rows[5].split()[:6] == ["uint64"] * 6
    assert rows[5].split()[6:10] == ["-"] * 4


def test_a_dtype_is_one_object() -> None:
    for row in ALL:
        assert pickle.loads(pickle.dumps(row)) is row
        assert copy.deepcopy(row) is copy.copy(row) is row
        assert as_dtype(row.name) is as_dtype(row) is row
        assert eval(repr(row)) is row
    assert len({row.name for row in ALL}) == len(ALL) == len(set(ALL)) == 22
    with pytest.raises(AttributeError):
        dtypes.int8.bits = 9  # type: ignore[misc]


@pytest.mark.parametrize("spec,row", [
    ("float", dtypes.float32), ("half", dtypes.float16), ("long", dtypes.int64),
    (bool, dtypes.bool), (int, dtypes.int64), (float, dtypes.float32),
    (np.uint16, dtypes.uint16), (np.dtype("f8"), dtypes.float64), (np.longlong, dtypes.int64),
    (np.dtype(ml_dtypes.bfloat16), dtypes.bfloat16), (ml_dtypes.float8_e5m2, dtypes.float8_e5m2),
    (np.dtype(ml_dtypes.int4), dtypes.int4),
])
def test_what_names_a_dtype(spec: object, row: DType) -> None:
    assert as_dtype(spec) is row


@pytest.mark.parametrize("spec,error,word", [
    ("float31", DTypeError, "found 'float31'"),
    ("__doc__", DTypeError, "unknown dtype"),
    (3, DTypeError, "not a dtype"),
    (str, DTypeError, "not a dtype"),
    (np.dtype("M8"), UnsupportedDType, "datetime64"),
    (np.dtype("U3"), UnsupportedDType, "<U3"),
    (np.dtype("O"), UnsupportedDType, "object"),
    (np.dtype(">f4"), UnsupportedDType, "newbyteorder"),
])
def test_what_does_not(spec: object, error: type[Exception], word: str) -> None:
    with pytest.raises(error) as caught:
        as_dtype(spec)
    assert word in str(caught.value)


def test_numpy_and_back() -> None:
    for row in ALL:
        if row.numpy is None:
            with pytest.raises(UnsupportedDType, match=row.name):
                to_numpy(row)
        else:
            assert from_numpy(to_numpy(row)) is row
            assert to_numpy(row).itemsize == row.itemsize
        if row.storage is not None:
            assert row.storage.itemsize == row.itemsize


@pytest.mark.differential
def test_limits_are_numpys() -> None:
    for row in COMPUTED:
        if row.is_int:
            limits = np.iinfo(to_numpy(row))
            assert (row.min, row.max) == (limits.min, limits.max)
            assert (row.lowest, row.highest) == (limits.min, limits.max)
    assert (dtypes.int4.min, dtypes.int4.max, dtypes.uint4.max) == (-8, 7, 15)
    assert (dtypes.bool.min, dtypes.bool.max) == (False, True)
    for internal in (dtypes.index, dtypes.token):
        with pytest.raises(DTypeError, match="no bounds"):
            _ = internal.max


@pytest.mark.differential
@pytest.mark.parametrize("row", [row for row in FLOATS if row is not dtypes.tfloat32])
def test_float_limits_are_ml_dtypes(row: DType) -> None:
    native = row.numpy or np.dtype(getattr(ml_dtypes, row.name))
    wanted = np.finfo(native) if row.numpy else ml_dtypes.finfo(native)
    limits = finfo(row)
    assert limits.bits == row.bits == wanted.bits
    assert limits.max == float(wanted.max) == row.max
    assert limits.min == float(wanted.min) == row.min
    assert limits.eps == float(wanted.eps)
    assert limits.smallest_normal == float(wanted.smallest_normal)
    assert limits.smallest_subnormal == float(wanted.smallest_subnormal)
    assert limits.tiny == float(wanted.tiny)
    with np.errstate(over="ignore"):
        has_infinity = bool(np.isinf(np.array(math.inf).astype(native).astype(np.float32)))
    assert (row.highest == math.inf) is has_infinity


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16", "float8_e5m2"])
def test_the_decimal_digit_that_is_kept_is_pytorchs(name: str) -> None:
    wanted = torch.finfo(getattr(torch, name))
    assert finfo(getattr(dtypes, name)).resolution == wanted.resolution


def test_limits_of_tfloat32() -> None:
    """Float32's exponents and ten digits; in memory it is a float32."""
    limits, wide = finfo(dtypes.tfloat32), np.finfo(np.float32)
    assert (limits.bits, limits.eps) == (32, 2.0**-10)
    assert limits.max == 2.0**128 - 2.0**117 == -limits.min
    assert limits.smallest_normal == float(wide.smallest_normal)
    assert limits.smallest_subnormal == 2.0**-136
    assert dtypes.tfloat32.highest == math.inf


def test_finfo_refuses_integers() -> None:
    with pytest.raises(DTypeError, match="int8"):
        finfo(dtypes.int8)


@given(st.sampled_from(ALL))
def test_the_kinds_divide_the_dtypes(row: DType) -> None:
    assert row.is_float + row.is_int + (row.kind in ("bool", "index", "token")) == 1
    narrow = row.bits in (4, 8) or row is dtypes.tfloat32
    assert row.storage_only is (narrow and row not in COMPUTED)
