"""Complex operations against PyTorch's and NumPy's, values and gradients."""

from __future__ import annotations

import cmath
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from baregrad.base.errors import DTypeError, IndexOutOfRange, ShapeError
from baregrad.dtypes import dtypes
from baregrad.func import jacfwd, jacrev
from baregrad.tensor import Tensor

_RANDOM = np.random.default_rng(7)
Z, W = ((_RANDOM.normal(size=(3, 4)) + 1j * _RANDOM.normal(size=(3, 4))).astype(np.complex64)
        for _ in range(2))
R = _RANDOM.normal(size=(3, 4)).astype(np.float32)
FUNCTIONS = (
    "abs", "angle", "conj", "sgn", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt",
    "rsqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh",
    "atanh", "sigmoid", "square", "reciprocal", "neg", "isnan", "isinf", "isfinite", "isreal",
    "logical_not",
)


def space(x: Any) -> Any:
    """Where functions of tensors of this library are."""
    return torch if torch.is_tensor(x) else Tensor


CASES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "sum": lambda a, b, c: a.sum(),
    "sum of an axis": lambda a, b, c: a.sum(-1, keepdim=True),
    "mean": lambda a, b, c: a.mean(0),
    "prod": lambda a, b, c: a.prod(1, keepdim=True),
    "cumsum": lambda a, b, c: a.cumsum(-1),
    "cumprod": lambda a, b, c: a.cumprod(1),
    "product": lambda a, b, c: a @ b.T,
    "product with real": lambda a, b, c: a @ c.to(a.dtype).T,
    "by a vector": lambda a, b, c: b[:, 0] @ a,
    "batches": lambda a, b, c: a.unsqueeze(0) @ b.mT.unsqueeze(0),
    "dot": lambda a, b, c: a[0].dot(b[0]),
    "outer": lambda a, b, c: a[0].outer(b[1]),
    "einsum": lambda a, b, c: space(a).einsum("ij,kj->ik", a, b),
    "var": lambda a, b, c: a.var(),
    "std": lambda a, b, c: a.std(0),
    "norm": lambda a, b, c: a.norm(),
    "reshape": lambda a, b, c: a.reshape((2, -1)),
    "permute": lambda a, b, c: a.permute(1, 0),
    "adjoint": lambda a, b, c: a.mH.resolve_conj(),
    "unsqueeze": lambda a, b, c: a.unsqueeze(-1).squeeze(),
    "expand": lambda a, b, c: a.unsqueeze(0).expand(5, -1, -1),
    "index": lambda a, b, c: a[1:, None, ::2],
    "index of the last": lambda a, b, c: a[..., 1],
    "flip": lambda a, b, c: a.flip(-1),
    "roll": lambda a, b, c: a.roll(1, -1),
    "where": lambda a, b, c: b.where(c > 0, a),
    "split": lambda a, b, c: a.split(2, -1),
    "unbind": lambda a, b, c: a.unbind(1),
    "diagonal": lambda a, b, c: a.diagonal(),
    "tril": lambda a, b, c: a.tril(),
    "all": lambda a, b, c: a.all(),
    "any": lambda a, b, c: a.any(0),
    "unfold": lambda a, b, c: a.unfold(1, 2, 1),
    "masked_fill": lambda a, b, c: a.masked_fill(c > 0, 2j),
    "repeat": lambda a, b, c: a.repeat(2, 1),
    "cat": lambda a, b, c: space(a).cat([c, a], dim=-1),
    "stack": lambda a, b, c: space(a).stack([a, b], dim=-1),
    "wider": lambda a, b, c: a * c.double(),
    "no axes": lambda a, b, c: a * c.double().sum(),
    "vdot": lambda a, b, c: a[0].vdot(b[0]),
    "inner": lambda a, b, c: a.inner(b),
    "dist": lambda a, b, c: a.dist(b),
    "cov": lambda a, b, c: a.cov(),
    "corrcoef": lambda a, b, c: a.corrcoef(),
    "addmv": lambda a, b, c: a[:, 0].addmv(b, a[0], alpha=2j),
    "addmm of what is left out": lambda a, b, c: (a[:, :3] / 0).addmm(a, b.T, beta=0),
    "argwhere": lambda a, b, c: a.argwhere(),
    "rot90": lambda a, b, c: a.rot90().fliplr(),
    "diagflat": lambda a, b, c: a[0].diagflat(),
    "masked_scatter": lambda a, b, c: a.masked_scatter(c > 0, b),
    "float_power": lambda a, b, c: a.float_power(2),
    "var of one": lambda a, b, c: a[0, 0].var(correction=0),
    "axes in place": lambda a, b, c: a.clone().t_().unsqueeze_(-1).squeeze_(-1),
}
OPERATORS = ("add", "sub", "mul", "truediv", "pow", "eq", "ne")


