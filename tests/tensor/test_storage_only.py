"""Dtypes that are stored, moved and cast only: what they do, against ml_dtypes, and what not."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from baregrad.base.errors import BaregradError, CompilerBug, DTypeError, UnsupportedDType
from baregrad.dtypes import ALL, DType, dtypes
from baregrad.io import safe_load, safe_save
from baregrad.tensor import Tensor
from baregrad.tensor.array.core import Array

STORED = tuple(row for row in ALL if row.storage_only)
INTEGERS = (dtypes.int4, dtypes.uint4)
VALUES = np.array([[1, 2, 0], [3, 1, 2]], np.float32)
PLACES = np.array([[0, 1], [2, 0]])
MASK = VALUES > 1


def held(values: Any, dtype: DType) -> np.ndarray:
    """What a dtype holds of small numbers: float8_e8m0fnu powers of 2, and NaN for 0."""
    values = np.asarray(values, np.float32)
    if dtype is not dtypes.float8_e8m0fnu:
        return values
    return values.astype(ml_dtypes.float8_e8m0fnu).astype(np.float32)


def made(dtype: DType, device: str | None = None) -> Tensor:
    return Tensor(VALUES.tolist(), dtype=dtype, device=device)


def written(x: Tensor, key: object, value: object) -> Tensor:
    x[key] = value
    return x


def filled(key: object, value: object) -> np.ndarray:
    found = VALUES.copy()
    found[key] = value
    return found


MOVES: dict[str, tuple[Callable[[Tensor], Tensor], np.ndarray]] = {
    "made": (lambda x: x, VALUES),
    "zeros": (lambda x: x.zeros_like(), np.zeros_like(VALUES)),
    "full": (lambda x: x.full_like(3), np.full_like(VALUES, 3)),
    "eye": (lambda x: Tensor.eye(3, dtype=x.dtype, device=x.device), np.eye(3)),
    "arange": (lambda x: Tensor.arange(4, dtype=x.dtype, device=x.device), np.arange(4)),
    "row": (lambda x: x[-1], VALUES[-1]),
    "steps": (lambda x: x[:, ::-2], VALUES[:, ::-2]),
    "rows": (lambda x: x[[1, 0, 1]], VALUES[[1, 0, 1]]),
    "picked": (lambda x: x[MASK], VALUES[MASK]),
    "gather": (
        lambda x: x.gather(1, Tensor(PLACES, device=x.device)),
        np.take_along_axis(VALUES, PLACES, 1),
    ),
    "joined": (lambda x: x.cat(x, dim=1), np.concatenate([VALUES, VALUES], 1)),
    "pad": (lambda x: x.pad((1, 2), value=3), np.pad(VALUES, ((0, 0), (1, 2)), constant_values=3)),
    "reflect": (
        lambda x: x.pad((1, 1), mode="reflect"),
        np.pad(VALUES, ((0, 0), (1, 1)), mode="reflect"),
    ),
    "roll": (lambda x: x.roll(1, 1), np.roll(VALUES, 1, 1)),
    "tril": (lambda x: x.tril(), np.tril(VALUES)),
    "where": (
        lambda x: Tensor(MASK, device=x.device).where(x, x.flip(0)),
        np.where(MASK, VALUES, VALUES[::-1]),
    ),
    "where scalar": (
        lambda x: Tensor(MASK, device=x.device).where(x, 1), np.where(MASK, VALUES, 1),
    ),
    "masked_fill": (
        lambda x: x.masked_fill(Tensor(MASK, device=x.device), 0), np.where(MASK, 0, VALUES),
    ),
    "repeated": (lambda x: x.repeat_interleave(2, 1), np.repeat(VALUES, 2, 1)),
    "turned": (lambda x: x.T.contiguous(), VALUES.T),
    "write": (lambda x: written(x, 0, 3), filled(0, 3)),
    "write steps": (
        lambda x: written(x, (0, slice(None, None, -2)), x[1, :2].clone()),
        filled((0, slice(None, None, -2)), VALUES[1, :2]),
    ),
    "write places": (
        lambda x: written(x, ([0, 1], [1, 2]), x[0, :2].clone()),
        filled(([0, 1], [1, 2]), VALUES[0, :2]),
    ),
    "write mask": (lambda x: written(x, MASK, 0), filled(MASK, 0)),
    "copy": (lambda x: x.copy_(x.flip(0).clone()), VALUES[::-1]),
    "fill": (lambda x: x.fill_(2), np.full_like(VALUES, 2)),
}  # fmt: skip


@pytest.mark.parametrize("device", ["CPU", "REF"])
@pytest.mark.parametrize("name", MOVES)
def test_values_are_moved(name: str, device: str) -> None:
    move, wanted = MOVES[name]
    for dtype in STORED:
        found = move(made(dtype, device))
        assert found.dtype is dtype
        np.testing.assert_array_equal(found.tolist(), held(wanted, dtype), str(dtype))


COMPUTATIONS: dict[str, Callable[[Tensor], object]] = {
    "add": lambda x: x + x,
    "add a number": lambda x: x + 1,
    "multiply": lambda x: x * x,
    "floor divide": lambda x: x // x,
    "remainder": lambda x: x % 3,
    "negate": lambda x: -x,
    "power": lambda x: x**2,
    "in place": lambda x: x.add_(1),
    "equal": lambda x: x == x,
    "less": lambda x: x < 1,
    "is nan": lambda x: x.isnan(),
    "not": lambda x: x.logical_not(),
    "clamp": lambda x: x.clamp(1, 2),
    "maximum": lambda x: x.maximum(x),
    "relu": lambda x: x.relu(),
    "max": lambda x: x.max(),
    "argmax": lambda x: x.argmax(1),
    "any": lambda x: x.any(),
    "count": lambda x: x.count_nonzero(),
    "nonzero": lambda x: x.nonzero(),
    "running maximum": lambda x: x.cummax(1),
    "sort": lambda x: x.sort(1),
    "argsort": lambda x: x.argsort(1),
    "topk": lambda x: x.topk(2, 1),
    "unique": lambda x: x.unique(),
    "median": lambda x: x.median(),
    "matmul": lambda x: x @ x.T,
    "einsum": lambda x: Tensor.einsum("ij,kj->ik", x, x),
    "linear": lambda x: x.linear(x),
    "convolution": lambda x: x.reshape(1, 1, 2, 3).conv2d(x.reshape(1, 1, 2, 3)),
    "pooling": lambda x: x.reshape(1, 1, 2, 3).max_pool2d(2),
    "bilinear": lambda x: x.reshape(1, 1, 2, 3).interpolate((4, 6), mode="bilinear"),
    "scatter": lambda x: x.scatter_add(1, Tensor(PLACES), x),
    "largest written": lambda x: x.scatter_reduce(1, Tensor(PLACES), x, "amax"),
    "accumulating": lambda x: x.index_add(1, Tensor([0, 2]), x[:, :2]),
}
# Integers do these in float32 or int64.
OF_FLOATS: dict[str, Callable[[Tensor], object]] = {
    "divide": lambda x: x / x,
    "exp": lambda x: x.exp(),
    "softmax": lambda x: x.softmax(1),
    "sum": lambda x: x.sum(),
    "prod": lambda x: x.prod(1),
    "mean": lambda x: x.mean(),
    "variance": lambda x: x.var(),
    "norm": lambda x: x.norm(),
    "cumsum": lambda x: x.cumsum(1),
    "layer norm": lambda x: x.layer_norm((3,)),
    "average pooling": lambda x: x.reshape(1, 1, 2, 3).avg_pool2d(2),
    "sign bit": lambda x: x.signbit(),
    "infinite": lambda x: x.isinf(),
}


@pytest.mark.parametrize("name", [*COMPUTATIONS, *OF_FLOATS])
def test_computing_is_refused_where_it_is_written(name: str) -> None:
    compute = COMPUTATIONS.get(name) or OF_FLOATS[name]
    for dtype in STORED:
        if name in OF_FLOATS and dtype in INTEGERS:
            continue
        advice = {dtypes.int4: "int8", dtypes.uint4: "uint8"}.get(dtype, "float32")
        wanted = rf"cast it first: .cast\(dtypes.{advice}\)"
        if name in ("matmul", "linear"):
            # Such a product is of any dtype that it is asked to be of.
            wanted = r"name it: matmul\(..., out_dtype='(float32|int32)'\); or cast the factors"
        with pytest.raises(DTypeError, match=f"{dtype} .*{wanted}"):
            compute(made(dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_computed_with_in_another_dtype(dtype: DType) -> None:
    x = made(dtype)
    assert x.sum().item() == VALUES.sum()
    np.testing.assert_array_equal(x.cumsum(1).numpy(), VALUES.cumsum(1))
    np.testing.assert_allclose(x.sqrt().numpy(), np.sqrt(VALUES), rtol=1e-6)
    np.testing.assert_array_equal(Tensor([5, 6, 7, 8])[x].numpy(), 5 + VALUES)


@pytest.mark.parametrize("dtype", STORED)
def test_reading_gives_numbers_of_the_kind(dtype: DType) -> None:
    values = [1, 3, 2, 0, -2] if dtype.is_signed else [1, 3, 2, 0, 12]
    values = [1, 4, 2, 0.5, 16] if dtype is dtypes.float8_e8m0fnu else values
    x = Tensor(values, dtype=dtype)
    kind = float if dtype.is_float else int
    assert x.tolist() == values
    assert {type(value) for value in x.tolist()} == {kind}
    assert type(x[0].item()) is kind
    assert str(values[-1]) in repr(x)
    assert ("." in repr(x).partition("dtype")[0]) is dtype.is_float
    with pytest.raises(UnsupportedDType, match=r"cast it first: .cast\(dtypes\."):
        x.numpy()
    wide = x.cast(dtypes.float32)
    np.testing.assert_array_equal(wide.numpy(), np.array(values, np.float32))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_casts_of_integers_wrap_as_ml_dtypes(dtype: DType) -> None:
    values = np.arange(-40, 40)
    wanted = values.astype(np.int8).astype(getattr(ml_dtypes, dtype.name)).astype(np.int64)
    np.testing.assert_array_equal(Tensor(values).cast(dtype).cast(dtypes.int64).numpy(), wanted)


def test_powers_of_two_hold_no_gradient() -> None:
    x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    (x.cast(dtypes.float8_e8m0fnu).cast(dtypes.float32) * -x).sum().backward()
    assert x.grad.tolist() == [-1.0, -2.0, -4.0]


@pytest.mark.parametrize(
    "dtype", [row for row in STORED if row.is_float and row is not dtypes.float8_e8m0fnu]
)
def test_gradients_pass_through_a_cast_and_back(dtype: DType) -> None:
    x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    narrow = x.cast(dtype)
    # Read twice: what comes back is added up, which is done in float32.
    (narrow.cast(dtypes.float32) + 2 * narrow[[2, 0, 0]].cast(dtypes.float32)).sum().backward()
    assert x.grad is not None
    # 5 is halfway between two numbers of four bits: 4 is the even one.
    assert x.grad.tolist() == [4 if dtype.bits == 4 else 5, 1, 3]


@pytest.mark.parametrize("dtype", STORED)
def test_files(dtype: DType, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    if dtype in (dtypes.tfloat32, *INTEGERS):
        with pytest.raises(UnsupportedDType, match=rf"'x' .* found dtype {dtype}; cast it first"):
            safe_save({"x": made(dtype)}, path)
        return
    safe_save({"x": made(dtype)}, path)
    found = safe_load(path)["x"]
    assert found.dtype is dtype
    np.testing.assert_array_equal(found.tolist(), held(VALUES, dtype))


def test_only_what_computes_promotes() -> None:
    for dtype in STORED:
        with pytest.raises(BaregradError, match="cast one of them"):
            made(dtype) + Tensor([1.0, 2.0, 3.0])


GIVEN: tuple[tuple[Any, ...], ...] = ((), (1,), (0,), ("x",), (0, "i", "x"), (0, "i"), (2.0,))


@pytest.mark.parametrize("shape", [(2, 3), (), (0, 3), (1, 1, 4, 4)], ids=str)
@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_every_method_gives_a_value_or_says_why_not(dtype: DType, shape: tuple[int, ...]) -> None:
    """Nothing that is asked of what is stored only ends in a mistake of our own."""
    names = sorted(set(dir(Tensor)) - set(dir(Array)))
    names = [name for name in names if not name.startswith("_")]
    names = [n for n in names if isinstance(inspect.getattr_static(Tensor, n), FunctionType)]
    assert len(names) > 300
    for name in names:
        for given in GIVEN:
            x = Tensor(np.ones(shape)).cast(dtype)
            stand = {"x": x, "i": Tensor(np.zeros(shape, np.int64))}
            arguments = [stand.get(one, one) if isinstance(one, str) else one for one in given]
            function = getattr(x, name)
            try:
                inspect.signature(function).bind(*arguments)
            except TypeError:
                continue
            try:
                found = function(*arguments)
                for part in found if isinstance(found, tuple | list) else [found]:
                    if isinstance(part, Tensor):
                        part.tolist()
            except BaregradError as error:
                assert not isinstance(error, CompilerBug), (name, given)
