"""In-place changes and aliasing against NumPy, by fixed cases and random programs."""

from __future__ import annotations

import contextvars
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from baregrad.base.errors import DTypeError, GradientError, ShapeError
from baregrad.dtypes import dtypes
from baregrad.tensor import Tensor
from baregrad.tensor.array.storage import Overtaken


def test_views_see_writes_of_their_base_and_of_each_other() -> None:
    x = Tensor.zeros(3, 4)
    row, column, flat = x[1], x[:, 2], x.reshape(-1)
    x += 1
    row[0] = 5
    column *= 3
    flat[::5] = -1
    wanted = np.zeros((3, 4), np.float32)
    r, c, f = wanted[1], wanted[:, 2], wanted.reshape(-1)
    wanted += 1
    r[0] = 5
    c *= 3
    f[::5] = -1
    for ours, theirs in ((x, wanted), (row, r), (column, c), (flat, f)):
        np.testing.assert_array_equal(ours.numpy(), theirs)


def test_results_do_not_alias() -> None:
    x = Tensor([1.0, 2.0])
    y = x + 0
    z = x.clone()
    x += 1
    assert y.tolist() == z.tolist() == [1.0, 2.0]


def test_an_operand_keeps_the_value_it_had() -> None:
    x = Tensor([1.0, 2.0])
    y = x * 10
    x.fill_(0)
    assert y.tolist() == [10.0, 20.0]


def test_realised_tensors_change_like_others() -> None:
    x = Tensor([1.0, 2.0]).realize()
    view = x[:1]
    y = (x * 2).realize()
    view += 5
    assert x.realize().tolist() == [6.0, 2.0]
    assert y.tolist() == [2.0, 4.0]
    assert view.tolist() == [6.0]