def by_operator(name: str) -> Callable[[Any, Any, Any], Any]:
    """An operator with complex and real tensors and numbers, on both sides."""
    f = getattr(operator, name)
    return lambda a, b, c: (
        f(a, b), f(c, a), f(a, 2), f(a, 1.5 - 2j), f(c, 1.5 - 2j), f(1.5 - 2j, a),
    )


CASES.update({name: by_operator(name) for name in OPERATORS})


def assert_same(found: Any, wanted: Any) -> None:
    """The same shapes and dtypes, and values to a few units of the last place of the largest."""
    if isinstance(wanted, tuple):
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
        return
    array, other = found.numpy(), wanted.resolve_conj().numpy()
    assert (array.shape, array.dtype) == (other.shape, other.dtype)
    scale = max(1.0, float(np.abs(other).max()))
    assert np.abs(array.astype(complex) - other).max() < 4e-6 * scale


@pytest.mark.differential
@pytest.mark.parametrize("name", CASES)
def test_an_operation_is_pytorchs(name: str) -> None:
    made = CASES[name](Tensor(Z), Tensor(W), Tensor(R))
    assert_same(made, CASES[name](*map(torch.tensor, (Z, W, R))))


@pytest.mark.differential
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_pytorchs(name: str) -> None:
    assert_same(getattr(Tensor(Z), name)(), getattr(torch.tensor(Z), name)())


HOSTILE = [complex(a, b) for a in (0.0, -0.0, 1.0, -1.0, 1e-30, -3e20, 0.999)
           for b in (0.0, -0.0, 1.0, -2.5, 1e-30, 3e20)]
ORACLES = (
    "sqrt", "log", "exp", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan",
    "asinh", "acosh", "atanh",
)


@pytest.mark.parametrize("name", ORACLES)
def test_a_function_of_hostile_numbers_is_pythons(name: str) -> None:
    """On both sides of branch cuts, near their ends, and far out; as far as Python's has values."""
    given, wanted = [], []
    for number in HOSTILE:
        try:
            value = getattr(cmath, name)(number)
        except (ValueError, OverflowError):
            continue
        given.append(number)
        wanted.append(value)
    found = getattr(Tensor(np.array(given)), name)().numpy()
    for number, ours, theirs in zip(given, found, wanted, strict=True):
        assert abs(ours - theirs) <= 4e-15 * max(abs(theirs), 1e-300), (number, ours, theirs)


def through(name: str) -> Callable[[Any, Any, Any], Any]:
    """A real number made by way of a function."""
    return lambda a, b, c: ((getattr(a, name)() * b).abs() ** 2).sum()


GRADIENTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    **{name: through(name) for name in ("exp", "log", "sqrt", "tanh", "acosh", "abs", "sgn")},
    "arithmetic": lambda a, b, c: (a * b + c / b - a / c).abs().sum(),
    "products": lambda a, b, c: (a @ b.T @ c.to(a.dtype)).abs().square().sum(),
    "powers": lambda a, b, c: (a**b).real.sum() + (a**3).imag.sum(),
    "sizes of nothing": lambda a, b, c: (a - a).abs().sum() + (b - b).sgn().imag.sum(),
    "views": lambda a, b, c: (a[1:].T.reshape(-1)[::2] * b.conj().flatten()[0]).imag.sum(),
}


@pytest.mark.differential
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_pytorchs(name: str) -> None:
    ours = [Tensor(x, requires_grad=True) for x in (Z, W, R)]
    theirs = [torch.tensor(x, requires_grad=True) for x in (Z, W, R)]
    GRADIENTS[name](*ours).backward()
    GRADIENTS[name](*theirs).backward()
    for one, other in zip(ours, theirs, strict=True):
        if other.grad is not None:
            assert one.grad is not None
            wanted = other.grad.resolve_conj().numpy()
            found = one.grad.numpy()
            assert found.dtype == wanted.dtype
            assert np.abs(found - wanted).max() < 1e-5 * max(1, np.abs(wanted).max())


REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "order": lambda z: z < 1,
    "max": lambda z: z.max(),
    "sort": lambda z: z.sort(),
    "relu": lambda z: z.relu(),
    "floor": lambda z: z.floor(),
    "float": lambda z: z.float(),
    "float()": lambda z: float(z[0, 0]),
    "into real": lambda z: Tensor([[0.0]]).expand(3, 4).clone().copy_(z),
    "draws": lambda z: z.normal_(),
    "backward": lambda z: z.backward(),
    "conv": lambda z: z.conv1d(z),
    "softmax": lambda z: z.softmax(0),
    "Jacobian": lambda z: jacrev(lambda x: x * x)(z),
    "Jacobian of a complex result": lambda z: jacfwd(lambda x: x * 1j)(z.real),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_of_complex_numbers_is_refused(name: str) -> None:
    with pytest.raises(DTypeError):
        REFUSED[name](Tensor(Z))


