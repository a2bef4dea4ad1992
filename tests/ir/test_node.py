"""Interning, weak release, free ranges, walks, and graphs that are far deeper than the stack."""

from __future__ import annotations

import gc
import math
import threading
from functools import partial

import pytest

from baregrad.apps.instructions import count
from baregrad.base.errors import ShapeError
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import KernelInfo, Out, Param, Reduce, StageInfo, Window
from baregrad.ir.core.digest import digest, stable_repr, whole_digest
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import (
    Node,
    _interned,
    alike,
    alu,
    cast,
    const,
    count_uses,
    extent_of,
    fill,
    range_node,
    rebuild,
    toposort,
)
from baregrad.ir.core.op import LEVELS, MANY, Ops, all_ops
from baregrad.ir.core.substitution import substitute

F32 = dtypes.float32
LONG = 100_000


def param(slot: int = 0, shape: tuple[int, ...] = (4, 5)) -> Node:
    return Node(Ops.PARAM, F32, (), Param(slot, shape))


# --- identity ----------------------------------------------------------------------------------


def test_equal_fields_are_one_node() -> None:
    assert alu(Ops.ADD, param(), const(1.0, F32)) is alu(Ops.ADD, param(), const(1.0, F32))
    assert param(0) is not param(1)
    assert cast(param(), dtypes.int32) is not cast(param(), dtypes.int64)
    assert cast(param(), F32) is param()


def test_constants_that_compare_equal_are_told_apart() -> None:
    values = [0.0, -0.0, 1.0, -1.0, 2.0, math.inf, -math.inf, math.nan, 5e-324]
    nodes = [const(value, dtypes.float64) for value in values]
    assert len(set(nodes)) == len(values)
    for value, node in zip(values, nodes, strict=True):
        assert node.arg == value or (math.isnan(value) and math.isnan(node.arg))
        assert math.copysign(1.0, node.arg) == math.copysign(1.0, value) or math.isnan(value)
    assert const(math.nan, F32) is const(-math.nan, F32)
    assert const(True, dtypes.bool) is not const(1, dtypes.int32)
    assert const(1, dtypes.int32) is not const(1, dtypes.int64)


def test_integer_constants_wrap() -> None:
    assert const(200, dtypes.int8).arg == -56
    assert const(-1, dtypes.uint16).arg == 65535
    assert const(1 << 70, dtypes.index).arg == 1 << 70


def test_nodes_die_with_their_last_holder() -> None:
    for _ in range(2):  # what other tests left behind dies with the first
        gc.collect()
    before = len(_interned.table)
    # Nobody else has these.
    node = alu(Ops.MUL, param(97531, (3, 17)), const(8642.09765625, F32))
    assert len(_interned.table) == before + 3
    key = node.arg, node.src
    del node, key
    assert len(_interned.table) == before


def test_threads_get_one_node() -> None:
    seen: list[list[Node]] = []

    def build() -> None:
        seen.append([alu(Ops.ADD, param(), const(float(i), F32)) for i in range(2000)])

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for others in seen[1:]:
        assert all(a is b for a, b in zip(seen[0], others, strict=True))


def test_nodes_have_no_truth_and_are_not_pickled() -> None:
    import pickle

    with pytest.raises(TypeError, match="symbolic"):
        bool(param())
    with pytest.raises(TypeError, match="text"):
        pickle.dumps(param())


# --- depth -------------------------------------------------------------------------------------


def test_a_chain_of_100_000_nodes() -> None:
    gc.collect()
    before = len(_interned.table)
    node, one = param(), const(1.0, F32)
    for _ in range(LONG):
        node = alu(Ops.ADD, node, one)
    assert len(toposort(node)) == LONG + 2
    assert rebuild(node, lambda n: None) is node
    moved = substitute(node, {one: const(2.0, F32)})
    assert moved is not node and moved.mask == node.mask
    assert len(digest(node)) == 32
    del node, moved, one
    gc.collect()
    assert len(_interned.table) <= before


def test_building_and_walking_cost_by_the_node() -> None:
    def work(size: int) -> None:
        node, one = param(), const(1.0, F32)
        for _ in range(size):
            node = alu(Ops.ADD, node, one)
        assert len(toposort(node)) == size + 2
        assert rebuild(node, lambda n: None) is node
        assert substitute(node, {one: const(2.0, F32)}) is not node
        digest(node)

    work(1)
    half, whole = (count(partial(work, size)) for size in (1_000, 2_000))
    assert whole < 2.05 * half


