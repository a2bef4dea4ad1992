from __future__ import annotations

import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from baregrad.base.errors import DTypeError
from baregrad.base.floats import encode_float
from baregrad.dtypes import ALL, COMPUTED, DType, decode, dtypes, encode, round_scalar

# Signalling NaNs and overflow are meant; that they do not warn in our own code is tested once.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in cast:RuntimeWarning:.*test_dtypes")

NARROW = [
    dtypes.bfloat16, dtypes.float16,
    dtypes.float8_e4m3fn, dtypes.float8_e5m2, dtypes.float4_e2m1fn,
]
POWERS = dtypes.float8_e8m0fnu
STORED = [row for row in ALL if row.storage is not None]


def native(row: DType) -> np.dtype[Any]:
    return row.numpy or np.dtype(getattr(ml_dtypes, row.name))


def all_codes(row: DType) -> npt.NDArray[Any]:
    assert row.storage is not None
    return np.arange(1 << row.bits).astype(row.storage)


def same(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> None:
    """Compare values bit for bit, the sign of zero included, one NaN equal to another."""
    assert left.shape == right.shape
    nans = np.isnan(left)
    np.testing.assert_array_equal(nans, np.isnan(right))
    np.testing.assert_array_equal(left[~nans], right[~nans])
    np.testing.assert_array_equal(np.signbit(left[~nans]), np.signbit(right[~nans]))


@pytest.mark.differential
@pytest.mark.parametrize("row", [*NARROW, POWERS])
def test_every_code_decodes_as_in_ml_dtypes(row: DType) -> None:
    codes = all_codes(row)
    with np.errstate(invalid="ignore"):
        wanted = codes.view(native(row)).astype(np.float32)
    found = decode(codes, row)
    assert found.dtype == np.float32
    same(found, wanted)


@pytest.mark.differential
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float16"])
def test_every_code_decodes_as_in_pytorch(name: str) -> None:
    row = getattr(dtypes, name)
    signed = all_codes(row).view(np.int16 if row.bits == 16 else np.uint8)
    wanted = torch.from_numpy(signed).view(getattr(torch, name)).to(torch.float32).numpy()
    same(decode(all_codes(row), row), wanted)


@pytest.mark.parametrize("row", NARROW)
def test_decoding_then_encoding_gives_the_code_back(row: DType) -> None:
    codes = all_codes(row)
    values = decode(codes, row)
    real = ~np.isnan(values)
    for dtype in (np.float32, np.float64):
        again = encode(values.astype(dtype), row)
        assert again.dtype == row.storage
        np.testing.assert_array_equal(again[real], codes[real])
    assert np.isnan(decode(encode(values, row), row)[~real]).all()


def boundaries(row: DType) -> npt.NDArray[np.float64]:
    """Return every value, every midpoint, and the float64 neighbours of both."""
    values = decode(all_codes(row), row).astype(np.float64)
    values = np.unique(values[np.isfinite(values)])
    gap = values[-1] - values[-2]
    values = np.concatenate([[values[0] - gap], values, [values[-1] + gap, 2 * values[-1]]])
    points = np.concatenate([values, (values[1:] + values[:-1]) / 2])
    near = [np.nextafter(points, -np.inf), points, np.nextafter(points, np.inf)]
    return np.concatenate([*near, [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-320, 1e300, -1e300]])


@pytest.mark.differential
@pytest.mark.parametrize("row", NARROW)
def test_rounding_at_every_boundary_is_right(row: DType) -> None:
    """Compare with exact rounding over the sorted table of the format's values."""
    assert row.format is not None
    points = boundaries(row)
    points = points[np.isfinite(points) & (np.abs(points) <= row.format.largest)]
    codes = np.arange(row.format.largest_code + 1)
    table = decode(codes.astype(row.storage), row).astype(np.float64)
    size = np.abs(points)
    above = np.searchsorted(table, size)
    below = np.maximum(above - 1, 0)
    up, down = table[above] - size, size - table[below]
    tie_to_even = np.where(above % 2 == 0, above, below)
    nearest = np.where(up < down, above, np.where(up > down, below, tie_to_even))
    wanted = nearest | (np.signbit(points).astype(int) << (row.bits - 1))
    np.testing.assert_array_equal(encode(points, row), wanted)


@pytest.mark.differential
@pytest.mark.parametrize("row", NARROW)
def test_rounding_at_every_boundary_is_ml_dtypes(row: DType) -> None:
    # ml_dtypes goes from float64 by way of float32 in places, so float32 is what can be compared.
    with np.errstate(over="ignore", invalid="ignore"):
        points = boundaries(row).astype(np.float32)
        wanted = points.astype(native(row)).view(row.storage)
    np.testing.assert_array_equal(encode(points, row), wanted)
    # The general arithmetic agrees with the short cuts for bfloat16 and float16.
    assert row.format is not None
    general = encode_float(points.astype(np.float64), row.format, False)
    np.testing.assert_array_equal(general.astype(row.storage), wanted)


@pytest.mark.differential
@pytest.mark.parametrize("row", NARROW)
def test_rounding_of_random_float32_bits_is_ml_dtypes(row: DType) -> None:
    bits = np.random.default_rng(7).integers(0, 2**32, 1_000_000, dtype=np.uint32)
    values = bits.view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = values.astype(native(row)).view(row.storage)
    found = encode(values, row)
    if row is dtypes.float16:
        # NumPy keeps part of a NaN's payload in float16, and so do we there.
        wanted, found = wanted[~np.isnan(values)], found[~np.isnan(values)]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.differential
@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e5m2"])
def test_rounding_is_pytorchs(name: str) -> None:
    row = getattr(dtypes, name)
    bits = np.random.default_rng(8).integers(0, 2**32, 200_000, dtype=np.uint32)
    values = np.concatenate([bits.view(np.float32), boundaries(row).astype(np.float32)])
    wanted = torch.from_numpy(values).to(getattr(torch, name)).to(torch.float32).numpy()
    same(decode(encode(values, row), row), wanted)


@pytest.mark.parametrize("row", NARROW)
def test_saturation_stops_at_the_largest(row: DType) -> None:
    codes = encode(np.array([np.inf, -np.inf, 1e39, -1e39, 0.5]), row, saturate=True)
    assert row.format is not None
    top = row.format.largest
    assert decode(codes, row).tolist() == [top, -top, top, -top, 0.5]


def test_powers_of_two_are_the_nearest_ones() -> None:
    """Ties go to the larger power; zero, what is negative, and what is too large are NaN."""
    table = np.ldexp(1.0, np.arange(-127, 128))
    points = np.concatenate([table, table * 1.5, [1e-320, 2.0**-128]])
    points = np.concatenate([np.nextafter(points, 0.0), points, np.nextafter(points, np.inf)])
    far = np.abs(points[:, None] - np.append(table, 2.0**128))
    nearest = far.shape[1] - 1 - np.argmin(far[:, ::-1], axis=1)
    np.testing.assert_array_equal(encode(points, POWERS), nearest)
    wrong = np.array([0.0, -0.0, -1.0, np.nan, np.inf, -np.inf, 1e39])
    assert set(encode(wrong, POWERS)) == {255}
    saturated = encode(wrong, POWERS, saturate=True).tolist()
    assert saturated == [255, 255, 255, 255, 254, 255, 254]
    assert [round_scalar(value, POWERS) for value in (1.4, 1.5, 6.0, 1e-50)] == [
        1.0, 2.0, 8.0, 2.0**-127,
    ]
    assert math.isnan(round_scalar(0.0, POWERS))
    assert (POWERS.min, POWERS.max, POWERS.is_signed) == (2.0**-127, 2.0**127, False)


@pytest.mark.differential
def test_powers_of_two_are_those_of_ml_dtypes() -> None:
    bits = np.random.default_rng(7).integers(0, 2**32, 200_000, dtype=np.uint32)
    values = bits.view(np.float32)
    # ml_dtypes takes the second power for all that is larger than the first one.
    values = values[~((values > 2.0**-127) & (values < 1.5 * 2.0**-127))]
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = values.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8)
    np.testing.assert_array_equal(encode(values, POWERS), wanted)


