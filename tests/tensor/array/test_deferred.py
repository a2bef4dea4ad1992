"""Deferred values through views, writes and gradients: those of the calls made at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from baregrad import bind, variable
from baregrad.base.errors import DTypeError, GradientError, ShapeError
from baregrad.engine.session import Session, use_session
from baregrad.tensor import Tensor
from tests.tensor.array.known_calls import Work, drawn, held

pytestmark = pytest.mark.usefixtures("earlier_objects_rest")

VIEWS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("slice", lambda x: x[1:, ::2]),
    ("integer", lambda x: x[2]),
    ("new axis", lambda x: x[:, None, ..., 1:]),
    ("transpose", lambda x: x.T),
    ("reshape", lambda x: x.reshape(3, 8)),
    ("of a view", lambda x: x.T[1:].reshape(5, 2, 2)),
    ("split", lambda x: x.split(2)[1] if isinstance(x, Tensor) else x[2:4]),
    ("same", lambda x: x.reshape(4, 6)),
)


@pytest.mark.parametrize(("name", "view"), VIEWS, ids=[row[0] for row in VIEWS])
def test_views_that_are_known_show_what_they_are_views_of(
    name: str, view: Callable[[Any], Any]
) -> None:
    for _ in range(4):
        array = drawn(4, 6)
        x = held(array)
        y = x * 1  # put off itself
        for tensor in (x, y):
            shown, wanted = view(tensor), view(array)
            assert shown.shape == wanted.shape
            assert shown.dtype.name == "float32"
            np.testing.assert_array_equal(shown.exp().numpy() > 1, wanted > 0)
            shown += 2
            changed = array.copy()
            view(changed)[...] += 2
            np.testing.assert_array_equal(tensor.numpy(), changed)
            tensor.fill_(3)
            assert (shown.numpy() == 3).all() or name == "of a view"


def test_a_view_that_is_known_makes_no_nodes(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def function(x: Tensor) -> Tensor:
        return (x.exp().T[1:-1] @ x[:, 2:]).sum(0)

    for turn in range(3):
        array = drawn(5, 8)
        x = held(array)
        with Work(session, monkeypatch) as work:
            made = function(x).realize()
        wanted = (np.exp(array).T[1:-1] @ array[:, 2:]).sum(0)
        np.testing.assert_allclose(made.numpy(), wanted, rtol=1e-4, atol=1e-4)
        if turn:
            assert (work.nodes, work.graphs, work.submits) == (0, 0, 1)


def test_one_array_read_twice_is_told_from_two() -> None:
    """A value that was computed in between is read as itself here, as an array there."""
    for turn in range(4):
        x, z = drawn(3, 4), drawn(3, 4)
        y = held(x).exp()
        u = y.sin()
        y.realize()
        other, wanted = (y, np.exp(x)) if turn < 2 else (held(z), z)
        np.testing.assert_allclose((u + other).numpy(), np.sin(np.exp(x)) + wanted, rtol=1e-5)


def test_a_view_of_a_symbolic_extent_is_of_a_known_one_once_it_is_computed() -> None:
    most, rows = variable("most", 1, 8), variable("rows", 1, 8)
    for count in (2, 2, 3, 2):
        array = drawn(8, 4)
        y = held(array)[: bind(most, 5)] * 1
        shown = y[: bind(rows, count)]
        y.realize()
        part = shown[1:]
        made = (shown + 1) + np.ones((count, 4), np.float32)
        np.testing.assert_allclose(made.numpy(), array[:count] + 2, rtol=1e-6)
        y += 1
        np.testing.assert_allclose((part * 1).numpy(), array[1:count] + 1, rtol=1e-6)


def test_views_of_one_operand_given_twice_are_told_from_those_of_two() -> None:
    for turn in range(4):
        x, y = drawn(4), drawn(4)
        rows = held(x)
        columns = rows if turn < 2 else held(y)
        found = rows.meshgrid(columns)
        wanted = np.meshgrid(x, x if turn < 2 else y, indexing="ij")
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one.numpy(), other)


def test_gradients_go_through_views_that_are_known() -> None:
    for _ in range(4):
        array = drawn(5, 8)
        x = held(array).requires_grad_()
        (x.T[1:-1].exp().T[1:] * 2).sum().backward()
        t = torch.from_numpy(array).requires_grad_()
        (t.T[1:-1].exp().T[1:] * 2).sum().backward()
        assert x.grad is not None and t.grad is not None
        np.testing.assert_allclose(x.grad.numpy(), t.grad.numpy(), rtol=1e-5)


def test_views_without_gradients_are_told_apart() -> None:
    x = held(drawn(4, 6)).requires_grad_()
    for _ in range(3):
        assert x[1:].requires_grad
        with Tensor.no_grad():
            assert not x[1:].requires_grad
        assert not x.detach()[1:].requires_grad


def test_a_training_step_that_is_known_makes_leaves_and_one_submit(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(at_once: bool) -> tuple[list[bytes], list[tuple[int, int]]]:
        session.watching.at_once = at_once
        w = Tensor(np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)).realize()
        w.requires_grad_()
        speed, steps = Tensor(np.zeros((8, 3), np.float32)).realize(), Tensor.zeros().realize()
        losses, counts = [], []
        for turn in range(8):
            x = Tensor(np.random.default_rng(turn).standard_normal((5, 8)).astype(np.float32))
            with Work(session, monkeypatch) as work:
                loss = (x @ w).softmax(-1).square().mean()
                loss.backward()
                with Tensor.no_grad():
                    steps += 1
                    assert w.grad is not None
                    speed.copy_(speed * 0.9 + w.grad)
                    w.copy_(w - speed / steps)
                w.grad = None
                steps.realize(speed, w, loss)
            losses.append(loss.numpy().tobytes() + w.detach().numpy().tobytes())
            counts.append((work.graphs, work.submits))
        session.watching.at_once = False
        return losses, counts

    found, counts = trained(at_once=False)
    wanted, _ = trained(at_once=True)
    assert found == wanted
    assert counts[-4:] == [(0, 1)] * 4


def test_what_is_written_whole_is_shown_by_every_view() -> None:
    for _ in range(3):
        a, b = drawn(4, 6), drawn(4, 6)
        x, y = held(a), held(b)
        view = x[1:, 2]
        x.copy_(y.exp())
        np.testing.assert_allclose(view.numpy(), np.exp(b)[1:, 2], rtol=1e-5)
        made = y * 2
        x.copy_(made)
        made += 1
        np.testing.assert_array_equal(x.numpy(), b * 2)
        np.testing.assert_array_equal(made.numpy(), b * 2 + 1)
        x[0] = y[1]
        np.testing.assert_array_equal(view.numpy(), (b * 2)[1:, 2])
        x *= y
        np.testing.assert_array_equal(view.numpy(), (b * 2 * b)[1:, 2])


def test_one_value_in_two_storages_is_two_that_change_apart() -> None:
    for _ in range(3):
        a = drawn(4)
        x, y = held(a), held(a)
        made = x.exp()
        y.copy_(made)
        made.realize(y)
        y += 1
        np.testing.assert_allclose(made.numpy(), np.exp(a), rtol=1e-5)
        np.testing.assert_allclose(y.numpy(), np.exp(a) + 1, rtol=1e-5)


def test_writes_that_are_refused_are_refused_again() -> None:
    x = held(drawn(4)).requires_grad_()
    y = held(drawn(4))
    for _ in range(3):
        with pytest.raises(GradientError):
            x.copy_(y.exp())
        with pytest.raises(ShapeError):
            y.copy_(held(drawn(5)).exp())
        with pytest.raises(GradientError):
            y.detach().copy_(x.exp())


def test_gradients_go_through_calls_that_are_put_off() -> None:
    for _ in range(4):
        array, weights = drawn(5, 8), drawn(8, 3)
        x = held(array).requires_grad_()
        w = held(weights).requires_grad_()
        loss = (x.layer_norm((8,)) @ w).square().mean()
        first = loss.item()
        loss.backward()
        tx = torch.from_numpy(array).requires_grad_()
        tw = torch.from_numpy(weights).requires_grad_()
        wanted = (torch.layer_norm(tx, (8,)) @ tw).square().mean()
        wanted.backward()
        assert x.grad is not None and w.grad is not None
        assert tx.grad is not None and tw.grad is not None
        assert first == pytest.approx(wanted.item(), rel=1e-4)
        np.testing.assert_allclose(x.grad.numpy(), tx.grad.numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(w.grad.numpy(), tw.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_a_backward_pass_that_is_known_makes_leaves_and_one_submit(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(x: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        made = x.layer_norm((8,)) * 3
        made.backward(start)
        assert x.grad is not None
        made.detach().realize(x.grad)
        return made.detach(), x.grad

    for turn in range(4):
        array, first = drawn(5, 8), drawn(5, 8)
        x, start = held(array), held(first)
        with Work(session, monkeypatch) as work:
            made, gradient = step(x, start)
        tx = torch.from_numpy(array).requires_grad_()
        wanted = torch.layer_norm(tx, (8,)) * 3
        wanted.backward(torch.from_numpy(first))
        assert tx.grad is not None
        np.testing.assert_allclose(made.numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(gradient.numpy(), tx.grad.numpy(), rtol=1e-4, atol=1e-4)
        if turn:
            assert work.submits == 1
            assert work.graphs == 0
            assert work.nodes == 1


def test_gradients_of_several_leaves_go_to_each() -> None:
    for _ in range(3):
        a, b = drawn(4), drawn(4)
        x, y = held(a).requires_grad_(), held(b).requires_grad_()
        same = x.detach().requires_grad_()
        (x * y * same).sum().backward()
        assert x.grad is not None and y.grad is not None and same.grad is not None
        np.testing.assert_allclose(x.grad.numpy(), b * a, rtol=1e-6)
        np.testing.assert_allclose(y.grad.numpy(), a * a, rtol=1e-6)
        np.testing.assert_allclose(same.grad.numpy(), a * b, rtol=1e-6)


def test_a_leaf_twice_is_not_two_leaves() -> None:
    for swapped in (False, True, False, True):
        array = drawn(4)
        x = held(array).requires_grad_()
        other = x if swapped else x.detach().requires_grad_()
        (x.exp() * other).sum().backward()
        assert x.grad is not None
        wanted = np.exp(array) * (array + 1 if swapped else array)
        np.testing.assert_allclose(x.grad.numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_gradients_are_added_to_those_that_there_are() -> None:
    for _ in range(3):
        array = drawn(4)
        x = held(array).requires_grad_()
        for _ in range(3):
            x.exp().sum().backward()
        assert x.grad is not None
        np.testing.assert_allclose(x.grad.numpy(), 3 * np.exp(array), rtol=1e-5)


def test_a_backward_pass_after_its_value_was_read() -> None:
    for _ in range(4):
        array = drawn(4)
        x = held(array).requires_grad_()
        middle = x.exp()
        middle.realize()
        loss = (middle * middle).sum()
        loss.item()
        loss.backward()
        middle.realize()
        assert x.grad is not None
        np.testing.assert_allclose(x.grad.numpy(), 2 * np.exp(2 * array), rtol=1e-5)


def test_a_graph_that_was_freed_gives_no_gradients_again() -> None:
    for _ in range(4):
        x = held(drawn(4)).requires_grad_()
        loss = x.exp().sum()
        loss.backward()
        loss.realize()
        with pytest.raises(GradientError):
            loss.backward()


def test_a_result_that_requires_no_gradients_is_refused_again() -> None:
    for _ in range(4):
        x = held(drawn(4))
        with pytest.raises(GradientError):
            x.exp().sum().backward()
        with pytest.raises(ShapeError):
            x.requires_grad_().exp().backward()
        with pytest.raises(ShapeError):
            x.exp().backward(Tensor([1.0]))


def test_equal_calls_have_gradients_of_their_own() -> None:
    for _ in range(3):
        x = held(drawn(4)).requires_grad_()
        y, z = x.exp(), x.exp()
        (dy,) = (y * y).sum().gradient(y)
        assert not np.array_equal(dy.numpy(), np.zeros(4))
        with pytest.raises(Exception, match="not reached"):
            (y * y).sum().gradient(z)


def test_a_computed_value_with_a_history_is_read_where_it_lies() -> None:
    for _ in range(3):
        array = drawn(4)
        x = held(array).requires_grad_()
        y = x.exp()
        y.realize()
        z = (y * y).sum()
        np.testing.assert_allclose(z.item(), (np.exp(array) ** 2).sum(), rtol=1e-5)
        z.backward()
        assert x.grad is not None
        np.testing.assert_allclose(x.grad.numpy(), 2 * np.exp(2 * array), rtol=1e-5)


def test_gradients_that_are_recorded_are_told_from_those_that_are_not() -> None:
    x = held(drawn(4)).requires_grad_()
    for _ in range(3):
        assert x.exp().requires_grad
        with Tensor.no_grad():
            assert not x.exp().requires_grad
        assert not x.detach().exp().requires_grad


def second(x: Tensor) -> list[Tensor]:
    """Two equal values: which of them is written out first is another in a call that is known."""
    v = 1 / (x.abs() + 1)
    w = v.expand((4, 8))
    total = (v * v * 0.125 + v).sum() + (w * w * 0.125 + w).sum()
    first = total.gradient(x)[0]
    return [first, (first * 0.5).sum().gradient(x)[0]]


def beside_an_equal(x: Tensor) -> list[Tensor]:
    """A value of which an equal one, that nobody wants, is written out in a first call alone."""
    v = x.var((1,), correction=0)
    scaled = (v @ v) * (x + x)
    v.square()
    total = (v * v * 0.125 + v).sum() + (scaled * scaled * 0.125 + scaled).sum()
    return [total.gradient(x)[0]]


@pytest.mark.parametrize("gradients", [second, beside_an_equal])
def test_gradients_of_known_calls_have_the_bits_of_the_first_call(
    gradients: Callable[[Tensor], list[Tensor]],
) -> None:
    arrays = [3 * np.random.default_rng(turn).standard_normal((4, 8)) for turn in range(4)]
    found = []
    for array in arrays:
        made = gradients(Tensor(array).requires_grad_())
        made[0].realize(*made[1:])
        found.append([each.numpy() for each in made])
    for array, bits in zip(arrays, found, strict=True):
        with use_session(Session()) as opened:
            made = gradients(Tensor(array).requires_grad_())
            made[0].realize(*made[1:])
            for each, wanted in zip(made, bits, strict=True):
                np.testing.assert_array_equal(each.numpy(), wanted)
            opened.close()


def test_a_part_that_is_written_over_and_over_makes_no_graph(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    for turn in range(4):
        array, rows = drawn(4, 6), drawn(2, 6)
        x, y = held(array), held(rows)
        before = x + 0
        with Work(session, monkeypatch) as work:
            x[1:3] = y
            x[0] = x[2]
            x[:, -1] = 2
            x[3, ::2] += y[1, ::2]
            x.realize()
        wanted = array.copy()
        wanted[1:3] = rows
        wanted[0] = wanted[2]
        wanted[:, -1] = 2
        wanted[3, ::2] += rows[1, ::2]
        np.testing.assert_array_equal(x.numpy(), wanted)
        np.testing.assert_array_equal(before.numpy(), array)
        if turn > 1:
            assert work.graphs == 0


def test_what_does_not_fit_a_part_is_refused_at_every_write() -> None:
    for _ in range(3):
        array = drawn(4, 6)
        x = held(array)
        x[0] = held(array[1])
        with pytest.raises(ShapeError):
            x[0] = held(drawn(5))
        with pytest.raises(DTypeError):
            held(np.arange(4))[1] = 0.5
        np.testing.assert_array_equal(x.numpy()[0], array[1])
        leaf = held(array).requires_grad_()
        with pytest.raises(GradientError):
            leaf[0] = 1.0
