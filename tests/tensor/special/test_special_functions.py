"""Special functions against SciPy's and mpmath's in float64, over arguments of all kinds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.special
import torch

from baregrad import special
from baregrad.base.errors import ArgumentError, DTypeError
from baregrad.tensor import Tensor

WIDE = np.concatenate([
    np.linspace(-20.3, 30.1, 97), 10.0 ** np.arange(-8, 5), [1.0, 2.0, 1 + 1e-9, 2 - 1e-9, 1e10],
])
SMALL = np.linspace(-1, 1, 81)
TAILS = 10.0 ** -np.arange(1, 13)


def log_gamma(x: float) -> float:
    return math.inf if x <= 0 and x == int(x) else float(mpmath.re(mpmath.loggamma(x)))


def digamma(x: float) -> float:
    return math.nan if x <= 0 and x == int(x) else float(mpmath.digamma(x))


# Units of the last place of float64, beside numbers below `floor` of the floor's; that a function
# magnifies the rounding of its argument is in it.
CASES: dict[str, tuple[Callable[[Any], Tensor], Callable[[float], float], np.ndarray, int, float]]
CASES = {
    "gammaln": (special.gammaln, log_gamma, WIDE, 90, 1.0),
    "digamma": (special.digamma, digamma, WIDE, 30, 1.0),
    "polygamma": (lambda x: special.polygamma(2, x), lambda x: float(mpmath.polygamma(2, x)),
                  WIDE[WIDE > 1e-3], 16, 0.0),
    "zeta": (lambda x: special.zeta(x, 1.5), lambda x: float(mpmath.zeta(x, 1.5)),
             WIDE[WIDE > 1.1][:40], 16, 0.0),
    "erfinv": (special.erfinv, scipy.special.erfinv, np.concatenate([SMALL, 1 - TAILS]), 8, 0.0),
    "erfcx": (special.erfcx, scipy.special.erfcx, np.append(np.linspace(-5, 60, 80), 1e8), 80, 0.0),
    "ndtr": (special.ndtr, scipy.special.ndtr, np.linspace(-8, 9, 60), 90, 0.0),
    "log_ndtr": (special.log_ndtr, scipy.special.log_ndtr, np.linspace(-40, 9, 60), 90, 0.0),
    "ndtri": (special.ndtri, scipy.special.ndtri, np.append((SMALL + 1) / 2, TAILS), 8, 1e-3),
    "i0": (special.i0, scipy.special.i0, 30 * SMALL, 8, 0.0),
    "i0e": (special.i0e, scipy.special.i0e, 50 * SMALL, 8, 0.0),
    "i1": (special.i1, scipy.special.i1, 30 * SMALL, 8, 0.0),
    "i1e": (special.i1e, scipy.special.i1e, 50 * SMALL, 8, 0.0),
    "entr": (special.entr, scipy.special.entr, 3 * SMALL, 4, 1e-3),
}


@pytest.mark.parametrize("name", CASES)
def test_a_function_is_right_to_units_of_the_last_place(name: str) -> None:
    function, oracle, arguments, units, floor = CASES[name]
    for dtype, unit, most in ((np.float64, 2.0**-53, units), (np.float32, 2.0**-24, 2)):
        given = arguments.astype(dtype)
        wanted = np.array([float(oracle(float(x))) for x in given]).astype(dtype).astype(float)
        found = function(Tensor(given)).numpy().astype(float)
        known = np.isfinite(wanted)
        assert np.array_equal(found[~known], wanted[~known], equal_nan=True)
        scale = np.maximum(np.abs(wanted), floor)[known]
        errors = np.abs(found[known] - wanted[known])
        assert (errors <= most * unit * scale).all(), (name, dtype, (errors / unit / scale).max())


@pytest.mark.differential
@pytest.mark.parametrize("name", ["lgamma", "erfinv", "i0", "erfc", "sinc"])
def test_gradients_are_pytorchs(name: str) -> None:
    given = np.array([0.3, 0.98, 0.1, -0.4])
    x, other = Tensor(given, requires_grad=True), torch.tensor(given, requires_grad=True)
    getattr(x, name)().sum().backward()
    getattr(other, name)().sum().backward()
    assert x.grad is not None and other.grad is not None
    assert np.allclose(x.grad.numpy(), other.grad.numpy(), rtol=1e-12)


# Where PyTorch's gradients are those of the function: not at most poles, nor at NaN of i1.
_PLACES = (-0.0, 0.0, 0.02, 0.25, 0.5, 1.0, 2.0, -0.4, -1.3, -2.5, 3.7, 8.0, 8.5, 30.0, -30.5)
GRADIENTS: dict[str, tuple[float, ...]] = {
    "sinc": (*_PLACES, -1.0, -3.0, 1e5, math.inf, math.nan),
    "i0": (*_PLACES, -1.0, math.nan),
    "i1": (*_PLACES, -1.0),
    "i0e": (*_PLACES, -1.0, 700.0, math.nan),
    "i1e": (*_PLACES, -1.0, 700.0),
    "digamma": (*_PLACES, 1e-3, 1e9, math.inf, math.nan),
    "gammaln": (*_PLACES, 1e-3, 1e9, math.inf, math.nan),
}


@pytest.mark.differential
@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["float64", "float32"])
def test_gradients_of_infinite_gradients_are_pytorchs(name: str, dtype: type) -> None:
    given = np.array(GRADIENTS[name], dtype)
    # Of PyTorch's trigamma no more than nine digits are right.
    close = 1e-9 if dtype is np.float64 else 5e-4
    for incoming in (1.0, -1e7, 0.0, math.inf, -math.inf, math.nan):
        seed = np.full_like(given, incoming)
        x, other = Tensor(given, requires_grad=True), torch.tensor(given, requires_grad=True)
        getattr(special, name)(x).backward(Tensor(seed))
        getattr(torch.special, name)(other).backward(torch.tensor(seed))
        assert x.grad is not None and other.grad is not None
        at = str(incoming)
        np.testing.assert_allclose(x.grad.numpy(), other.grad.numpy(), rtol=close, err_msg=at)


def test_the_derivative_of_digamma_is_right_over_all_arguments() -> None:
    given = np.linspace(-20.3, 30.1, 96)
    x = Tensor(np.append(given, [-3.0, 0.0, 1e10]), requires_grad=True)
    (found,) = x.digamma().sum().gradient(x)
    wanted = [float(mpmath.polygamma(1, each)) for each in given]
    np.testing.assert_allclose(found.numpy()[:-3], wanted, rtol=1e-13)
    assert found.numpy()[-3:-1].tolist() == [math.inf, math.inf]
    np.testing.assert_allclose(found.numpy()[-1], 1e-10, rtol=1e-9)


@pytest.mark.parametrize(("name", "wanted"), [
    ("sinc", [0, -math.pi**2 / 3, 0]), ("i0", [0, 0.5, 0]), ("i1", [0.5, 0]),
])  # fmt: skip
def test_derivatives_at_0_of_further_orders(name: str, wanted: list[float]) -> None:
    x = Tensor(np.array([0.0]), requires_grad=True)
    found = getattr(special, name)(x)
    for value in wanted:
        (found,) = found.sum().gradient(x)
        assert found.item() == pytest.approx(value, abs=1e-14)


def test_the_derivative_of_a_derivative_is_the_function_of_the_next_order() -> None:
    x = Tensor(np.array([0.3, 2.5, 11.0]), requires_grad=True)
    (first,) = x.lgamma().sum().gradient(x)
    (second,) = first.sum().gradient(x)
    assert np.allclose(first.numpy(), scipy.special.digamma(x.detach().numpy()), rtol=1e-12)
    assert np.allclose(second.numpy(), scipy.special.polygamma(1, x.detach().numpy()), rtol=1e-11)


def test_functions_of_two_and_of_dimensions() -> None:
    x = np.array([0.0, 0.5, 2.0])
    found = special.xlog1py(Tensor(x), Tensor(np.array([-1.0, 0.25, 3.0]))).numpy()
    assert np.allclose(found, scipy.special.xlog1py(x, [-1.0, 0.25, 3.0]))
    given = np.array([2.5, 7.0])
    wanted = [scipy.special.multigammaln(each, 3) for each in given]
    assert np.allclose(special.multigammaln(Tensor(given), 3).numpy(), wanted, rtol=1e-14)


def test_functions_of_infinity_are_their_limits() -> None:
    end = Tensor(np.array([np.inf]))
    assert special.zeta(Tensor(np.array([2.0])), end).item() == 0.0
    assert special.zeta(end, Tensor(np.array([0.5, 1.0, 2.0]))).tolist() == [np.inf, 1.0, 0.0]
    assert [special.polygamma(order, end).item() for order in (0, 1, 2)] == [np.inf, 0.0, 0.0]
    x = Tensor(np.array([0.3, np.inf]), requires_grad=True)
    special.polygamma(1, x).sum().backward()
    assert x.grad is not None
    assert np.allclose(x.grad.numpy(), scipy.special.polygamma(2, [0.3, np.inf]), rtol=1e-12)


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ArgumentError, match="order"):
        special.polygamma(-1, Tensor([1.0]))
    with pytest.raises(DTypeError, match="complex"):
        special.ndtr(Tensor([1j]))
