"""A row times a matrix has the same bits on a GPU, whatever rows a step has beside it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from baregrad import Tensor, bind, nn, variable
from baregrad.dtypes import dtypes
from baregrad.io.gguf import PackedWeight, by_name
from baregrad.testing.ptx_device import ptx_session
from tests.io.gguf.packed import PACKED, random_rows, reference

OUT, WIDTH = 24, 512
COUNTS = (1, 2, 3, 8, 16, 17, 24)
# Of each way to unpack one that the default suite has; the rest are slow.
OFTEN = ("Q4_0", "Q5_1", "Q8_0", "Q3_K", "Q4_K", "Q6_K", "IQ3_S", "MXFP4")
NAMES = [
    pytest.param(row.name, marks=() if row.name in OFTEN else pytest.mark.slow) for row in PACKED
]


def rows_of(most: int, seed: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((most, WIDTH)).astype(np.float32)


def results(
    product: Callable[[Tensor], Tensor], rows: Tensor, counts: tuple[int, ...]
) -> list[Any]:
    """The products of the first so many rows, by steps that may have all, in float32."""
    at = variable("rows", 1, rows.shape[0])
    return [product(rows[: bind(at, count)]).cast(dtypes.float32).numpy() for count in counts]


def assert_alike(found: list[Any], exact: Any, bound: Any) -> None:
    """The results are right, and the beginning of the longest."""
    longest = max(found, key=len)
    assert (np.abs(longest - exact) <= bound).all()
    for some in found:
        np.testing.assert_array_equal(some, longest[: len(some)])


@pytest.mark.few(6)
@pytest.mark.parametrize("most", [3, 24], ids=["few", "many"])
@pytest.mark.parametrize("name", NAMES)
def test_packed_matrices(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of large matrices, before which few rows become integers."""
    monkeypatch.setattr("baregrad.io.gguf.weight.LARGE_NBYTES", 0)
    row = by_name(name)
    packed = random_rows(row, OUT, WIDTH)
    with ptx_session():
        weight = PackedWeight(row, (OUT, WIDTH), Tensor(packed)).in_planes()
        x = Tensor(rows_of(most, 1)).cast(dtypes.bfloat16).realize()
        counts = tuple([count for count in COUNTS if count <= most])
        found = results(weight.linear, x, counts)
        read = x.cast(dtypes.float32).numpy().astype(np.float64)
        del weight, x
    dense = reference(row, packed).astype(np.float64)
    exact = read @ dense.T
    assert_alike(found, exact, 2.0**-7 * (np.abs(read) @ np.abs(dense).T))


def plain_product(matrix: Tensor, rows: Tensor) -> Tensor:
    return rows @ matrix.cast(rows.dtype).T


def scaled_product(name: str, matrix: nn.BlockScaled, rows: Tensor) -> Tensor:
    return nn.scaled_matmul(nn.quantize_blocks(rows, name), matrix)


@pytest.mark.few(2)
@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16", "float8_e4m3fn", "int8"])
def test_plain_matrices(stored: str) -> None:
    random = np.random.default_rng(2)
    values = random.integers(-100, 100, (OUT, WIDTH)).astype(np.float32) / 64
    values = values * 64 if stored == "int8" else values
    dtype = "float16" if stored == "float16" else "bfloat16"
    with ptx_session():
        matrix = Tensor(values).cast(stored).realize()
        x = Tensor(rows_of(24, 3)).cast(dtype if stored != "float32" else stored).realize()
        found = results(partial(plain_product, matrix), x, COUNTS)
        read, dense = (one.cast(dtypes.float32).numpy().astype(np.float64) for one in (x, matrix))
        del matrix, x
    exact = read @ dense.T
    rounding = {"float32": 0.0, "float16": 2.0**-11}.get(stored, 2.0**-8)
    bound = WIDTH * 2.0**-24 * (np.abs(read) @ np.abs(dense).T)
    assert_alike(found, exact, (1 + rounding) * bound + rounding * np.abs(exact))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name", ["fp8", "int4", "mxfp8", pytest.param("mxfp4", marks=pytest.mark.slow)]
)
def test_matrices_with_scales_for_blocks(name: str) -> None:
    """Rows are rounded to blocks of their own."""
    values = rows_of(OUT, 4)
    with ptx_session():
        matrix = nn.quantize_blocks(Tensor(values), name)
        x = Tensor(rows_of(24, 5)).realize()
        found = results(partial(scaled_product, name, matrix), x, COUNTS)
        read, dense = (
            nn.quantize_blocks(one, name).dequantize().numpy().astype(np.float64)
            for one in (x, Tensor(values))
        )
        del matrix, x
    assert_alike(found, read @ dense.T, 2.0**-7 * (np.abs(read) @ np.abs(dense).T))