def test_a_wide_and_shared_graph_is_walked_once() -> None:
    node = param()
    for _ in range(200):
        node = alu(Ops.MUL, node, node)  # 2**200 paths
    assert len(toposort(node)) == 201
    assert count_uses([node])[param()] == 2
    visited: list[Node] = []
    rebuild(node, lambda n: visited.append(n))  # type: ignore[func-returns-value]
    assert len(visited) == 201


# --- free ranges -------------------------------------------------------------------------------


def test_free_ranges() -> None:
    i, j, k = (range_node(5, number) for number in range(3))
    array = param(0, (5, 5))
    element = Node(Ops.INDEX, F32, (array, i, j))
    assert element.ranges == {i, j}
    total = Node(Ops.REDUCE, F32, (element, j), Reduce(primitive(Ops.ADD, F32)))
    assert total.ranges == {i}
    stage = Node(Ops.STAGE, F32, (element, j), StageInfo("scratch"))
    assert stage.ranges == {i} and stage.shape == (5,)
    again = Node(Ops.INDEX, F32, (stage, k))
    assert again.ranges == {i, k}
    out = Node(Ops.OUT, dtypes.token, (param(1, (5,)), total, i), Out())
    assert out.ranges == frozenset()
    assert Node(Ops.KERNEL, dtypes.token, (out,), KernelInfo()).ranges == frozenset()
    assert i.ranges == {i}


def test_a_reduction_of_a_range_over_another_keeps_the_first() -> None:
    i, j = range_node(5, 0), range_node(5, 1)
    node = Node(Ops.REDUCE, dtypes.index, (i, j), Reduce(primitive(Ops.MAX, dtypes.int64)))
    assert node.ranges == {i}


def test_substitute_renames_bound_ranges_too() -> None:
    i, j, k = (range_node(5, number) for number in range(3))
    element = Node(Ops.INDEX, F32, (param(0, (5, 5)), i, j))
    total = Node(Ops.REDUCE, F32, (element, j), Reduce(primitive(Ops.ADD, F32)))
    moved = substitute(total, {j: k})
    assert moved.src[1] is k and moved.src[0].ranges == {i, k}
    assert substitute(total, {}) is total
    n = index.variable("n", 1, 9)
    loop = range_node(n, 3)
    fixed = substitute(loop, {n: const(4, dtypes.index)})
    assert extent_of(fixed) == 4


# --- walks -------------------------------------------------------------------------------------


def test_toposort_puts_sources_first_and_stops_where_told() -> None:
    a = alu(Ops.EXP, param())
    b = alu(Ops.ADD, a, param())
    order = toposort(b)
    assert order.index(param()) < order.index(a) < order.index(b)
    assert toposort(b, enter=lambda n: n is not a) == [a, param(), b]


def test_fill_computes_what_is_not_known_sources_first() -> None:
    x, y = param(0), param(1)
    shared = alu(Ops.ADD, x, y)
    hidden = alu(Ops.EXP, alu(Ops.SQRT, x))
    root = alu(Ops.MUL, alu(Ops.MAX, shared, shared), hidden)
    met: list[Node] = []

    def depth(node: Node, known: dict[Node, int]) -> int:
        met.append(node)
        return 1 + max([known.get(child, 0) for child in node.src], default=0)

    done = {y: 10}
    fill(done, (root, shared), depth, done, lambda node: node is not hidden)
    assert done == {y: 10, x: 1, shared: 11, root.src[0]: 12, hidden: 1, root: 13}
    assert len(met) == len(set(met)) == 5


def test_rebuild_visits_with_sources_replaced() -> None:
    x, y = param(0), param(1)
    node = alu(Ops.MUL, alu(Ops.ADD, x, x), x)
    assert rebuild(node, lambda n: y if n is x else None) is alu(Ops.MUL, alu(Ops.ADD, y, y), y)


