"""Complex functions of infinities, NaN and signed zeros, against NumPy's, which are C99's."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from baregrad import Tensor

PARTS = (0.0, -0.0, 1.0, -0.5, 1e30, np.inf, -np.inf, np.nan)
GIVEN = np.array([complex(*pair) for pair in itertools.product(PARTS, PARTS)])
INVERSE = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh",
           "acosh": "arccosh", "atanh": "arctanh"}  # fmt: skip
FUNCTIONS = ("exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh",
             *INVERSE)  # fmt: skip


def split(x: np.ndarray) -> np.ndarray:
    return np.stack([x.real, x.imag])


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [
    "complex128", pytest.param("complex64", marks=pytest.mark.slow),
])  # fmt: skip
def test_special_values(name: str, dtype: str) -> None:
    with np.errstate(all="ignore"):
        wanted = split(getattr(np, INVERSE.get(name, name))(GIVEN.astype(dtype)))
    found = split(getattr(Tensor(GIVEN.astype(dtype)), name)().numpy())
    rounding = 64 * np.finfo(dtype).eps
    np.testing.assert_allclose(np.abs(found), np.abs(wanted), rtol=rounding, atol=rounding / 64)
    # Signs are open beside NaN, and where hyperbolic functions have an angle that is none.
    is_open = np.isnan(wanted).any(0)
    if name not in ("log", "log1p", "sqrt", *INVERSE):
        is_open |= ~np.isfinite(GIVEN.real) & ~np.isfinite(GIVEN.imag)
    np.testing.assert_array_equal(
        np.signbit(found)[:, ~is_open], np.signbit(wanted)[:, ~is_open], err_msg=name
    )


def test_quotients_and_powers() -> None:
    """Beside NumPy's and PyTorch's, either of which will do: they differ at infinities."""
    one, other = np.repeat(GIVEN, GIVEN.size), np.tile(GIVEN, GIVEN.size)
    ours = (Tensor(one), Tensor(other))
    theirs = (torch.from_numpy(one), torch.from_numpy(other))
    for name, made in (("quotient", lambda a, b: a / b), ("power", lambda a, b: a ** b),
                       ("reciprocal", lambda a, b: 1 / b)):
        with np.errstate(all="ignore"):
            wanted = made(one, other), made(*theirs).resolve_conj().numpy()
        found = split(made(*ours).numpy())
        close = [np.isclose(found, split(each), 1e-12, 0, equal_nan=True).all(0) for each in wanted]
        lost = ~(close[0] | close[1])
        if name == "power":
            # Of angles of 1e30 times a logarithm no digit is left.
            lost &= ~(np.abs(split(np.stack([one, other]))) == 1e30).any((0, 1))
        assert not lost.any(), f"{name}: {one[lost][:4]}, {other[lost][:4]}"


def test_zeros_beside_nan_are_kept() -> None:
    """Where a part is NaN the other is told by symmetry alone."""
    still = Tensor(np.array([complex(np.nan, 0.0), complex(np.nan, -0.0)]))
    for name in ("exp", "sinh", "tanh", "asinh"):
        found = getattr(still, name)().numpy()
        np.testing.assert_array_equal(np.isnan(found.real), True)
        np.testing.assert_array_equal(np.signbit(found.imag), [False, True], err_msg=name)


def test_small_parts_of_tangents_far_from_the_axis() -> None:
    z = np.array([30 + 1j, -25 + 2j, 43 - 40j, 60 + 0.5j, 1e30 - 3j], np.complex64)
    for name, given in (("tanh", z), ("tan", 1j * z)):
        wanted = split(getattr(np, name)(given.astype(np.complex128)).astype(np.complex64))
        found = split(getattr(Tensor(given), name)().numpy())
        assert (wanted[:, :3] != 0).all()
        # Below the smallest normal number bits are lost.
        np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-38)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))
