"""Functions of several ops: how they round, and what integers do in them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import baregrad
from baregrad import func
from baregrad.dtypes import DType, dtypes
from baregrad.engine.canonical import bind
from baregrad.ir.core.index import variable
from baregrad.tensor import Tensor
from tests.tensor.oracle import (
    FLOATS,
    INTS,
    OURS,
    THEIRS,
    TOLERANCE,
    both,
    same,
    torch_dtype,
)


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


# --- derivatives of a rule of their own -----------------------------------------------------------

# By their name in torch.nn.functional.
DERIVED: tuple[tuple[str, Any], ...] = (
    ("sigmoid", lambda f, x: f.sigmoid(x)),
    ("logsigmoid", lambda f, x: f.logsigmoid(x)),
    ("silu", lambda f, x: f.silu(x)),
    ("softplus", lambda f, x: f.softplus(x)),
    ("softplus beta", lambda f, x: f.softplus(x, 2.0, 11.0)),
    ("mish", lambda f, x: f.mish(x)),
    ("hardswish", lambda f, x: f.hardswish(x)),
    ("gelu tanh", lambda f, x: f.gelu(x, approximate="tanh")),
    ("elu", lambda f, x: f.elu(x)),
    ("selu", lambda f, x: f.selu(x)),
    ("celu", lambda f, x: f.celu(x)),
    ("expm1", lambda f, x: x.expm1()),
    ("log1p", lambda f, x: x.log1p()),
    ("sinh", lambda f, x: x.sinh()),
    ("cosh", lambda f, x: x.cosh()),
    ("tan", lambda f, x: (x * 0.25).tan()),
    ("asin", lambda f, x: (x * 0.25).asin()),
    ("acos", lambda f, x: (x * 0.25).acos()),
    ("asinh", lambda f, x: x.asinh()),
    ("atanh", lambda f, x: (x * 0.25).atanh()),
)
NAMES = [name for name, _ in DERIVED]
GRID = (0.0, -0.0, 1e-30, -1e-30, 0.3, -0.3, 1, -1, 1.3, -2.9, 3, -3, 5, -5, 8, -8, 20, -20, 20.5,
        50, -50, 80, -80, math.inf, -math.inf, math.nan)  # fmt: skip
INCOMING = (0.0, 1.0, -1.0, 1e7, -1e7, math.inf, -math.inf, math.nan)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("function", [row[1] for row in DERIVED], ids=NAMES)
def test_gradients_of_infinite_gradients(function: Any, dtype: DType) -> None:
    """As PyTorch has them; 16-bit floats are computed in float32, and rounded once."""
    grid = Tensor(np.array(GRID), dtype=dtypes.float64).cast(dtype)
    wide = torch.float64 if dtype is dtypes.float64 else torch.float32
    for incoming in INCOMING:
        x = grid.detach().requires_grad_()
        seed = Tensor(np.full(len(GRID), incoming)).cast(dtype)
        function(OURS, x).backward(seed)
        other = torch.tensor(grid.cast(dtypes.float64).numpy()).to(wide).requires_grad_()
        given = torch.tensor(seed.cast(dtypes.float64).numpy()).to(wide)
        function(THEIRS, other).backward(given)
        assert x.grad is not None and other.grad is not None
        found = x.grad.cast(dtypes.float64).numpy()
        wanted = other.grad.to(torch_dtype(dtype)).double().numpy()
        # 0 times infinity, where PyTorch rounds a derivative to 0.
        known = ~np.isnan(wanted)
        assert known.any() or math.isnan(incoming)
        close = TOLERANCE[dtype]
        np.testing.assert_allclose(
            found[known], wanted[known], rtol=close, err_msg=str(incoming),
            atol=close * abs(incoming) if math.isfinite(incoming) else 0,
        )  # fmt: skip


@pytest.mark.parametrize(("name", "places"), [
    ("logit", [0.0, 0.25, 1.0]), ("acosh", [1.0, 1.5, 1e9]), ("acos", [1.0]), ("asin", [-1.0]),
])  # fmt: skip
def test_infinite_gradients_at_the_end_of_a_domain(name: str, places: list[float]) -> None:
    for incoming in (math.inf, -math.inf):
        ours, theirs = both(np.array(places), dtypes.float32, grad=True)
        seed = np.full(len(places), incoming, np.float32)
        getattr(ours, name)().backward(Tensor(seed))
        getattr(theirs, name)().backward(torch.tensor(seed))
        same(ours.grad, theirs.grad)


@pytest.mark.parametrize("function", [row[1] for row in DERIVED], ids=NAMES)
def test_further_derivatives_by_what_was_computed(function: Any) -> None:
    """Of the third order, by a tensor between and by leaves; two equal results are two."""
    rng = np.random.default_rng(7)
    arrays = rng.uniform(0.1, 1, (4, 3)), rng.uniform(-0.2, 1, (3, 5))

    def found(f: Any, make: Any, grad: Any) -> list[Any]:
        x, w = (make(array).requires_grad_() for array in arrays)
        h = x @ w
        (first,) = grad([(function(f, h) * function(f, h)).sum()], [h], create_graph=True)
        (second,) = grad([(first * first).sum()], [h], create_graph=True)
        return [first, second, *grad([(first * second).sum()], [h, x, w])]

    theirs = found(THEIRS, torch.tensor, torch.autograd.grad)
    ours = found(OURS, lambda array: Tensor(array, dtype=dtypes.float64), baregrad.autograd.grad)
    same(tuple(ours), tuple(theirs), 1e-9)


@pytest.mark.parametrize("function", [row[1] for row in DERIVED], ids=NAMES)
def test_transformed_derivatives(function: Any) -> None:
    array = np.random.default_rng(8).uniform(-0.9, 0.9, (3, 2))
    x, other = Tensor(array, dtype=dtypes.float64), torch.tensor(array)

    def mine(row: Any) -> Any:
        return function(OURS, row).sum()

    def theirs(row: Any) -> Any:
        return function(THEIRS, row).sum()

    wanted = torch.func.vmap(torch.func.hessian(theirs))(other)
    same(func.vmap(func.hessian(mine))(x), wanted, 1e-11)
    with Tensor.no_grad():
        same(func.vmap(func.hessian(mine))(x), wanted, 1e-11)
    same(func.jvp(mine, (x,), (x,))[1], torch.func.jvp(theirs, (other,), (other,))[1], 1e-11)


def test_what_is_written_over_has_the_gradient_of_what_it_was() -> None:
    array = np.array([-2.0, -0.5, 0.5, 3.0])
    x = Tensor(array, dtype=dtypes.float64).requires_grad_()
    other = torch.tensor(array, requires_grad=True)
    between = x * 2
    y = between.silu()
    between.zero_()
    y.sum().backward()
    torch.nn.functional.silu(other * 2).sum().backward()
    same(x.grad, other.grad)
