"""Functions that are odd near 0 keep the sign of a zero, as NumPy's and PyTorch's do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from baregrad.tensor import Tensor

ZEROS = np.array([-0.0, 0.0] * 9)
DTYPES = ("float16", "float32", "float64")


@pytest.mark.parametrize("device", ["CPU", "REF"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "wanted"), [
    ("log1p", np.log1p), ("asinh", np.arcsinh), ("atanh", np.arctanh), ("expm1", np.expm1),
    ("sinh", np.sinh), ("tanh", np.tanh), ("asin", np.arcsin), ("atan", np.arctan),
    ("sin", np.sin), ("tan", np.tan), ("sqrt", np.sqrt),
])  # fmt: skip
def test_odd_functions(
    device: str, dtype: str, name: str, wanted: Callable[[np.ndarray], np.ndarray]
) -> None:
    zeros = ZEROS.astype(dtype)
    found = getattr(Tensor(zeros, device=device), name)().numpy()
    np.testing.assert_array_equal(found, 0)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted(zeros)))


@pytest.mark.parametrize("device", ["CPU", "REF"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu(device: str, dtype: str) -> None:
    """Far below 0 as well, where PyTorch's result is -0 too."""
    values = np.array([-0.0, 0.0, -60.0, -1000.0] * 5, dtype)
    found = Tensor(values, device=device).gelu().numpy()
    wanted = torch.nn.functional.gelu(torch.from_numpy(values)).numpy()
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))


def test_derivatives_at_zero_are_those_of_the_functions() -> None:
    """First and second ones, at zeros of both signs, by hand."""
    cases = {"log1p": (1.0, -1.0), "asinh": (1.0, 0.0), "atanh": (1.0, 0.0)}
    for name, (slope, bend) in cases.items():
        x = Tensor(np.array([-0.0, 0.0]), requires_grad=True)
        (first,) = getattr(x, name)().sum().gradient(x)
        (second,) = first.sum().gradient(x)
        assert first.tolist() == [slope, slope], name
        assert second.tolist() == [bend, bend], name


@pytest.mark.parametrize("device", ["CPU", "REF"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_padding(device: str, dtype: str) -> None:
    """Zeros of either sign around zeros of either sign, constants and not."""
    ours, theirs = Tensor([1.0], dtype=dtype, device=device), torch.ones(1).to(_theirs(dtype))
    for inside in (0.0, -0.0):
        for around in (0.0, -0.0):
            for made, wanted in (
                (ours.full_like(inside), torch.full_like(theirs, inside)),
                ((ours * inside).realize(), theirs * inside),
            ):
                found = made.pad((1, 2), value=around)
                wanted = torch.nn.functional.pad(wanted, (1, 2), value=around)
                both = found, found * 1, found.reshape(2, 2).pad((0, 0, 1, 0)).reshape(-1)[2:]
                for one in both:
                    signs = np.signbit(one.cast("float64").numpy())
                    np.testing.assert_array_equal(signs, torch.signbit(wanted).numpy())


def _theirs(dtype: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, dtype)
    return found
