"""First and second gradients on the CPU: against PyTorch and against finite differences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.tensor import Tensor
from tests.differential import sweep
from tests.tensor.ops.test_elementwise import UNARY
from tests.tensor.oracle import compare

pytestmark = pytest.mark.differential

# Their gradient is not ours by convention, or they have none.
SKIPPED = ("sign", "x // 0.7")
# name, function of f and its arguments, the arguments' shapes
STRUCTURED: tuple[tuple[str, Any, tuple[tuple[int, ...], ...]], ...] = (
    ("matmul", lambda f, a, b: a @ b, ((3, 5), (5, 7))),
    ("batched matmul", lambda f, a, b: a @ b, ((2, 3, 5), (5, 4))),
    ("linear", lambda f, a, b: f.linear(a, b).tanh(), ((3, 9), (7, 9))),
    ("conv", lambda f, a, b: f.conv2d(a, b, padding=1, stride=2), ((2, 3, 7, 7), (4, 3, 3, 3))),
    ("transposed", lambda f, a, b: f.conv_transpose2d(a, b), ((1, 2, 4, 4), (2, 3, 3, 3))),
    ("max pool", lambda f, a: f.max_pool2d(a, 2), ((2, 1, 7, 6),)),
    ("avg pool", lambda f, a: f.avg_pool2d(a, 2), ((2, 1, 6, 7),)),
    ("softmax", lambda f, a: f.softmax(a, 1), ((3, 17),)),
    ("log_softmax", lambda f, a: f.log_softmax(a, 0), ((9, 3),)),
    ("logsumexp", lambda f, a: a.logsumexp(1), ((3, 17),)),
    ("layer_norm", lambda f, a: f.layer_norm(a, (9,)), ((4, 9),)),
    ("var", lambda f, a: a.var(1), ((3, 17),)),
    ("std", lambda f, a: a.std(0), ((5, 3),)),
    ("norm", lambda f, a: a.norm(dim=1), ((3, 7),)),
    ("mean", lambda f, a: a.mean(0).exp(), ((3, 7),)),
    ("prod", lambda f, a: a.prod(1), ((3, 5),)),
    ("amax", lambda f, a: a.amax(1), ((3, 9),)),
    ("max", lambda f, a: a.max(1)[0], ((3, 9),)),
    ("sort", lambda f, a: a.sort(1)[0], ((3, 9),)),
    ("cumsum", lambda f, a: a.cumsum(1).square(), ((3, 9),)),
    ("cumprod", lambda f, a: a.cumprod(1), ((3, 5),)),
    ("views", lambda f, a: a.T[::2, 1:].flip(0).square(), ((4, 7),)),
    ("roll", lambda f, a: a.roll(2, 1) * a, ((3, 7),)),
    ("pad", lambda f, a: f.pad(a, (1, 2)).exp(), ((3, 4),)),
    ("expand", lambda f, a: a.expand(4, 3, 5).sin(), ((3, 1),)),
    ("index", lambda f, a: a[[0, 2, 2]].square(), ((3, 5),)),
    ("unfold", lambda f, a: a.unfold(0, 3, 1).prod(1), ((9,),)),
    ("tril", lambda f, a: a.tril() @ a, ((5, 5),)),
    ("where", lambda f, a, b: f.where(a > b, a * b, a / b), ((3, 7), (3, 7))),
    ("maximum", lambda f, a, b: a.maximum(b) * a, ((3, 7), (7,))),
    ("pow", lambda f, a, b: a.abs() ** b, ((3, 5), (3, 5))),
    ("atan2", lambda f, a, b: a.atan2(b), ((3, 5), (3, 5))),
    ("mse", lambda f, a, b: f.mse_loss(a, b), ((3, 5), (3, 5))),
    ("attention", lambda f, a, b: f.scaled_dot_product_attention(a, b, b), ((2, 5, 8), (2, 7, 8))),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _on_the_cpu() -> Iterator[None]:
    with options.override(device=sweep.DEVICE):
        yield


@pytest.mark.parametrize("row", UNARY, ids=[row[0] for row in UNARY])
def test_unary_gradients_equal_torch(row: Any) -> None:
    name, function, low, high = row
    array = np.random.default_rng(11).uniform(low, high, 13)
    compare(
        function, [array], dtypes.float64, tolerance=1e-11, grad_tolerance=2e-8,
        grad=name not in SKIPPED, second=name != "hardsigmoid",
    )  # fmt: skip


@pytest.mark.parametrize("row", STRUCTURED, ids=[row[0] for row in STRUCTURED])
def test_structured_gradients_equal_torch(row: Any) -> None:
    _, function, shapes = row
    rng = np.random.default_rng(12)
    arrays = [rng.uniform(0.2, 1.8, shape) * rng.choice((-1, 1), shape) for shape in shapes]
    compare(function, arrays, dtypes.float64, tolerance=1e-10, grad_tolerance=1e-7)
    compare(function, arrays, tolerance=1e-4, grad_tolerance=1e-2, second=False)


class _Ours:
    def __getattr__(self, name: str) -> Any:
        return getattr(Tensor, name)


def _total(function: Any, arrays: list[np.ndarray[Any, Any]]) -> Tensor:
    made = function(_Ours(), *(Tensor(array) for array in arrays))
    return (made * made * 0.5 + made).sum()


@pytest.mark.parametrize("row", STRUCTURED, ids=[row[0] for row in STRUCTURED])
def test_structured_gradients_equal_finite_differences(row: Any) -> None:
    """Along three random directions, in float64, by central differences of step 1e-5."""
    _, function, shapes = row
    rng = np.random.default_rng(13)
    arrays = [rng.uniform(0.2, 1.8, shape) * rng.choice((-1, 1), shape) for shape in shapes]
    leaves = [Tensor(array).requires_grad_() for array in arrays]
    made = function(_Ours(), *leaves)
    gradients = (made * made * 0.5 + made).sum().gradient(*leaves)
    held = [gradient.numpy() for gradient in gradients]
    step = 1e-5
    for _ in range(3):
        ways = [rng.normal(size=array.shape) for array in arrays]
        up = _total(function, [a + step * w for a, w in zip(arrays, ways, strict=True)])
        down = _total(function, [a - step * w for a, w in zip(arrays, ways, strict=True)])
        slope = (up.item() - down.item()) / (2 * step)
        wanted = sum(float((g * w).sum()) for g, w in zip(held, ways, strict=True))
        assert slope == pytest.approx(wanted, rel=2e-5, abs=2e-5)
