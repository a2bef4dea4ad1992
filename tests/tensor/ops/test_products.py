"""Products of bytes in words, and products that are added to, against exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from baregrad.base.errors import DTypeError
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.tensor import Tensor
from baregrad.tensor.ops.products import dot_halves

RNG = np.random.default_rng(5)
UNSIGNED = RNG.integers(0, 256, (5, 44), np.uint8)
SIGNED = RNG.integers(-128, 128, (5, 44), np.int8)
SIGNED[0] = -128
UNSIGNED[0] = 255


@pytest.mark.parametrize(
    "chosen", ({"device": "CPU"}, {"device": "CPU", "cpu_renderer": "c"}, {"device": "REF"},
               {"device": "REF", "ref_level": "linear"}),
    ids=("CPU", "C", "REF", "linear"),
)  # fmt: skip
def test_words_of_bytes(chosen: dict[str, str]) -> None:
    expected = (UNSIGNED.astype(np.int64) * SIGNED).reshape(5, 11, 4).sum(-1)
    with options.override(**chosen):
        x, y = Tensor(UNSIGNED).view(dtypes.int32), Tensor(SIGNED).view(dtypes.int32)
        np.testing.assert_array_equal(x.dot_bytes(y).numpy(), expected)
        np.testing.assert_array_equal(x.dot_bytes(y, 7).sum(-1).numpy(), expected.sum(-1) + 77)
        again = x.dot_bytes(y[:1], x.dot_bytes(y))
        first = (UNSIGNED.astype(np.int64) * SIGNED[:1]).reshape(5, 11, 4).sum(-1)
        np.testing.assert_array_equal(again.numpy(), expected + first)


@pytest.mark.parametrize("device", ["CPU", "REF"])
def test_words_of_bytes_times_halves_of_two_words(device: str) -> None:
    numbers = RNG.integers(-(1 << 15), 1 << 15, (5, 44), np.int16)
    expected = (UNSIGNED.astype(np.int64) * numbers).reshape(5, 11, 4).sum(-1)
    with options.override(device=device):
        x, y = Tensor(UNSIGNED).view(dtypes.int32), Tensor(numbers).view(dtypes.int32)
        found = dot_halves(x, y[:, ::2], y[:, 1::2], 7)
        np.testing.assert_array_equal(found.numpy(), expected + 7)


def test_sums_wrap() -> None:
    ones = Tensor(np.full(4, -1, np.int8)).view(dtypes.int32)
    least = Tensor([-(2**31)], dtype=dtypes.int32)
    assert Tensor([1], dtype=dtypes.int32).dot_bytes(ones, least).tolist() == [2**31 - 1]


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(DTypeError, match="wanted int32"):
        Tensor(UNSIGNED).dot_bytes(Tensor(SIGNED))


@pytest.mark.parametrize("device", ["CPU", "REF"])
def test_a_product_that_is_added_to_is_rounded_once(device: str) -> None:
    random = np.random.default_rng(3)
    x, y = (random.standard_normal((40, 1)).astype(np.float32) for _ in range(2))
    z = np.concatenate([-(x * y), random.standard_normal((40, 1)).astype(np.float32)], 1)
    with options.override(device=device):
        found = Tensor(x).fma(Tensor(y), Tensor(z)).numpy()
    for row, column in np.ndindex(40, 2):
        exact = Fraction(float(x[row, 0])) * Fraction(float(y[row, 0]))
        # A double holds the exact result, or what rounds as it does.
        wanted = np.float32(float(exact + Fraction(float(z[row, column]))))
        assert found[row, column] == wanted


def test_a_product_and_what_it_is_added_to_are_of_one_dtype() -> None:
    with pytest.raises(DTypeError, match="of one dtype"):
        Tensor([1.0]).fma(Tensor([1.0]), Tensor([1.0], dtype=dtypes.float64))


def test_products_of_narrow_numbers_have_a_dtype_of_their_own() -> None:
    """Against products in float64, rounded once."""
    a = RNG.standard_normal((33, 40)).astype(ml_dtypes.float8_e4m3fn)
    b = RNG.standard_normal((40, 17)).astype(ml_dtypes.float8_e5m2)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    for device in ("CPU", "REF"):
        with options.override(device=device):
            x, y = Tensor(a), Tensor(b)
            wide = x.matmul(y, out_dtype=dtypes.float32)
            np.testing.assert_allclose(wide.numpy(), exact, rtol=1e-5, atol=1e-5)
            narrow = x.matmul(y, out_dtype="bfloat16")
            assert narrow.dtype is dtypes.bfloat16
            np.testing.assert_array_equal(
                narrow.cast("float32").numpy(),
                wide.numpy().astype(ml_dtypes.bfloat16).astype(np.float32),
            )
            least = x.matmul(y, out_dtype="float8_e5m2")
            np.testing.assert_array_equal(
                least.cast("float32").numpy(),
                wide.numpy().astype(ml_dtypes.float8_e5m2).astype(np.float32),
            )
            row = x[3].matmul(y, out_dtype="float32")
            np.testing.assert_allclose(row.numpy(), exact[3], rtol=1e-5, atol=1e-5)
            column = x.matmul(y[:, 2], out_dtype="float32")
            np.testing.assert_allclose(column.numpy(), exact[:, 2], rtol=1e-5, atol=1e-5)


def test_products_of_bytes_are_summed_in_words() -> None:
    a, b = SIGNED, UNSIGNED.T
    for device in ("CPU", "REF"):
        with options.override(device=device):
            found = Tensor(a).matmul(Tensor(b), out_dtype="int32")
            assert found.dtype is dtypes.int32
            np.testing.assert_array_equal(found.numpy(), a.astype(np.int64) @ b.astype(np.int64))


def test_kinds_of_numbers_that_have_no_product() -> None:
    narrow = Tensor(np.ones((4, 4), ml_dtypes.float8_e4m3fn))
    for left, right, out in (
        (narrow, Tensor(SIGNED[:4, :4]), "float32"), (narrow, narrow, "int32"),
        (Tensor(SIGNED[:4, :4]),) * 2 + ("float32",), (Tensor([[1, 2], [3, 4]]),) * 2 + ("int8",),
    ):
        with pytest.raises(DTypeError):
            left.matmul(right, out_dtype=out)
    with pytest.raises(DTypeError, match="name it: matmul"):
        narrow @ narrow


@pytest.mark.parametrize(("name", "wide"), [
    ("float8_e4m3fn", "float32"), ("float4_e2m1fn", "float32"), ("int4", "int32"),
])
def test_a_product_of_what_is_not_computed_with_has_its_dtype_named(name: str, wide: str) -> None:
    x = Tensor([[1.0, 2.0], [3.0, 1.0]]).cast(name)
    for right in (x, x[0]):
        with pytest.raises(DTypeError, match=f"name it: matmul.*out_dtype='{wide}'"):
            x @ right
    assert x.matmul(x, out_dtype=wide).tolist() == [[7, 4], [6, 7]]
