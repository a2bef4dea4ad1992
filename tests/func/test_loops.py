"""scan beside loops written out: values, gradients of any order, in jit and transformations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from baregrad import bind, func, variable
from baregrad.base.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.engine.session import Session, use_session
from baregrad.func import scan
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

STEPS = 5
H = np.random.default_rng(0).normal(size=(4, 3))
W = np.random.default_rng(1).normal(size=(STEPS, 3, 3))
X = np.random.default_rng(2).normal(size=(STEPS, 4, 3))
V = np.random.default_rng(3).normal(size=(3, 3))

Loop = Callable[..., tuple[Tensor, Tensor]]


def written_out(h: Tensor, w: Tensor, x: Tensor, v: Tensor, reverse: bool) -> Any:
    rows: dict[int, Tensor] = {}
    for k in range(STEPS)[:: -1 if reverse else 1]:
        h = (h @ w[k]).tanh() + x[k] @ v
        rows[k] = h * h.sum()
    return h, Tensor.stack([rows[k] for k in range(STEPS)])


def scanned(h: Tensor, w: Tensor, x: Tensor, v: Tensor, reverse: bool) -> Any:
    def step(h: Tensor, row: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h = (h @ row[0]).tanh() + row[1] @ v
        return h, h * h.sum()

    return scan(step, h, (w, x), reverse=reverse)


def given() -> list[Tensor]:
    return [Tensor(a) for a in (H, W, X, V)]


def same(ours: Any, wanted: Any) -> None:
    for one, other in zip(ours, wanted, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-9, atol=1e-10)


def gradients(loop: Loop, reverse: bool, *arrays: Tensor) -> tuple[Tensor, ...]:
    leaves = [x.detach().requires_grad_() for x in arrays]
    h, rows = loop(*leaves, reverse)
    loss = (h * h).sum() + rows.sin().sum()
    return (h.detach(), rows.detach(), *loss.gradient(*leaves, create_graph=False))


@pytest.mark.parametrize("device", ["CPU", "REF"])
@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_reach_all_that_steps_read(reverse: bool, device: str) -> None:
    with options.override(device=device):
        reached(reverse)


def reached(reverse: bool) -> None:
    wanted = gradients(written_out, reverse, *given())
    same(gradients(scanned, reverse, *given()), wanted)

    @jit
    def captured(*arrays: Tensor) -> tuple[Tensor, ...]:
        return gradients(scanned, reverse, *arrays)

    for _ in range(4):
        same(captured(*given()), wanted)
    assert captured.captures == 1


def test_gradients_of_gradients() -> None:
    def second(loop: Loop) -> list[Tensor]:
        leaves = [x.requires_grad_() for x in given()]
        h, rows = loop(*leaves, False)
        first = ((h * h).sum() + (rows * rows).sum()).gradient(*leaves)
        squares = Tensor.stack([(one * one).sum() for one in first])
        found = squares.sum().gradient(*leaves)
        return [x.detach() for x in (*first, *found)]

    same(second(scanned), second(written_out))


@pytest.mark.parametrize("name", ["sigmoid", "logsigmoid", "silu", "softplus", "mish", "tan"])
def test_gradients_of_gradients_of_functions_with_rules_of_their_own(name: str) -> None:
    """Bodies number what they are given anew: a rule's gradient is of the new numbers already."""
    start, steps = np.array([[0.3, -0.7], [0.5, 0.1]]), np.array([[[0.1, 0.4]], [[-0.2, 0.3]]])
    x, xs = (Tensor(one, dtype=dtypes.float64).requires_grad_() for one in (start, steps))
    other, others = (torch.tensor(one, requires_grad=True) for one in (start, steps))
    theirs = getattr(torch if name == "tan" else torch.nn.functional, name)
    h, _ = func.scan(lambda h, u: (getattr(h * 0.5 + u, name)(), h), x, xs)
    last = other
    for row in others:
        last = theirs(last * 0.5 + row)
    ours, wanted = [(h * h).sum()], [(last * last).sum()]
    for _ in range(2):
        found = ours[0].gradient(x, xs)
        expected = torch.autograd.grad(wanted[0], (other, others), create_graph=True)
        for one, that in zip(found, expected, strict=True):
            np.testing.assert_allclose(one.numpy(), that.detach().numpy(), rtol=1e-9, atol=1e-12)
        ours = [(found[0] ** 3).sum() + (found[1] ** 2).sum()]
        wanted = [(expected[0] ** 3).sum() + (expected[1] ** 2).sum()]


