"""Axes that packed numbers are read at quotients of: split, and the kernel computes the same."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, cast, const, extent_of, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.loops.quotient_axes import split_quotients
from tests.kernel import kernels as k


def packed_sum(extent: int, size: int, place: str, dtype: object = dtypes.uint32) -> Node:
    """The sums of 4-bit numbers times a vector: those of a word lie side by side, or apart."""
    row, step = range_node(3, 0), range_node(extent, 1)
    quotient = index.as_node(index.floordiv(step, size))
    rest = index.as_node(index.mod(step, size))
    word, within = (quotient, rest) if place == "beside" else (rest, quotient)
    count = extent // size if place == "beside" else size
    bits = k.at(k.param(1, 3, count, dtype=dtype), row, word)
    shift = alu(Ops.MUL, cast(within, bits.dtype), const(4, bits.dtype))
    number = alu(Ops.AND, alu(Ops.SHR, bits, shift), const(15, bits.dtype))
    value = alu(Ops.MUL, cast(number, dtypes.float32), k.at(k.param(2, extent), step))
    return k.kernel(k.out(k.param(0, 3), k.reduce(Ops.ADD, value, step), row))


@pytest.mark.parametrize(("extent", "size", "place"), [(32, 8, "beside"), (24, 12, "apart")])
def test_quotients_become_axes(extent: int, size: int, place: str) -> None:
    kernel = packed_sum(extent, size, place)
    found = split_quotients(kernel)
    own = facts_of(found).reductions[0].own
    assert sorted(map(extent_of, own)) == sorted((size, extent // size))
    (words,) = [read for read in facts_of(found).accesses if read.array.dtype is dtypes.uint32]
    assert not words.offset.rest
    arrays = k.arguments(kernel)
    wanted, given = k.run_kernel(kernel, arrays), k.run_kernel(found, arrays)
    np.testing.assert_allclose(given[0], wanted[0], rtol=1e-5, atol=1e-5)


def test_quotients_by_a_symbolic_number_stay() -> None:
    row, step, n = range_node(3, 0), range_node(12, 1), index.variable("n", 2, 5)
    quotient = index.as_node(index.floordiv(step, n))
    bits = k.at(k.param(1, 3, 6, dtype=dtypes.uint16), row, quotient)
    kernel = k.kernel(k.out(k.param(0, 3, dtype=dtypes.uint16), k.reduce(Ops.ADD, bits, step), row))
    assert split_quotients(kernel) is kernel


def test_quotients_that_leave_a_rest_stay() -> None:
    row, step = range_node(3, 0), range_node(30, 1)
    word = index.as_node(index.floordiv(step, 8))
    bits = k.at(k.param(1, 3, 4, dtype=dtypes.uint32), row, word)
    kernel = k.kernel(k.out(k.param(0, 3, dtype=dtypes.uint32), k.reduce(Ops.ADD, bits, step), row))
    assert split_quotients(kernel) is kernel
