"""Neighbours that a GPU's thread loads or stores one by one are moved at once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core.attrs import Access, KernelInfo, Param
from baregrad.ir.core.axes import Var
from baregrad.ir.core.node import Node, alu, const, instruction
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.linear_level import evaluate_linear
from baregrad.ir.verify.verify import verify
from baregrad.kernel.gpu.wide_accesses import widen_accesses

F32, I64 = dtypes.float32, dtypes.int64
OUT, IN = (Node(Ops.PARAM, F32, (), Param(slot, (64,))) for slot in (0, 1))
N = Node(Ops.VAR, I64, (), Var("n", 0, 3))
END = Node(Ops.END, dtypes.token, ())
TEST = Node(Ops.TEST, dtypes.token, (alu(Ops.CMPLT, N, const(2, I64)),))


def times(number: int) -> Node:
    """A base that is n times a number."""
    return instruction(Ops.MUL, I64, (N, const(number, I64)))


def load(base: Node, at: int, *mask: Node, buffer: Node = IN) -> Node:
    return instruction(Ops.VLOAD, F32, (buffer, base, *mask), Access(1, 1, at, 4))


def store(base: Node, at: int, value: Node, *mask: Node) -> Node:
    return instruction(Ops.VSTORE, dtypes.token, (OUT, base, value, *mask), Access(1, 1, at, 4))


def widths(code: list[Node], most: int = 16) -> tuple[list[int], list[int]]:
    """The lanes of the loads and of the stores, after comparing what the code does for n = 1."""
    program = Node(Ops.PROGRAM, dtypes.token, tuple(code), KernelInfo("k"))
    wide = widen_accesses(program, most)
    verify(wide, "linear")
    results = []
    for each in (program, wide):
        arrays = {0: np.zeros(64, np.float32), 1: np.arange(64, dtype=np.float32)}
        evaluate_linear(each, arrays, {"n": 1})
        results.append(arrays[0])
    np.testing.assert_array_equal(*results)
    loads, stores = (
        sorted([node.arg.width for node in wide.src if node.op is op], reverse=True)
        for op in (Ops.VLOAD, Ops.VSTORE)
    )
    return loads, stores


def copies(base: Node, places: list[int], *mask: Node) -> list[Node]:
    """Elements that are loaded, all of them before the first one is stored."""
    loads = [load(base, at, *mask) for at in places]
    stores = [store(base, at, value) for at, value in zip(places, loads, strict=True)]
    return [base, *mask, *loads, *stores]


@pytest.mark.parametrize(("places", "wanted"), [
    (range(4), [4]), (range(8), [4, 4]), (range(-1, 9), [4, 4, 1, 1]), ([3, 1, 0, 2], [4]),
    (range(2, 6), [2, 2]), (range(1, 4), [2, 1]), ([0, 2, 4, 6], [1, 1, 1, 1]),
])
def test_aligned_neighbours(places: list[int], wanted: list[int]) -> None:
    assert widths(copies(times(8), list(places))) == (wanted, wanted)


@pytest.mark.parametrize(("base", "wanted"), [(8, [4]), (4, [4]), (6, [2, 2]), (3, [1] * 4)])
def test_what_is_known_of_a_base(base: int, wanted: list[int]) -> None:
    assert widths(copies(times(base), [0, 1, 2, 3]))[0] == wanted


def test_as_wide_as_is_asked_for() -> None:
    assert widths(copies(times(8), [0, 1, 2, 3]), 8) == ([2, 2], [2, 2])


def test_one_condition_is_that_of_all_lanes() -> None:
    mask = instruction(Ops.CMPLT, dtypes.bool, (N, const(2, I64)))
    assert widths(copies(times(8), [0, 1, 2, 3], mask))[0] == [4]
    other = instruction(Ops.CMPLT, dtypes.bool, (N, const(1, I64)))
    code = copies(times(8), [0, 1], mask) + copies(times(8), [2, 3], other)[1:]
    assert widths(code)[0] == [2, 2]


def test_no_load_passes_a_store() -> None:
    base = times(8)
    code = [base]
    for at in range(4):
        value = load(base, at)
        code += [value, store(base, at, value)]
    # An argument that is written may be the same memory as one that is read.
    assert widths(code) == ([1] * 4, [1] * 4)


def test_the_last_of_two_stores_stays_the_last() -> None:
    base = times(8)
    first, second = (const(value, F32) for value in (1.0, 2.0))
    code = [base, store(base, 0, first), store(base, 0, second), store(base, 1, first)]
    assert widths(code)[1] == [2, 1]
    other = times(4)
    code = [base, other, store(base, 4, first), store(other, 8, second), store(base, 5, first)]
    assert widths(code)[1] == [1, 1, 1]


def test_nothing_passes_a_branch() -> None:
    base = times(8)
    values = [load(base, at) for at in range(4)]
    ahead, inside = ([store(base, at, values[at]) for at in some] for some in ((0, 1), (2, 3)))
    code = [base, *values[:2], *ahead, TEST.src[0], TEST, *values[2:], *inside, END]
    assert widths(code) == ([2, 2], [2, 2])


def test_lanes_that_lie_in_rows_are_stored_with_their_neighbours() -> None:
    """Two columns of a lane, of two rows each, where rows lie together."""
    base = times(8)
    values = [instruction(Ops.SPLAT, F32, (const(number, F32),), 2, (2,)) for number in (3.0, 4.0)]
    rows = [
        instruction(Ops.VSTORE, dtypes.token, (OUT, base, value), Access(2, 16, at, 4))
        for at, value in enumerate(values)
    ]
    assert widths([base, *values, *rows])[1] == [2, 2]
    # Rows of their own stay vectors.
    assert widths([base, values[0], rows[0]])[1] == [2]


def test_code_without_neighbours_is_the_same_node() -> None:
    program = Node(Ops.PROGRAM, dtypes.token, tuple(copies(times(8), [0, 3])), KernelInfo("k"))
    assert widen_accesses(program, 16) is program
    assert Counter(node.op for node in program.src)[Ops.VLOAD] == 2


def test_stores_under_one_condition_share_a_branch() -> None:
    """What is computed between them is so ahead of it; loads, and other conditions, part them."""
    base = times(4)
    other = Node(Ops.TEST, dtypes.token, (alu(Ops.CMPLT, N, const(1, I64)),))
    values = [instruction(Ops.ADD, F32, (load(base, at), const(1.0, F32))) for at in range(4)]
    code = [TEST.src[0], other.src[0], base, *[load(base, at) for at in range(4)], values[0]]
    for at, value in enumerate(values):
        code += [*([value] if at else []), TEST, store(base, at, value), END]
    assert widths(code) == ([4], [4])
    # A load between the second and the third.
    late = load(base, 9)
    parted = [*code[:-4], late, instruction(Ops.ADD, F32, (late, const(1.0, F32)))]
    parted += [TEST, store(base, 3, parted[-1]), END]
    assert sorted(widths(parted)[1]) == [1, 1, 2]
    under = [other if one is TEST and place > 14 else one for place, one in enumerate(code)]
    assert sorted(widths(under)[1]) == [2, 2]


def test_values_of_shared_branches_are_computed_once() -> None:
    """What a branch computes and what follows it, too, is computed ahead of the one they share."""
    base = times(4)
    first = load(base, 0)
    value, more = (instruction(Ops.ADD, F32, (first, const(by, F32))) for by in (1.0, 2.0))
    code = [TEST.src[0], base, first, TEST, value, store(base, 0, value), END, value]
    code += [TEST, more, store(base, 1, value), END, TEST, more, store(base, 0, more), END]
    assert widths([*code, store(base, 2, value)])[1] == [2, 1, 1]
    wide = widen_accesses(Node(Ops.PROGRAM, dtypes.token, tuple(code), KernelInfo("k")), 16)
    assert max(Counter(node for node in wide.src if node.op is Ops.ADD).values()) == 1
