"""Products of bytes in words against NumPy, on devices and levels that do them in other ways."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.base.errors import DTypeError
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.tensor import Tensor

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


def test_sums_wrap() -> None:
    ones = Tensor(np.full(4, -1, np.int8)).view(dtypes.int32)
    least = Tensor([-(2**31)], dtype=dtypes.int32)
    assert Tensor([1], dtype=dtypes.int32).dot_bytes(ones, least).tolist() == [2**31 - 1]


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(DTypeError, match="wanted int32"):
        Tensor(UNSIGNED).dot_bytes(Tensor(SIGNED))