def test_one_step_from_float64_has_no_double_rounding() -> None:
    # Just above the middle of 1 and 1 + 2^-7; by way of float32 it would become the middle itself.
    value = 1.0 + 2.0**-8 + 2.0**-40
    assert decode(encode(np.array(value), dtypes.bfloat16), dtypes.bfloat16) == 1.0 + 2.0**-7
    assert decode(encode(np.float32(value), dtypes.bfloat16), dtypes.bfloat16) == 1.0


@pytest.mark.parametrize("row,low,high", [(dtypes.int4, -8, 7), (dtypes.uint4, 0, 15)])
def test_four_bit_integers(row: DType, low: int, high: int) -> None:
    codes = all_codes(row)
    values = decode(codes, row)
    assert sorted(values.tolist()) == list(range(low, high + 1))
    np.testing.assert_array_equal(encode(values, row), codes)
    np.testing.assert_array_equal(values, codes.view(native(row)).astype(np.float32))
    # The upper half of the byte is nobody's business.
    np.testing.assert_array_equal(decode(codes | np.uint8(0xF0), row), values)
    given_values = np.array([2.5, 3.5, -0.5, 99.0, -99.0, np.inf, np.nan])
    wanted = [2, 4, 0, high, low, high, 0]
    assert decode(encode(given_values, row), row).tolist() == wanted


