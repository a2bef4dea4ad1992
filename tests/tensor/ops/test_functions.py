"""Functions of several ops: how they round, and what integers do in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from baregrad.dtypes import DType, dtypes
from baregrad.engine.canonical import bind
from baregrad.ir.core.index import variable
from baregrad.tensor import Tensor
from tests.tensor.oracle import INTS, same


@pytest.mark.parametrize("dtype,bits", [(dtypes.bfloat16, 7), (dtypes.float16, 10)])
@pytest.mark.parametrize("function", [
    lambda x, y, z: x.lerp(y, z), lambda x, y, z: x.lerp(y, 0.3),
    lambda x, y, z: x.addcmul(y, z, value=0.3), lambda x, y, z: x.addcdiv(y, z, value=0.3),
    lambda x, y, z: x.rsqrt(), lambda x, y, z: x.softsign(), lambda x, y, z: x.glu(),
    lambda x, y, z: x.gelu("tanh"), lambda x, y, z: x.mish(),
])
def test_functions_of_several_ops_round_once(dtype: DType, bits: int, function: Any) -> None:
    random = np.random.default_rng(5)
    inputs = [
        Tensor(random.uniform(0.5, 3, 5000).astype(np.float32)).cast(dtype) for _ in range(3)
    ]
    found = function(*inputs)
    assert found.dtype == dtype
    exact = function(*(x.cast(dtypes.float64) for x in inputs)).numpy()
    ulp = np.exp2(np.floor(np.log2(np.maximum(np.abs(exact), 1e-30))) - bits)
    error = np.abs(found.cast(dtypes.float64).numpy() - exact)
    # Half a unit in the last place, and what float32 computes otherwise.
    assert (error <= 0.5 * ulp + 2.0**-20).all()


@pytest.mark.parametrize("value", [0, 3])
def test_lerp_by_a_symbolic_integer(value: int) -> None:
    x, end = Tensor([1.0, 2.0]), Tensor([3.0, 5.0])
    found = x.lerp(end, bind(variable("weight", 0, 5), value))
    np.testing.assert_array_equal(found.numpy(), x.lerp(end, value).numpy())


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("weight", [0.25, 0.5, 1.0])
def test_differences_of_integers_do_not_wrap_in_lerp(dtype: Any, weight: float) -> None:
    low, high = int(dtype.min), int(dtype.max)
    rows = np.array([high, low, 1, 100], dtype.name), np.array([low, high, 3, 7], dtype.name)
    # PyTorch refuses integers: it shows what the floats give.
    wanted = torch.tensor(rows[0]).float().lerp(torch.tensor(rows[1]).float(), weight)
    start, end = map(Tensor, rows)
    same(start.lerp(end, weight), wanted)
    same(start.lerp(end, Tensor(weight)), wanted)
