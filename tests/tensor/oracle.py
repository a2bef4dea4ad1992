"""Comparing with PyTorch: the same function over the same arrays, values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from baregrad.dtypes import DType, dtypes
from baregrad.tensor import Tensor

FLOATS = (dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16)
INTS = (dtypes.int32, dtypes.int64, dtypes.uint8, dtypes.int8, dtypes.int16)
TOLERANCE = {
    dtypes.float64: 1e-12,
    dtypes.float32: 2e-6,
    dtypes.float16: 2e-3,
    dtypes.bfloat16: 1.6e-2,
}


def torch_dtype(dtype: DType) -> torch.dtype:
    found: torch.dtype = getattr(torch, dtype.name)
    return found


class OurFunctions:
    """f for us: every function is a method of the tensor."""

    def __getattr__(self, name: str) -> Any:
        return getattr(Tensor, name)


class TheirFunctions:
    """f for PyTorch: torch.nn.functional, then torch, then methods."""

    def __getattr__(self, name: str) -> Any:
        for home in (torch.nn.functional, torch, torch.Tensor):
            if hasattr(home, name):
                return getattr(home, name)
        raise AttributeError(name)


OURS, THEIRS = OurFunctions(), TheirFunctions()


def both(array: np.ndarray, dtype: DType, grad: bool = False) -> tuple[Tensor, torch.Tensor]:
    theirs = torch.tensor(array).to(torch_dtype(dtype))
    ours = Tensor(theirs)
    assert ours.dtype is dtype
    if grad:
        ours.requires_grad_()
        theirs.requires_grad_()
    return ours, theirs


def to_numpy(x: Any) -> np.ndarray:
    if isinstance(x, Tensor):
        return x.float().numpy() if x.dtype is dtypes.bfloat16 else x.numpy()
    if isinstance(x, torch.Tensor):
        x = x.detach()
        return x.float().numpy() if x.dtype is torch.bfloat16 else x.numpy(force=True)
    return np.asarray(x)


def same(ours: Any, theirs: Any, tolerance: float | None = None, what: str = "") -> None:
    """Assert equal dtypes, shapes and, to within a tolerance, values."""
    if isinstance(theirs, tuple | list):
        assert len(ours) == len(theirs), what
        for one, other in zip(ours, theirs, strict=True):
            same(one, other, tolerance, what)
        return
    if isinstance(theirs, torch.Tensor):
        assert str(ours.dtype) == str(theirs.dtype).removeprefix("torch."), what
        assert tuple(ours.shape) == tuple(theirs.shape), what
    limit = TOLERANCE.get(ours.dtype, 0.0) if tolerance is None else tolerance
    a, b = to_numpy(ours), to_numpy(theirs)
    if a.dtype.kind == "f":
        np.testing.assert_allclose(
            a.astype(np.float64), b.astype(np.float64), rtol=limit, atol=limit, err_msg=what
        )
    else:
        np.testing.assert_array_equal(a, b, err_msg=what)


def values(
    rng: np.random.Generator, shape: Sequence[int], dtype: DType, low: float, high: float
) -> Any:
    if dtype.kind == "bool":
        return rng.random(shape) < 0.5
    if dtype.kind == "float":
        return rng.uniform(low, high, shape)
    return rng.integers(max(int(low), dtype.min), max(int(high), 1), shape, endpoint=True)


def floats(result: Any) -> list[Any]:
    """The parts of a result through which gradients pass."""
    parts = list(result) if isinstance(result, tuple | list) else [result]
    return [
        part
        for part in parts
        if (part.dtype.is_floating_point if isinstance(part, torch.Tensor) else part.dtype.is_float)
    ]


def weigh(parts: list[Any], rng: np.random.Generator, ours: bool) -> Any:
    """A scalar that weighs every element differently."""
    total = None
    for part in parts:
        weights = rng.uniform(0.5, 1.5, tuple(part.shape))
        weight = torch.tensor(weights, dtype=torch.float64)
        made = Tensor(weight) if ours else weight
        term = (part * (made.cast(part.dtype) if ours else made.to(part.dtype))).sum()
        total = term if total is None else total + term
    return total


def compare(
    function: Callable[..., Any],
    arrays: Sequence[np.ndarray],
    dtype: DType | Sequence[DType] = dtypes.float32,
    *,
    tolerance: float | None = None,
    grad: bool = True,
    second: bool = True,
    grad_tolerance: float | None = None,
) -> None:
    """Run function(f, *tensors) in both worlds and compare values, first and second gradients."""
    kinds = [dtype] * len(arrays) if isinstance(dtype, DType) else list(dtype)
    grads = [grad and kind.kind == "float" for kind in kinds]
    pairs = [both(a, kind, g) for a, kind, g in zip(arrays, kinds, grads, strict=True)]
    ours = function(OURS, *(pair[0] for pair in pairs))
    theirs = function(THEIRS, *(pair[1] for pair in pairs))
    same(ours, theirs, tolerance, "values")
    leaves = [pair for pair, wanted in zip(pairs, grads, strict=True) if wanted]
    parts = floats(theirs)
    if not leaves or not any(part.requires_grad for part in parts):
        return
    _compare_gradients(ours, theirs, leaves, grad_tolerance, second)


def _compare_gradients(
    ours: Any, theirs: Any, leaves: list[Any], tolerance: float | None, second: bool
) -> None:
    mine = weigh(floats(ours), np.random.default_rng(7), True)
    other = weigh(floats(theirs), np.random.default_rng(7), False)
    limit = tolerance
    if limit is None:
        limit = max(TOLERANCE[pair[0].dtype] for pair in leaves) * 10
    first_ours = mine.gradient(*(pair[0] for pair in leaves), allow_unused=True)
    first_theirs = torch.autograd.grad(
        other,
        [pair[1] for pair in leaves],
        create_graph=second,
        allow_unused=True,
        materialize_grads=True,
    )
    same(first_ours, first_theirs, limit, "first gradients")
    if not second or not any(g.requires_grad for g in first_theirs):
        return
    if not any(g.grad_fn is not None for g in first_theirs):
        return
    twice = weigh(list(first_ours), np.random.default_rng(8), True)
    twice_theirs = weigh(list(first_theirs), np.random.default_rng(8), False)
    if not twice.requires_grad:
        for gradient in torch.autograd.grad(
            twice_theirs, [pair[1] for pair in leaves], allow_unused=True, materialize_grads=True
        ):
            assert not gradient.any(), "second gradients are missing"
        return
    second_ours = twice.gradient(*(pair[0] for pair in leaves), allow_unused=True)
    second_theirs = torch.autograd.grad(
        twice_theirs, [pair[1] for pair in leaves], allow_unused=True, materialize_grads=True
    )
    same(second_ours, second_theirs, limit * 10, "second gradients")
