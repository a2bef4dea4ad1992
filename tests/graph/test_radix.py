"""Sorting by digits on GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.graph import canonicalise, radix, sorts
from baregrad.graph.radix import digits_of, sorted_by_digits
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.tensor_level import evaluate_all
from baregrad.kernel import choose_schedule
from baregrad.kernel.language.schedule import Bind
from baregrad.schedule import make_plan
from baregrad.tensor import Tensor
from baregrad.tensor.array.operands import result
from baregrad.tensor.ops.sorting import order
from baregrad.testing.ptx_device import ptx_session
from tests.graph.graphs.gpu_graphs import F32, HOPPER, RNG, argument, changed

WORD = dtypes.uint64


@pytest.mark.parametrize("limit", (1, 2, 16, 17, 20, 21, 256, 257, 65537, 1 << 32))
def test_digits_hold_all_numbers_below_the_limit(limit: int) -> None:
    found = digits_of(limit)
    assert all(shift == radix.BITS * place for place, (shift, _) in enumerate(found))
    assert all(values <= radix.MOST_DIGITS for _, values in found)
    if found:
        shift, values = found[-1]
        assert (limit - 1) >> shift == values - 1
    assert (not found) == (limit == 1)
    # 2**16 rows and one for what lies nowhere take no pass more than 2**16 do.
    assert len(digits_of(65537)) == len(digits_of(65536)) == 4


@pytest.mark.parametrize("limit", (1, 2, 7, 20, 300, 1 << 16, (1 << 16) + 1))
@pytest.mark.parametrize("shape", ((1,), (5,), (1024,), (1025,), (3, 700), (2, 2048)), ids=str)
def test_equal_keys_keep_their_order(shape: tuple[int, ...], limit: int) -> None:
    keys = RNG.integers(0, limit, shape, np.uint64)
    if limit > 20:
        keys[..., ::3] = limit - 1
    words = (keys << np.uint64(32)) | RNG.integers(0, 1 << 32, shape, np.uint64)
    made = changed(sorted_by_digits(argument(0, WORD, *shape), 32, limit), [words])
    assert not any(node.op is Ops.SORT for node in toposort(made))
    # The graph before was made by the same rewrite: NumPy says what is right.
    wanted = np.take_along_axis(words, np.argsort(keys, -1, kind="stable"), -1)
    (found,) = evaluate_all(made.src, {0: words})
    np.testing.assert_array_equal(found, wanted)


def test_one_digit_of_all_words_fills_its_count() -> None:
    words = np.arange(3 * radix.TILE, dtype=np.uint64) | np.uint64(5 << 32)
    node = sorted_by_digits(argument(0, WORD, words.size), 32, 6)
    changed(node, [words])


def keys_of(dtype: DType, shape: tuple[int, ...]) -> Any:
    """Numbers with all that there is of special ones, and ties."""
    if dtype.kind == "bool":
        return RNG.integers(0, 2, shape).astype(np.bool_)
    if dtype.kind == "float":
        given = RNG.standard_normal(shape).astype(dtype.numpy)
        for place, value in enumerate((np.nan, np.inf, -np.inf, -0.0, 0.0, 1.5)):
            given[..., place::9] = value
        return given
    low, high = int(dtype.min), int(dtype.max)
    given = RNG.integers(low, high, shape, dtype.numpy, endpoint=True)
    given[..., ::4] = RNG.integers(0, 3, given[..., ::4].shape)
    given[..., 1], given[..., 2] = low, high
    return given


ALL = (
    dtypes.bool, dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16, dtypes.int32,
    dtypes.uint32, dtypes.int64, dtypes.uint64, dtypes.float16, F32, dtypes.float64,
)  # fmt: skip


@pytest.mark.parametrize("descending", (False, True))
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_every_dtype(dtype: DType, descending: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorts, "is_worth_digits", lambda *_: True)
    for shape in ((1100,), (2, 50)):
        given = keys_of(dtype, shape)
        made = changed(order(argument(0, dtype, *shape), descending), [given])
        assert any(node.op is Ops.SCAN for node in toposort(made))
        (found,) = evaluate_all(made.src, {0: given})
        if not descending:
            np.testing.assert_array_equal(found, np.argsort(given, -1, kind="stable"))
            continue
        # The greatest first, NaN above all; equal ones keep their order.
        _, rank = np.unique(given, return_inverse=True, equal_nan=True)
        wanted = np.argsort(-rank.reshape(shape), -1, kind="stable")
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("axis", (0, 1))
def test_on_the_gpu_of_the_tests(axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorts, "is_worth_digits", lambda *_: True)
    given = RNG.integers(0, 9, (33, 3)).astype(np.float16)
    given[3:6, 0], given[7, 1] = np.nan, -np.inf
    given = given if axis == 0 else given.T.copy()
    with ptx_session():
        found = Tensor(given).sort(axis)
        values, places = found.values.numpy(), found.indices.numpy()
    np.testing.assert_array_equal(values, np.sort(given, axis))
    np.testing.assert_array_equal(places, np.argsort(given, axis, kind="stable"))


@pytest.mark.parametrize("piece", (32, radix.PIECE))
def test_several_tiles_and_rows_on_the_gpu_of_the_tests(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(radix, "PIECE", piece)
    keys = RNG.integers(0, 18, (2, 1300), np.uint64)
    words = (keys << np.uint64(32)) | np.arange(1300, dtype=np.uint64)
    with ptx_session():
        given = Tensor(words)
        found = result(sorted_by_digits(given.node, 32, 18), given).numpy()
    np.testing.assert_array_equal(found, np.sort(words, -1))


def kernels(made: Node) -> int:
    """How many kernels there are; all of their running folds are shared by threads."""
    sink = Node(Ops.SINK, dtypes.token, (made,))
    found = make_plan(canonicalise(sink, None, HOPPER), donate={}, target=HOPPER).kernels
    for kernel in found:
        steps = choose_schedule(kernel, HOPPER).steps
        units = {step.unit for step in steps if isinstance(step, Bind)}
        assert not kernel.has(Ops.SCAN) or {"thread", "vector"} <= units
    return len(found)


def test_a_pass_is_few_kernels() -> None:
    """Counts, where digits begin, and one that ranks words and writes them."""
    assert kernels(sorted_by_digits(argument(0, WORD, 1 << 14), 32, 16)) == 3
    assert kernels(sorted_by_digits(argument(0, WORD, 1 << 22), 32, 16)) == 6
    assert kernels(order(argument(0, F32, 1 << 22), False)) <= 8 * 6 + 2