def test_a_whole_digest_tells_all_that_a_digest_tells() -> None:
    def graph(slot: int, shapes: list[list[int]], *, swapped: bool = False) -> Node:
        # Each attribute is an object of its own, unless nodes that are equal live already.
        one = Node(Ops.PARAM, dtypes.float32, (), Param(slot, (12,)))
        pair = [Node(Ops.RESHAPE, F32, (part,), tuple(shape))
                for part, shape in zip((one, alu(Ops.SQRT, one)), shapes, strict=True)]
        return alu(Ops.SUB, *(pair[::-1] if swapped else pair))

    def whole(root: Node) -> str:
        return whole_digest(toposort(root))

    square, wide = [[3, 4], [3, 4]], [[2, 6], [2, 6]]
    graphs = [graph(0, square), graph(1, square), graph(0, wide), graph(0, square, swapped=True)]
    assert len({whole(one) for one in graphs}) == len({digest(one) for one in graphs}) == 4
    first = whole(graphs[0])
    graphs.clear()
    # Equal attributes are the same to it, be they one object or two.
    shared = (3, 4)
    one = Node(Ops.PARAM, F32, (), Param(0, (12,)))
    both = [Node(Ops.RESHAPE, F32, (part,), shared) for part in (one, alu(Ops.SQRT, one))]
    assert both[0].arg is both[1].arg
    assert whole(alu(Ops.SUB, *both)) == first


def test_digest_is_structural() -> None:
    assert digest(alu(Ops.ADD, param(), param(1))) != digest(alu(Ops.ADD, param(1), param()))
    zero, minus = const(0.0, F32), const(-0.0, F32)
    assert digest(zero) != digest(minus)
    assert digest(const(True, dtypes.bool)) != digest(const(1, dtypes.uint8))
    assert stable_repr(primitive(Ops.ADD, F32)).count("float32") == 1
    # Equal in every process: this figure must not change by itself.
    assert digest(const(1.5, F32)) == digest(const(1.5, F32))
    assert "0x" not in stable_repr((param().arg, Reduce(primitive(Ops.ADD, F32), (1,))))


# --- the op table ------------------------------------------------------------------------------


def test_rows_are_complete_and_distinct() -> None:
    rows = all_ops()
    assert len({row.bit for row in rows}) == len({row.name for row in rows}) == len(rows) > 90
    for row in rows:
        assert getattr(Ops, row.name) is row
        assert row.levels and set(row.levels) <= set(LEVELS)
        assert 0 <= row.arity[0] <= row.arity[1] <= MANY
        assert len(row.meaning) > 1
        assert row.commutative <= (row.arity == (2, 2))


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(ShapeError, match="equal"):
        alu(Ops.ADD, param(0, (4, 5)), param(1, (5, 4)))
    with pytest.raises(ShapeError, match="sizes differ"):
        Node(Ops.RESHAPE, F32, (param(),), (3, 3))
    with pytest.raises(ShapeError, match="permutation"):
        Node(Ops.PERMUTE, F32, (param(),), (0, 0))
    with pytest.raises(ShapeError, match="expand"):
        Node(Ops.EXPAND, F32, (param(),), (8, 5))
    with pytest.raises(ShapeError, match="axis 1 of an array of 1 axes"):
        Node(Ops.FOLD, F32, (param(),), Window(1, 5, extent=8))
    with pytest.raises(ShapeError, match="does not fit"):
        Node(Ops.WINDOW, F32, (param(),), Window(1, 6))


def test_a_node_over_other_sources_is_the_one_that_is_made() -> None:
    rows = index.variable("rows_alike", 1, 9)
    x, y = (
        Node(Ops.PARAM, F32, (), Param(slot, (rows, 4))) for slot in (0, 1)
    )
    flat = Node(Ops.RESHAPE, F32, (x,), (index.mul(rows, 4),))
    whole = Node(Ops.ADD, F32, (flat, flat))
    again = alike(whole, (alike(flat, (y,)),) * 2)
    wanted = Node(Ops.RESHAPE, F32, (y,), (index.mul(rows, 4),))
    assert again is Node(Ops.ADD, F32, (wanted, wanted))
    assert (again.shape, again.mask) == (whole.shape, whole.mask)
    # What is above sources with more below them says so.
    deeper = Node(Ops.EXP2, F32, (y,))
    over = alike(flat, (deeper,))
    assert over.has(Ops.EXP2) and over.has(Ops.VAR) and not flat.has(Ops.EXP2)
    # And no more than that: nothing of what the node stood above before.
    back = alike(over, (Node(Ops.SQRT, F32, (y,)),))
    assert not back.has(Ops.EXP2) and back.has(Ops.SQRT)
    assert back is Node(Ops.RESHAPE, F32, back.src, flat.arg)