METHODS: tuple[tuple[str, Any, Any], ...] = (
    ("add_", lambda x: x.add_(2), lambda a: a + 2),
    ("sub_", lambda x: x.sub_(2), lambda a: a - 2),
    ("mul_", lambda x: x.mul_(2), lambda a: a * 2),
    ("div_", lambda x: x.div_(2), lambda a: a / 2),
    ("pow_", lambda x: x.pow_(2), lambda a: a**2),
    ("copy_", lambda x: x.copy_(Tensor([1, 2, 3])), lambda a: a * 0 + [1, 2, 3]),
    ("fill_", lambda x: x.fill_(3), lambda a: a * 0 + 3),
    ("zero_", lambda x: x.zero_(), lambda a: a * 0),
    ("assign", lambda x: x.assign(x * 2), lambda a: a * 2),
    ("clamp_", lambda x: x.clamp_(0, 1), lambda a: a.clip(0, 1)),
    ("neg_", lambda x: x.neg_(), lambda a: -a),
    ("abs_", lambda x: x.abs_(), lambda a: abs(a)),
    ("relu_", lambda x: x.relu_(), lambda a: a.clip(0)),
    ("exp_", lambda x: x.exp_(), lambda a: np.exp(a)),
    ("masked_fill_", lambda x: x.masked_fill_(x > 0, 9), lambda a: np.where(a > 0, 9, a)),
    ("floor_divide_", lambda x: x.floor_divide_(2), lambda a: a // 2),
    ("remainder_", lambda x: x.remainder_(2), lambda a: a % 2),
    ("tril_", lambda x: x.tril_(), lambda a: np.tril(a)),
    (
        "index_fill_",
        lambda x: x.index_fill_(1, Tensor([0]), 4),
        lambda a: np.stack([a[:, 0] * 0 + 4, a[:, 1], a[:, 2]], 1),
    ),
)


@pytest.mark.parametrize("row", METHODS, ids=lambda r: r[0])
def test_methods_change_and_return_the_tensor(row: Any) -> None:
    _, method, wanted = row
    array = np.random.default_rng(1).uniform(-2, 2, (2, 3)).astype(np.float32)
    x = Tensor(array)
    view = x.T
    assert method(x) is x
    np.testing.assert_allclose(x.numpy(), wanted(array), rtol=1e-6)
    np.testing.assert_allclose(view.numpy(), wanted(array).T, rtol=1e-6)


FLOATS = np.random.default_rng(3).uniform(0.1, 2, (3, 3, 4)).astype(np.float32)
PLACES = np.array([[2, 0, 1, 1], [0, 2, 2, 1], [1, 1, 0, 0]])
OTHERS: tuple[tuple[str, Any], ...] = (
    ("clip_", lambda x, y, z, i: x.clip_(0.5, 1)),
    ("lerp_", lambda x, y, z, i: x.lerp_(y, 0.3)),
    ("addcmul_", lambda x, y, z, i: x.addcmul_(y, z, value=2)),
    ("addcdiv_", lambda x, y, z, i: x.addcdiv_(y, z)),
    ("log_", lambda x, y, z, i: x.log_()),
    ("sqrt_", lambda x, y, z, i: x.sqrt_()),
    ("rsqrt_", lambda x, y, z, i: x.rsqrt_()),
    ("sigmoid_", lambda x, y, z, i: x.sigmoid_()),
    ("tanh_", lambda x, y, z, i: x.tanh_()),
    ("floor_", lambda x, y, z, i: x.floor_()),
    ("round_", lambda x, y, z, i: x.round_()),
    ("triu_", lambda x, y, z, i: x.triu_(1)),
    ("scatter_", lambda x, y, z, i: x.scatter_(0, i[:2], y)),
    ("scatter_add_", lambda x, y, z, i: x.scatter_add_(0, i, y)),
    ("scatter_reduce_", lambda x, y, z, i: x.scatter_reduce_(0, i, y, "amax")),
    ("index_add_", lambda x, y, z, i: x.index_add_(0, i[0], z[[0, 1, 2, 0]], alpha=2)),
    ("index_copy_", lambda x, y, z, i: x.index_copy_(0, i[0, :3], y)),
)


@pytest.mark.differential
@pytest.mark.parametrize("method", [m for _, m in OTHERS], ids=[name for name, _ in OTHERS])
def test_methods_in_place_are_pytorchs(method: Any) -> None:
    x, *others = (Tensor(array) for array in (*FLOATS, PLACES))
    t, *theirs = (torch.tensor(array) for array in (*FLOATS, PLACES))
    view = x.T
    assert method(x, *others) is x
    method(t, *theirs)
    np.testing.assert_allclose(x.numpy(), t.numpy(), rtol=2e-6)
    np.testing.assert_array_equal(view.numpy(), x.numpy().T)


@pytest.mark.parametrize("name", ["bitwise_and_", "bitwise_or_", "bitwise_xor_"])
def test_bits_change_in_place(name: str) -> None:
    x, t = Tensor([5, 6, 255]), torch.tensor([5, 6, 255])
    assert getattr(x, name)(Tensor([3, 2, 128])) is x
    assert x.tolist() == getattr(t, name)(torch.tensor([3, 2, 128])).tolist()


def test_operators_on_integers() -> None:
    x = Tensor([5, 6, 7])
    a = np.array([5, 6, 7])
    for name, value in (
        ("iadd", 3),
        ("imul", 2),
        ("isub", 1),
        ("ifloordiv", 2),
        ("imod", 5),
        ("iand", 6),
        ("ior", 1),
        ("ixor", 3),
        ("ilshift", 2),
        ("irshift", 1),
    ):
        x = getattr(x, f"__{name}__")(value)
        a = getattr(a, f"__{name}__")(value)
        np.testing.assert_array_equal(x.numpy(), a)


def test_errors() -> None:
    with pytest.raises(DTypeError, match="higher category"):
        Tensor([1, 2]).add_(0.5)
    with pytest.raises(DTypeError, match="higher category"):
        Tensor([1, 2]).div_(2)
    with pytest.raises(ShapeError, match="does not broadcast"):
        Tensor([1.0, 2.0]).add_(Tensor.ones(2, 2))
    with pytest.raises(ShapeError, match="more than once"):
        Tensor([1.0]).expand(3).add_(1)
    with pytest.raises(ShapeError, match="more than once"):
        Tensor.ones(4).unfold(0, 2, 1).fill_(1)
    leaf = Tensor([1.0], requires_grad=True)
    with pytest.raises(GradientError, match="no_grad"):
        leaf.add_(1)
    with pytest.raises(GradientError, match="no_grad"):
        leaf[0] = 1.0
    with pytest.raises(GradientError, match="detached"):
        Tensor([1.0]).detach().copy_(leaf)


def test_a_leaf_changes_under_no_grad_and_stays_one() -> None:
    leaf = Tensor([1.0, 2.0], requires_grad=True)
    loss = (leaf * leaf).sum()
    with Tensor.no_grad():
        leaf -= 0.5
    assert leaf.requires_grad and leaf.is_leaf
    loss.backward()
    assert leaf.grad.tolist() == [2.0, 4.0]  # of the value that the loss was computed from
    leaf.detach().fill_(7)
    assert leaf.tolist() == [7.0, 7.0]
    (leaf * leaf).sum().backward()
    assert leaf.grad.tolist() == [16.0, 18.0]


def test_writing_a_value_that_requires_grad_makes_the_tensor_require_it() -> None:
    w = Tensor([2.0], requires_grad=True)
    x = Tensor.zeros(3)
    view = x[1:]
    view[0] = w * 3
    assert x.requires_grad and not x.is_leaf and view.requires_grad
    (x * Tensor([1.0, 10.0, 100.0])).sum().backward()
    assert w.grad.tolist() == [30.0]
    x.fill_(0)
    assert not x.requires_grad


# --- random programs ----------------------------------------------------------------------------


def _random_view(
    rng: np.random.Generator, array: np.ndarray, x: Tensor
) -> tuple[np.ndarray, Tensor]:
    choice = rng.integers(8)
    if choice == 0 and array.ndim:
        axes = rng.permutation(array.ndim)
        return array.transpose(axes), x.permute(axes.tolist())
    if choice == 1 and array.ndim:
        axis = int(rng.integers(array.ndim))
        return np.flip(array, axis), x.flip(axis)
    if choice in (2, 3) and array.ndim:
        key = tuple(_random_slice(rng, extent) for extent in array.shape)
        return array[key], x[key]
    if choice == 4 and array.ndim and array.shape[0]:
        place = int(rng.integers(array.shape[0]))
        return array[place, ...], x[place]
    if choice == 5 and array.ndim < 4:
        axis = int(rng.integers(array.ndim + 1))
        return np.expand_dims(array, axis), x.unsqueeze(axis)
    if choice == 6 and array.size:
        shape = _random_shape(rng, array.size)
        reshaped = array.reshape(shape)
        if np.shares_memory(reshaped, array):
            return reshaped, x.reshape(shape)
    if choice == 7 and array.ndim >= 2:
        offset = int(rng.integers(-1, 2))
        shown = np.diagonal(array, offset)
        shown.setflags(write=True)
        return shown, x.diagonal(offset)
    return array, x


def _random_slice(rng: np.random.Generator, extent: int) -> slice:
    start, stop = sorted(int(v) for v in rng.integers(0, extent + 1, 2))
    step = int(rng.choice([1, 1, 2, -1, -2]))
    if step < 0:
        return (
            slice(stop - 1 if stop else None, start - 1 if start else None, step)
            if stop
            else slice(0, 0)
        )
    return slice(start, stop, step)


def _random_shape(rng: np.random.Generator, size: int) -> tuple[int, ...]:
    shape = []
    while size > 1 and len(shape) < 3:
        divisors = [d for d in range(1, size + 1) if size % d == 0]
        d = int(rng.choice(divisors))
        shape.append(d)
        size //= d
    return (*shape, size)


def _random_write(rng: np.random.Generator, array: np.ndarray, x: Tensor) -> None:
    choice = rng.integers(7)
    number = int(rng.integers(-5, 6))
    if choice == 0:
        array += number
        x += number
    elif choice == 1:
        array *= 2
        x *= 2
    elif choice == 2:
        array[...] = number
        x[...] = number
    elif choice == 3:
        value = rng.integers(-9, 9, array.shape)
        array[...] = value
        x.copy_(Tensor(value))
    elif choice == 4 and array.ndim and array.shape[0]:
        place = rng.integers(-array.shape[0], array.shape[0], 2)
        place = np.unique(place % array.shape[0])
        array[place] = number
        x[place] = number
    elif choice == 5:
        mask = array > 0
        array[mask] = number
        x[x > 0] = number
    elif array.ndim and array.shape[0]:
        array[0] -= 1
        x[0] -= 1


@pytest.mark.property
@pytest.mark.parametrize("seed", range(40))
def test_random_programs_alias_as_numpy_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 5, int(rng.integers(1, 4))))
    base = rng.integers(-9, 9, shape).astype(np.int64)
    alive = [(base, Tensor(base))]
    for _ in range(25):
        array, x = alive[int(rng.integers(len(alive)))]
        choice = rng.integers(10)
        if choice < 5:
            alive.append(_random_view(rng, array, x))
        elif choice < 8:
            _random_write(rng, array, x)
        elif choice == 8:
            x.realize()
        else:
            alive.append((np.array(array * 2, order="C"), x * 2))
        del alive[12:]
    for array, x in alive:
        np.testing.assert_array_equal(x.numpy(), array)


