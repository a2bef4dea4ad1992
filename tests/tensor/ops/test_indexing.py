"""Indexing against NumPy, and picking by index tensors against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import DTypeError, IndexOutOfRange, ShapeError
from baregrad.dtypes import dtypes
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit
from tests.tensor.oracle import compare

I = np.array([1, -1, 0])
J = np.array([[0], [2]])
MASK = np.array([True, False, True])
GRID = np.arange(12).reshape(3, 4) % 3 == 0
KEYS: tuple[Any, ...] = (
    0,
    -1,
    slice(None),
    slice(1, None),
    slice(None, None, 2),
    slice(None, None, -1),
    slice(2, 0, -1),
    slice(5, 9),
    slice(-2, None),
    slice(None, -1),
    slice(2, 1),
    Ellipsis,
    None,
    (0, 1),
    (0, slice(1, 3)),
    (slice(None), -1),
    (Ellipsis, 0),
    (0, Ellipsis),
    (None, 0),
    (slice(None), None, 1),
    (0, 1, 2),
    (Ellipsis, None),
    (slice(1, None), slice(None, None, -2)),
    (slice(None), slice(None), slice(4, 0, -2)),
    (),
    I,
    [0, 2],
    ([0, 2],),
    (I, I),
    (I, 0),
    (0, I),
    (slice(None), I),
    (I, slice(None), I),
    (slice(None), I, I),
    (J, I),
    (I, Ellipsis),
    (Ellipsis, I),
    (J, slice(None), I),
    (0, slice(None), I),
    (slice(None), 0, I),
    (I, slice(1, None), 0),
    (None, I),
    (I, None, I),
    (slice(None, None, -1), I),
    (slice(None), slice(1, None, 2), J),
    MASK,
    (MASK, 0),
    (MASK, slice(None), I[:2]),
    GRID,
    (GRID, 1),
    (slice(None), GRID.T[:, :3].T[:, :4][:3, :4].any(0)),
    np.zeros(0, int),
    [],
    (J, J, J),
    np.int64(2),
    (np.array(1), slice(None)),
    (np.array(1), I),
)


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_reading(key: Any) -> None:
    array = np.arange(60.0, dtype=np.float32).reshape(3, 4, 5)
    wanted = array[key]
    x = Tensor(array, requires_grad=True)
    got = x[key]
    np.testing.assert_array_equal(got.numpy(), wanted)
    weights = np.random.default_rng(1).uniform(1, 2, wanted.shape).astype(np.float32)
    gradient = np.zeros_like(array)
    np.add.at(gradient, key, weights)
    (got * Tensor(weights)).sum().backward()
    if wanted.size:
        np.testing.assert_allclose(x.grad.numpy(), gradient, rtol=1e-6)


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_writing(key: Any) -> None:
    rng = np.random.default_rng(2)
    for kind in ("scalar", "full", "row"):
        array = np.arange(60.0, dtype=np.float32).reshape(3, 4, 5)
        x = Tensor(array)
        shape = array[key].shape
        value: Any = 7.5
        if kind == "full":
            value = rng.uniform(1, 2, shape).astype(np.float32)
        if kind == "row":
            value = rng.uniform(1, 2, shape[-1:]).astype(np.float32)
        x[key] = Tensor(value) if kind == "full" else value
        array[key] = value
        np.testing.assert_array_equal(x.numpy(), array)


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_adding_in_place(key: Any) -> None:
    array = np.arange(60.0, dtype=np.float32).reshape(3, 4, 5)
    x = Tensor(array)
    x[key] += 2
    array[key] += 2
    np.testing.assert_array_equal(x.numpy(), array)


def test_gradients_of_writing() -> None:
    def function(f: Any, x: Any, y: Any) -> Any:
        z = x * 1
        z[1:, ::2] = y
        z[0] *= 3
        z[:, 1] = z[:, 1] + z[:, 0]
        return z

    rng = np.random.default_rng(3)
    compare(function, [rng.uniform(size=(3, 4)), rng.uniform(size=(2, 2))], dtypes.float64)


def test_gradient_of_writing_by_index() -> None:
    import torch

    def function(f: Any, x: Any, y: Any) -> Any:
        z = x * 1
        place = torch.tensor([2, 0]) if isinstance(x, torch.Tensor) else Tensor([2, 0])
        z[place] = y
        return z * z

    rng = np.random.default_rng(3)
    compare(function, [rng.uniform(size=(3, 4)), rng.uniform(size=(2, 4))], dtypes.float64)


def test_only_the_last_of_repeated_writes_gets_a_gradient() -> None:
    x = Tensor.zeros(3)
    values = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    x[Tensor([1, 1, 0])] = values
    assert x.tolist() == [3.0, 2.0, 0.0]
    (x * Tensor([1.0, 10.0, 100.0])).sum().backward()
    assert values.grad.tolist() == [0.0, 10.0, 1.0]


PICKING: tuple[tuple[str, Any, tuple[Any, ...]], ...] = (
    ("gather", lambda f, x, i: x.gather(1, i), ([[0, 2], [1, 1], [3, 0]],)),
    ("gather 0", lambda f, x, i: x.gather(0, i), ([[0, 2, 1, 0]],)),
    ("take", lambda f, x, i: x.take(i), ([[0, 11], [-1, 5]],)),
    ("take_along_dim", lambda f, x, i: x.take_along_dim(i, 1), ([[0, 2], [1, 1], [3, 0]],)),
    ("take_along_dim flat", lambda f, x, i: x.take_along_dim(i), ([0, 11, 5],)),
    ("index_select", lambda f, x, i: x.index_select(1, i), ([3, 0, 0],)),
    ("scatter", lambda f, x, i: x.scatter(1, i, x[:, :2] * 2), ([[0, 2], [1, 3], [3, 0]],)),
    ("scatter value", lambda f, x, i: x.scatter(1, i, 2.0), ([[0, 2], [1, 1], [3, 0]],)),
    ("scatter_add", lambda f, x, i: x.scatter_add(1, i, x[:, :2] * 2), ([[0, 2], [1, 1], [3, 0]],)),
    ("index_add", lambda f, x, i: x.index_add(1, i, x[:, :3], alpha=2), ([3, 0, 0],)),
    ("index_copy", lambda f, x, i: x.index_copy(1, i, x[:, :2] * 2), ([3, 0],)),
    ("index_fill", lambda f, x, i: x.index_fill(1, i, 2.0), ([3, 0],)),
    (
        "embedding",
        lambda f, x, i: f.embedding(x, i) if hasattr(x, "_storage") else f.embedding(i, x),
        ([[2, 0], [1, 2]],),
    ),
)


@pytest.mark.parametrize("row", PICKING, ids=lambda r: r[0])
def test_picking(row: Any) -> None:
    _, function, (index,) = row
    array = np.random.default_rng(4).uniform(size=(3, 4))
    compare(function, [array, np.array(index)], (dtypes.float64, dtypes.int64))


@pytest.mark.parametrize("reduce", ("sum", "prod", "amax", "amin", "mean"))
@pytest.mark.parametrize("include_self", (True, False))
def test_scatter_reduce(reduce: str, include_self: bool) -> None:
    array = np.random.default_rng(4).uniform(size=(3, 4))
    index = np.array([[0, 2, 0], [1, 1, 1], [3, 0, 2]])

    def function(f: Any, x: Any, i: Any) -> Any:
        return x.scatter_reduce(1, i, x[:, :3] * 2, reduce, include_self=include_self)

    compare(
        function,
        [array, index],
        (dtypes.float64, dtypes.int64),
        grad=reduce in ("sum", "mean") or (reduce in ("amax", "amin") and include_self),
        second=False,
    )


def test_masks() -> None:
    array = np.random.default_rng(5).uniform(-1, 1, (3, 4))
    kinds = (dtypes.float64, dtypes.bool)
    compare(lambda f, x, m: x.masked_fill(m, 2.0), [array, GRID], kinds)
    compare(lambda f, x, m: x.masked_select(m), [array, GRID], kinds)
    compare(lambda f, x, m: x[m], [array, GRID], kinds)
    compare(lambda f, x, m: x.nonzero(), [np.where(GRID, array, 0), GRID], kinds)
    compare(lambda f, x, m: f.nonzero(x, as_tuple=True), [np.where(GRID, array, 0), GRID], kinds)
    x = Tensor(array)
    x[x < 0] = 0.0
    np.testing.assert_array_equal(x.numpy(), np.maximum(array, 0))
    x[Tensor(GRID)] = Tensor(np.arange(float(GRID.sum())))
    wanted = np.maximum(array, 0)
    wanted[GRID] = np.arange(GRID.sum())
    np.testing.assert_array_equal(x.numpy(), wanted)


def test_one_hot_and_bincount() -> None:
    ids = np.array([[2, 0], [1, 2]])
    compare(lambda f, x: f.one_hot(x, 4), [ids], dtypes.int64)
    compare(lambda f, x: f.one_hot(x), [ids], dtypes.int64)
    compare(lambda f, x: x.flatten().bincount(minlength=5), [ids], dtypes.int64)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    (
        (
            lambda x: x[3],
            IndexOutOfRange,
            "index 3 is out of range for axis 0: found an axis of extent 3",
        ),
        (lambda x: x[0, -5], IndexOutOfRange, "index -5 .* axis 1"),
        (lambda x: x[[0, 3]], IndexOutOfRange, "index 3 is out of range for axis 0"),
        (lambda x: x[Tensor([0, -4])], IndexOutOfRange, "index -4"),
        (lambda x: x[0, 0, 0], IndexOutOfRange, "too many indices"),
        (lambda x: x[..., ...], ShapeError, "one ellipsis"),
        (lambda x: x["a"], DTypeError, "not an index"),
        (lambda x: x[1.0], DTypeError, "not an index"),
        (lambda x: x[True], DTypeError, "bool"),
        (lambda x: x[Tensor([1.0])], DTypeError, "long"),
        (lambda x: x[Tensor([True])], ShapeError, "mask"),
        (lambda x: x[::0], ShapeError, "step"),
        (lambda x: x.gather(0, Tensor([0])), ShapeError, "as many axes"),
        (lambda x: x.gather(1, Tensor([[7]])), IndexOutOfRange, "index 7"),
        (lambda x: x.index_select(0, Tensor([[0]])), ShapeError, "vector"),
        (lambda x: x.scatter(0, Tensor([[0]]), Tensor([[1]])), DTypeError, "cast"),
        (lambda x: Tensor([1, 2]).one_hot(2), IndexOutOfRange, "class id .* found 2"),
        (lambda x: x.__setitem__(0, Tensor.ones(3)), ShapeError, "does not broadcast"),
        (lambda x: Tensor([1]).__setitem__(0, 1.5), DTypeError, "higher category"),
    ),
)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(Tensor.ones(3, 4))


def test_iteration_and_length() -> None:
    x = Tensor([[1, 2], [3, 4]])
    assert len(x) == 2
    assert [row.tolist() for row in x] == [[1, 2], [3, 4]]
    with pytest.raises(ShapeError):
        len(Tensor(1))
    with pytest.raises(ShapeError):
        list(Tensor(1))


def test_picking_from_no_axes() -> None:
    x = Tensor(3.0)
    assert x.gather(0, Tensor([0, 0])).tolist() == [3.0, 3.0]
    assert x.take_along_dim(Tensor(0), 0).tolist() == 3.0
    for wrong, error in ((Tensor(0.0), DTypeError), (Tensor(1), IndexOutOfRange)):
        with pytest.raises(error):
            x.take_along_dim(wrong, 0)
        with pytest.raises(error):
            x.gather(0, wrong)


@pytest.mark.parametrize("truth", [True, False])
@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_masks_without_axes(shape: tuple[int, ...], truth: bool) -> None:
    array = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    mask = np.array(truth)
    keys: tuple[Any, ...] = (
        lambda m: m, lambda m: (m, ...), lambda m: (..., m), lambda m: (None, m), lambda m: (m, m),
    )  # fmt: skip
    for key in keys:
        compare(lambda f, x, m, key=key: x[key(m)], [array, mask], [dtypes.float32, dtypes.bool])

        def write(f: Any, x: Any, m: Any, key: Any = key) -> Any:
            y = x * 1
            y[key(m)] = 7.0
            return y

        compare(write, [array, mask], [dtypes.float32, dtypes.bool])


@pytest.mark.parametrize(
    "key",
    [
        np.array([True, False, True]), [True, False, True], np.eye(3, 4, dtype=bool),
        np.array(True), (..., [True, False, True, True]), ([True, False, True], [0, 1]),
        (None, [True, False, True]), (1, [True, False, True, True]), np.zeros(3, bool),
    ],
)  # fmt: skip
def test_masks_of_the_host_in_a_jitted_function(key: Any) -> None:
    @jit
    def read_and_write(x: Tensor) -> list[Tensor]:
        y = x.clone()
        y[key] = 7
        return [x[key], y]

    for call in range(4):
        x = np.arange(12.0).reshape(3, 4) + call
        read, written = read_and_write(Tensor(x))
        wanted = x.copy()
        wanted[key] = 7
        np.testing.assert_array_equal(read.numpy(), x[key])
        np.testing.assert_array_equal(written.numpy(), wanted)


def test_what_is_known_of_a_part_is_not_what_is_known_of_the_whole() -> None:
    """Places that are a part of an uploaded array, beside numbers that are no places."""
    x = Tensor([1.0, 2.0, 3.0])
    both = Tensor(np.array([[2, 900], [0, -900]], np.int32))
    assert x[both[:, 0]].tolist() == [3.0, 1.0]
    with pytest.raises(IndexOutOfRange, match="index 900"):
        x[both.T]
