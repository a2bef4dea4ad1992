"""Each rule of each level's grammar, broken once, and what is right let through."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from baregrad.base.errors import CompilerBug, VerifyError
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import (
    Alloc,
    KernelInfo,
    Out,
    Pad,
    Param,
    Reduce,
    Reg,
    Scan,
    Scatter,
    Slice,
    StageInfo,
    Window,
)
from baregrad.ir.core.axes import Range, Var
from baregrad.ir.core.monoid import arg_extreme, primitive
from baregrad.ir.core.node import Node, alu, cast, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.ir.text.dump import parse
from baregrad.ir.verify.verify import path_to, verify

F32, I32, I64 = dtypes.float32, dtypes.int32, dtypes.int64
BOOL, TOKEN, INDEX = dtypes.bool, dtypes.token, dtypes.index
ADD = primitive(Ops.ADD, F32)
I, J = range_node(4, 0), range_node(5, 1)


def param(slot: int = 0, shape: tuple[index.Dim, ...] = (4, 5), dtype=F32) -> Node:
    return Node(Ops.PARAM, dtype, (), Param(slot, shape))


X, Y, P = param(0), param(1), param(2, dtype=BOOL)
N = Node(Ops.IOTA, I64, (), 5)


def at(array: Node, *indices: Node) -> Node:
    return Node(Ops.INDEX, array.dtype, (array, *indices))


def c(value: float) -> Node:
    return const(value, INDEX)


def out(value: Node, *indices: Node, monoid=None, array: Node = X) -> Node:
    return Node(Ops.OUT, TOKEN, (array, value, *indices), Out(monoid))


def kernel(*outs: Node) -> Node:
    return Node(Ops.KERNEL, TOKEN, outs, KernelInfo())


def store(value: Node, *indices: Node, array: Node = X, monoid=None) -> Node:
    return Node(Ops.STORE, TOKEN, (array, value, *indices), monoid)


def loop(axis: Node, body: Node) -> Node:
    return Node(Ops.LOOP, TOKEN, (axis, body))


def bad_dtype(op, *src: Node) -> Node:
    return Node(op, src[-1].dtype, src)


ELEMENT = at(Y, I, J)
LANES = range_node(5, 1, "N", "vector")
POOL = range_node(4, 0, "M", "pool")

TENSOR: list[tuple[str, Callable[[], Node]]] = [
    ("one dtype", lambda: alu(Ops.ADD, X, cast(Y, I32))),
    ("has dtype", lambda: Node(Ops.CMPLT, F32, (X, Y))),
    ("wanted bool", lambda: bad_dtype(Ops.WHERE, X, X, Y)),
    ("does not compute with float32", lambda: alu(Ops.AND, X, Y)),
    ("does not compute with int32", lambda: alu(Ops.EXP, cast(X, I32))),
    ("does not compute with bool", lambda: alu(Ops.SUB, P, P)),
    ("does not compute with uint32", lambda: alu(Ops.THREEFRY, *[cast(X, dtypes.uint32)] * 2)),
    ("stored and cast", lambda: alu(Ops.NEG, cast(X, dtypes.float8_e4m3fn))),
    ("sizes differ", lambda: Node(Ops.BITCAST, I64, (X,))),
    ("CAST of an effect", lambda: Node(Ops.CAST, F32, (Node(Ops.SINK, TOKEN, (X,)),))),
    ("2 sources", lambda: Node(Ops.EXP, F32, (X, Y))),
    ("carries a NoneType", lambda: Node(Ops.COPY, F32, (X,))),
    ("carries a str", lambda: Node(Ops.EXP, F32, (X,), "x")),
    ("carries a tuple", lambda: Node(Ops.FLIP, F32, (X,), ("a",))),
    ("wanted a dtype of values", lambda: Node(Ops.EXP, TOKEN, (X,))),
    ("legal at: kernel", lambda: at(Y, c(0), c(0))),
    ("holds a int", lambda: Node(Ops.CONST, F32, (), 1)),
    ("does not fit int8", lambda: Node(Ops.CONST, dtypes.int8, (), 200)),
    ("never stored", lambda: param(0, (3,), INDEX)),
    ("negative extent", lambda: param(0, (-3,))),
    ("argument number", lambda: param(-1)),
    ("wanted index", lambda: Node(Ops.VAR, I32, (), Var("n", 0, 3))),
    ("empty bounds", lambda: Node(Ops.VAR, INDEX, (), Var("n", 3, 1))),
    ("not both", lambda: Node(Ops.IOTA, I64, (c(3),), 3)),
    ("IOTA of bool", lambda: Node(Ops.IOTA, BOOL, (), 3)),
    ("RESHAPE of float32", lambda: Node(Ops.RESHAPE, I32, (X,), (20,))),
    ("axes [0, 0]", lambda: Node(Ops.FLIP, F32, (X,), (0, 0))),
    ("axes [2]", lambda: Node(Ops.FLIP, F32, (X,), (2,))),
    ("negative pad", lambda: Node(Ops.PAD, F32, (X,), (Pad(1), Pad(1, -1)))),
    ("step below 1", lambda: Node(Ops.SHRINK, F32, (X,), (Slice(0, 4), Slice(0, 2, -1)))),
    ("must be positive", lambda: Node(Ops.WINDOW, F32, (X,), Window(0, 2, 1, -1))),
    ("of 5 taps", lambda: Node(Ops.FOLD, F32, (X,), Window(0, 3, extent=8))),
    ("does not rebuild", lambda: Node(Ops.FOLD, F32, (X,), Window(0, 5, extent=9))),
    ("not integers", lambda: Node(Ops.GATHER, F32, (param(0, (3,)), param(1, (2,))))),
    ("0 indices for 1", lambda: Node(Ops.SCATTER, F32, (param(0, (3,)), X), Scatter())),
    ("one shape", lambda: Node(Ops.SCATTER, F32, (param(0, (3,)), X, N), Scatter())),
    ("SCATTER of int32", lambda: Node(
        Ops.SCATTER, F32, (param(0, (3,)), cast(N, I32), N), Scatter())),
    ("SORT of what are no arrays", lambda: Node(Ops.SORT, F32, (X,))),
    ("SORT of arrays of several", lambda: Node(Ops.SORT, I64, (N, Node(Ops.IOTA, I64, (), 4)))),
    ("accumulating", lambda: Node(Ops.SCATTER, I64, (N, N, N), Scatter(ADD))),
    ("no atomic", lambda: Node(
        Ops.SCATTER, F32, (param(0, (3,)), cast(N, F32), N), Scatter(ADD, atomic=True))),
    ("no atomic", lambda: Node(Ops.SCATTER, I64, (N, N, N), Scatter(None, atomic=True))),
    ("no atomic", lambda: Node(
        Ops.SCATTER, I64, (N, N, N), Scatter(primitive(Ops.MUL, I64), atomic=True))),
    ("of 1 values", lambda: Node(Ops.REDUCE, F32, (X,), Reduce(arg_extreme(Ops.MAX, F32), (1,)))),
    ("a value of int32", lambda: Node(Ops.REDUCE, F32, (cast(X, I32),), Reduce(ADD, (1,)))),
    ("axes [1, 1]", lambda: Node(Ops.REDUCE, F32, (X,), Reduce(ADD, (1, 1)))),
    ("axes [3]", lambda: Node(Ops.SCAN, F32, (X,), Scan(ADD, 3))),
    ("ranges at the tensor level", lambda: Node(Ops.REDUCE, F32, (X, Y), Reduce(ADD, (1,)))),
    ("PROJ of EXP", lambda: Node(Ops.PROJ, F32, (alu(Ops.EXP, X),), 0)),
    ("PROJ of part 1", lambda: Node(
        Ops.PROJ, F32, (Node(Ops.REDUCE, F32, (X,), Reduce(ADD, (1,))),), 1)),
    ("two nodes for the argument 0", lambda: alu(Ops.ADD, X, Node(
        Ops.PARAM, F32, (), Param(0, (4, 5), "other")))),
]  # fmt: skip

KERNEL: list[tuple[str, Callable[[], Node]]] = [
    ("legal at: tensor", lambda: kernel(out(Node(Ops.RESHAPE, F32, (ELEMENT,), ()), I, J))),
    ("1 indices for 2 axes", lambda: kernel(out(at(Y, I), I, J))),
    ("CAST it", lambda: kernel(out(at(Y, I, cast(J, I32)), I, J))),
    ("INDEX of CONST", lambda: at(const(1.0, F32), I)),
    ("INDEX of float32", lambda: Node(Ops.INDEX, I32, (Y, I, J))),
    ("GUARD by float32", lambda: Node(Ops.GUARD, F32, (ELEMENT, ELEMENT))),
    ("GUARD of float32", lambda: Node(Ops.GUARD, I32, (index.less(I, 2), ELEMENT))),
    ("not a RANGE", lambda: Node(Ops.REDUCE, F32, (ELEMENT, c(3)), Reduce(ADD))),
    ("each once", lambda: Node(Ops.REDUCE, F32, (ELEMENT, J, J), Reduce(ADD))),
    ("at least one", lambda: Node(Ops.REDUCE, F32, (ELEMENT,), Reduce(ADD))),
    ("below the tensor level", lambda: Node(Ops.REDUCE, F32, (ELEMENT, J), Reduce(ADD, (0,)))),
    ("STAGE over", lambda: Node(Ops.STAGE, F32, (ELEMENT, J, J), StageInfo("scratch"))),
    ("never stored", lambda:
     Node(Ops.STAGE, INDEX, (index.as_node(index.add(I, 1)), I), StageInfo())),
    ("KERNEL of INDEX", lambda: kernel(ELEMENT)),
    ("OUT of INDEX", lambda: kernel(Node(Ops.OUT, TOKEN, (ELEMENT, ELEMENT, I, J), Out()))),
    ("OUT of int32", lambda: kernel(out(cast(ELEMENT, I32), I, J))),
    ("accumulating", lambda: kernel(out(ELEMENT, I, J, monoid=primitive(Ops.ADD, I32)))),
    ("has dtype float32", lambda: Node(Ops.OUT, F32, (X, ELEMENT, I, J), Out())),
    ("index 1 reaches 0 to 9", lambda: kernel(
        out(at(param(1, (4, 10)), I, range_node(10, 1)), I, range_node(10, 1)))),
    ("index 0 reaches 4 to 7", lambda: kernel(out(ELEMENT, index.as_node(index.add(I, 4)), J))),
    ("index 1 reaches -1", lambda: kernel(out(ELEMENT, I, index.as_node(index.sub(J, 1))))),
    ("writes the same element", lambda: kernel(out(ELEMENT, I, c(0)))),
    ("no atomic add[int16] of int16", lambda: kernel(Node(Ops.OUT, TOKEN, (
        param(0, (4, 5), dtypes.int16), const(1, dtypes.int16), I, J,
    ), Out(primitive(Ops.ADD, dtypes.int16), atomic=True)))),
    ("two OUTs", lambda: kernel(out(ELEMENT, I, J), out(at(Y, I, c(0)), I, J))),
    ("bound to 'sideways'", lambda: kernel(out(ELEMENT, I, Node(
        Ops.RANGE, INDEX, (c(5),), Range(1, "", "sideways"))))),
    ("depends on another range", lambda: range_node(index.as_node(index.add(I, 1)), 7)),
    ("negative extent", lambda: range_node(-2, 7)),
    ("two nodes for the range 0", lambda: kernel(
        out(at(Y, I, J), range_node(4, 0, "other"), J))),
]  # fmt: skip

LOOP: list[tuple[str, Callable[[], Node]]] = [
    ("no LOOP around", lambda: kernel(store(at_loop(I, J), I, J))),
    ("never looped over", lambda: loop(LANES, store(const(0.0, F32), c(0), LANES))),
    ("LOOP of CONST", lambda: loop(c(4), store(const(0.0, F32), c(0), c(0)))),
    ("wanted a statement", lambda: Node(Ops.SEQ, TOKEN, (const(1.0, F32),))),
    ("wanted a statement", lambda: loop(I, const(1.0, F32))),
    ("IF by float32", lambda: Node(
        Ops.IF, TOKEN, (const(1.0, F32), store(const(0.0, F32), c(0), c(0))))),
    ("STORE of CONST", lambda: store(const(0.0, F32), array=const(0.0, F32))),
    ("STORE of int32", lambda: store(const(0, I32), c(0), c(0))),
    ("1 indices for 2", lambda: store(const(0.0, F32), c(0))),
    ("use LOOP and an accumulator", lambda: Node(
        Ops.REDUCE, F32, (at_loop(I, J), J), Reduce(ADD))),
    ("inside a LOOP over the same", lambda: kernel(
        loop(I, loop(I, store(const(0.0, F32), I, c(0)))))),
    ("not outermost", lambda: kernel(
        loop(J, loop(POOL, store(const(0.0, F32), POOL, J))))),
    ("more than one LOOP over a pool", lambda: kernel(Node(Ops.SEQ, TOKEN, (
        loop(POOL, store(const(0.0, F32), POOL, c(0))),
        loop(range_node(4, 1, "M", "pool"),
             store(const(0.0, F32), range_node(4, 1, "M", "pool"), c(0))))))),
    ("of depth 0", lambda: Node(Ops.ALLOC, F32, (), Alloc(0, "register", (4,), depth=0))),
    ("at int32", lambda: Node(Ops.LOOKUP, F32, (const(0, I32),), (1.0, 2.0))),
    ("of int32 at uint32", lambda: Node(Ops.LOOKUP, I32, (const(0, dtypes.uint32),), (1.0, 2.0))),
    ("table of 3 numbers", lambda: Node(
        Ops.LOOKUP, F32, (const(0, dtypes.uint32),), (1.0, 2.0, 3.0))),
    ("table of 0 numbers", lambda: Node(Ops.LOOKUP, F32, (const(0, dtypes.uint32),), ())),
    ("carries a NoneType", lambda: Node(Ops.LOOKUP, F32, (const(0, dtypes.uint32),))),
    ("carries a tuple", lambda: Node(Ops.LOOKUP, F32, (const(0, dtypes.uint32),), (1, 2))),
]  # fmt: skip


def at_loop(*indices: Node) -> Node:
    return Node(Ops.LOAD, F32, (Y, *indices))


R = Node(Ops.REG, F32, (), Reg(0))


def program(*instructions: Node) -> Node:
    return Node(Ops.PROGRAM, TOKEN, instructions, KernelInfo())


def put(value: Node) -> Node:
    return Node(Ops.SET, TOKEN, (R, value))


BEGIN = Node(Ops.BEGIN, INDEX, (c(0), c(4)), 0)
END = Node(Ops.END, TOKEN, ())
ONE = const(1.0, F32)
READ = Node(Ops.READ, F32, (R,))

LINEAR: list[tuple[str, Callable[[], Node]]] = [
    ("read before it is written", lambda: program(READ)),
    ("not been computed", lambda: program(put(ONE), put(alu(Ops.ADD, READ, ONE)))),
    ("not been computed", lambda: program(put(ONE), BEGIN, READ, END, put(READ))),
    ("not been computed", lambda: program(put(ONE), READ, BEGIN, READ, END, put(READ))),
    ("END without", lambda: program(END)),
    ("1 blocks are not closed", lambda: program(BEGIN)),
    ("SET of CONST", lambda: program(Node(Ops.SET, TOKEN, (ONE, ONE)))),
    ("SET of REG", lambda: program(put(const(1, I32)))),
]


@pytest.mark.parametrize(
    ("level", "wanted", "make"),
    [
        *(("tensor", *case) for case in TENSOR),
        *(("kernel", *case) for case in KERNEL),
        *(("loop", *case) for case in LOOP),
        *(("linear", *case) for case in LINEAR),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_broken_grammar_is_refused(level: str, wanted: str, make: Callable[[], Node]) -> None:
    with pytest.raises(VerifyError) as caught:
        verify(make(), level)
    assert wanted in str(caught.value)
    assert level in str(caught.value)


def test_good_graphs_pass() -> None:
    verify(kernel(out(ELEMENT, I, J)), "kernel")
    verify(kernel(out(ELEMENT, I, c(0), monoid=ADD)), "kernel")
    place = Node(Ops.CAST, INDEX, (at(param(2, (4, 5), I64), I, J),))
    verify(kernel(out(ELEMENT, place, place)), "kernel")
    guarded = Node(Ops.IF, TOKEN, (index.less(I, 3), store(at_loop(I, LANES), I, LANES)))
    pooled = loop(POOL, store(at_loop(POOL, c(1)), POOL, c(1)))
    verify(kernel(loop(I, guarded)), "loop")
    verify(kernel(pooled), "loop")
    summed = alu(Ops.ADD, READ, ONE)
    verify(program(put(ONE), BEGIN, READ, summed, put(summed), END), "linear")
    symbolic = index.variable("n", 1, 8)
    verify(Node(Ops.RESHAPE, F32, (param(0, (symbolic, 2)),), (index.mul(symbolic, 2),)), "tensor")


@pytest.mark.property
def test_random_graphs_pass(random_tensor_graph) -> None:
    rng = random.Random(3)
    for _ in range(200):
        verify(random_tensor_graph(rng, 25), "tensor")


def test_the_error_says_where_and_saves_the_graph() -> None:
    wrong = alu(Ops.EXP, cast(X, I32))
    node = alu(Ops.ADD, alu(Ops.MUL, Y, cast(wrong, F32)), Y)
    with pytest.raises(VerifyError) as caught:
        verify(node, "tensor", where="after pass fuse")
    error = caught.value
    assert "ADD[0] > MUL[1] > CAST[0] > EXP" in str(error)
    assert "after pass fuse" in str(error) and "EXP(int32" in str(error)
    assert error.path is not None and parse(Path(error.path).read_text()) is node
    Path(error.path).unlink()


def test_paths_of_deep_nodes_are_short() -> None:
    node = X
    for _ in range(5000):
        node = alu(Ops.EXP, node)
    assert "4989 more" in path_to(node, X)
    verify(node, "tensor")


def test_an_unknown_level() -> None:
    with pytest.raises(CompilerBug, match="unknown level"):
        verify(X, "attic")
