"""Instructions as rows: what they mean, and which sums they match."""

from __future__ import annotations

import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.analysis.words import Factors
from baregrad.ir.core.node import Node, alu, cast
from baregrad.ir.core.op import Ops
from baregrad.kernel.instructions.instruction import Instruction, factors_of, matched, meaning_of
from baregrad.kernel.instructions.rows import ROWS
from tests.kernel import kernels as k


def read(slot: int, factor: object) -> Node:
    """An element of an argument."""
    return k.at(k.param(slot, 1, dtype=factor), 0)


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_rows_match_what_they_mean_and_nothing_wider(row: Instruction) -> None:
    assert 1 <= row.summed <= len(row.sizes) and row.vector < len(row.sizes) - row.summed
    for product in row.products:
        left, right = read(1, product.left), read(2, product.right)
        value = alu(Ops.MUL, cast(left, product.total), cast(right, product.total))
        assert matched(meaning_of(product), value) == (left, right)
        assert factors_of(value, row.products) == (left, right)
        total = alu(Ops.ADD, *value.src)
        assert factors_of(total, row.products) is None
        wide = alu(Ops.MUL, *[cast(side, dtypes.float64) for side in (left, right)])
        assert factors_of(wide, row.products) is None


def test_what_is_no_read_is_no_factor() -> None:
    half = dtypes.float16
    product = Factors(half, half, dtypes.float32)
    twice = alu(Ops.ADD, read(1, half), read(1, half))
    value = alu(Ops.MUL, cast(twice, dtypes.float32), cast(read(2, half), dtypes.float32))
    assert matched(meaning_of(product), value) is None
