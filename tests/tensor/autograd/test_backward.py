"""Backward passes: what is accumulated where, modes, errors, and gradients of gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
import torch

import baregrad
from baregrad.base.errors import DTypeError, GradientError, ShapeError
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.op import Ops, all_ops
from baregrad.tensor import Tensor
from baregrad.tensor.autograd.gradients import NO_GRADIENT, RULES
from tests.tensor.oracle import OURS, THEIRS


def leaf(*values: float) -> Tensor:
    return Tensor([float(value) for value in values], requires_grad=True)


def test_every_op_has_a_gradient_or_a_reason() -> None:
    rows = [row for row in all_ops() if "tensor" in row.levels]
    missing = [row.name for row in rows if row not in RULES and row not in NO_GRADIENT]
    assert not missing, f"no gradient rule and no reason: {missing}"
    both = [row.name for row in RULES if row in NO_GRADIENT]
    assert not both, f"a rule and a reason for none: {both}"
    assert all(reason for reason in NO_GRADIENT.values())


def test_backward_accumulates_until_it_is_cleared() -> None:
    x = leaf(1, 2)
    (x * x).sum().backward()
    (x * 3).sum().backward()
    assert x.grad.tolist() == [5.0, 7.0]
    assert not x.grad.requires_grad
    x.zero_grad()
    assert x.grad is None
    (x * 3).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_backward_takes_a_gradient_for_several_elements() -> None:
    x = leaf(1, 2)
    (x * x).backward(Tensor([1.0, 10.0]))
    assert x.grad.tolist() == [2.0, 40.0]
    with pytest.raises(ShapeError, match="shape of its tensor"):
        (x * x).backward(Tensor([1.0]))
    with pytest.raises(ShapeError, match=r"shape \[2\], wanted a scalar"):
        (x * x).backward()


def test_leaves_of_equal_value_are_apart() -> None:
    x, y = Tensor.zeros(2, requires_grad=True), Tensor.zeros(2, requires_grad=True)
    (x + y * 2).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]
    assert y.grad.tolist() == [2.0, 2.0]


def test_requires_grad_follows_operands() -> None:
    x = leaf(1.0)
    assert x.is_leaf and (x + 1).requires_grad and not (x + 1).is_leaf
    assert x[0].requires_grad and x.reshape(1, 1).requires_grad and not x[0].is_leaf
    for result in (x > 0, x.argmax(), x.detach(), x.long(), x.zeros_like(), Tensor([1.0])):
        assert not result.requires_grad
    assert x.cast(dtypes.float16).requires_grad
    y = Tensor([1.0])
    assert y.is_leaf and not y.requires_grad
    y.requires_grad = True
    assert y.requires_grad
    y.requires_grad_(False)
    assert not y.requires_grad


def test_no_grad_is_a_context_and_a_decorator() -> None:
    x = leaf(1.0)

    @Tensor.no_grad()
    def double(t: Tensor) -> Tensor:
        assert not Tensor.is_grad_enabled()
        return t * 2

    assert not double(x).requires_grad
    with Tensor.no_grad():
        y = x * 2
        view = x[0]
        with Tensor.enable_grad():
            z = x * 2
    assert not y.requires_grad and not view.requires_grad and z.requires_grad
    assert Tensor.is_grad_enabled()
    (y * x).sum().backward()
    assert x.grad.tolist() == [2.0]


def test_detach_stops_gradients_and_aliases() -> None:
    x = leaf(3.0)
    (x * x.detach()).sum().backward()
    assert x.grad.tolist() == [3.0]
    y = x * 2
    (y.detach() * y).sum().gradient(x)
    assert (y.detach() * y).sum().gradient(x)[0].tolist() == [12.0]
    assert x.detach()._storage is x._storage


def test_gradient_leaves_grad_alone_and_differentiates_again() -> None:
    x = leaf(2.0)
    (first,) = (x**3).sum().gradient(x)
    (second,) = first.sum().gradient(x)
    (third,) = second.sum().gradient(x)
    assert (first.item(), second.item(), third.item()) == (12.0, 12.0, 6.0)
    assert x.grad is None
    (fixed,) = (x**3).sum().gradient(x, create_graph=False)
    assert not fixed.requires_grad


def test_gradient_by_an_intermediate() -> None:
    x = leaf(2.0)
    y = x * x
    z = (y * y).sum()
    dy, dx = z.gradient(y, x)
    assert (dy.item(), dx.item()) == (8.0, 32.0)


def test_gradient_with_outputs() -> None:
    x = leaf(1.0, 2.0)
    (found,) = (x * x).gradient(x, grad_outputs=Tensor([1.0, 10.0]))
    assert found.tolist() == [2.0, 40.0]


@pytest.mark.parametrize("target", [0, 1, 2])
@pytest.mark.parametrize("of_all", [False, True])
def test_a_second_gradient_tells_a_result_from_an_equal_one(target: int, of_all: bool) -> None:
    def second(x: Any, first: Callable[[Any, Any], Any], again: Callable[[Any, Any], Any]) -> Any:
        made = x * 2
        equal = x * 2
        above = (x * 2).exp()
        total = equal**3 + above**2 + (made**2 if of_all else 0)
        held = (made, equal, above) if of_all else (equal, equal, above)
        return again(first(total.sum(), x).sum(), held[target])

    def record(total: Any, x: Any) -> Any:
        return torch.autograd.grad(total, x, create_graph=True)[0]

    x = [0.5, -1.0, 2.0]
    want = second(torch.tensor(x, requires_grad=True), record, record)
    for _ in range(2):
        ours = second(leaf(*x), lambda y, of: y.gradient(of)[0], lambda y, of: y.gradient(of)[0])
        np.testing.assert_allclose(ours.numpy(), want.detach().numpy(), rtol=1e-5)


def test_backward_with_create_graph() -> None:
    x = leaf(2.0)
    (x**3).sum().backward(create_graph=True)
    assert x.grad.requires_grad
    assert x.grad.sum().gradient(x)[0].tolist() == [12.0]


def test_a_leaf_used_before_and_after_a_change() -> None:
    x = leaf(1.0)
    first = x * x
    with Tensor.no_grad():
        x += 1
    loss = (first + x * x).sum()
    assert loss.gradient(x)[0].item() == 2.0 + 4.0


def test_a_value_changed_in_place_keeps_its_gradient() -> None:
    x = leaf(1.0, 2.0)
    y = x * 3
    z = y * y
    y += 1
    y[0] = 0
    assert (z.sum() + y.sum()).gradient(x)[0].tolist() == [18.0, 39.0]


def test_realising_does_not_lose_the_graph() -> None:
    x = leaf(1.0, 2.0)
    y = (x * 3).realize()
    z = (y * y).sum()
    assert z.item() == 45.0
    z.backward()
    assert x.grad.tolist() == [18.0, 36.0]


def test_a_value_without_gradients_frees_its_graph() -> None:
    x = (Tensor([1.0]) + 1).realize()
    assert x._storage.node.op is Ops.BUFFER
    y = leaf(1.0)
    assert (y + 1).realize()._storage.node.op is Ops.ADD
    (y * y).sum().backward()
    assert y.grad.realize()._storage.node.op is Ops.BUFFER


def test_errors() -> None:
    x = leaf(1.0)
    cases: tuple[tuple[Any, type[Exception], str], ...] = (
        (lambda: Tensor([1.0]).sum().backward(), GradientError, "requires_grad_"),
        (lambda: (x > 0).backward(), DTypeError, "floating"),
        (lambda: Tensor([1], requires_grad=True), GradientError, "dtype int64"),
        (lambda: (x * 2).requires_grad_(False), GradientError, "detach"),
        (lambda: x.sum().gradient(Tensor([1.0])), GradientError, "tensor 0 .* does not require"),
        (lambda: x.sum().gradient(leaf(1.0)), GradientError, "tensor 0 .* is not reached"),
        (lambda: setattr(x, "grad", Tensor([1.0, 2.0])), ShapeError, "shape of its tensor"),
        (lambda: setattr(x, "grad", Tensor([1])), DTypeError, "dtype of its tensor"),
    )
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()
    other = leaf(1.0)
    assert x.sum().gradient(other, allow_unused=True)[0].tolist() == [0.0]


def test_cuts_and_rounding() -> None:
    x = leaf(1.3, -2.6)
    assert x.floor().sum().gradient(x)[0].tolist() == [0.0, 0.0]
    assert (x.round() + x).sum().gradient(x)[0].tolist() == [1.0, 1.0]


def test_casts_keep_the_dtype_of_the_leaf() -> None:
    x = leaf(1.5, 2.5)
    (x.half() * 2).sum().backward()
    assert x.grad.dtype is dtypes.float32
    y = Tensor([1.0, 2.0], dtype=dtypes.bfloat16, requires_grad=True)
    (y.float() * 3).sum().backward()
    assert y.grad.dtype is dtypes.bfloat16


def test_a_long_chain_needs_no_recursion() -> None:
    x = leaf(1.0)
    y = x
    for _ in range(20_000):
        y = y + 0.001
    y.sum().backward()
    assert x.grad.tolist() == [1.0]


def test_a_wide_sum() -> None:
    x = leaf(2.0)
    total = x * 0
    for i in range(500):
        total = total + x * i
    total.sum().backward()
    assert x.grad.tolist() == [sum(range(500))]


def test_a_small_network_trains_like_pytorchs() -> None:
    rng = np.random.default_rng(1)
    data = rng.normal(size=(32, 8)).astype(np.float32)
    ids = rng.integers(0, 3, 32)
    shapes = ((16, 8), (16,), (3, 16), (3,))
    start = [rng.normal(size=shape).astype(np.float32) * 0.3 for shape in shapes]
    ours = [Tensor(a, requires_grad=True) for a in start]
    theirs = [torch.tensor(a, requires_grad=True) for a in start]
    for _ in range(5):
        hidden = Tensor(data).linear(*ours[:2]).tanh()
        loss = hidden.linear(*ours[2:]).cross_entropy(Tensor(ids))
        linear = torch.nn.functional.linear
        wanted = torch.nn.functional.cross_entropy(
            linear(linear(torch.tensor(data), *theirs[:2]).tanh(), *theirs[2:]), torch.tensor(ids)
        )
        assert abs(loss.item() - wanted.item()) < 1e-5
        loss.backward()
        wanted.backward()
        with Tensor.no_grad(), torch.no_grad():
            for a, b in zip(ours, theirs, strict=True):
                a -= a.grad * 0.5
                b -= b.grad * 0.5
                a.grad = b.grad = None
        ours[0].realize(*ours[1:])
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-4, atol=1e-5)


def finite_difference(function: Any, x: np.ndarray, step: float = 1e-5) -> np.ndarray:
    found = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        above, below = x.copy(), x.copy()
        above[place] += step
        below[place] -= step
        found[place] = (function(Tensor(above)).item() - function(Tensor(below)).item()) / (
            2 * step
        )
    return found


@pytest.mark.parametrize(
    "function",
    (
        lambda x: (x.softmax(1) * x).sum(),
        lambda x: x.pad((1, 1)).unfold(1, 3, 2).amax(-1).sum(),
        lambda x: (x @ x.T).logsumexp(0).sum(),
        lambda x: x[[0, 2, 0]].cumprod(0).sum(),
        lambda x: x.flip(0).cumsum(1).tanh().prod(),
        lambda x: (x.diagonal() * x[:, ::2].sum()).norm(),
        lambda x: x.var(0).sqrt().sum() + x.std(1).sum(),
        lambda x: x[None, None].conv2d(x[None, None, :2, :2]).square().sum(),
        lambda x: x[None, None].conv_transpose2d(x[None, None, :2, :2], stride=2).sin().sum(),
    ),
)
def test_against_finite_differences(function: Any) -> None:
    array = np.random.default_rng(3).uniform(0.3, 1.5, (3, 4))
    x = Tensor(array, requires_grad=True)
    (gradient,) = function(x).gradient(x)
    np.testing.assert_allclose(
        gradient.numpy(), finite_difference(function, array), rtol=1e-6, atol=1e-7
    )


# --- at edges -------------------------------------------------------------------------------------

EDGES = np.array([
    0.0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3, -3, 6, 20, 1e30, -1e30, math.inf, -math.inf, math.nan,
])  # fmt: skip
ALONE = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan",
    "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc",
    "sinc", "floor", "ceil", "trunc", "round", "frac", "sign", "abs", "reciprocal", "square",
    "nan_to_num", "logit", "relu", "relu6", "sigmoid", "logsigmoid", "silu", "softplus", "elu",
    "selu", "celu", "leaky_relu", "hardtanh", "hardsigmoid", "hardswish", "mish", "softsign",
    "tanhshrink", "softshrink", "hardshrink",
)  # fmt: skip
# Where PyTorch's value is NaN beside a limit that exists, or gives a derivative beside a value that
# is NaN; and where its own two ways of computing differ, in long arrays and at their ends.
APART = {
    "acosh": EDGES < 1, "hardswish": ~(EDGES > -math.inf), "atanh": np.abs(EDGES) > 1e9,
    "copysign": ~np.isfinite(EDGES),
}  # fmt: skip


def derivatives(function: Any, arrays: list[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """(ours, PyTorch's) values and gradients of a function's sum."""
    ours = [Tensor(array, requires_grad=True) for array in arrays]
    theirs = [torch.tensor(array, requires_grad=True) for array in arrays]
    mine, other = function(OURS, *ours), function(THEIRS, *theirs)
    found = [(mine.numpy(), other.detach().numpy())]
    mine.sum().backward()
    other.sum().backward()
    for one, another in zip(ours, theirs, strict=True):
        assert one.grad is not None
        assert another.grad is not None
        found.append((one.grad.numpy(), another.grad.numpy()))
    return found


@pytest.mark.parametrize("name", ALONE)
def test_derivatives_at_edges(name: str) -> None:
    kept = ~APART.get(name, np.zeros_like(EDGES, bool))
    for one, another in derivatives(lambda f, x: getattr(f, name)(x), [EDGES[kept]]):
        np.testing.assert_allclose(one, another, rtol=1e-6, atol=1e-12)


def test_what_is_outside_a_domain_has_no_derivative() -> None:
    outside = np.array([0.5, 0.0, -1.0, -3.0])
    x = Tensor(outside, requires_grad=True)
    x.acosh().sum().backward()
    assert x.grad is not None
    assert np.isnan(x.grad.numpy()).all()


POINTS = np.array([0.0, -0.0, 1, -1, 2, -2, 0.5, math.inf, -math.inf, math.nan])
TOGETHER: tuple[tuple[str, Any], ...] = (
    ("maximum", lambda f, x, y: f.maximum(x, y)),
    ("minimum", lambda f, x, y: f.minimum(x, y)),
    ("pow", lambda f, x, y: x**y),
    ("fmod", lambda f, x, y: f.fmod(x, y)),
    ("logaddexp", lambda f, x, y: f.logaddexp(x, y)),
    ("at least", lambda f, x, y: f.clamp(x, min=y)),
    ("at most", lambda f, x, y: f.clamp(x, max=y)),
    ("floored", lambda f, x, y: f.div(x, y, rounding_mode="floor")),
    ("truncated", lambda f, x, y: f.div(x, y, rounding_mode="trunc")),
    ("copysign", lambda f, x, y: f.copysign(x, y)),
    ("atan2", lambda f, x, y: f.atan2(x, y)),
    ("remainder", lambda f, x, y: f.remainder(x, y)),
    ("smooth", lambda f, x, y: f.smooth_l1_loss(x, y, reduction="none")),
    ("huber", lambda f, x, y: f.huber_loss(x, y, reduction="none")),
)
# The limits that PyTorch does not take at infinities.
FINITE_FIRST = ("copysign", "remainder", "atan2")
FINITE_LAST = ("atan2",)


@pytest.mark.parametrize("row", TOGETHER, ids=itemgetter(0))
def test_derivatives_of_two_at_edges(row: Any) -> None:
    name, function = row
    x, y = (part.ravel() for part in np.meshgrid(POINTS, POINTS))
    kept = np.ones(x.size, bool)
    if name in FINITE_FIRST:
        kept &= np.isfinite(x)
    if name in FINITE_LAST:
        kept &= np.isfinite(y)
    for one, another in derivatives(function, [x[kept], y[kept]]):
        np.testing.assert_allclose(one, another, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("row", [
    [1, 1, 1], [2, 1, 2], [0, 0, 0], [1, 0, 2], [math.nan, 1, 2], [1, math.nan, math.nan],
    [math.inf, 1, math.inf], [-0.0, 0, 0], [5, 5], [3, 3, 1, 1], [-1, 1, -1],
], ids=str)  # fmt: skip
def test_derivatives_of_reductions_at_ties(row: list[float]) -> None:
    functions: list[Any] = [
        lambda f, x: x.max(), lambda f, x: x.min(), lambda f, x: x.median(),
        lambda f, x: x.std(), lambda f, x: x.std(correction=0), lambda f, x: x.logsumexp(0),
        lambda f, x: x.norm(1), lambda f, x: x.norm(2), lambda f, x: x.norm(3),
        lambda f, x: x.norm(math.inf),
    ]  # fmt: skip
    if np.isfinite(row).all():
        functions += [lambda f, x: x.norm(0.5), lambda f, x: x.norm(-1), lambda f, x: x.amax(),
                      lambda f, x: x.prod(), lambda f, x: x.var()]  # fmt: skip
    for function in functions:
        for one, another in derivatives(function, [np.array(row, np.float64)]):
            np.testing.assert_allclose(one, another, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("function", [
    lambda x: x.sign(), lambda x: x.norm(0), lambda x: x // 2, lambda x: Tensor(2.0).copysign(x),
    lambda x: (x > 0).where(x.sign(), x.floor()),
])  # fmt: skip
def test_steps_have_gradients_of_zero(function: Any) -> None:
    x = Tensor([-1.5, 0.0, 2.0], requires_grad=True)
    (first,) = function(x).sum().gradient(x)
    assert first.tolist() == [0.0, 0.0, 0.0]
    function(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 0.0, 0.0]


EQUAL: dict[str, Callable[[Any], Any]] = {
    "product": lambda w: w * 2,
    "exp": lambda w: w.exp(),
    "sum": lambda w: w.sum(),
    "maximum": lambda w: w.amax(),
    "sorted": lambda w: w.sort()[0],
    "clone": lambda w: w.clone(),
    "matrix product": lambda w: w @ w,
}


@pytest.mark.parametrize("name", EQUAL)
def test_tensors_of_equal_expressions_have_gradients_of_their_own(name: str) -> None:
    make, values = EQUAL[name], [3.0, -1.0, 0.5]
    found, wanted = [], []
    for library in ("ours", "theirs"):
        if library == "ours":
            w: Any = Tensor(values, requires_grad=True)
        else:
            w = torch.tensor(values, requires_grad=True)
        p, q = make(w), make(w)
        loss = (5 * p * p + 7 * q + make(w)).sum()
        if library == "ours":
            found = [g.tolist() for g in loss.gradient(p, q, w)]
        else:
            wanted = [g.tolist() for g in torch.autograd.grad(loss, (p, q, w))]
    np.testing.assert_allclose(np.hstack(found), np.hstack(wanted), rtol=1e-6)


TWICE: tuple[Callable[[Any], Any], ...] = (
    lambda w: w * w,
    lambda w: w / (w * w + 1),
    lambda w: w @ w,
    lambda w: (w * w.exp()).sum(0),
)


@pytest.mark.parametrize("make", TWICE, ids=("product", "quotient", "matrix product", "sum"))
def test_gradients_have_the_bits_of_any_order_of_equal_tensors(make: Callable[[Any], Any]) -> None:
    """Which was made first, and whether others of equal values are alive, changes nothing."""
    found: list[tuple[Any, Any]] = []
    alive: list[Any] = []
    w = Tensor(np.random.default_rng(3).standard_normal((5, 5)), requires_grad=True)
    for turn in range(3):
        p, q = make(w), make(w)
        # The node of a value that is asked for is made at once.
        alive.append([each.node for each in ((p, q) if turn != 1 else (q, p))])
        if turn < 2:
            alive.clear()
        loss = (p * p * 0.3 + p).sum() + (q * q * 0.7 + q).sum() + (w / 3).sum()
        first = loss.gradient(w)[0]
        second = (first * first * 0.1).sum().gradient(w)[0]
        found.append((first.numpy(), second.numpy()))
    for others in found[1:]:
        for one, another in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(one, another)


@pytest.mark.parametrize("dtype,bits", [(dtypes.bfloat16, 7), (dtypes.float16, 10)])
def test_gradients_of_gelu_round_once(dtype: DType, bits: int) -> None:
    """In 16 bits its density is nearly right: far better than what the gradient is rounded to."""
    rows = np.random.default_rng(4).uniform(-6, 6, 4096).astype(np.float32)
    x = Tensor(rows).cast(dtype).realize().requires_grad_()
    (first,) = x.gelu().sum().gradient(x)
    (second,) = first.sum().gradient(x)
    wide = torch.tensor(x.detach().cast(dtypes.float64).numpy(), requires_grad=True)
    (one,) = torch.autograd.grad(torch.nn.functional.gelu(wide).sum(), wide, create_graph=True)
    (two,) = torch.autograd.grad(one.sum(), wide)
    for found, wanted in ((first.detach(), one.detach()), (second, two)):
        exact = wanted.numpy()
        ulp = np.exp2(np.floor(np.log2(np.maximum(np.abs(exact), 1e-30))) - bits)
        error = np.abs(found.cast(dtypes.float64).numpy() - exact)
        assert (error <= 0.5 * ulp + 2.0**-20).all()


def _in_no_grad(y: Any, t: Any) -> None:
    with t.no_grad():
        y.mul_(3.0)


WRITES: tuple[Callable[[Any, Any], Any], ...] = (
    _in_no_grad,
    lambda y, _: y.data.mul_(3.0),
    lambda y, _: y.detach()[:1].add_(3.0),
    lambda y, t: y.data.copy_(t.tensor([4.0, 5.0]) + 1.0),
    lambda y, _: y.data[1].fill_(0.5),
)


@pytest.mark.parametrize("write", WRITES)
def test_gradients_pass_what_is_written_unrecorded(write: Callable[[Any, Any], Any]) -> None:
    found = []
    for t in (baregrad, torch):
        x = t.tensor([1.0, 2.0], requires_grad=True)
        y = x * x
        write(y, t)
        (y * y + x).sum().backward()
        found.append((y.tolist(), x.grad.tolist()))
    assert found[0] == found[1]


def test_what_is_written_into_data_is_recorded_for_no_gradients() -> None:
    x, w = Tensor([1.0, 2.0]), Tensor([3.0, 4.0]).requires_grad_()
    x.data.mul_(w).add_(w, alpha=0.5)
    x.data[0].add_(w[0])
    assert x.tolist() == [7.5, 10.0] and not x.requires_grad
    (x * w).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [7.5, 10.0]
    x.data.detach().mul_(w)
    assert x.tolist() == [22.5, 40.0]
    with Tensor.no_grad():
        shown = w[:1]
    for detached in (x.detach(), x.detach().detach(), shown.detach(), x.detach()[:1].detach()):
        with pytest.raises(GradientError, match="detached"):
            detached.mul_(w[: detached.shape[0]])
