"""Calls that are put off: no nodes the second time, and values, errors and gradients as ever."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from baregrad.base.errors import IndexOutOfRange, ShapeError
from baregrad.base.options import options
from baregrad.engine import backends
from baregrad.engine.session import Session, use_session
from baregrad.tensor import Tensor
from baregrad.tensor.array import put_off
from baregrad.tensor.jit.jit import jit
from tests.tensor.array.known_calls import Work, drawn, held

pytestmark = pytest.mark.usefixtures("earlier_objects_rest")


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


def test_what_was_computed_is_read_by_calls_made_before() -> None:
    for _ in range(3):
        array = drawn(4)
        y = held(array).exp()
        z = y * 3
        y.realize()
        y.fill_(0)
        np.testing.assert_allclose(z.numpy(), np.exp(array) * 3, rtol=1e-5)


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


def test_nothing_known_holds_large_arrays() -> None:
    for _ in range(3):
        x = held(drawn(1 << 15))
        y = (x.exp() + 1).realize()
        memory = [weakref.ref(t._ref().handle) for t in (x, y)]
        del x, y
        gc.collect()
        assert [each() for each in memory] == [None, None]


def test_the_memory_of_small_results_is_used_again_once_nobody_has_it() -> None:
    arrays = [drawn(5) for _ in range(12)]
    inputs = [held(array) for array in arrays]
    places = {(x + 1).realize()._ref().handle.address for x in inputs[2:]}
    assert len(places) == 1
    kept = [(x + 1).realize() for x in inputs]
    assert len({y._ref().handle.address for y in kept}) == len(kept)
    bytes_of = [y._ref().handle.as_memoryview() for y in kept]
    pending = [y * 2 for y in kept]
    del kept
    for x in inputs:
        (x + 1).realize()
    for array, raw, later in zip(arrays, bytes_of, pending, strict=True):
        np.testing.assert_array_equal(np.frombuffer(raw, np.float32), array + 1)
        np.testing.assert_array_equal(later.numpy(), (array + 1) * 2)


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
                assert (work.nodes, work.graphs) == (1, 0)


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


def test_gradients_that_are_one_array_are_computed_by_a_key(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    for turn in range(4):
        x, y = held(drawn(5)).requires_grad_(), held(drawn(5)).requires_grad_()
        with Work(session, monkeypatch) as work:
            (x + y).tanh().sum().backward()
            assert x.grad is not None and y.grad is not None
            x.grad.realize(y.grad)
        wanted = 1 - np.tanh(x.detach().numpy() + y.detach().numpy()) ** 2
        x.grad += 1
        np.testing.assert_allclose(x.grad.numpy(), wanted + 1, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(y.grad.numpy(), wanted, rtol=1e-4, atol=1e-6)
        if turn:
            assert work.graphs == 0