def test_wide_dtypes_are_numpys_own_bits() -> None:
    values = np.array([0, 1, 100])
    for row in COMPUTED:
        if row.numpy is not None and row is not dtypes.float16:
            codes = encode(values, row)
            assert codes.dtype == row.storage
            np.testing.assert_array_equal(decode(codes, row), values.astype(row.numpy))


@pytest.mark.parametrize("shape", [(), (0,), (2, 3), (3, 0, 2)])
@pytest.mark.parametrize("row", STORED)
def test_shapes_are_kept(row: DType, shape: tuple[int, ...]) -> None:
    codes = encode(np.ones(shape, np.float32), row)
    assert codes.shape == decode(codes, row).shape == shape
    strided = np.ones((4, 6), np.float32)[::2, ::3]
    assert (decode(encode(strided, row), row) == 1).all()


def test_wrong_codes_are_refused() -> None:
    with pytest.raises(DTypeError, match="raw codes of bfloat16: found uint8, wanted uint16"):
        decode(np.zeros(2, np.uint8), dtypes.bfloat16)
    with pytest.raises(DTypeError, match="never stored"):
        encode(np.zeros(2), dtypes.index)


def test_tfloat32_is_a_float32_of_ten_digits() -> None:
    """Ties to even, subnormals, overflow and NaN, against whole counts of the last digit."""
    low = np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF], np.uint32)
    base = np.array([0, 0x2000, 0x4000, 0x800000, 0x3F800000, 0x40492000, 0x7F7FE000], np.uint32)
    bits = (base[:, None] + low).reshape(-1)
    points = np.concatenate([bits, bits | np.uint32(1 << 31)]).view(np.float32)
    exact = points.astype(np.float64)
    # Of the least binade digits are 2**-136, of others 2**-10 of the power of two below.
    digit = 2.0 ** (np.maximum(np.frexp(exact)[1] - 1, -126) - 10)
    wanted = np.rint(exact / digit) * digit
    wanted[np.abs(wanted) >= 2.0**128] *= np.inf
    codes = encode(points, dtypes.tfloat32)
    same(decode(codes, dtypes.tfloat32), wanted.astype(np.float32))
    same(codes.view(np.float32), wanted.astype(np.float32))
    special = np.array([np.inf, -np.inf, np.nan], np.float32)
    same(decode(encode(special, dtypes.tfloat32), dtypes.tfloat32), special)
    # Digits that it has not are no part of what a code stands for.
    assert decode(np.uint32([0x3F801FFF]), dtypes.tfloat32).tolist() == [1.0]


SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-320, -1e39, 448.0, 464.1, 65520.0]


@pytest.mark.parametrize("row", [row for row in ALL if row.is_float])
@given(value=st.one_of(st.floats(), st.floats(-500, 500), st.sampled_from(SPECIAL)))
def test_rounding_one_scalar_is_rounding_an_array(row: DType, value: float) -> None:
    with np.errstate(over="ignore"):
        wanted = decode(encode(np.array([value]), row), row)
    same(np.array([round_scalar(value, row)], wanted.dtype), wanted)


@pytest.mark.parametrize("row", [row for row in ALL if row.is_int])
@given(value=st.integers(-(2**70), 2**70))
def test_integers_wrap(row: DType, value: int) -> None:
    found = round_scalar(value, row)
    assert row.min <= found <= row.max
    assert (found - value) % (1 << row.bits) == 0


@pytest.mark.parametrize("row", [row for row in ALL if row.is_int])
def test_floats_become_integers_by_truncation_and_saturate(row: DType) -> None:
    cases = [2.9, -0.9, math.nan, math.inf, -math.inf, 1e30, -1e30]
    wanted = [2, 0, 0, row.max, row.min, row.max, row.min]
    assert [round_scalar(value, row) for value in cases] == wanted


def test_scalars_of_other_kinds() -> None:
    assert round_scalar(2, dtypes.bool) is True
    assert round_scalar(math.nan, dtypes.bool) is True
    assert round_scalar(2**80, dtypes.index) == 2**80
    assert round_scalar(True, dtypes.int8) == 1
    for row, value in itertools.product((dtypes.float16, dtypes.float64), (3, True)):
        assert round_scalar(value, row) == float(value)
