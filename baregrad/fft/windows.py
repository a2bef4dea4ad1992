"""Windows of signals, by PyTorch's names: sums of a few cosines, and others.

With `periodic` a window of one more element loses its last one, as transforms of frames ask for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from baregrad.base.errors import ArgumentError, DTypeError
from baregrad.dtypes import as_dtype, default_float
from baregrad.tensor import Tensor


def _made(
    values: np.ndarray[Any, Any], count: int, dtype: object, device: str | None, requires_grad: bool
) -> Tensor:
    found = default_float() if dtype is None else as_dtype(dtype)
    if not found.is_float:
        raise DTypeError("a window is of floats", found=found)
    made = Tensor(values[:count], device=device).cast(found)
    return made.requires_grad_() if requires_grad else made


def _places(count: int, periodic: bool) -> np.ndarray[Any, Any]:
    """From 0 to 1 at the ends of a window, in float64."""
    if not isinstance(count, int) or count < 0:
        raise ArgumentError("a window has a number of elements", found=repr(count))
    whole = count + 1 if periodic else count
    return np.arange(whole) / max(whole - 1, 1)


def _cosines(count: int, periodic: bool, terms: Sequence[float]) -> np.ndarray[Any, Any]:
    """The sum of terms times cosines of 0, 1, ... turns, with changing signs; 1 of one element."""
    if count == 1:
        return np.ones(1)
    turns = 2 * math.pi * _places(count, periodic)
    parts = [(-1) ** k * term * np.cos(k * turns) for k, term in enumerate(terms)]
    found: np.ndarray[Any, Any] = np.sum(parts, axis=0)
    return found


def hann_window(
    window_length: int, periodic: bool = True, *, dtype: object = None, device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return (1 - cos(t)) / 2 over one turn."""
    values = _cosines(window_length, periodic, (0.5, 0.5))
    return _made(values, window_length, dtype, device, requires_grad)


def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, *,
    dtype: object = None, device: str | None = None, requires_grad: bool = False,
) -> Tensor:
    """Return alpha - beta * cos(t) over one turn."""
    values = _cosines(window_length, periodic, (alpha, beta))
    return _made(values, window_length, dtype, device, requires_grad)


def blackman_window(
    window_length: int, periodic: bool = True, *, dtype: object = None, device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return 0.42 - cos(t) / 2 + 0.08 * cos(2t) over one turn."""
    values = _cosines(window_length, periodic, (0.42, 0.5, 0.08))
    return _made(values, window_length, dtype, device, requires_grad)


def bartlett_window(
    window_length: int, periodic: bool = True, *, dtype: object = None, device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a line from 0 up to 1 and down again."""
    values = np.ones(1) if window_length == 1 else \
        1 - np.abs(2 * _places(window_length, periodic) - 1)
    return _made(values, window_length, dtype, device, requires_grad)


def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, *, dtype: object = None,
    device: str | None = None, requires_grad: bool = False,
) -> Tensor:
    """Return I0(beta * sqrt(1 - t * t)) / I0(beta) for t from -1 to 1, I0 a Bessel function."""
    if window_length == 1:
        return _made(np.ones(1), 1, dtype, device, requires_grad)
    t = 2 * _places(window_length, periodic) - 1
    values = np.i0(beta * np.sqrt(np.clip(1 - t * t, 0, 1))) / np.i0(beta)
    return _made(values, window_length, dtype, device, requires_grad)
