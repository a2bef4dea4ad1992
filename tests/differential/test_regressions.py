"""Small programs that random ones were made of: each showed a defect once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from baregrad.base.options import options
from baregrad.engine.canonical import bind
from baregrad.ir.core.index import variable
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit
from tests.differential import sweep

pytestmark = pytest.mark.differential


def _unread_argument() -> Tensor:
    x = Tensor(np.arange(34).reshape(2, 17) % 5, dtype="int8")
    y = x.permute(1, 0)
    (y == y).realize()
    return x


def _constant_scatter() -> Tensor:
    x = Tensor(np.zeros((4, 8), np.int64)).fill_(1)
    return x.scatter_add(1, (x % 8).long(), x)


def _empty_and_full() -> Tensor:
    x = Tensor(np.arange(5.0).reshape(5, 1), dtype="float16") / 3
    empty = x[:, Tensor(np.zeros((3, 0)), dtype="int64")]
    one = x[3, -1]
    empty.realize(one)
    return one


def _attention_gradient() -> Tensor:
    q, k = (Tensor(np.sin(np.arange(n * 8.0)).reshape(2, -1, 8)) for n in (10, 14))
    q.requires_grad_()
    k.requires_grad_()
    y = q.scaled_dot_product_attention(k, k)
    return (y * y).sum().gradient(k)[0]


def _matmul_gradient() -> Tensor:
    x = Tensor(np.array([1.5])).requires_grad_()
    y = x @ Tensor(np.arange(8.0).reshape(8, 1)).mT @ Tensor(np.ones((17, 8))).mT
    return (y * y).sum().gradient(x)[0]
PROGRAMS: tuple[tuple[str, Callable[[], Tensor]], ...] = (
    ("an argument that no kernel reads", _unread_argument),
    ("a constant scattered to one place", _constant_scatter),
    ("an empty result beside another", _empty_and_full),
    ("attention's gradient", _attention_gradient),
    ("the gradient of two products", _matmul_gradient),
    ("clamp of floats", lambda: Tensor([-3.0, 0.0, 3.0]).clamp(-2, 0.5)),
    ("argmax of one", lambda: Tensor(np.arange(75.0).reshape(1, 3, 5, 5)).argmax(0)),
    ("reshape of nothing", lambda: Tensor(np.zeros((3, 0))).reshape(0, 3).permute(1, 0) + 1),
    ("a flipped diagonal of nothing", lambda: Tensor(np.zeros((3, 0))).diagonal().flip(0) * 2),
    ("a constant of its own", lambda: Tensor(np.zeros(3)).fill_(1)[1:]),
    ("nothing of every second row", lambda: Tensor(np.ones((2, 3)))[1:2:2].narrow(0, 1, 0) * 2),
    ("nothing of a diagonal", lambda: Tensor(np.ones((2, 6, 5))).diagonal(0).narrow(0, 2, 0).exp()),
    ("floored triangle, repeated", lambda: Tensor(np.ones((1, 2, 9))).tril(0).expand(2, 2, 9) // 2),
    ("floored constant", lambda: (Tensor(np.ones((3, 2))).fill_(1) + Tensor([False])) // 2),
)


@pytest.mark.parametrize("row", PROGRAMS, ids=[row[0] for row in PROGRAMS])
def test_the_cpu_agrees_with_the_reference(row: tuple[str, Callable[[], Tensor]]) -> None:
    # The reference first: what it realised must not be taken for what the CPU has.
    with options.override(device="REF"):
        wanted = row[1]().numpy()
    with options.override(device=sweep.DEVICE):
        found = row[1]().numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6, strict=True)


def _view_of_argument(x: Tensor, state: Tensor) -> Tensor:
    return x.permute(1, 0)


def _old_state(x: Tensor, state: Tensor) -> Tensor:
    before = state.clone()
    state.add_(1)
    return before


def _changed_clone(x: Tensor, state: Tensor) -> Tensor:
    y = x.clone()
    y.add_(x)
    return y


def _two_writes(x: Tensor, state: Tensor) -> Tensor:
    x[[1, 0]] = 2
    x[[1, 1]] = 3
    return x + 0


def _sum_of_state(x: Tensor, state: Tensor) -> Tensor:
    total = state.sum(1)
    state.add_(1)
    return total


@pytest.mark.parametrize(
    "function", (_view_of_argument, _old_state, _changed_clone, _two_writes, _sum_of_state)
)
@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_a_replay_agrees_with_eager(
    function: Callable[[Tensor, Tensor], Tensor], dtype: str
) -> None:
    with options.override(device=sweep.DEVICE):
        seen = []
        for wrap in (lambda f: f, jit):
            state = Tensor(np.zeros((2, 3)), dtype=dtype)
            called = wrap(lambda x, f=function, s=state: f(x, s))
            for call in range(4):
                x = Tensor(np.arange(6.0).reshape(2, 3) + call, dtype=dtype)
                made = called(x)
                seen.append([t.cast("float64").numpy() for t in (made, x, state)])
    for eager, replayed in zip(seen[:4], seen[4:], strict=True):
        for a, b in zip(eager, replayed, strict=True):
            np.testing.assert_array_equal(b, a, strict=True)


def test_a_guard_by_a_running_sum_does_not_reach_into_the_sum() -> None:
    """An index that is a running sum guards the two halves of a stack, not what was summed."""
    rows = np.array([[1], [6], [4], [8], [3]], np.uint16)
    with options.override(device=sweep.DEVICE):
        a = Tensor(rows)
        made = Tensor.stack([a, a], dim=1)[:, a.cumsum(0) % 2].numpy()
    wanted = np.stack([rows, rows], 1)[:, np.cumsum(rows, 0) % 2]
    np.testing.assert_array_equal(made, wanted, strict=True)


@pytest.mark.parametrize("dtype", ("float32", "float64"))
def test_columns_of_a_product_picked_by_data_are_not_copied_unguarded(dtype: str) -> None:
    """What data picks is guarded as a whole: its panels stay in place."""
    rng = np.random.default_rng(3)
    left, right = (rng.integers(-4, 5, shape).astype(dtype) for shape in ((4, 8), (17, 8)))
    rows, columns = rng.integers(0, 4, (3, 4)), rng.integers(0, 17, 17)
    with options.override(device=sweep.DEVICE):
        product = Tensor(left) @ Tensor(right).mT
        made = product[Tensor(rows)][:, :, Tensor(columns)].numpy()
    np.testing.assert_array_equal(made, (left @ right.T)[rows][:, :, columns], strict=True)


@pytest.mark.parametrize(("size", "taps", "stride"), ((5, 3, 2), (11, 5, 3), (9, 3, 3), (8, 4, 2)))
def test_second_gradients_of_windows_are_counts_of_windows(
    size: int, taps: int, stride: int
) -> None:
    """What is folded is one number: no factor varies along the taps, to be 0 beyond them."""
    values = np.arange(2.0 * size).reshape(2, 1, size)
    starts = range(0, size - taps + 1, stride)
    counts = np.zeros(size)
    for start in starts:
        counts[start : start + taps] += 1
    with options.override(device=sweep.DEVICE):
        x = Tensor(values).requires_grad_()
        windows = x.unfold(2, taps, stride).expand((2, 2, len(starts), taps))
        (first,) = (windows * windows * 0.125 + windows).sum().gradient(x)
        (second,) = (first * 0.5).sum().gradient(x)
        made = second.numpy()
    # x*x/8 has 1/4 as its second derivative, in two copies.
    np.testing.assert_array_equal(made, np.broadcast_to(0.25 * counts, (2, 1, size)))


def test_two_outputs_of_windows_and_a_constant_that_is_guarded() -> None:
    """The second gradient is a sum of a product of two constants over the taps that there are."""
    values = np.arange(6.0).reshape(2, 3)
    with options.override(device=sweep.DEVICE):
        x = Tensor(values).requires_grad_()
        windows, same = x.unfold(1, 3, 1), x.maximum(x)
        total, more = [(each * each * 0.125).sum() for each in (windows, same)]
        total = total + more + (windows * windows * 0.125).sum()
        (first,) = total.gradient(x)
        (second,) = (first * 0.5).sum().gradient(x)
        first.realize(second)
        np.testing.assert_allclose(first.numpy(), 0.75 * values)
        np.testing.assert_array_equal(second.numpy(), np.full((2, 3), 0.375))


def test_what_a_symbolic_padding_cuts_off_is_stored_nowhere() -> None:
    """The gradient's full convolution pads by taps - 1 - n, which is negative for n = 4."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(7)
    image, filters = rng.standard_normal((2, 1, 4, 5)), rng.standard_normal((2, 1, 3, 3))
    leaf = torch.tensor(image, requires_grad=True)
    made = torch.nn.functional.conv2d(
        torch.nn.functional.pad(leaf, (0, 4)), torch.tensor(filters)
    )
    (made * made * 0.125 + made).sum().backward()
    with options.override(device=sweep.DEVICE):
        x = Tensor(image).requires_grad_()
        y = x.pad((0, bind(variable("n", 2, 9), 4))).conv2d(Tensor(filters))
        (found,) = (y * y * 0.125 + y).sum().gradient(x)
        np.testing.assert_allclose(found.numpy(), leaf.grad.numpy(), rtol=1e-9)


@pytest.mark.parametrize("place", [3, 7])
def test_a_condition_that_reads_what_it_guards(place: int) -> None:
    """The value is loaded for its condition anyway; what is chosen still hangs on that."""
    with options.override(device=sweep.DEVICE):
        x = Tensor(np.array([place], np.int8))
        padded = x.repeat(10).pad((bind(variable("n", 1, 8), 5), 0))
        assert padded[x % padded.shape[0]].tolist() == [0 if place < 5 else place]


def test_products_and_a_bare_number_are_summed() -> None:
    """A number has no axes along which what is the same could be summed once."""
    rng = np.random.default_rng(0)
    x, y = rng.random((4, 8)), rng.random((5, 8))
    with options.override(device=sweep.DEVICE):
        found = (Tensor(x).unsqueeze(1) * Tensor(y).unsqueeze(0) + 1.0).sum(-1)
        np.testing.assert_allclose(found.numpy(), x @ y.T + 8, rtol=1e-12)
