"""The factors of a contraction: whose axes are whose, for every order of the arrays' axes."""

from __future__ import annotations

from math import prod

import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.index import variable
from baregrad.ir.core.node import Node, alu, cast, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.planning.gpu.gemm_factors import GemmFactors, gemm_factors
from baregrad.kernel.planning.gpu.gpu_plan import GpuPlan
from tests.kernel import kernels as k
from tests.kernel.contractions import contraction, convolution
from tests.kernel.gpu_kernels import HOPPER

F32 = dtypes.float32


def factors_of(kernel: Node) -> GemmFactors | None:
    return gemm_factors(GpuPlan(facts_of(kernel), HOPPER))


def ids(axes: list[Node]) -> set[int]:
    return {axis.arg.id for axis in axes}


@pytest.mark.parametrize("left", ["sax", "sxa", "asx", "xsa", "axs", "xas"])
@pytest.mark.parametrize("right", ["sxn", "nxs"])
@pytest.mark.parametrize("out", ["san", "nas"])
def test_axes_belong_to_who_runs_along_them(left: str, right: str, out: str) -> None:
    """Columns are those of the factor along which neighbours are written."""
    kernel = contraction((3,), (5,), (7,), left, right, out, (2,))
    number = {letter: place for place, letter in enumerate(f"{out}x")}
    found = factors_of(kernel)
    assert found is not None
    rows, columns = out.replace("s", "")
    for axes, letter in (
        (found.rows, rows), (found.columns, columns), (found.depth, "x"), (found.shared, "s"),
    ):  # fmt: skip
        assert ids(axes) == {number[letter]}
    size = {"a": 3, "n": 5}
    assert found.sizes() == (size[rows], size[columns], 7, 2)
    slots = {"a": 1, "n": 2}
    assert (found.left.slot, found.right.slot) == (slots[rows], slots[columns])
    assert (found.left.place, found.right.place) == (slots[rows] - 1, slots[columns] - 1)
    for factor, letter in ((found.left, rows), (found.right, columns)):
        assert ids([*factor.axes]) == {number[one] for one in ("s", "x", letter)}


def test_the_written_neighbours_are_columns() -> None:
    """Of either factor: the left one is the one that has the rows."""
    for out, slot in (("an", 1), ("na", 2)):
        found = factors_of(contraction((3,), (5,), (7,), "ax", "nx", out))
        assert found is not None and found.left.slot == slot
        assert found.sizes()[:2] == ((3, 5) if out == "an" else (5, 3))


def test_several_axes_a_side() -> None:
    kernel = contraction((2, 3), (4, 5), (6, 7), "axby", "noxy", "abno")
    found = factors_of(kernel)
    assert found is not None and found.sizes() == (6, 20, 42, 1)
    assert (len(found.rows), len(found.columns), len(found.depth)) == (2, 2, 2)


def test_axes_of_one_point_are_nobodys() -> None:
    found = factors_of(contraction((3, 1), (5,), (7, 1), "abxy", "nxy", "abn", (1,)))
    assert found is not None and found.sizes() == (3, 5, 7, 1) and found.shared == []
    assert len(found.rows) == len(found.depth) == 1


@pytest.mark.parametrize("padded", [True, False])
def test_a_convolution_is_a_product(padded: bool) -> None:
    """Of images, guarded or with a margin, whose rows and columns its own are."""
    n, c, side, o, taps = 2, 3, 6, 4, 3
    found = factors_of(convolution(n, c, side, o, taps, padded))
    assert found is not None
    assert found.sizes() == (o, n * side * side, c * taps * taps, 1)
    assert found.left.slot == 2 and found.right.slot == 1
    assert found.left.is_plain and found.right.is_plain


def product(left: Node, right: Node, axes: tuple[Node, Node, Node]) -> Node:
    i, j, q = axes
    total = k.reduce(Ops.ADD, alu(Ops.MUL, left, right), q)
    return k.kernel(k.out(k.param(0, 8, 16), total, i, j))


def test_a_factor_may_be_computed_of_several_arrays() -> None:
    i, j, q = axes = (range_node(8, 0), range_node(16, 1), range_node(32, 2))
    share = alu(Ops.MUL, k.at(k.param(1, 8, 32), i, q), k.at(k.param(3, 8), i))
    plain = cast(k.at(k.param(2, 32, 16, dtype=dtypes.bfloat16), q, j), F32)
    found = factors_of(product(share, plain, axes))
    assert found is not None
    assert not found.left.is_plain and found.right.is_plain
    assert [read.array.arg.slot for read in found.left.reads] == [1, 3]
    assert ids([*found.left.axes]) == {0, 2}


