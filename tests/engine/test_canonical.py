"""Canonical programs: their nodes in order, and what is no part of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from baregrad.engine.canonical import bind, canonicalise
from baregrad.engine.session import current_session
from baregrad.ir.core.index import variable
from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import Ops, mask_of
from baregrad.nn import BatchNorm2d, Conv2d
from baregrad.tensor import Tensor


def _held(*shape: int) -> Tensor:
    return Tensor.rand(*shape).realize()


def _arithmetic() -> list[Tensor]:
    # Two buffers of equal kind, a subexpression that is met twice, a marker for gradients.
    x, y = _held(4, 5), _held(4, 5)
    both = (x + y).relu()
    return [both * both.sum(1, keepdim=True), (x + y).detach() * 2.0, both]


def _layers() -> list[Tensor]:
    block = [Conv2d(3, 3, 3, padding=1), BatchNorm2d(3), Conv2d(3, 3, 3, padding=1)]
    x = _held(2, 3, 8, 8)
    for layer in block:
        layer.realize()
        x = layer(x).relu()
    loss = x.mean()
    loss.backward()
    return [loss, *[one.grad for layer in block for one in layer.parameters()]]


def _computed_before() -> list[Tensor]:
    x = _held(6)
    y = (x * 3.0).realize()
    return [y + x, x * 3.0 + 1.0]


def _constants() -> list[Tensor]:
    return [Tensor.zeros(3, 4).contiguous(), Tensor.arange(7).realize(), _held(3).exp()]


def _symbolic() -> list[Tensor]:
    n = bind(variable("n", 1, 4), 3)
    part = _held(4, 3)[:n]
    return [part.softmax(0), part.sum()]


@pytest.mark.parametrize(
    "made",
    [_arithmetic, _layers, _computed_before, _constants, _symbolic],
    ids=lambda made: made.__name__.strip("_"),
)
def test_the_nodes_of_a_program_are_listed_as_a_walk_lists_them(
    made: Callable[[], list[Tensor]],
) -> None:
    tensors = made()
    session = current_session()
    program = canonicalise([one.node for one in tensors], session._realised.on("CPU"))
    assert program.order() == toposort(program.sink)
    if made in (_arithmetic, _layers, _computed_before):
        assert program.whole  # so that no walk was needed


def _inputs(*tensors: Tensor) -> int:
    """How many arrays a program of these values reads."""
    realised = current_session()._realised.on(tensors[0].device)
    return len(canonicalise([one.node for one in tensors], realised).inputs)


def test_functions_of_constants_are_folded_whoever_computed_equal_ones() -> None:
    x = _held(17)
    held = Tensor.ones(17).silu().realize()
    assert _inputs(x * Tensor.ones(17).silu()) == 1
    assert _inputs(held) == 1  # what is asked for itself is read


def test_what_takes_work_is_read_where_it_was_computed() -> None:
    table = (Tensor.arange(17) * 0.1).sin().realize()
    total = Tensor.ones(300, 300).cumsum(0).realize()
    assert _inputs(table * 2.0) == 1
    assert _inputs(total * 2.0) == 1


def test_layers_that_are_alike_are_renewed_as_each_alone_would_be() -> None:
    rows = variable("rows_alike", 1, 6)
    weights = [_held(5, 5) for _ in range(4)]
    states = [_held(6, 5) for _ in range(4)]
    x = _held(6, 5)

    def stack(value: int) -> list[Tensor]:
        part, found = x[: bind(rows, value)], []
        for weight, state in zip(weights, states, strict=True):
            part = (part @ weight).softmax(1) + state[: bind(rows, value)].reshape(-1, 5)
            found.append(part.sum(0))
        return [part, *found]

    programs = [
        canonicalise([one.node for one in stack(value)], lambda node: None) for value in (3, 6)
    ]
    first, second = programs
    assert first.sink is second.sink and first.requirements == second.requirements
    assert (first.variables, second.variables) == ({"rows_alike": 3}, {"rows_alike": 6})
    for node in toposort(first.sink):
        # The ops that stand below and no others, but for those of extents.
        below = {one.op for one in toposort(node)} | {Ops.VAR, Ops.CONST, Ops.MUL, Ops.ADD}
        assert not node.mask & ~mask_of(tuple(below))
    whole = x.numpy()[:3]
    for weight, state in zip(weights, states, strict=True):
        powers = np.exp(whole @ weight.numpy())
        whole = powers / powers.sum(1, keepdims=True) + state.numpy()[:3]
    np.testing.assert_allclose(stack(3)[0].numpy(), whole, rtol=1e-5)


def test_ranges_of_several_sizes_in_one_program_keep_their_sizes() -> None:
    """As the rows and the tokens of a step of decoding, both of which are counted."""
    rows, tokens = bind(variable("rows", 1, 8), 3), bind(variable("tokens", 1, 64), 32)
    counted = Tensor.arange(rows).unsqueeze(1) * 100 + Tensor.arange(tokens).unsqueeze(0)
    wanted = np.arange(3)[:, None] * 100 + np.arange(32)[None]
    np.testing.assert_array_equal(counted.numpy(), wanted)