def test_it_goes_with_other_transformations() -> None:
    _, w, x, v = given()

    def loss(loop: Loop) -> Callable[[Tensor], Tensor]:
        return lambda h: (loop(h, w, x, v, False)[1] ** 2).sum()

    h, batch = Tensor(H), Tensor(np.stack([H, H * 2]))
    for change in (func.grad, func.hessian):
        same([change(loss(scanned))(h)], [change(loss(written_out))(h)])
    same([func.vmap(loss(scanned))(batch)], [func.vmap(loss(written_out))(batch)])
    same(func.jvp(loss(scanned), (h,), (h,)), func.jvp(loss(written_out), (h,), (h,)))

    def nested(c: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        return scan(lambda c, x: (c * 0.5 + x, c), c, row)

    end, rows = scan(nested, Tensor(1.0, dtype="float64"), Tensor(np.arange(6.0).reshape(2, 3)))
    carry, wanted = 1.0, []
    for value in range(6):
        wanted.append(carry)
        carry = carry * 0.5 + value
    assert end.item() == carry
    np.testing.assert_allclose(rows.numpy().reshape(-1), wanted)


def test_steps_are_one_program() -> None:
    """A loop of any length plans what its first step does, forward and backward."""
    counts = []
    for steps in (4, 30):
        session = Session()
        with use_session(session):
            programs: set[Any] = set()
            note = programs.add
            session.watching.observers.append(lambda run, note=note: note(run.executable))
            w = Tensor(np.ones((steps, 3, 3), np.float32)).requires_grad_()
            end, _ = scan(lambda h, w: ((h @ w).tanh(), None), Tensor.ones(2, 3), w)
            end.sum().backward()
            assert w.grad is not None
            w.grad.realize()
            counts.append(len(programs))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("change", [lambda f: f, jit])
def test_values_that_are_passed_on_as_they_are(change: Any) -> None:
    """No step may write where a later one, the caller or a result still reads."""

    @change  # type: ignore[untyped-decorator]
    def fibonacci(a: Tensor, b: Tensor) -> Any:
        return scan(lambda c, _: ((c[1], c[0] + c[1]), c[0]), (a, b), length=10)

    @change  # type: ignore[untyped-decorator]
    def three(one: Tensor) -> Any:
        step = lambda c, _: ((c[1], c[2], c[0] + c[1] + c[2]), c[2])  # noqa: E731
        return scan(step, (one, one, one), length=6)

    @change  # type: ignore[untyped-decorator]
    def swapped(a: Tensor, b: Tensor) -> Any:
        return scan(lambda c, _: ((c[1], c[0]), c[0]), (a, b), length=5)

    @change  # type: ignore[untyped-decorator]
    def added(x: Tensor) -> Any:
        return scan(lambda c, _: (c + x, x), x, length=4)

    for _ in range(3):
        zero, one, two = (Tensor(np.full(4, float(value))) for value in range(3))
        (a, b), rows = fibonacci(zero, one)
        assert (a.numpy() == 55).all() and (b.numpy() == 89).all()
        assert rows.numpy()[:, 3].tolist() == [0, 1, 1, 2, 3, 5, 8, 13, 21, 34]
        ends, rows = three(one)
        assert [x.numpy()[1] for x in ends] == [17, 31, 57]
        assert rows.numpy()[:, 0].tolist() == [1, 3, 5, 9, 17, 31]
        ends, rows = swapped(one, two)
        assert [x.numpy()[0] for x in ends] == [2, 1]
        assert rows.numpy()[:, 0].tolist() == [1, 2, 1, 2, 1]
        end, rows = added(two)
        assert (end.numpy() == 10).all() and (rows.numpy() == 2).all()
        assert [x.numpy()[2] for x in (zero, one, two)] == [0, 1, 2]


def test_counters_empty_loops_and_lengths() -> None:
    end, rows = scan(lambda c, _: (c + 1, c), Tensor(3), length=4)
    assert end.item() == 7 and rows.numpy().tolist() == [3, 4, 5, 6]
    end, none = scan(lambda c, x: ({"c": c["c"] + x}, None), {"c": Tensor(0)}, Tensor([1, 2, 3]))
    assert end["c"].item() == 6 and none is None
    end, rows = scan(lambda c, x: (c + x, x), Tensor(1.0), Tensor.zeros(0))
    assert end.item() == 1 and rows.shape == (0,)


def test_refused() -> None:
    x = Tensor(X)
    with pytest.raises(ShapeError, match="same shapes"):
        scan(lambda c, x: (x[0], None), Tensor(0.0, dtype="float64"), x)
    with pytest.raises(DTypeError, match="same shapes and dtypes"):
        scan(lambda c, x: (c.float(), None), Tensor(0.0, dtype="float64"), x)
    with pytest.raises(ArgumentError, match="pair"):
        scan(lambda c, x: c, x, x)
    with pytest.raises(ShapeError, match="as many steps"):
        scan(lambda c, x: (c, None), x, (x, x[1:]))
    with pytest.raises(ShapeError, match="as many steps"):
        scan(lambda c, x: (c, None), x)
    with pytest.raises(ArgumentError, match="draws random numbers"):
        scan(lambda c, x: (c + Tensor.rand(3), None), Tensor.zeros(3), length=3)
    scan(lambda c, x: (c + Tensor.rand(3), None), Tensor.zeros(3), length=3, randomness="same")
    with pytest.raises(ArgumentError, match="did not make"):
        total = Tensor(0.0)

        def adds(c: Tensor, x: Tensor) -> tuple[Tensor, None]:
            total.add_(x.sum().float())
            return c, None

        scan(adds, x[0], x)
    assert total.item() == 0


@pytest.mark.parametrize("device", ["CPU", "REF"])
def test_nothing_is_carried_from_place_to_place(device: str) -> None:
    """Values without elements that change places have no memory to do so."""
    nothing = Tensor(np.zeros((0, 3)), device=device)
    (one, _, count), rows = scan(
        lambda c, _: ((c[1], c[0], c[2] + 1), c[0]),
        (nothing, nothing + 1, Tensor(np.zeros(2), device=device)), length=3,
    )
    assert one.numpy().shape == (0, 3)
    assert rows.numpy().shape == (3, 0, 3)
    np.testing.assert_array_equal(count.numpy(), [3, 3])


def test_derivatives_of_loops_and_choices_inside_of_steps() -> None:
    """The derivative of a step's loop reads no vector that it is linear in."""
    h, x = torch.tensor(H[0]), torch.tensor(X[:, 0])

    def inside(h: Any, x: Any, is_ours: bool) -> Any:
        if is_ours:
            def chosen(h: Tensor, row: Tensor) -> tuple[Tensor, None]:
                return func.cond(row > 0, lambda h: (h * row).sin(), lambda h: h * h, (h,)), None

            return scan(lambda h, row: (scan(chosen, h, row)[0], None), h, x)[0]
        for row in x:
            for one in row:
                h = (h * one).sin() if one > 0 else h * h
        return h

    ours = lambda h: inside(h, Tensor(X[:, 0]), True)  # noqa: E731
    theirs = lambda h: inside(h, x, False)  # noqa: E731
    _, along = func.jvp(ours, (Tensor(H[0]),), (Tensor(H[1]),))
    _, wanted = torch.func.jvp(theirs, (h,), (torch.tensor(H[1]),))
    np.testing.assert_allclose(along.numpy(), wanted.numpy())
    second = func.hessian(lambda h: ours(h).sum())(Tensor(H[0]))
    hessian = torch.autograd.functional.hessian(lambda h: theirs(h).sum(), h)
    np.testing.assert_allclose(second.numpy(), hessian.numpy(), atol=1e-14)


def test_what_is_carried_is_known_by_its_place_in_a_tree() -> None:
    start = {"a": Tensor([0.0]), "b": Tensor([5.0])}
    end, _ = scan(lambda c, _: ({"b": c["b"], "a": c["a"] + 1}, None), start, length=3)
    assert [end["a"].item(), end["b"].item()] == [3, 5]
    (end,) = func.while_loop(
        lambda c: c["a"].sum() < 3, lambda c: {"b": c["b"], "a": c["a"] + 1}, start
    )
    assert [end["a"].item(), end["b"].item()] == [3, 5]
    for function in (lambda c, _: ({"x": c}, None), lambda c, _: ([c], None)):
        with pytest.raises(ArgumentError, match="same places of a tree"):
            scan(function, Tensor([1.0]), length=2)


def test_what_functions_write_outside_is_as_before() -> None:
    """A write would be done once and not in every step, whether or not it reads what they take."""
    held = Tensor([1.0, 2.0])

    def written(x: Tensor, change: Any) -> Tensor:
        held.add_(change)
        return x + held

    def fails(x: Tensor) -> Tensor:
        written(x, x)
        raise KeyError

    for function in (lambda x, _: (written(x, 1), None), lambda x, _: (written(x, x), None)):
        with pytest.raises(ArgumentError, match="in place"):
            scan(function, Tensor([1.0, 1.0]), length=3)
    for transform in (lambda f: scan(lambda x, _: (f(x), None), Tensor([1.0, 1.0]), length=3),
                      lambda f: func.checkpoint(f, Tensor([1.0, 1.0])),
                      lambda f: func.vmap(f)(Tensor([[1.0, 1.0]]))):
        with pytest.raises(KeyError):
            transform(fails)
    np.testing.assert_array_equal(held.numpy(), [1, 2])
    assert not held.requires_grad


def test_all_is_on_one_device() -> None:
    here, there = Tensor([1.0]), Tensor([1.0], device="REF")
    with pytest.raises(DeviceError, match="different devices"):
        scan(lambda c, x: (c, None), here, there)
    with pytest.raises(DeviceError, match="scan gives a tensor of another device"):
        scan(lambda c, _: (c, there), here, length=2)
    with pytest.raises(DeviceError, match="cond gives a tensor of another device"):
        jit(lambda x: func.cond(x.sum() > 0, lambda: there, lambda: x))(here)


def test_a_length_that_nothing_else_shows() -> None:
    n = variable("n", 0, 16)
    twice = lambda c, k: scan(  # noqa: E731
        lambda c, _: (scan(lambda c, _: (c + 1, None), c, length=k)[0], None), c, length=2
    )[0]
    replayed = jit(twice)
    for length in (3, 0, 5):
        assert twice(Tensor(0.0), bind(n, length)).item() == 2 * length
        assert replayed(Tensor(0.0), bind(n, length)).item() == 2 * length
        (end, _) = scan(lambda c, _: (c + 1, None), Tensor(0.0), length=bind(n, length))
        assert end.item() == length
    with pytest.raises(ArgumentError, match="may be negative"):
        scan(lambda c, _: (c + 1, None), Tensor(0.0), length=bind(n, 3) - 5)
