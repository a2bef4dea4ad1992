"""Elementwise operations against PyTorch: dtypes, shapes, special values, gradients."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import pytest
import torch

import baregrad
from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.dtypes import dtypes
from baregrad.tensor import Tensor
from tests.tensor.oracle import FLOATS, INTS, OURS, THEIRS, both, compare, same, values

SHAPES = ((), (0,), (3,), (2, 3), (1, 3, 2))

# name, function of f and x, lowest and highest argument
UNARY: tuple[tuple[str, Any, float, float], ...] = (
    ("abs", lambda f, x: x.abs(), -2, 2),
    ("neg", lambda f, x: -x, -2, 2),
    ("exp", lambda f, x: x.exp(), -2, 2),
    ("exp2", lambda f, x: x.exp2(), -2, 2),
    ("expm1", lambda f, x: x.expm1(), -2, 2),
    ("log", lambda f, x: x.log(), 0.1, 3),
    ("log2", lambda f, x: x.log2(), 0.1, 3),
    ("log10", lambda f, x: x.log10(), 0.1, 3),
    ("log1p", lambda f, x: x.log1p(), -0.9, 3),
    ("logit", lambda f, x: x.logit(), 0.1, 0.9),
    ("sqrt", lambda f, x: x.sqrt(), 0.1, 3),
    ("rsqrt", lambda f, x: x.rsqrt(), 0.1, 3),
    ("reciprocal", lambda f, x: x.reciprocal(), 0.5, 3),
    ("square", lambda f, x: x.square(), -2, 2),
    ("sin", lambda f, x: x.sin(), -4, 4),
    ("cos", lambda f, x: x.cos(), -4, 4),
    ("tan", lambda f, x: x.tan(), -1.2, 1.2),
    ("asin", lambda f, x: x.asin(), -0.9, 0.9),
    ("acos", lambda f, x: x.acos(), -0.9, 0.9),
    ("atan", lambda f, x: x.atan(), -3, 3),
    ("sinh", lambda f, x: x.sinh(), -2, 2),
    ("cosh", lambda f, x: x.cosh(), -2, 2),
    ("tanh", lambda f, x: x.tanh(), -2, 2),
    ("asinh", lambda f, x: x.asinh(), -2, 2),
    ("acosh", lambda f, x: x.acosh(), 1.1, 4),
    ("atanh", lambda f, x: x.atanh(), -0.9, 0.9),
    ("erf", lambda f, x: x.erf(), -2, 2),
    ("sinc", lambda f, x: x.sinc(), -2, 2),
    ("sign", lambda f, x: x.sign(), -2, 2),
    ("floor", lambda f, x: x.floor(), -4, 4),
    ("ceil", lambda f, x: x.ceil(), -4, 4),
    ("trunc", lambda f, x: x.trunc(), -4, 4),
    ("round", lambda f, x: x.round(), -4, 4),
    ("frac", lambda f, x: x.frac(), -4, 4),
    ("deg2rad", lambda f, x: x.deg2rad(), -90, 90),
    ("rad2deg", lambda f, x: x.rad2deg(), -2, 2),
    ("relu", lambda f, x: f.relu(x), -2, 2),
    ("relu6", lambda f, x: f.relu6(x), -2, 8),
    ("sigmoid", lambda f, x: x.sigmoid(), -4, 4),
    ("logsigmoid", lambda f, x: f.logsigmoid(x), -4, 4),
    ("silu", lambda f, x: f.silu(x), -4, 4),
    ("gelu", lambda f, x: f.gelu(x), -4, 4),
    ("gelu tanh", lambda f, x: f.gelu(x, approximate="tanh"), -4, 4),
    ("softplus", lambda f, x: f.softplus(x), -4, 4),
    ("softplus beta", lambda f, x: f.softplus(x, 2.0, 3.0), -4, 4),
    ("elu", lambda f, x: f.elu(x), -4, 4),
    ("elu alpha", lambda f, x: f.elu(x, 0.5), -4, 4),
    ("selu", lambda f, x: f.selu(x), -4, 4),
    ("celu", lambda f, x: f.celu(x, 1.5), -4, 4),
    ("leaky_relu", lambda f, x: f.leaky_relu(x, 0.1), -4, 4),
    ("hardtanh", lambda f, x: f.hardtanh(x), -3, 3),
    ("hardsigmoid", lambda f, x: f.hardsigmoid(x), -5, 5),
    ("hardswish", lambda f, x: f.hardswish(x), -5, 5),
    ("mish", lambda f, x: f.mish(x), -4, 4),
    ("softsign", lambda f, x: f.softsign(x), -4, 4),
    ("tanhshrink", lambda f, x: f.tanhshrink(x), -4, 4),
    ("threshold", lambda f, x: f.threshold(x, 0.5, 2.0), -4, 4),
    ("clamp", lambda f, x: x.clamp(-1, 1), -2, 2),
    ("clamp min", lambda f, x: x.clamp(min=0.5), -2, 2),
    ("clamp max", lambda f, x: x.clamp(max=0.5), -2, 2),
    ("pow 2", lambda f, x: x**2, -2, 2),
    ("pow 3", lambda f, x: x**3, -2, 2),
    ("pow 2.5", lambda f, x: x**2.5, 0.1, 2),
    ("pow -1", lambda f, x: x**-1.0, 0.5, 2),
    ("pow -2.0", lambda f, x: x**-2.0, 0.5, 2),
    ("pow 0.5", lambda f, x: x**0.5, 0.5, 2),
    ("2 ** x", lambda f, x: 2.0**x, -2, 2),
    ("1 - x", lambda f, x: 1 - x, -2, 2),
    ("1 / x", lambda f, x: 1 / x, 0.5, 2),
    ("x + 1.5", lambda f, x: x + 1.5, -2, 2),
    ("x * 3", lambda f, x: x * 3, -2, 2),
    ("x / 3", lambda f, x: x / 3, -2, 2),
    ("x // 0.7", lambda f, x: x // 0.7, -2, 2),
    ("x % 0.7", lambda f, x: x % 0.7, -2, 2),
    ("fmod", lambda f, x: x.fmod(0.7), -2, 2),
    ("isnan", lambda f, x: x.isnan(), -2, 2),
    ("isinf", lambda f, x: x.isinf(), -2, 2),
    ("isfinite", lambda f, x: x.isfinite(), -2, 2),
    ("signbit", lambda f, x: x.signbit(), -2, 2),
    ("logical_not", lambda f, x: x.logical_not(), -1, 1),
    ("nan_to_num", lambda f, x: x.nan_to_num(), -2, 2),
)
NAMES = [row[0] for row in UNARY]


@pytest.mark.parametrize("row", UNARY, ids=NAMES)
def test_unary_values_and_gradients(row: Any) -> None:
    name, function, low, high = row
    rng = np.random.default_rng(1)
    for shape in SHAPES:
        array = values(rng, shape, dtypes.float64, low, high)
        grad = name not in ("sign", "x // 0.7")  # no gradient: ours, PyTorch's
        compare(
            function,
            [array],
            dtypes.float64,
            tolerance=1e-11,
            grad_tolerance=2e-8,
            grad=grad,
            second=name != "hardsigmoid",
        )
    compare(function, [array], tolerance=3e-6, grad_tolerance=1e-4, grad=grad, second=False)


@pytest.mark.parametrize("row", UNARY, ids=NAMES)
def test_unary_narrow_floats(row: Any) -> None:
    name, function, low, high = row
    if name == "x // 0.7":
        return  # the rounding of 0.7 decides
    array = np.random.default_rng(2).uniform(low, high, 40)
    compare(function, [array], dtypes.float16, tolerance=4e-3, grad=False)
    compare(function, [array], dtypes.bfloat16, tolerance=3e-2, grad=False)


INTEGER_ROWS = tuple(
    row
    for row in UNARY
    if row[0]
    not in (
        "logsigmoid",
        "silu",
        "gelu",
        "gelu tanh",
        "softplus",
        "softplus beta",
        "elu",
        "elu alpha",
        "selu",
        "celu",
        "leaky_relu",
        "hardsigmoid",
        "hardswish",
        "mish",
        "hardtanh",
        "frac",
        "softsign",
        "tanhshrink",
        "threshold",
        "pow -1",
        "pow -2.0",
        "1 / x",
        "reciprocal",
        "x // 0.7",
        "logit",
    )
)


@pytest.mark.parametrize("row", INTEGER_ROWS, ids=[row[0] for row in INTEGER_ROWS])
@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_unary_integers(row: Any, dtype: Any) -> None:
    name, function, low, high = row
    if dtype is dtypes.uint8 and name in ("neg", "1 - x"):
        low = 0
    array = values(np.random.default_rng(3), (4, 5), dtype, math.ceil(low), max(high, low + 1))
    compare(function, [array], dtype, tolerance=3e-6)


@pytest.mark.parametrize(
    "name", ("exp", "sqrt", "sin", "sigmoid", "logical_not", "isnan", "square")
)
def test_unary_bools(name: str) -> None:
    array = np.array([True, False, True])
    compare(lambda f, x: getattr(x, name)(), [array], dtypes.bool, tolerance=3e-6)


SPECIAL = np.array(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        math.inf,
        -math.inf,
        math.nan,
        1e-30,
        -1e-30,
        1e30,
        -1e30,
        1e-6,
        88.0,
        -88.0,
        100.0,
        -100.0,
        0.5,
        2.0,
        1e-3,
    ]
)
# Functions that differ from PyTorch at some special value, with the values left out.
EXCEPT = {
    "sinh": (88.0, -88.0),  # rounding of e**88
    "cosh": (88.0, -88.0),
    "silu": (-math.inf,),  # -inf * 0
    "hardswish": (-math.inf,),  # -inf * 0
    "logit": (),
    "sinc": (math.inf, -math.inf, 1e30, -1e30),
    "tan": (1e30, -1e30),
    "sin": (1e30, -1e30),
    "cos": (1e30, -1e30),
    "gelu": (1e30, -1e30, math.inf, -math.inf),  # PyTorch's own depend on the vector width
    "gelu tanh": (1e30, -1e30),
    "rad2deg": (),
    "x // 0.7": (1e30, -1e30),
    "x % 0.7": (1e30, -1e30),
    "fmod": (1e30, -1e30),
}


@pytest.mark.parametrize("row", UNARY, ids=NAMES)
def test_unary_special_values(row: Any) -> None:
    name, function, _, _ = row
    array = np.array([v for v in SPECIAL if v not in EXCEPT.get(name, ())])
    compare(function, [array], dtypes.float32, tolerance=4e-6, grad=False)


@pytest.mark.parametrize("row", UNARY, ids=NAMES)
def test_gradients_are_finite_where_pytorchs_are(row: Any) -> None:
    name, function, _, _ = row
    if name in ("sinc", "x // 0.7"):
        return  # PyTorch's own is wrong near 0; it has none
    for value in (0.0, 1.0, -1.0, 30.0, -30.0, 90.0, -90.0, 1e-4, -1e-4):
        ours, theirs = both(np.array(value), dtypes.float32, True)
        got, wanted = function(OURS, ours), function(THEIRS, theirs)
        if not wanted.dtype.is_floating_point or not wanted.requires_grad:
            continue
        wanted.backward()
        if not got.requires_grad:
            assert theirs.grad == 0
            continue
        got.backward()
        found, aim = ours.grad.item(), theirs.grad.item()
        if math.isfinite(aim) and math.isfinite(wanted.item()):
            assert math.isclose(found, aim, rel_tol=1e-4, abs_tol=1e-6), (value, found, aim)


BINARY: tuple[tuple[str, Any], ...] = (
    ("add", operator.add),
    ("sub", operator.sub),
    ("mul", operator.mul),
    ("truediv", operator.truediv),
    ("floordiv", operator.floordiv),
    ("mod", operator.mod),
    ("fmod", lambda a, b: a.fmod(b)),
    ("div trunc", lambda a, b: a.div(b, rounding_mode="trunc")),
    ("div floor", lambda a, b: a.div(b, rounding_mode="floor")),
    ("maximum", lambda a, b: a.maximum(b)),
    ("minimum", lambda a, b: a.minimum(b)),
    ("pow", operator.pow),
    ("atan2", lambda a, b: a.atan2(b)),
    ("copysign", lambda a, b: a.copysign(b)),
    ("logaddexp", lambda a, b: a.logaddexp(b)),
    ("eq", operator.eq),
    ("ne", operator.ne),
    ("lt", operator.lt),
    ("le", operator.le),
    ("gt", operator.gt),
    ("ge", operator.ge),
    ("logical_and", lambda a, b: a.logical_and(b)),
    ("logical_or", lambda a, b: a.logical_or(b)),
    ("logical_xor", lambda a, b: a.logical_xor(b)),
    ("and", operator.and_),
    ("or", operator.or_),
    ("xor", operator.xor),
    ("lshift", operator.lshift),
    ("rshift", operator.rshift),
    ("isclose", lambda a, b: a.isclose(b, rtol=0.3)),
    ("add alpha", lambda a, b: a.add(b, alpha=2)),
    ("sub alpha", lambda a, b: a.sub(b, alpha=2)),
)
FLOAT_ONLY = ("atan2", "copysign", "logaddexp")
INT_ONLY = ("and", "or", "xor", "lshift", "rshift")
BROADCASTS = (
    ((), ()),
    ((3,), ()),
    ((), (2, 2)),
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((2, 1), (1, 3)),
    ((1, 3, 1), (2, 1, 4)),
    ((0, 3), (3,)),
    ((2, 0), (1, 1)),
)


@pytest.mark.parametrize("row", [r for r in BINARY if r[0] not in INT_ONLY], ids=lambda r: r[0])
def test_binary_floats_broadcast_and_differentiate(row: Any) -> None:
    name, function = row
    rng = np.random.default_rng(4)
    low = 0.2 if name == "pow" else -2
    for left, right in BROADCASTS:
        a, b = (rng.uniform(low, 2, shape) for shape in (left, right))
        compare(
            lambda f, x, y: function(x, y),
            [a, b],
            dtypes.float64,
            grad_tolerance=1e-9,
            grad=name != "floordiv",
        )
    compare(lambda f, x, y: function(x, y), [a, b], tolerance=4e-6, grad=False)


@pytest.mark.parametrize("row", [r for r in BINARY if r[0] not in FLOAT_ONLY], ids=lambda r: r[0])
@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_binary_integers(row: Any, dtype: Any) -> None:
    name, function = row
    rng = np.random.default_rng(5)
    a = values(rng, (5, 6), dtype, -20, 20)
    positive = name in ("pow", "lshift", "rshift") or dtype is dtypes.uint8
    b = values(rng, (5, 6), dtype, 1 if positive else -7, 7)
    if name in ("floordiv", "mod", "fmod", "div trunc", "div floor", "truediv"):
        b = np.where(b == 0, 3, b)
    compare(lambda f, x, y: function(x, y), [a, b], dtype, tolerance=3e-6)


WITHOUT_BOOLS = (
    "sub",
    "floordiv",
    "mod",
    "fmod",
    "pow",
    "lshift",
    "rshift",
    "sub alpha",
    "div trunc",
    "div floor",
    "add alpha",
    *FLOAT_ONLY,
)


@pytest.mark.parametrize(
    "row", [r for r in BINARY if r[0] not in WITHOUT_BOOLS], ids=lambda r: r[0]
)
def test_binary_bools(row: Any) -> None:
    a, b = np.array([[True, False]]), np.array([[True], [False]])
    compare(lambda f, x, y: row[1](x, y), [a, b], dtypes.bool, tolerance=1e-6)


@pytest.mark.parametrize("row", [r for r in BINARY if r[0] not in INT_ONLY], ids=lambda r: r[0])
def test_binary_special_values(row: Any) -> None:
    name, function = row
    special = np.array([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 2.5, -2.5, 3.0])
    a, b = np.meshgrid(special, special)
    if name in ("add alpha", "sub alpha", "isclose"):
        return
    compare(lambda f, x, y: function(x, y), [a, b], dtypes.float32, grad=False)


PAIRS = [(a, b) for a in (*FLOATS, *INTS, dtypes.bool) for b in (*FLOATS, *INTS, dtypes.bool)]


def test_promotion_of_every_pair() -> None:
    for left, right in PAIRS:
        a, ta = both(np.array([1, 0, 1]), left)
        b, tb = both(np.array([1, 1, 0]), right)
        same(a + b, ta + tb)
        same(a * b[0], ta * tb[0])
        same(a[0] * b[0], ta[0] * tb[0])
        same(a == b, ta == tb)
        same(a.maximum(b), torch.maximum(ta, tb))
        same(Tensor.where(a.bool(), a, b), torch.where(ta.bool(), ta, tb))


@pytest.mark.parametrize("scalar", (True, 3, 2.5, np.float32(2.5), np.int64(3)), ids=repr)
def test_scalars_are_weak(scalar: Any) -> None:
    for dtype in (*FLOATS, *INTS, dtypes.bool):
        x, t = both(np.array([1, 0, 1]), dtype)
        plain = scalar.item() if isinstance(scalar, np.generic) else scalar
        same(x + scalar, t + plain)
        same(scalar + x, plain + t)
        same(x * scalar, t * plain)
        same(x / scalar, t / plain)
        same(x < scalar, t < plain)


def test_where_as_pytorchs_method() -> None:
    x, t = both(np.array([1.0, 2.0, 3.0]), dtypes.float32)
    same(x.where(x > 1, -1), t.where(t > 1, -1))
    assert (x > 1).where(x, -1).tolist() == [-1.0, 2.0, 3.0]


def test_integers_wrap() -> None:
    for dtype in (dtypes.int8, dtypes.uint8, dtypes.int32, dtypes.int64):
        x, t = both(np.array([dtype.max, dtype.min, 7]), dtype)
        same(x + 1, t + 1)
        same(x * x, t * t)
        same(x * 3, t * 3)
        if dtype is not dtypes.uint8:
            same(-x, -t)
            same(x.abs(), t.abs())


def test_integer_division_by_zero_is_zero() -> None:
    x = Tensor([5, -5, 0])
    zero = Tensor([0, 0, 0])
    assert (x // zero).tolist() == [0, 0, 0]
    assert (x % zero).tolist() == [0, 0, 0]


TERNARY: tuple[tuple[str, Any], ...] = (
    ("where", lambda f, x, y, z: f.where(x > 0, y, z)),
    ("where scalar", lambda f, x, y, z: f.where(x > 0, y, 1.0)),
    ("lerp", lambda f, x, y, z: x.lerp(y, z)),
    ("lerp 0.3", lambda f, x, y, z: x.lerp(y, 0.3)),
    ("lerp 0.8", lambda f, x, y, z: x.lerp(y, 0.8)),
    ("addcmul", lambda f, x, y, z: x.addcmul(y, z, value=0.5)),
    ("addcdiv", lambda f, x, y, z: x.addcdiv(y, z, value=0.5)),
    ("clamp", lambda f, x, y, z: x.clamp(y, z)),
)


@pytest.mark.parametrize("row", TERNARY, ids=lambda r: r[0])
def test_ternary(row: Any) -> None:
    rng = np.random.default_rng(6)
    for shapes in (((3,), (3,), (3,)), ((2, 1), (3,), (2, 3)), ((2, 2), (2,), ())):
        arrays = [rng.uniform(0.2, 2, shape) for shape in shapes]
        compare(row[1], arrays, dtypes.float64, grad_tolerance=1e-9)


def test_ties_of_maximum_share_the_gradient() -> None:
    compare(lambda f, x, y: x.maximum(y), [np.ones(3), np.ones(3)], dtypes.float32)
    compare(lambda f, x, y: x.minimum(y), [np.ones(3), np.ones(3)], dtypes.float32)


def test_shapes_that_do_not_broadcast_say_both() -> None:
    with pytest.raises(ShapeError, match=r"\[2, 3\] and \[2, 4\].*axis -1 has extents 3 and 4"):
        Tensor.ones(2, 3) + Tensor.ones(2, 4)


def test_bool_subtraction_says_what_to_do() -> None:
    with pytest.raises(DTypeError, match="logical_xor"):
        Tensor([True]) - Tensor([False])
    with pytest.raises(DTypeError, match="logical_not"):
        -Tensor([True])
    with pytest.raises(DTypeError, match="integers or bools"):
        Tensor([1.0]) & 1
    with pytest.raises(DTypeError, match="bool"):
        Tensor([1]).where(1, 2)
    with pytest.raises(DTypeError, match="scalar or an array"):
        Tensor([1]) + "1"
    with pytest.raises(ValueError, match="negative power"):
        Tensor([1]) ** -1


def test_numpy_operands_meet_from_both_sides() -> None:
    array = np.array([1.0, 2.0], np.float32)
    x = Tensor([3.0, 4.0])
    for result in (x + array, array + x):
        assert isinstance(result, Tensor)
        assert result.tolist() == [4.0, 6.0]
    assert (array * x).tolist() == [3.0, 8.0]
    assert (np.float32(2) * x).tolist() == [6.0, 8.0]


def test_gelu_of_infinities() -> None:
    """The limits, also where PyTorch multiplies an infinity and a zero."""
    for device in ("CPU", "REF"):
        for dtype in (np.float16, np.float32, np.float64):
            found = Tensor(np.array([math.inf, -math.inf], dtype), device=device).gelu().numpy()
            assert found[0] == math.inf
            assert found[1] == 0 and math.copysign(1, found[1]) == -1


@pytest.mark.parametrize("other", [True, False, [True, True, False]])
@pytest.mark.parametrize("alpha", [0, 1, 2])
def test_bools_add_as_or_whatever_they_are_scaled_by(other: Any, alpha: int) -> None:
    array = np.array([True, False, False])

    def add(f: Any, x: Any, y: Any) -> Any:
        return x.add(other if isinstance(other, bool) else y, alpha=alpha)

    compare(add, [array, np.array(other)], dtypes.bool)


@pytest.mark.parametrize("name", ["atan2", "logaddexp", "hypot", "xlogy"])
def test_two_operands_meet_in_one_dtype_before_they_are_computed_with(name: str) -> None:
    points = np.array([0.5, 1.5, 2.0])
    for first, second in [
        (dtypes.float16, dtypes.float32), (dtypes.bfloat16, dtypes.float32),
        (dtypes.bfloat16, dtypes.float16), (dtypes.float32, dtypes.float64),
    ]:  # fmt: skip
        for pair in ((first, second), (second, first)):
            compare(lambda f, x, y: getattr(x, name)(y), [points, points[::-1].copy()], pair,
                    grad=False)
    for alone in (dtypes.float64, dtypes.float16, dtypes.bfloat16):
        compare(lambda f, x, y: getattr(x, name)(y), [np.array([1, 2, 3]), np.array(2.5)],
                (dtypes.int64, alone), grad=False)


def test_logarithms_of_two_sums_at_infinities_and_near_zero() -> None:
    points = (-math.inf, -700.0, -20.0, 0.0, 3.0, 700.0, math.inf, math.nan)
    a, b = (part.ravel() for part in np.meshgrid(points, points))
    compare(lambda f, x, y: f.logaddexp(x, y), [a, b], dtypes.float64, second=False)
    found = Tensor([0.0, -20.0]).logaddexp(Tensor([-20.0, 0.0]))
    np.testing.assert_allclose(found.numpy(), np.logaddexp(0.0, [-20.0, -20.0]), rtol=1e-6)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integers_are_held_between_integers(dtype: Any) -> None:
    array = np.array([0, 1, 2, 3, 100])
    compare(lambda f, x: f.hardtanh(x, 1.0, 3.0), [array], dtype)
    compare(lambda f, x: f.relu6(x), [array], dtype)
    compare(lambda f, x: x.clamp(1, 3), [array], dtype)
    for bound in (dtype.max + 1, -2 * dtype.max):
        with pytest.raises(ArgumentError, match=f"no {dtype}: found {bound}"):
            Tensor(array, dtype=dtype).clamp(max=bound)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_scalars_that_16_bit_floats_have_not_multiply_and_divide_as_in_pytorch(name: str) -> None:
    """Bit by bit: products and quotients take them in float32, sums round them first."""
    x = torch.linspace(-3, 3, 257).to(getattr(torch, name))
    ours = Tensor(x.float().numpy()).cast(name)
    calls = (
        lambda x, s: x * s, lambda x, s: s * x, lambda x, s: x / s, lambda x, s: x + s,
        lambda x, s: s - x, lambda x, s: x.clone().mul_(s),
        lambda x, s: x.div(s, rounding_mode="trunc"), lambda x, s: x // s,
    )  # fmt: skip
    largest = float(dtypes.float32.max)
    for scalar in (0.1, 0.5, 1 / 3, 257, 2049, 1e5, 1e-30, -0.0, float("inf"), 10**18, largest):
        for place, call in enumerate(calls):
            wanted, found = call(x, scalar), call(ours, scalar)
            assert str(found.dtype) == name
            assert np.array_equal(
                found.cast("float32").numpy(), wanted.float().numpy(), equal_nan=True
            ), (scalar, place)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_numbers_without_axes_multiply_and_divide_16_bit_floats_as_in_pytorch(name: str) -> None:
    """Bit by bit, and so are the gradients of what they multiply."""
    for number in (torch.tensor(0.1), torch.tensor(0.1).double(), torch.tensor(257)):
        for call in (lambda x, s: x * s, lambda x, s: s * x, lambda x, s: x / s):
            x = torch.linspace(-3, 3, 65).to(getattr(torch, name)).requires_grad_()
            ours = Tensor(x.detach().float().numpy()).cast(name).detach().requires_grad_()
            wanted, found = call(x, number), call(ours, Tensor(number.numpy()))
            assert str(found.dtype) == name
            assert found.detach().cast("float32").tolist() == wanted.tolist()
    once = Tensor(np.float32(0.1)) * Tensor(np.float32(3)).cast(name)
    assert once.dtype is dtypes.float32


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_a_scalar_over_16_bit_floats_is_rounded_once(name: str) -> None:
    x = np.linspace(0.3, 3, 65, dtype=np.float32)
    ours = Tensor(x).cast(name)
    for scalar in (0.1, 257, 1 / 3):
        wanted = torch.from_numpy(scalar / ours.cast("float64").numpy()).to(getattr(torch, name))
        assert (scalar / ours).cast("float32").tolist() == wanted.tolist()


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_sums_with_alpha_of_16_bit_floats_are_rounded_once(name: str) -> None:
    """But `alpha` first, as in PyTorch, whose fused steps may round a few numbers otherwise."""
    draw = np.random.default_rng(0)
    x, y = (torch.from_numpy(draw.standard_normal(999)).to(getattr(torch, name)) for _ in "xy")
    ours, other = (Tensor(one.float().numpy()).cast(name) for one in (x, y))
    for alpha in (0.1, -0.7, 257):
        for wanted, found in (
            (torch.add(x, y, alpha=alpha), ours.add(other, alpha=alpha)),
            (torch.sub(x, y, alpha=alpha), ours.sub(other, alpha=alpha)),
            (torch.rsub(x, 0.3, alpha=alpha), baregrad.rsub(ours, 0.3, alpha=alpha)),
        ):
            differ = (found.cast("float32").numpy() != wanted.float().numpy()).sum()
            assert differ <= 10, (alpha, differ)


def test_gradients_of_products_with_unrounded_scalars_are_of_the_tensors_dtype() -> None:
    x = torch.linspace(-3, 3, 65).bfloat16().requires_grad_()
    ours = Tensor(x.detach().float().numpy()).cast("bfloat16").detach().requires_grad_()
    (x * 0.1 / 0.3).float().square().sum().backward()
    (ours * 0.1 / 0.3).float().square().sum().backward()
    assert ours.grad is not None and x.grad is not None and ours.grad.dtype is dtypes.bfloat16
    np.testing.assert_array_equal(ours.grad.cast("float32").numpy(), x.grad.float().numpy())
