"""Instructions on scalars, vectors and tiles, and the registers that hold them."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.base.errors import CompilerBug
from baregrad.ir.core import index
from baregrad.ir.core.axes import Var
from baregrad.ir.core.node import Node, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel.linearise.access import MemoryUse, analyse
from baregrad.kernel.linearise.emitter import Emitter, StatementTile
from tests.kernel.linearise.programs import (
    ONE,
    ROUTES,
    data,
    matmul,
    zeros,
)
from tests.render.harness import (
    F32,
    I32,
    I64,
    alloc,
    check,
    kernel,
    load,
    param,
    store,
    unroll,
    vector,
)

pytestmark = pytest.mark.differential


@pytest.mark.parametrize("lanes", (1, 2, 4, 16))
def test_vector_widths(lanes: int) -> None:
    node = matmul(4, 32, 5, rows=2, columns=2, lanes=lanes)
    check(node, [zeros(4, 32), data(4, 5), data(5, 32, seed=1)], routes=ROUTES)


def test_registers_that_swap() -> None:
    """All points of a statement read before any of them writes."""
    u, v = unroll(2, 0), vector(4, 1)
    x, out, acc = param(1, 2, 4), param(0, 2, 4), alloc(0, 2, 4)
    other = index.sub(1, u)
    node = kernel(
        store(acc, load(x, u, v), u, v),
        store(acc, load(acc, other, v), u, v),
        store(out, load(acc, u, v), u, v),
    )
    found, source = check(node, [zeros(2, 4), data(2, 4)], routes=ROUTES)
    np.testing.assert_array_equal(found, source[::-1])


# --- one instruction at a time --------------------------------------------------------------------


def emitter(*body: Node, block: tuple[int, ...] = ()) -> Emitter:
    return Emitter(MemoryUse(kernel(*body), bool(block)), block)


def variable(name: str) -> Node:
    return Node(Ops.VAR, I64, (), Var(name, 0, 9))


def test_scalars_are_brought_to_all_lanes() -> None:
    emit = emitter()
    lanes = emit.scopes.emit(Ops.LANES, I64, (), 8)
    one = variable("a")
    total = emit.apply(Ops.ADD, I64, lanes, one)
    assert total.shape == (8,)
    assert [(part.op, part.shape) for part in total.src] == [(Ops.LANES, (8,)), (Ops.SPLAT, (8,))]
    # Constants are what they are for any number of lanes.
    assert emit.apply(Ops.MUL, I64, lanes, const(3, I64)).src[1].op is Ops.CONST


def test_equal_instructions_are_emitted_once_and_constants_folded() -> None:
    emit = emitter()
    a, b = variable("a"), variable("b")
    assert emit.apply(Ops.ADD, I64, a, b) is emit.apply(Ops.ADD, I64, a, b)
    assert len(emit.scopes.innermost.code) == 1
    assert emit.apply(Ops.ADD, I64, const(2, I64), const(5, I64)) is const(7, I64)
    assert emit.cast(const(7, I64), I32) is const(7, I32)
    assert emit.cast(a, I64) is a
    assert emit.scaled(a, 1, I64) is a
    assert len(emit.scopes.innermost.code) == 1


def test_vectors_of_two_widths_do_not_meet() -> None:
    emit = emitter()
    left, right = (emit.scopes.emit(Ops.LANES, I64, (), lanes) for lanes in (4, 8))
    with pytest.raises(CompilerBug, match="lanes of two numbers"):
        emit.apply(Ops.ADD, I64, left, right)


def test_registers_are_found_again_by_what_they_hold() -> None:
    u, v = unroll(2, 0), vector(4, 1)
    held = alloc(0, 2, 4)
    emit = emitter(store(held, ONE, u, v))
    first, second = emit.register(held, 0), emit.register(held, 4)
    assert first is not second
    assert emit.register(held, 0) is first
    assert (first.dtype, first.shape) == (F32, (4,))
    assert len({first, second, emit.fresh_register(F32, 4)}) == 3


def test_values_are_rows_of_the_tile_of_a_statement() -> None:
    emit = emitter()
    emit.tile = StatementTile((unroll(3, 0),), 3, 8)
    lanes = emit.scopes.emit(Ops.LANES, I64, (), 8)
    row, scalar = emit.as_tile(lanes, 8), emit.as_tile(variable("a"), 8)
    assert (row.op, row.shape, scalar.shape) == (Ops.ROWS, (3, 8), (3, 8))
    total = emit.apply(Ops.ADD, I64, row, variable("a"))
    assert total.shape == (3, 8)


def test_only_gpus_sum_up_offsets_in_32_bits() -> None:
    x = param(1, 64)
    address = analyse(x, (range_node(64, 0),))
    address.measure()
    assert emitter().width_of(address) is I64
    assert emitter(block=(32, 1, 1)).width_of(address) is I32
    # Nor does anybody else ask for the alignment of ordinary accesses.
    assert emitter().alignment(x, address, 4, 1, 0) == 4
    even = analyse(x, (index.as_node(index.mul(range_node(16, 0), 4)),))
    gpu = emitter(block=(32, 1, 1))
    assert [gpu.alignment(x, even, 4, 1, at) for at in (0, 2, 8)] == [16, 4, 16]
