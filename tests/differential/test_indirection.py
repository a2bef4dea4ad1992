"""Reads and writes at places that are data: inside their arrays, once for each element."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from baregrad.base.options import options
from baregrad.tensor import Tensor
from tests.differential import sweep

pytestmark = pytest.mark.differential

ROWS = np.array([[3, -4, 17], [9, 12, -1], [5, 10, -18], [2, 0, 7]], np.int32)
WAYS = ((sweep.DEVICE, "tensor"), ("REF", "kernel"), ("REF", "loop"), ("REF", "linear"))


def _joined(a: Tensor) -> Tensor:
    picked = a[a[:, 0] % 4]
    return Tensor.cat([picked, picked, a], dim=0)


def _joined_numpy(a: np.ndarray) -> np.ndarray:
    picked = a[a[:, 0] % 4]
    return np.concatenate([picked, picked, a])


def _padded(a: Tensor) -> Tensor:
    return a.gather(1, (a % 3).long()).pad((2, 1, 3, 1), value=0)


def _padded_numpy(a: np.ndarray) -> np.ndarray:
    return np.pad(np.take_along_axis(a, a % 3, 1), ((3, 1), (2, 1)))


def _twice(a: Tensor) -> Tensor:
    """What is read tells where to read, and that where to read again."""
    flat = a.reshape(12)
    once = flat[flat % 12]
    again = flat[once % 12]
    return Tensor.stack([again, flat, again], dim=0)


def _twice_numpy(a: np.ndarray) -> np.ndarray:
    flat = a.reshape(12)
    again = flat[flat[flat % 12] % 12]
    return np.stack([again, flat, again])


def _picked_condition(a: Tensor) -> Tensor:
    """A gather whose own bounds are read from memory, inside a joined array."""
    picked = Tensor.cat([a[:, a[0] % 3], a], dim=1)
    return Tensor.cat([picked[picked[:, 0] % 4], picked], dim=0)


def _picked_condition_numpy(a: np.ndarray) -> np.ndarray:
    picked = np.concatenate([a[:, a[0] % 3], a], 1)
    return np.concatenate([picked[picked[:, 0] % 4], picked])


def _picked_sums(a: Tensor) -> Tensor:
    """Sums at places that are read from memory, which only the second half of the rows has."""
    return Tensor.stack([a, a.sum(0)[a % 6 - 3]], dim=1)


def _picked_sums_numpy(a: np.ndarray) -> np.ndarray:
    return np.stack([a, a.sum(0)[a % 6 - 3]], 1)


@pytest.mark.parametrize(("device", "level"), WAYS)
@pytest.mark.parametrize(
    ("function", "oracle"),
    (
        (_joined, _joined_numpy),
        (_padded, _padded_numpy),
        (_twice, _twice_numpy),
        (_picked_condition, _picked_condition_numpy),
        (_picked_sums, _picked_sums_numpy),
    ),
)
def test_places_are_only_read_where_they_exist(
    function: Callable[[Tensor], Tensor],
    oracle: Callable[[np.ndarray], np.ndarray],
    device: str,
    level: str,
) -> None:
    """The evaluator of the linear level raises where an access leaves its array."""
    with options.override(device=device, ref_level=level):
        np.testing.assert_array_equal(function(Tensor(ROWS)).numpy(), oracle(ROWS), strict=True)


@pytest.mark.parametrize(("device", "level"), WAYS)
@pytest.mark.parametrize("dtype", ("int16", "int32", "int64", "uint32"))
def test_a_place_may_be_a_digit_of_what_was_read(dtype: str, device: str, level: str) -> None:
    """An index into a repeated array is divided by the length of what it repeats."""
    flat = ROWS.reshape(-1)[:9].astype(dtype)
    tiled = np.tile(flat, 2)
    with options.override(device=device, ref_level=level):
        repeated = Tensor(flat).repeat((2,))
        made = repeated.index_select(0, repeated % 18).numpy()
    np.testing.assert_array_equal(made, tiled[tiled % 18], strict=True)


@pytest.mark.parametrize(("device", "level"), WAYS)
@pytest.mark.parametrize("repeats", ((2, 1), (1, 2), (3, 2)))
def test_repeated_rows_are_scattered_as_often_as_they_repeat(
    repeats: tuple[int, int], device: str, level: str
) -> None:
    tiled = np.tile(ROWS, repeats)
    places = tiled % len(tiled)
    wanted = tiled.copy()
    np.add.at(wanted, (places, np.arange(tiled.shape[1])), tiled)
    greatest = np.zeros_like(tiled)
    np.maximum.at(greatest, (places, np.arange(tiled.shape[1])), tiled)
    with options.override(device=device, ref_level=level):
        a = Tensor(ROWS).repeat(repeats)
        index = (a % len(tiled)).long()
        made = a.scatter_add(0, index, a).numpy()
        most = (a * 0).scatter_reduce(0, index, a, "amax").numpy()
    np.testing.assert_array_equal(made, wanted, strict=True)
    np.testing.assert_array_equal(most, greatest, strict=True)


@pytest.mark.parametrize(("device", "level"), (WAYS[0], *WAYS[2:]))
@pytest.mark.parametrize("columns", (1, 3, 16, 40))
@pytest.mark.parametrize("whole_rows", (False, True))
def test_what_is_scattered_outside_is_lost(
    whole_rows: bool, columns: int, device: str, level: str
) -> None:
    """Computed places are not known before they are written to; no other memory is touched."""
    rng = np.random.default_rng(columns)
    base = rng.integers(-9, 9, (5, columns)).astype(np.int32)
    values = rng.integers(-9, 9, (8, columns)).astype(np.int32)
    places = rng.integers(-9, 9, (8, columns))
    places[0] = 1 << 40
    if whole_rows:
        places = np.repeat(places[:, :1], columns, 1)
    there = (places >= 0) & (places < 5)
    wanted = base.copy()
    columns_of = np.broadcast_to(np.arange(columns), places.shape)
    np.add.at(wanted, (places[there], columns_of[there]), values[there])
    last = base.copy()
    last[places[there], columns_of[there]] = values[there]
    with options.override(device=device, ref_level=level):
        # Arithmetic wraps negative places once, so they are taken where none is negative.
        index = Tensor(np.where(places < 0, 1 << 33, places) - 1) + 1
        if whole_rows:
            index = index[:, :1].expand(8, columns)
        made = Tensor(base).scatter_add(0, index, Tensor(values)).numpy()
        put = Tensor(base).scatter(0, index, Tensor(values)).numpy()
    np.testing.assert_array_equal(made, wanted, strict=True)
    np.testing.assert_array_equal(put, last, strict=True)


@pytest.mark.parametrize("device,level", ((sweep.DEVICE, "tensor"), ("REF", "linear")))
@pytest.mark.parametrize("place", (2, 7, 14))
def test_a_scalar_picks_among_sums(device: str, level: str, place: int) -> None:
    """The condition has no axis, but it is what keeps the sums inside their array."""
    data = np.arange(75.0).reshape(1, 3, 5, 5)
    with options.override(device=device, ref_level=level):
        sums = Tensor(data).sum((0, 1, 3))
        found = Tensor.cat([sums, sums, sums], dim=0)[Tensor(np.array(place, "int32")) % 15].numpy()
    wanted = np.tile(data.sum((0, 1, 3)), 3)[place]
    np.testing.assert_array_equal(found, wanted)