def test_in_place_keeps_the_dtype() -> None:
    x = Tensor([1.0, 2.0], dtype=dtypes.float16)
    x += Tensor([1.0], dtype=dtypes.float64)
    assert x.dtype is dtypes.float16
    assert x.tolist() == [2.0, 3.0]


def test_writing_nothing_changes_nothing() -> None:
    x = Tensor([1.0, 2.0])
    before = x._storage.node
    x[2:] = 5
    x[Tensor([], dtype=dtypes.int64)] += 1
    assert x._storage.node is before


# Of each thread, so many that some meet.
TURNS = 250


def _add_to_row(x: Tensor, thread: int) -> None:
    x[thread] += 1


def _add_to_some(x: Tensor, thread: int) -> None:
    """Rows are written where their place says, behind a view."""
    rows = x[:, 1:]
    rows[Tensor([thread])] = rows[Tensor([thread])] + 1


@pytest.mark.parametrize(("add", "wanted"), [
    (lambda x, thread: x.add_(1), np.full((2, 3), 2 * TURNS)),
    (lambda x, thread: x.add_(1).realize(), np.full((2, 3), 2 * TURNS)),
    (lambda x, thread: x[:, :2].add_(1), [[2 * TURNS, 2 * TURNS, 0]] * 2),
    (lambda x, thread: x.masked_fill_(Tensor([[thread < 1], [thread > 0]]), 3), np.full((2, 3), 3)),
    (_add_to_row, np.full((2, 3), TURNS)),
    (_add_to_some, [[0, TURNS, TURNS]] * 2),
])  # fmt: skip
def test_no_change_by_one_of_two_threads_is_lost(add: Any, wanted: Any) -> None:
    x = Tensor(np.zeros((2, 3), np.float32)).realize()
    ready = threading.Barrier(2)

    def work(thread: int) -> None:
        ready.wait(60)
        for _ in range(TURNS):
            add(x, thread)

    often = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as pool:
            # Options are those of the thread that asks.
            contexts = [contextvars.copy_context() for _ in range(2)]
            list(pool.map(lambda context, one: context.run(work, one), contexts, range(2)))
    finally:
        sys.setswitchinterval(often)
    np.testing.assert_array_equal(x.numpy(), wanted)


def test_a_value_of_what_has_changed_meanwhile_is_computed_again() -> None:
    x = Tensor(np.ones(3, np.float32))
    storage, turns = x._storage, list[float]()

    def double(since: int) -> None:
        turns.append(x.tolist()[0])
        value = (x * 2).node
        if len(turns) < 3:
            x.add_(1)
        storage.put(value, since=since)

    before = storage.since
    storage.update(double)
    assert turns == [1, 2, 3] and x.tolist() == [6, 6, 6]
    with pytest.raises(Overtaken):
        storage.put((x * 0).node, since=before)
    assert x.tolist() == [6, 6, 6]
