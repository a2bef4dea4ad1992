"""An op is one row and some cells: every cell that an op of the tensor level lacks is named."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import pytest

from baregrad.ir.core.op import ELEMENTWISE, Op, Ops, all_ops
from baregrad.ir.core.shape_table import SHAPES
from baregrad.ir.evaluate.tensor_level import TENSOR_RULES
from baregrad.kernel.legalise.transcendental import FUNCTIONS
from baregrad.render.llvm.ops import ELEMENTWISE_RULES
from baregrad.render.ptx.convert import CONVERSIONS
from baregrad.render.ptx.ops import LANE_RULES
from baregrad.tensor.autograd.gradients import NO_GRADIENT, RULES
from tests.house.source import assert_none

TENSOR_OPS = tuple(op for op in all_ops() if "tensor" in op.levels)
# A column: the ops with a cell, those that need none, and which ops are meant.
Column = tuple[Collection[Op], Collection[Op], Callable[[Op], bool]]
COLUMNS: Mapping[str, Column] = {
    "kinds of dtypes": (
        [op for op in TENSOR_OPS if op.kinds], (),
        lambda op: op.family in ("unary", "binary", "ternary"),
    ),
    "shape rule": (SHAPES.cells, (Ops.CONST, Ops.VAR, Ops.SLOT, Ops.SINK), lambda op: True),
    # SLOT stands in monoids only, which have an evaluator of their own.
    "evaluator": (TENSOR_RULES, (Ops.SLOT,), lambda op: True),
    "gradient": (RULES, NO_GRADIENT, lambda op: True),
    # Quotients that round down are made of those that round to zero.
    "spelling in LLVM": (
        {*ELEMENTWISE_RULES, *FUNCTIONS}, (Ops.FLOORDIV,), ELEMENTWISE.__contains__,
    ),
    "spelling in PTX": ({*LANE_RULES, *CONVERSIONS, *FUNCTIONS}, (), ELEMENTWISE.__contains__),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_every_op_has_a_cell_or_needs_none(name: str) -> None:
    cells, none, is_meant = COLUMNS[name]
    meant = [op for op in TENSOR_OPS if is_meant(op) and "tensor" in op.levels]
    assert_none(f"{op.name}: no {name}" for op in meant if op not in cells and op not in none)
    assert_none(f"{op.name}: a {name} and a reason for none" for op in none if op in cells)
