"""The k-th smallest by counting, against NumPy's stable sort; medians and quantiles made of it.

And the least few of long axes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import Ops
from baregrad.tensor import Tensor
from baregrad.tensor.ops.sorting import COUNTED

FLOATS = (dtypes.float64, dtypes.float32, dtypes.float16)
INTEGERS = (dtypes.int64, dtypes.uint64, dtypes.int32, dtypes.uint32, dtypes.int8, dtypes.uint8)


def drawn(dtype: DType, *shape: int) -> Any:
    """Numbers of which some are equal, with the ends of the range, or what floats have besides."""
    random = np.random.default_rng(dtype.bits)
    if dtype.kind == "bool":
        return random.integers(0, 2, shape).astype(bool)
    array = (random.standard_normal(shape) * 20).astype(dtype.numpy)
    ends: list[Any] = [0, 1]
    if dtype.kind == "float":
        array = array.round(1)
        ends = [np.inf, -np.inf, np.nan, 0.0, -0.0, np.finfo(dtype.numpy).tiny]
    else:
        ends += [np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max]
    places = random.integers(0, array.size, 2 * len(ends))
    array.ravel()[places] = np.array(ends * 2, dtype.numpy)
    return array


@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS, dtypes.bool), ids=str)
@pytest.mark.parametrize(("shape", "axis"), [((3, COUNTED), 1), ((COUNTED + 37, 2, 3), 0)])
def test_every_place_is_that_of_a_stable_sort(dtype: DType, shape: Any, axis: int) -> None:
    array = drawn(dtype, *shape)
    order, x = np.argsort(array, axis, kind="stable"), Tensor(array)
    extent = shape[axis]
    for k in (1, 2, extent // 3, extent // 2, extent - 1, extent):
        places = order.take([k - 1], axis)
        found = x.kthvalue(k, axis, True)
        np.testing.assert_array_equal(found.indices.numpy(), places)
        np.testing.assert_array_equal(found.values.numpy(), np.take_along_axis(array, places, axis))
        assert found.indices.dtype is dtypes.int64 and found.values.dtype is dtype


@pytest.mark.parametrize("dtype", (dtypes.float32, dtypes.uint8), ids=str)
def test_places_near_both_ends_of_a_long_axis(dtype: DType) -> None:
    array = drawn(dtype, 2, 1000)
    array[:, 100:200] = array[:, 300:400]
    order, x = np.argsort(array, 1, kind="stable"), Tensor(array)
    for k in (1, 3, 15, 985, 998, 1000):
        assert x.kthvalue(k).indices.tolist() == order[:, k - 1].tolist()


def test_bfloat16_is_ordered_as_its_numbers_are() -> None:
    array = drawn(dtypes.float32, 4, 100)
    x = Tensor(array).bfloat16()
    order = np.argsort(x.float().numpy(), 1, kind="stable")
    for k in (1, 50, 100):
        assert x.kthvalue(k).indices.tolist() == order[:, k - 1].tolist()


def test_equal_elements_are_told_apart_by_position() -> None:
    x = Tensor.full((2, 300), 7.0)
    for k in (1, 129, 300):
        assert x.kthvalue(k).indices.tolist() == [k - 1, k - 1]


def test_the_gradient_goes_where_the_element_stands() -> None:
    array = np.random.default_rng(1).standard_normal((3, 200))
    x = Tensor(array).requires_grad_()
    (gradient,) = (x.kthvalue(77, 1).values * Tensor([1.0, 2.0, 3.0])).sum().gradient(x)
    expected = np.zeros((3, 200))
    expected[[0, 1, 2], np.argsort(array, 1)[:, 76]] = [1, 2, 3]
    np.testing.assert_array_equal(gradient.numpy(), expected)


@pytest.mark.parametrize("axis", [0, 1])
def test_medians_and_quantiles_of_many(axis: int) -> None:
    array = np.random.default_rng(2).standard_normal((512, 1024)).astype(np.float32)
    array[5, 7] = array[500, 7] = np.nan
    x, extent = Tensor(array), array.shape[axis]
    broken = np.isnan(array).any(axis)
    found = x.median(axis)
    expected = np.where(broken, np.nan, np.sort(array, axis).take(extent // 2 - 1, axis))
    np.testing.assert_array_equal(found.values.numpy(), expected)
    at = np.expand_dims(found.indices.numpy(), axis)
    np.testing.assert_array_equal(np.take_along_axis(array, at, axis).squeeze(axis), expected)
    assert found.indices.numpy()[broken].tolist() == ([5] if axis == 0 else [7, 7])
    for q in (0.0, 0.3, 1.0):
        wanted = np.quantile(array.astype(np.float64), q, axis)
        np.testing.assert_allclose(x.quantile(q, axis).numpy(), wanted, 1e-5, 1e-6)


@pytest.mark.parametrize("largest", (True, False))
@pytest.mark.parametrize(
    ("shape", "k"), (((5000,), 40), ((3, 700), 20), ((2, 2, 4097), 300), ((256,), 2)), ids=str
)
@pytest.mark.parametrize("dtype", (np.float32, np.float16, np.int32, np.uint8))
def test_the_few_of_long_axes_are_those_of_a_stable_sort(
    dtype: Any, shape: tuple[int, ...], k: int, largest: bool
) -> None:
    x = (np.random.default_rng(k).standard_normal(shape) * 20).astype(dtype)
    if x.dtype.kind == "f":
        x[..., ::90] = np.nan
        x[..., 3], x[..., 5], x[..., 4] = -np.inf, -0.0, 0.0
    numbers = x.astype(np.float64)
    broken = np.isnan(numbers)
    # What counts most comes last: NaN is above every number, and places decide between equals.
    keys = (-numbers, ~broken) if largest else (numbers, broken)
    wanted = np.lexsort((np.arange(shape[-1]) + np.zeros(shape), *keys), axis=-1)[..., :k]
    found = Tensor(x).topk(k, largest=largest)
    np.testing.assert_array_equal(found.indices.numpy(), wanted)
    np.testing.assert_array_equal(found.values.numpy(), np.take_along_axis(x, wanted, -1))


def test_few_of_many_are_found_without_sorting_all() -> None:
    values, places = Tensor(np.zeros((64, 128256), np.float32)).topk(50)
    sorts = [node for node in toposort(values.node, places.node) if node.op is Ops.SORT]
    assert not sorts
    # The axis is read once as a whole, by what finds the minima of its parts.
    whole = [node for node in toposort(places.node) if node.op is Ops.REDUCE]
    assert max(math.prod(node.shape) for node in whole) < 64 * 128256 // 7
