"""Reductions, scans, movements, indexing and contractions on the CPU: odd shapes and views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.tensor import Tensor
from tests.differential import sweep
from tests.differential.sweep import assert_same_bits

pytestmark = pytest.mark.differential

SHAPES = ((0,), (1,), (7,), (8,), (9,), (17,), (33,), (3, 5), (17, 9), (1, 33), (8, 16), (2, 3, 7))
DTYPES = (
    dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16, dtypes.int32, dtypes.int64,
    dtypes.int8, dtypes.uint8, dtypes.bool,
)  # fmt: skip

# Views by what they do to a tensor; each function below is applied to each of them.
VIEWS: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("whole", lambda x: x),
    ("transposed", lambda x: x.T),
    ("stepped", lambda x: x[..., ::2]),
    ("cut", lambda x: x[..., 1:]),
    ("flipped", lambda x: x.flip(-1)),
    ("backwards", lambda x: x[..., ::-2]),
    ("expanded", lambda x: x.unsqueeze(0).expand((2, *x.shape))),
    ("padded", lambda x: x.pad((1, 2), value=1)),
    ("rolled", lambda x: x.roll(2, -1)),
    ("reshaped", lambda x: x.reshape(-1)),
    ("column", lambda x: x[..., :1]),
    ("joined", lambda x: Tensor.cat([x, x.flip(-1)], dim=-1)),
    ("repeated", lambda x: x.repeat(*(2,) * x.ndim)),
)
EXACT: tuple[tuple[str, Callable[[Tensor], Any]], ...] = (
    ("copy", lambda x: x.contiguous()),
    ("amax", lambda x: x.amax(-1) if x.shape[-1] else x.sum(-1)),
    ("amin", lambda x: x.amin() if x.numel() else x.sum()),
    ("argmax", lambda x: x.argmax(-1) if x.shape[-1] and x.dtype.name != "bool" else x.sum(-1)),
    ("any", lambda x: (x != 0).any(-1)),
    ("all", lambda x: (x != 0).all()),
    ("count", lambda x: x.count_nonzero()),
    ("sum", lambda x: x.sum()),
    ("sum last", lambda x: x.sum(-1, keepdim=True)),
    ("sum first", lambda x: x.sum(0)),
    ("cumsum", lambda x: x.cumsum(-1)),
    ("sort", lambda x: x.sort(-1)[0]),
    ("take", lambda x: x[..., [0, -1, 0]] if x.shape[-1] else x),
    ("tril", lambda x: x.tril() if x.ndim > 1 else x),
    ("outer", lambda x: x.unsqueeze(-1) * x.unsqueeze(-2)),
)


def _grid(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> np.ndarray[Any, Any]:
    """Small values on a grid, so that every sum is exact in any order."""
    drawn = np.random.default_rng(seed).integers(-6, 7, shape)
    if dtype.kind == "uint":
        return np.abs(drawn)
    return drawn != 0 if dtype.kind == "bool" else drawn / (2 if dtype.kind == "float" else 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_views_and_reductions_have_the_bits_of_the_reference(dtype: DType) -> None:
    _compare_views(dtype, ((9,), (17, 9)) if dtype is dtypes.float32 else ((3, 5),))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_views_and_reductions_of_every_shape(dtype: DType) -> None:
    _compare_views(dtype, SHAPES)


def _compare_views(dtype: DType, shapes: tuple[tuple[int, ...], ...]) -> None:
    for shape in shapes:
        rows = [
            (f"{what} of {view}, {shape}", lambda x, f=function, v=show: f(v(x)))
            for view, show in VIEWS
            for what, function in EXACT
        ]
        assert_same_bits(rows, [(_grid(shape, dtype), dtype)])


@pytest.mark.parametrize("dtype", (dtypes.float32, dtypes.float64, dtypes.float16), ids=str)
def test_extremes_of_special_values(dtype: DType) -> None:
    special = np.array([[np.nan, 1, 2], [np.inf, -np.inf, 0], [-0.0, 0.0, -0.0], [1, np.nan, -1]])
    rows = [
        ("amax", lambda x: x.amax(-1)), ("amin", lambda x: x.amin(0)), ("sum", lambda x: x.sum(-1)),
        ("argmax", lambda x: x.argmax(-1)), ("argmin", lambda x: x.argmin(-1)),
        ("cummax", lambda x: x.cummax(1)[0]), ("sort", lambda x: x.sort(-1)[0]),
        ("prod", lambda x: x.prod(-1)), ("nansum", lambda x: x.nansum(0)),
    ]  # fmt: skip
    for _, show in (("", lambda x: x), ("", lambda x: x.T)):
        shown = [(name, lambda x, f=f, s=show: f(s(x))) for name, f in rows]
        found = sweep.on_device(sweep.DEVICE, [f for _, f in shown], [(special, dtype)])
        wanted = sweep.on_device("REF", [f for _, f in shown], [(special, dtype)])
        for (name, _), ours, theirs in zip(shown, found, wanted, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=name)


@pytest.mark.parametrize("extent", (1, 7, 64, 1000, 4097))
def test_sums_keep_their_bound(extent: int) -> None:
    """|error| <= (20 + log2 n) u sum|x|: blocked sums, far below n u of a running sum."""
    for dtype, unit in ((dtypes.float32, 2.0**-24), (dtypes.float64, 2.0**-53)):
        raw = np.random.default_rng(extent).normal(size=(5, extent)).astype(dtype.name)
        functions = [lambda x: x.sum(1), lambda x: x.T.sum(0), lambda x: x.mean(1) * extent]
        exact = raw.astype(np.longdouble).sum(1)
        size = np.abs(raw.astype(np.longdouble)).sum(1)
        lanes = max(extent / 64, 1)  # what one accumulator adds up, with room
        for found in sweep.on_device(sweep.DEVICE, functions, [(raw, dtype)]):
            bound = (20 + lanes) * unit * size
            assert (np.abs(found - exact) <= bound).all(), (dtype, np.abs(found - exact) / size)


@pytest.mark.parametrize(
    "dtype", (*sweep.FLOATS, dtypes.int32, dtypes.int8, dtypes.uint16), ids=str
)
def test_products_of_matrices_have_the_bits_of_the_reference(dtype: DType) -> None:
    for m, k, n in ((1, 1, 1), (7, 9, 3), (17, 8, 33), (3, 0, 2), (1, 33, 9), (16, 16, 16)):
        left, right = _grid((m, k), dtype, 1), _grid((k, n), dtype, 2)
        rows = [
            ("a @ b", lambda a, b: a @ b), ("(b.T @ a.T).T", lambda a, b: (b.T @ a.T).T),
            ("a @ b + 1", lambda a, b: (a @ b + 1).relu()), ("row", lambda a, b: a[0] @ b),
            ("flipped", lambda a, b: a.flip(1) @ b.flip(0)),
        ]  # fmt: skip
        assert_same_bits(rows, [(left, dtype), (right, dtype)])


def test_convolutions_have_the_bits_of_the_reference() -> None:
    dtype = dtypes.float32
    for channels, size, kernel in ((1, 5, 3), (3, 9, 2), (4, 8, 1), (2, 7, 5)):
        x = _grid((2, channels, size, size), dtype, 3)
        w = _grid((4, channels, kernel, kernel), dtype, 4)
        every = ({}, {"padding": 1}, {"stride": 2}, {"padding": kernel - 1, "stride": 2})
        rows = [(f"{row}", lambda a, b, row=row: a.conv2d(b, **row)) for row in every]
        rows.append(("max pool", lambda a, b: a.max_pool2d(2)))
        rows.append(("transposed", lambda a, b: a.conv_transpose2d(b[: a.shape[1]], stride=2)))
        assert_same_bits(rows, [(x, dtype), (w, dtype)])


def test_writes_by_index_have_the_bits_of_the_reference() -> None:
    def written(kind: str) -> Callable[[Tensor, Tensor], Tensor]:
        def write(x: Tensor, places: Tensor) -> Tensor:
            y = x.clone()
            if kind == "slice":
                y[1::2, ::-1] = 3
            elif kind == "rows":
                y[places] = 5
            elif kind == "view":
                y.T[2] = y[:, 0]
            elif kind == "mask":
                y[y > 1] = 0
            elif kind == "add":
                y[2:5].add_(y[1:4])
            else:
                wide = places.unsqueeze(1).expand((places.shape[0], x.shape[1]))
                return y.scatter_reduce(0, wide, x[: places.shape[0]], kind)
            return y

        return write

    kinds = ("slice", "rows", "view", "mask", "add", "sum", "amax", "amin", "prod")
    rows = [(kind, written(kind)) for kind in kinds]
    places = (np.array([0, 3, 3, -0, 6]), dtypes.int64)
    for dtype in (dtypes.float32, dtypes.int32, dtypes.bfloat16, dtypes.uint8):
        assert_same_bits(rows, [(_grid((7, 5), dtype), dtype), places])
