"""What each op of an expression is as instructions."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.axes import Var
from baregrad.ir.core.node import Node, alu, cast, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel.linearise.access import MemoryUse
from baregrad.kernel.linearise.rules import rule_of
from baregrad.kernel.linearise.values import Values
from tests.kernel.linearise.programs import (
    ROUTES,
    zeros,
)
from tests.render.harness import (
    F32,
    I64,
    check,
    kernel,
    load,
    loop,
    lower,
    param,
    store,
    unroll,
    vector,
)

pytestmark = pytest.mark.differential


def test_counters_as_values() -> None:
    i, u, v = range_node(3, 0), unroll(2, 1), vector(8, 2)
    place = index.total((index.mul(i, 16), index.mul(u, 8), v))
    whole, real = param(0, 48, dtype=I64), param(1, 48)
    node = kernel(
        loop(i, store(whole, cast(place, I64), place), store(real, cast(place, F32), place))
    )
    found, floats = check(node, [np.zeros(48, np.int64), zeros(48)], routes=ROUTES)
    np.testing.assert_array_equal(found, np.arange(48))
    np.testing.assert_array_equal(floats, np.arange(48))


def test_what_the_linear_level_refuses() -> None:
    i, v, w = range_node(4, 0), vector(4, 1), vector(4, 2)
    x, out = param(1, 4, 4), param(0, 4, 4)
    with pytest.raises(CompilerBug, match="two vector ranges"):
        lower(kernel(store(out, load(x, v, w), v, w)))
    with pytest.raises(CompilerBug, match="cannot be looped"):
        lower(kernel(loop(v, store(out, load(x, i, v), i, v))))
    wide = Node(Ops.BARRIER, dtypes.token)
    with pytest.raises(CompilerBug, match="not a statement"):
        lower(kernel(wide))


@pytest.mark.parametrize(("scale", "width"), [(3, dtypes.int32), (1 << 30, I64)])
def test_lanes_of_positions_are_32_bits_wide_where_they_fit(scale: int, width: object) -> None:
    v = vector(8, 0)
    place = index.floordiv(index.mul(v, scale), 5)
    node = kernel(store(param(0, 8, dtype=I64), cast(index.as_node(place), I64), v))
    program = lower(node)
    divided = [one for one in program.src if one.shape == (8,) and one.op in (Ops.MUL, Ops.SHR)]
    assert {one.dtype for one in divided} == {width}
    (found,) = check(node, [np.zeros(8, np.int64)], routes=ROUTES)
    assert found.tolist() == [lane * scale // 5 for lane in range(8)]


def test_single_positions_are_64_bits_wide_but_on_gpus() -> None:
    i = range_node(8, 0)
    place = index.floordiv(i, 3)
    read = load(param(1, 3), place)
    for block, width in (((), I64), ((32, 1, 1), dtypes.int32)):
        values = Values(MemoryUse(kernel(loop(i, store(param(0, 8), read, i))), bool(block)), block)
        values.counters[i] = Node(Ops.BEGIN, width, (const(0, width), const(8, width)), 0)
        values.scopes.open(values.counters[i], False)
        assert values.value(place).dtype is width
        hidden = Node(Ops.VAR, dtypes.index, (), Var(".thread", 0, 31))
        assert values.value(hidden).dtype is (dtypes.int32 if block else I64)


def test_what_is_no_expression_has_no_rule() -> None:
    statement = store(param(0, 4), load(param(1, 4), 0), 0)
    with pytest.raises(CompilerBug, match="not an expression"):
        rule_of(statement)
    # Comparisons of positions are arithmetic on these, and sums of elements are not.
    i = range_node(8, 0)
    assert rule_of(index.less(i, 3)) is rule_of(index.as_node(index.add(i, 1)))
    element = load(param(1, 4), 0)
    assert rule_of(alu(Ops.ADD, element, element)) is not rule_of(index.less(i, 3))