def beyond() -> Node:
    """One factor is read past its end, with nothing to keep it in."""
    i, j, q = axes = (range_node(8, 0), range_node(16, 1), range_node(32, 2))
    left = k.at(k.param(1, 8, 32), i, index.add(q, 1))
    return product(left, k.at(k.param(2, 32, 16), q, j), axes)


def summed_factor() -> Node:
    i, j, q, r = (range_node(size, place) for place, size in enumerate((8, 16, 32, 4)))
    left = k.reduce(Ops.ADD, k.at(k.param(1, 8, 32, 4), i, q, r), r)
    return product(left, k.at(k.param(2, 32, 16), q, j), (i, j, q))


def spread() -> Node:
    """The sum is written to places along an axis that it does not have."""
    i, j, q, wide = (range_node(size, place) for place, size in enumerate((8, 16, 32, 4)))
    left, right = k.at(k.param(1, 8, 32), i, q), k.at(k.param(2, 32, 16), q, j)
    total = k.reduce(Ops.ADD, alu(Ops.MUL, left, right), q)
    return k.kernel(k.out(k.param(0, 4, 8, 16), total, wide, i, j))


def symbolic(most: int, least: int = 1) -> Node:
    rows = variable("rows", least, most)
    i, j, q = (range_node(size, place) for place, size in enumerate((rows, 16, 32)))
    left, right = k.at(k.param(1, rows, 32), i, q), k.at(k.param(2, 32, 16), q, j)
    total = k.reduce(Ops.ADD, alu(Ops.MUL, left, right), q)
    return k.kernel(k.out(k.param(0, rows, 16), total, i, j))


def largest() -> Node:
    i, j, q = (range_node(size, place) for place, size in enumerate((8, 16, 32)))
    left, right = k.at(k.param(1, 8, 32), i, q), k.at(k.param(2, 32, 16), q, j)
    top = k.reduce(Ops.MAX, alu(Ops.MUL, left, right), q)
    return k.kernel(k.out(k.param(0, 8, 16), top, i, j))


def half_summed() -> Node:
    """One factor does not run along one of the axes of the sum."""
    i, j, q, r = (range_node(size, place) for place, size in enumerate((8, 16, 32, 4)))
    left, right = k.at(k.param(1, 8, 32, 4), i, q, r), k.at(k.param(2, 32, 16), q, j)
    total = k.reduce(Ops.ADD, alu(Ops.MUL, left, right), q, r)
    return k.kernel(k.out(k.param(0, 8, 16), total, i, j))


def scaled() -> Node:
    """Sums of an array times a number: no array is the other factor."""
    i, j, q = axes = (range_node(8, 0), range_node(16, 1), range_node(32, 2))
    return product(k.at(k.param(1, 8, 32, 16), i, q, j), const(2.0, F32), axes)


OTHERS = {
    "a sum": k.row_reduce(8, 16), "a map": k.elementwise(8, 16), "two sums": k.softmax(8, 16),
    "a row times a matrix": k.matmul(1, 16, 32), "one step": k.matmul(8, 16, 1),
    "beyond": beyond(), "a sum as factor": summed_factor(), "spread": spread(),
    "largest": largest(), "half summed": half_summed(),
    "scaled": scaled(),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_contraction_has_no_factors(name: str) -> None:
    assert factors_of(OTHERS[name]) is None


def test_sizes_of_symbolic_extents_are_their_bounds_and_parts_of_them() -> None:
    found = factors_of(symbolic(100))
    assert found is not None and found.sizes() == (100, 16, 32, 1)
    assert found.all_sizes() == [(rows, 16, 32, 1) for rows in (100, 13, 2, 1)]
    found = factors_of(symbolic(100, least=40))
    assert found is not None and [rows for rows, *_ in found.all_sizes()] == [100, 40]
    found = factors_of(k.matmul(8, 16, 32))
    assert found is not None and found.all_sizes() == [found.sizes()]


def test_sizes_count_the_products() -> None:
    """All axes are somebody's, so that the sizes together are the points of the kernel."""
    sizes = ((2, 3), (4,), (5, 2), (3,))
    rows, columns, depth, batch = sizes
    found = factors_of(contraction(rows, columns, depth, "sabxy", "snxy", "sabn", batch))
    assert found is not None
    assert prod(found.sizes()) == prod(prod(each) for each in sizes)
