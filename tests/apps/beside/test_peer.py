"""PyTorch's side: what is captured and what cannot be, and gradients as they are asked for."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from baregrad.apps.beside import ours as our_side
from baregrad.apps.beside import peer as peer_side
from baregrad.apps.beside.draws import Draw
from baregrad.apps.beside.ours import opened
from baregrad.apps.beside.peer import Peer
from baregrad.apps.beside.tensor_case import TensorCase

torch = pytest.importorskip("torch")


class Stream:
    def wait_stream(self, other: object) -> None:
        assert isinstance(other, Stream)


def fake_cuda(graphs: list[str], fails: bool) -> SimpleNamespace:
    """As much of torch.cuda as capturing asks for."""

    @contextmanager
    def graph(made: object, stream: Stream) -> Iterator[None]:
        graphs.append("begin")
        yield
        if fails:
            raise RuntimeError("operation not permitted\nwhen stream is capturing")
        graphs.append("end")

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        yield

    return SimpleNamespace(
        Stream=Stream, current_stream=Stream, stream=on, graph=graph, synchronize=lambda: None,
        CUDAGraph=lambda: SimpleNamespace(replay=lambda: graphs.append("replay")),
    )


@pytest.mark.parametrize("fails", [False, True])
def test_work_is_warm_when_it_is_captured_and_run_where_it_cannot_be(fails: bool) -> None:
    side, calls, graphs = Peer("cpu"), [], []
    side.has_graphs = True
    side.torch = SimpleNamespace(cuda=fake_cuda(graphs, fails))
    run = side.captured(lambda: calls.append(1))
    assert len(calls) == 4
    run()
    if fails:
        assert side.uncaptured == "operation not permitted"
        assert (len(calls), graphs) == (5, ["begin"])
    else:
        assert not side.uncaptured
        assert (len(calls), graphs) == (4, ["begin", "end", "replay"])


def test_what_a_graph_reads_lives_as_long() -> None:
    """The graph has addresses alone; the tensors there are the captured function's."""
    side = Peer("cpu")
    side.has_graphs = True
    side.torch = SimpleNamespace(cuda=fake_cuda([], fails=False))
    parameter = torch.ones(3)
    alive = weakref.ref(parameter)
    run = side.captured(partial(parameter.add_, 1))
    del parameter
    assert alive() is not None
    del run
    assert alive() is None


def gradient_case(alone: bool, is_scalar: bool) -> TensorCase:
    def function(x: Any, y: Any) -> Any:
        product = (x * y).tanh()
        return product.sum() if is_scalar else product

    draws = [Draw((5, 3), "float32"), Draw((3,), "float32")]
    if not is_scalar:
        draws.append(Draw((5, 3), "float32"))
    return TensorCase(
        tuple(draws), function, lambda torch, x, y: function(x, y), (1, 0), is_scalar, alone,
        sets=2,
    )


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("is_scalar", [False, True])
@pytest.mark.parametrize("is_eager", [False, True])
def test_results_and_gradients_are_those_of_the_formula(
    alone: bool, is_scalar: bool, is_eager: bool
) -> None:
    case = replace(gradient_case(alone, is_scalar), is_eager=is_eager)
    random = np.random.default_rng(1)
    x, y, *upstream = (draw.array(random).astype(np.float64) for draw in case.inputs)
    slope = (1 - np.tanh(x * y) ** 2) * (upstream[0] if upstream else 1.0)
    wanted = [(slope * x).sum(0), slope * y]
    if not alone:
        wanted.insert(0, np.tanh(x * y).sum() if is_scalar else np.tanh(x * y))
    peer = case.on_peer(Peer("cpu"))
    assert peer.exact is not None
    with opened("CPU") as side:
        ours = case.on_ours(side)
        for _ in range(3):
            ours.run()
        for found, tolerance in (
            (ours.outputs(), 1e-5), (peer.outputs(), 1e-5), (peer.exact(), 1e-6),
        ):
            assert len(found) == len(wanted)
            for one, other in zip(found, wanted, strict=True):
                np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
    assert ours.calls == peer.calls == 2


def test_both_sides_take_results_alike() -> None:
    takes: Callable[[Any], list[Any]]
    for takes in (our_side.tensors_of, peer_side.tensors_of):
        assert takes((1, 2)) == [1, 2]
        assert takes(3) == [3]


def test_a_function_is_compiled_where_it_is_asked_for_and_the_exact_one_is_not() -> None:
    """Compiled once, by what gives a function back as it is."""
    made = []

    def compile(function: Callable[..., Any], dynamic: bool) -> Callable[..., Any]:
        assert not dynamic
        made.append(function)
        return function

    case = TensorCase(
        (Draw((3, 4), "float32"), Draw((3, 4), "float32")), lambda x: x.exp(),
        lambda torch, x: torch.exp(x), wanted=(0,), is_compiled=True,
    )  # fmt: skip
    side = Peer("cpu")
    assert case.on_peer(side).exact is not None
    side.has_graphs = True
    side.torch = SimpleNamespace(
        compile=compile, autograd=torch.autograd, cuda=fake_cuda([], False),
        float16=torch.float16, float32=torch.float32, float64=torch.float64, exp=torch.exp,
        from_numpy=torch.from_numpy,
    )
    work = case.on_peer(side)
    assert len(made) == 1
    assert work.exact is not None
    (found, gradient), (exact, slope) = work.outputs(), work.exact()
    assert len(made) == 1
    np.testing.assert_allclose(found, exact, rtol=1e-6)
    np.testing.assert_allclose(gradient, slope, rtol=1e-6)
