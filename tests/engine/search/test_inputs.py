"""Only what is right wins: what a kernel is tried on, and what its results are held to."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.engine.search.inputs import differs, make_problem, samples
from baregrad.ir.core.node import Node
from tests.kernel import kernels as k

KERNELS = (
    k.matmul(20, 30, 40),
    k.conv(1, 3, 4, 8, 9, 3, 1, 1),
    k.softmax(9, 20),
    k.layer_norm(6, 32),
    k.row_reduce(7, 50),
    k.gather(5, 9, 4),
    k.scatter_add(5, 9, 4),
    k.cumsum(5, 9),
    k.arg_max(6, 20),
    k.elementwise(3, 5, dtype=dtypes.float16),
    k.elementwise(3, 5, dtype=dtypes.int32),
)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.arg.name)
def test_the_reference_tells_right_results_from_wrong_ones(kernel: Node) -> None:
    problem = make_problem(kernel)
    shapes = {slot: array.shape for slot, array in k.arguments(kernel).items()}
    arrays = {s: np.array(a).reshape(shapes[s]) for s, a in enumerate(problem.arrays)}
    results = k.run_kernel(kernel, arrays)
    some = samples(problem)
    assert some
    for each in some:
        dtype = problem.dtypes[each.slot]
        found = results[each.slot].reshape(-1)[each.places]
        assert not differs(found, each.values.astype(found.dtype), dtype, problem.exact, 64)
        # One element that is off by a little more than rounding is seen.
        spoiled = np.array(found)
        spoiled[-1] = spoiled[-1] + 1 if dtype.kind != "float" else spoiled[-1] * 1.1 + 0.1
        assert differs(spoiled, each.values.astype(found.dtype), dtype, problem.exact, 64)


def test_sums_of_whole_numbers_are_compared_to_the_bit() -> None:
    assert make_problem(k.matmul(8, 8, 512)).exact
    assert not make_problem(k.softmax(8, 8)).exact
    left = np.ones(1000, np.float32)
    right = np.array(left)
    right[999] += 2**-23
    assert differs(left, right, dtypes.float32, True, 1)
    assert not differs(left, right, dtypes.float32, False, 1)


def test_not_a_number_and_infinity_have_their_places() -> None:
    nan = np.array([1.0, np.nan, np.inf], np.float32)
    assert not differs(nan, nan.copy(), dtypes.float32, False, 1)
    assert differs(nan, np.array([1.0, 2.0, np.inf], np.float32), dtypes.float32, False, 1)
    assert differs(nan, np.array([1.0, np.nan, -np.inf], np.float32), dtypes.float32, False, 1)


def test_looked_up_places_are_inside_their_arrays() -> None:
    problem = make_problem(k.gather(5, 200, 4))
    assert problem.arrays[2].max() < 5
    assert problem.arrays[2].min() >= 0
