"""Calls that are put off: no nodes the second time, and values, errors and gradients as ever."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from baregrad.base.errors import GradientError, IndexOutOfRange, ShapeError
from baregrad.base.options import options
from baregrad.engine import backends
from baregrad.engine.session import Session, use_session
from baregrad.ir.core import node as nodes
from baregrad.tensor import Tensor
from baregrad.tensor.array import put_off
from baregrad.tensor.jit.jit import jit

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def session() -> Iterator[Session]:
    with options.override(device="CPU"), use_session(Session()) as opened:
        yield opened
        opened.close()


def drawn(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def held(array: np.ndarray[Any, Any]) -> Tensor:
    """An array whose value lies in memory, of which the host knows nothing."""
    return Tensor(array).clone().realize()


class Work:
    """Counts nodes made, graphs put in canonical form, and lists submitted, inside `with`."""

    def __init__(self, session: Session, patch: pytest.MonkeyPatch) -> None:
        self.session = session
        self.patch = patch
        self.nodes = self.graphs = self.submits = 0

    def __enter__(self) -> Work:
        gc.collect()
        self._before = set(nodes._interned.table)
        device = self.session.backend("CPU").device
        submit = device.submit

        def submitted(*args: Any, **kwargs: Any) -> Any:
            self.submits += 1
            return submit(*args, **kwargs)

        def canonicalised(*args: Any) -> Any:
            self.graphs += 1
            return canonicalise(*args)

        from baregrad.engine import session as module

        canonicalise = module.canonicalise
        self.patch.setattr(device, "submit", submitted)
        self.patch.setattr(module, "canonicalise", canonicalised)
        return self

    def __exit__(self, *error: object) -> None:
        self.nodes = len(set(nodes._interned.table) - self._before)
        self.patch.undo()


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


CALLS: tuple[tuple[str, Callable[[Tensor], Any], Callable[[torch.Tensor], Any]], ...] = (
    ("add", lambda x: x + 1, lambda x: x + 1),
    ("softmax", lambda x: x.softmax(-1), softmax),
    ("layer_norm", lambda x: x.layer_norm((8,)), lambda x: torch.layer_norm(x, (8,))),
    ("gelu", lambda x: (x.gelu() + 1).exp(), lambda x: (torch.nn.functional.gelu(x) + 1).exp()),
    ("matmul", lambda x: x @ x.T, lambda x: x @ x.T),
    ("argmax", lambda x: x.argmax(-1), lambda x: x.argmax(-1)),
    ("mean", lambda x: x.mean(), lambda x: x.mean()),
    ("topk", lambda x: x.topk(3)[0] * 2, lambda x: x.topk(3)[0] * 2),
    ("slice", lambda x: x[:, 1:-2].exp().sum(0), lambda x: x[:, 1:-2].exp().sum(0)),
    ("view of a result", lambda x: x.exp().T.sum(0), lambda x: x.exp().T.sum(0)),
    ("named", lambda x: x.sum(dim=1, keepdim=True), lambda x: x.sum(dim=1, keepdim=True)),
)


@pytest.mark.parametrize(("name", "ours", "theirs"), CALLS, ids=[row[0] for row in CALLS])
def test_every_call_has_the_values_of_its_own_operands(
    name: str, ours: Callable[[Tensor], Any], theirs: Callable[[torch.Tensor], Any]
) -> None:
    for _ in range(4):
        array = drawn(5, 8)
        wanted = theirs(torch.from_numpy(array)).numpy()
        np.testing.assert_allclose(ours(held(array)).numpy(), wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    "function",
    [lambda x: x + 1, lambda x: x.layer_norm((8,)), lambda x: (x.gelu() @ x.T).softmax(-1)],
    ids=["add", "layer_norm", "chain"],
)
def test_a_call_that_is_known_makes_one_leaf_and_one_submit(
    function: Callable[[Tensor], Tensor], session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [held(drawn(5, 8)) for _ in range(3)]
    views = [x.T for x in inputs]
    for x in inputs[:2]:
        function(x).realize()
    with Work(session, monkeypatch) as work:
        made = function(inputs[2]).realize()
    assert made.shape and views
    assert work.graphs == 0
    assert work.submits == 1
    # The leaf of the result; what a view of `x` is made of is no more than two.
    assert work.nodes <= 3


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
            assert (work.nodes, work.graphs, work.submits) == (1, 0, 1)


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


def test_indices_that_are_refused_are_refused_again() -> None:
    for _ in range(3):
        x = held(drawn(4, 6))
        assert x[3].shape == (6,)
        with pytest.raises(IndexOutOfRange):
            x[4]
        assert held(drawn(5, 6))[4].shape == (6,)


def test_operands_inside_a_sequence_are_operands() -> None:
    for _ in range(3):
        a, b = drawn(2, 3), drawn(2, 3)
        x, y = held(a), held(b)
        np.testing.assert_array_equal(Tensor.cat([x, y]).numpy(), np.concatenate([a, b]))
        np.testing.assert_array_equal(Tensor.cat([y, x], dim=1).numpy(), np.hstack([b, a]))
        places = np.array([1, 0])
        np.testing.assert_array_equal(x[held(places), 1:].numpy(), a[places, 1:])


def test_known_calls_fuse_across_each_other(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chain(x: Tensor) -> Tensor:
        return ((x + 1).exp() * 2).sum(-1)

    for _ in range(2):
        chain(held(drawn(4, 6))).realize()
    array = drawn(4, 6)
    x = held(array)
    with Work(session, monkeypatch) as work:
        made = chain(x).realize()
    assert work.submits == 1
    np.testing.assert_allclose(made.numpy(), (np.exp(array + 1) * 2).sum(-1), rtol=1e-5)


def test_arguments_that_are_equal_and_differ_are_told_apart() -> None:
    x = held(np.array([1, 2], np.int32))
    for _ in range(3):
        assert (x + 1).dtype.name == "int32"
        assert (x + 1.0).dtype.name == "float32"
        assert (x + True).dtype.name == "int32"
    y = held(np.array([1.0, -1.0], np.float32))
    for _ in range(3):
        assert np.signbit((y * 0.0).numpy()).tolist() == [False, True]
        assert np.signbit((y * -0.0).numpy()).tolist() == [True, False]


def test_the_same_operand_twice_is_not_two_operands() -> None:
    for _ in range(3):
        a, b = drawn(4), drawn(4)
        x, y = held(a), held(b)
        np.testing.assert_array_equal((x - y).numpy(), a - b)
        np.testing.assert_array_equal((x - x).numpy(), a - a)
        np.testing.assert_array_equal((y - x).numpy(), b - a)


def test_what_is_changed_later_does_not_change_a_call() -> None:
    for _ in range(3):
        array = drawn(4)
        x = held(array)
        y = x.exp()
        z = y + 1
        x.fill_(0)
        y.fill_(5)
        np.testing.assert_allclose(z.numpy(), np.exp(array) + 1, rtol=1e-5)
        assert y.numpy().tolist() == [5, 5, 5, 5]
        assert x.numpy().tolist() == [0, 0, 0, 0]


def test_a_result_that_is_changed_in_place_is_the_only_one_that_is() -> None:
    for _ in range(3):
        array = drawn(4)
        x = held(array)
        y, z = x.exp(), x.exp()
        y += 1
        np.testing.assert_allclose(y.numpy() - 1, z.numpy(), rtol=1e-5)


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


def test_what_was_computed_is_read_by_calls_made_before() -> None:
    for _ in range(3):
        array = drawn(4)
        y = held(array).exp()
        z = y * 3
        y.realize()
        y.fill_(0)
        np.testing.assert_allclose(z.numpy(), np.exp(array) * 3, rtol=1e-5)


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
            assert work.nodes == 2


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


def test_what_a_call_refuses_it_refuses_again() -> None:
    x = held(drawn(4, 3))
    for _ in range(3):
        with pytest.raises(ShapeError):
            x @ x
        assert (x @ x.T).shape == (4, 4)
        with pytest.raises(IndexOutOfRange):
            x.index_select(0, Tensor([4]))
        assert x.index_select(0, Tensor([3])).shape == (1, 3)


def test_random_numbers_and_reads_are_never_put_off(session: Session) -> None:
    x = held(np.ones(64, np.float32))
    drawn_twice = [x.dropout(0.5, True).numpy() for _ in range(4)]
    assert len({array.tobytes() for array in drawn_twice}) == 4
    for wanted in ([1.0], [2.0, 3.0], [4.0, 5.0, 6.0]):
        mask = np.zeros(6, bool)
        mask[: len(wanted)] = True
        found = held(np.array(wanted + [0.0] * (6 - len(wanted)), np.float32))
        assert found.masked_select(Tensor(mask)).numpy().tolist() == wanted


def test_running_statistics_are_changed_by_every_call() -> None:
    mean, variance = held(np.zeros(3, np.float32)), held(np.ones(3, np.float32))
    told = torch.zeros(3), torch.ones(3)
    for _ in range(3):
        array = drawn(4, 3)
        found = held(array).batch_norm(mean, variance, training=True).numpy()
        wanted = torch.nn.functional.batch_norm(torch.from_numpy(array), *told, training=True)
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean.numpy(), told[0].numpy(), rtol=1e-5)
    np.testing.assert_allclose(variance.numpy(), told[1].numpy(), rtol=1e-5)


def test_a_jitted_function_reads_what_was_put_off_outside() -> None:
    x = held(drawn(4))
    for _ in range(2):
        x.exp().realize()
    closed = x.exp()

    @jit
    def function(y: Tensor) -> Tensor:
        return y * closed

    for _ in range(4):
        array = drawn(4)
        given = held(array) + 0
        np.testing.assert_allclose(
            function(given).numpy(), array * np.exp(x.numpy()), rtol=1e-5
        )


def test_nothing_known_holds_arrays() -> None:
    for _ in range(3):
        x = held(drawn(4))
        y = (x.exp() + 1).realize()
        memory = [weakref.ref(t._ref().handle) for t in (x, y)]
        del x, y
        gc.collect()
        assert [each() for each in memory] == [None, None]


def test_templates_are_bounded(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put_off, "TEMPLATES_KEPT", 8)
    x = held(drawn(4))
    for number in range(40):
        assert (x + float(number)).numpy() == pytest.approx(x.numpy() + number)
    assert len(session.templates) <= 8
    assert len(session.forms) <= 8


def test_a_long_chain_is_no_recursion() -> None:
    def chain(x: Tensor) -> Tensor:
        for _ in range(1500):
            x = x.abs()
        return x

    for _ in range(3):
        array = drawn(3)
        np.testing.assert_array_equal(chain(held(array)).numpy(), np.abs(array))


def test_a_call_whose_graph_is_always_wanted_is_made_at_once(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = held(drawn(4))
    for _ in range(20):
        made = x.exp()
        assert made.node.shape == (4,)
    assert made._storage.deferred is None
    with Work(session, monkeypatch) as work:
        made.realize()
    assert work.submits == 1


def test_devices_that_compile_nothing_compute_graphs() -> None:
    with options.override(device="REF"):
        for _ in range(3):
            array = drawn(4)
            np.testing.assert_allclose(held(array).exp().numpy(), np.exp(array), rtol=1e-6)


def test_gpus_run_known_calls_by_their_keys(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    with options.override(device="NV", nv_port="virtual"):
        for turn in range(3):
            array = drawn(4, 6)
            x = held(array).requires_grad_()
            with Work(session, monkeypatch) as work:
                loss = (x.softmax(-1).T[1:] * 2).square().sum()
                loss.backward()
                loss.realize()
            t = torch.from_numpy(array).requires_grad_()
            wanted = (torch.softmax(t, -1).T[1:] * 2).square().sum()
            wanted.backward()
            assert x.grad is not None and t.grad is not None
            assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
            np.testing.assert_allclose(x.grad.numpy(), t.grad.numpy(), rtol=1e-4, atol=1e-6)
            if turn:
                assert (work.nodes, work.graphs) == (2, 0)


@pytest.mark.filterwarnings("ignore:the file of schedules")
def test_options_that_plans_depend_on_are_part_of_a_key(
    session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def graphs() -> int:
        with Work(session, monkeypatch) as work:
            x.exp().realize()
        return work.graphs

    x = held(drawn(4))
    assert [graphs(), graphs()] == [1, 0]
    with options.override(beam_file=tmp_path / "schedules"):
        assert [graphs(), graphs()] == [1, 0]
    assert graphs() == 0
    with options.override(beam_file=tmp_path / "schedules"):
        assert graphs() == 0


def test_other_sessions_know_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x = held(drawn(4))
    for _ in range(2):
        x.exp().realize()
    y = x.exp()
    with use_session(Session()) as other:
        other.adopt(backends.open_backend("CPU"))
        assert not other.templates
        other.close()
    np.testing.assert_allclose(y.numpy(), np.exp(x.numpy()), rtol=1e-5)