MISFITS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "+": lambda z, w: z + w,
    "*": lambda z, w: z * w.real,
    "/": lambda z, w: w / z,
    "where": lambda z, w: z.where(w.real > 0, z),
    "reshape": lambda z, w: z.reshape(5, 5),
    "expand": lambda z, w: z.expand(2, 4),
    "cat": lambda z, w: z.cat(w, dim=1),
    "stack": lambda z, w: z.stack(w),
    "view": lambda z, w: z.view(2, 2),
    "unflatten": lambda z, w: z.unflatten(1, (3, 2)),
    "copy_": lambda z, w: z.clone().copy_(w),
    "setitem": lambda z, w: z.clone().__setitem__(slice(1), w),
}


@pytest.mark.parametrize("name", MISFITS)
def test_errors_show_shapes_without_the_axis_of_parts(name: str) -> None:
    with pytest.raises(ShapeError, match=r"\[(3, 4|2, 4)\]"):
        MISFITS[name](Tensor(Z), Tensor(Z[:2]))


@pytest.mark.parametrize("key", [[0, 1], ([2, 1], [0, 3]), (..., [1]), [True, False, True]])
def test_lists_are_indices(key: Any) -> None:
    np.testing.assert_array_equal(Tensor(Z)[key].numpy(), np.asarray(Z)[key])
    found, wanted = Tensor(Z).clone(), np.array(Z)
    found[key] = wanted[key] = 2j
    np.testing.assert_array_equal(found.numpy(), wanted)


def test_an_index_of_too_many_axes_is_refused() -> None:
    with pytest.raises(IndexOutOfRange, match=r"found 3, wanted at most 2 for \[3, 4\]"):
        Tensor(Z)[0, 0, 0]
    with pytest.raises(ShapeError):
        Tensor(R).view_as_complex()


def test_parts_are_views() -> None:
    z = Tensor(Z)
    z.real[0] = 1.0
    z.imag.mul_(2.0)
    wanted = Z.copy()
    wanted.real[0] = 1.0
    wanted.imag *= 2
    assert np.array_equal(z.numpy(), wanted)
    z[0] = 1j
    z[1:, 2] += 2
    z *= 2j
    wanted[0] = 1j
    wanted[1:, 2] += 2
    wanted *= 2j
    assert np.allclose(z.numpy(), wanted)
    assert z.dtype is dtypes.complex64


def test_real_numbers_are_written_without_imaginary_parts() -> None:
    values = (np.arange(6).reshape(2, 3) * (1 + 2j)).astype(np.complex64)
    places, mask = np.array([[0, 1, 2], [0, 1, 2]]), np.array([[True, False, True]])
    found = []
    for kind in (Tensor, torch.tensor):
        x, index = kind(values), kind(places)
        found.append([
            x.scatter(1, index, 1.0), x.index_fill(0, kind(np.array([0])), 1),
            x.masked_fill(kind(mask), 2), x.masked_fill(kind(mask), 2 + 3j),
        ])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


INDEX = np.array([[0, 1, 2, 0], [2, 2, 1, 1], [0, 0, 0, 0]])
ROWS = np.array([0, 2, 1])
PICKS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "hstack with real": lambda z, x, i, r: space(z).hstack([x, z]),
    "vstack with real": lambda z, x, i, r: space(z).vstack([x, z]),
    "gather": lambda z, x, i, r: z.gather(0, i),
    "scatter": lambda z, x, i, r: z.scatter(0, i, z * 2),
    "scatter a real number": lambda z, x, i, r: z.scatter(0, i, 1.5),
    "index_add": lambda z, x, i, r: z.index_add(0, r, z),
    "take": lambda z, x, i, r: z.take(i),
    "masked_select": lambda z, x, i, r: z.masked_select(x > 0),
    "index_put": lambda z, x, i, r: z.index_put((r[:2],), z[:2] * 2),
    "index_fill": lambda z, x, i, r: z.index_fill(0, r[:1], 2j),
}


@pytest.mark.differential
@pytest.mark.parametrize("name", PICKS)
def test_picking_is_pytorchs(name: str) -> None:
    given = (Z, R, INDEX, ROWS)
    assert_same(PICKS[name](*map(Tensor, given)), PICKS[name](*map(torch.tensor, given)))
