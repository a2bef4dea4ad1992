"""The table of axes before any step: names, limits of machines, and what must run in order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baregrad.base.errors import ScheduleError
from baregrad.ir.core.node import Node, range_node
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.facts.axis_table import SCANNED, Piece, fresh_axes, table_for
from baregrad.kernel.language.schedule import Bind
from baregrad.target import gpu_row
from tests.kernel import kernels as k
from tests.kernel.test_lowering import AVX


def labelled(*labels: str) -> Node:
    """A sum over axes with labels, of which the last is reduced."""
    axes = [range_node(4, place, label) for place, label in enumerate(labels)]
    x = k.at(k.param(1, *(4,) * len(axes)), *axes)
    total = k.reduce(k.Ops.ADD, x, axes[-1])
    return k.kernel(k.out(k.param(0, *(4,) * (len(axes) - 1)), total, *axes[:-1]))


def test_axes_are_called_by_their_labels_where_these_are_names() -> None:
    for labels, names in (
        (("rows", "columns", "depth"), ["rows", "columns", "depth"]),
        (("", "", ""), ["i0", "i1", "r2"]),
        (("same", "same", "depth"), ["i0", "i1", "depth"]),
        (("no name", "columns", ""), ["i0", "columns", "r2"]),
    ):
        assert table_for(facts_of(labelled(*labels))).order == names


def test_an_axis_is_its_own_only_piece() -> None:
    facts = facts_of(k.matmul(3, 4, 5))
    table = table_for(facts, AVX)
    for node in facts.axes:
        name = table.names[node]
        assert table.pieces_of(node) == [Piece(0, ((name, 1),))]
    assert [table.axes[name].reduced for name in table.order] == [False, False, True]
    with pytest.raises(ScheduleError, match="not there.*wanted i0, i1, r2"):
        table.axis("x", Bind("x", "unroll"))


def test_tables_do_not_share_their_axes() -> None:
    facts = facts_of(k.elementwise(4, 5))
    first = table_for(facts, AVX)
    first.axes["i0"].unit = "pool"
    first.pieces["i0"].append(Piece(3, ()))
    second = table_for(facts, AVX)
    assert second.axes["i0"].unit == "loop"
    assert len(second.pieces["i0"]) == 1
    assert {axis.unit for axis in fresh_axes(facts).values()} == {"loop"}


def test_limits_are_those_of_the_machine() -> None:
    facts = facts_of(k.elementwise(4))
    known = table_for(facts, replace(AVX, l3_bytes=999, vector_registers=7, vector_bytes=32))
    assert (known.room, known.registers, known.gpu) == (999, 7 * 32, None)
    assert not known.has("dot4")
    words = table_for(facts, replace(AVX, features=(*AVX.features, "avxvnni")))
    assert words.has("dot4") and not words.has("dot2")
    hopper = gpu_row("sm_90a")
    assert table_for(facts, hopper).gpu is hopper
    unknown = table_for(facts)
    assert (unknown.room, unknown.registers) == (0, 0)
    assert unknown.has("dot4")


def test_scans_go_inside_and_run_whole() -> None:
    table = table_for(facts_of(k.cumsum(4, 5, 0)))
    assert table.order == ["i1", "i0"]
    assert (table.axes["i0"].whole, table.axes["i0"].serial) == (SCANNED, SCANNED)
    assert not table.axes["i1"].whole


def test_scattered_writes_run_in_order_but_along_indices_of_their_own() -> None:
    table = table_for(facts_of(k.scatter_add(4, 6, 8)))
    assert "keep their order" in table.axes["i0"].serial
    assert not table.axes["i1"].serial
