"""The text form: what is printed parses back to the same nodes, and broken text is refused."""

from __future__ import annotations

import random

import pytest

from baregrad.apps.instructions import count
from baregrad.base.errors import BaregradError, FileFormatError
from baregrad.dtypes import ALL, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import (
    Access,
    Alloc,
    BufferRef,
    KernelInfo,
    Machine,
    Out,
    Param,
    Reduce,
    Reg,
    StageInfo,
)
from baregrad.ir.core.monoid import Monoid, primitive, slot
from baregrad.ir.core.node import Node, alu, cast, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.ir.text.dump import dump, parse
from baregrad.ir.text.parse import UnboundBuffer

F32 = dtypes.float32
ADD = primitive(Ops.ADD, F32)
TOKEN = dtypes.token


def param(slot: int = 0, shape: tuple[index.Dim, ...] = (4, 5)) -> Node:
    return Node(Ops.PARAM, F32, (), Param(slot, shape, "x"))


def softmax_kernel() -> Node:
    i, j, k, n = (range_node(extent, number) for number, extent in enumerate((4, 5, 5, 5)))

    def at(axis: Node) -> Node:
        return Node(Ops.INDEX, F32, (param(1), i, axis))

    most = Node(Ops.REDUCE, F32, (at(k), k), Reduce(primitive(Ops.MAX, F32)))
    power = [alu(Ops.EXP, alu(Ops.SUB, at(axis), most)) for axis in (j, n)]
    total = Node(Ops.REDUCE, F32, (power[1], n), Reduce(ADD))
    out = Node(Ops.OUT, TOKEN, (param(0), alu(Ops.DIV, power[0], total), i, j), Out())
    return Node(Ops.KERNEL, TOKEN, (out,), KernelInfo('softmax "b"\nπ'))


def loop_kernel() -> Node:
    i, lanes = range_node(8, 0, "M"), range_node(8, 1, "N", "vector")
    scratch = Node(Ops.ALLOC, F32, (), Alloc(0, "scratch", (8,)))
    load = Node(Ops.LOAD, F32, (param(1, (8, 8)), i, lanes))
    guarded = Node(Ops.GUARD, F32, (index.less(lanes, 5), load))
    store = Node(Ops.STORE, TOKEN, (scratch, guarded, lanes), ADD)
    body = Node(Ops.SEQ, TOKEN, (store, store))
    return Node(Ops.KERNEL, TOKEN, (Node(Ops.LOOP, TOKEN, (i, body)),), KernelInfo())


def linear_program() -> Node:
    register = Node(Ops.REG, F32, (), Reg(3, 8))
    load = Node(Ops.VLOAD, F32, (param(0, (64,)), const(0, dtypes.index)), Access(8, align=32))
    put = Node(Ops.SET, TOKEN, (register, load))
    fence = Node(Ops.MACHINE, TOKEN, (), Machine("fence", (1, "acq_rel", 2.5)))
    return Node(Ops.PROGRAM, TOKEN, (load, put, fence), KernelInfo())


def symbolic_graph() -> Node:
    n = index.variable("n", 1, 64)
    array = param(0, (n, 5))
    return Node(Ops.RESHAPE, F32, (array,), (index.mul(n, 5),))


def own_monoid() -> Node:
    kind = dtypes.bfloat16
    a, b = slot(0, kind), slot(1, kind)
    worst = Monoid("worst", (kind,), (const(0.0, kind),), (alu(Ops.ABS, a),), (alu(Ops.MAX, a, b),))
    return Node(Ops.REDUCE, kind, (cast(param(), kind),), Reduce(worst, (0,)))


GRAPHS = {
    "kernel": softmax_kernel,
    "loop": loop_kernel,
    "linear": linear_program,
    "symbolic": symbolic_graph,
    "monoid": own_monoid,
    "stage": lambda: Node(
        Ops.STAGE, F32, (cast(range_node(4, 0), F32), range_node(4, 0)),
        StageInfo("shared", depth=3)
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_parsed_text_is_the_same_node(name: str) -> None:
    node = GRAPHS[name]()
    text = dump(node)
    assert parse(text) is node
    assert parse("# a comment\n\n" + text.replace("\n", "\n\n  ")) is node
    assert dump(parse(text)) == text


def test_text_of_a_small_graph() -> None:
    node = Node(Ops.REDUCE, F32, (alu(Ops.MUL, param(), const(2.0, F32)),), Reduce(ADD, (1,)))
    assert dump(node) == (
        '%0 = PARAM f32[4,5] : Param(slot=0, shape=(4, 5), name="x")\n'
        "%1 = CONST f32[] : 2.0\n"
        "%2 = MUL f32[4,5] %0 %1\n"
        "%3 = REDUCE f32[4] %2 : Reduce(monoid=add<f32>, axes=(1,))\n"
    )


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, 1e300, -2.5e-7, float("inf"), -float("inf"),
                                   float("nan"), 1 / 3])  # fmt: skip
def test_every_float_constant_survives(value: float) -> None:
    node = const(value, dtypes.float64)
    assert parse(dump(node)) is node


def test_other_constants_survive() -> None:
    for dtype in ALL:
        if dtype is not TOKEN:
            node = const(1, dtype)
            assert parse(dump(node)) is node
    assert parse(dump(const(True, dtypes.bool))).arg is True
    huge = const(-(1 << 200), dtypes.index)
    assert parse(dump(huge)) is huge


@pytest.mark.property
def test_random_graphs_survive(random_tensor_graph) -> None:
    rng = random.Random(9)
    for _ in range(150):
        node = random_tensor_graph(rng, 25)
        assert parse(dump(node)) is node


def test_buffers_are_placeholders() -> None:
    handle, other = object(), object()
    a = Node(Ops.BUFFER, F32, (), BufferRef(handle, (3,), "CPU"))
    b = Node(Ops.BUFFER, F32, (), BufferRef(other, (3,), "CPU"))
    node = alu(Ops.ADD, alu(Ops.MUL, a, b), a)
    text = dump(node)
    assert "&0" in text and "&1" in text and "object" not in text
    unbound = parse(text)
    assert unbound is not node and dump(unbound) == text
    assert unbound.src[1].arg.handle == UnboundBuffer(0)
    assert parse(text, buffers={0: handle, 1: other}) is node


def test_a_long_chain_has_text() -> None:
    node, costs = param(), []
    for size in range(1, 20_001):
        node = alu(Ops.ADD, node, const(1.0, F32))
        if size in (1_000, 2_000):
            costs.append(count(lambda node=node: parse(dump(node))))  # type: ignore[misc]
    assert parse(dump(node)) is node
    assert costs[1] < 2.05 * costs[0]


@pytest.mark.parametrize(
    ("text", "line", "wanted"),
    [
        ("", "", "CONST"),
        ("%0 = NOTHING f32[]", "line 1", "the name of an op"),
        ("%0 = CONST f99[] : 1.0", "line 1", "a dtype"),
        ("%0 = CONST f32[] : 1.0\n%1 = EXP f32[] %7", "line 2", "earlier line"),
        ("%0 = CONST f32[] : 1.0\n%0 = CONST f32[] : 2.0", "line 2", "once"),
        ("%0 = CONST f32[] : 1.0 2.0", "line 1", "end of the line"),
        ("%0 = CONST f32[]", "line 1", "op table"),
        ("%0 = ADD f32[]", "line 1", "op table"),
        ("%0 = CONST f32[3] : 1.0", "line 1", "shape []"),
        ("%0 = PARAM f32[4] : Param(slot=0)", "line 1", "fields of Param"),
        ("%0 = PARAM f32[4] : Param(slot=0, slot=1)", "line 1", "each once"),
        ("%0 = PARAM f32[4] : Param(slot=0, colour=1)", "line 1", "field of Param"),
        ('%0 = PARAM f32[4] : Param(slot="0", shape=(4,))', "line 1", "type int"),
        ("%0 = PARAM f32[4] : Param(slot=0, shape=(4.5,))", "line 1", "type tuple"),
        ("%0 = PARAM f32[4] : System(command=1)", "line 1", "name of an attribute"),
        ("%0 = CONST f32[] : __import__", "line 1", "name of an attribute"),
        ("%0 = CONST f32[] : !4", "line 1", "a monoid of an earlier line"),
        ("%0 = CONST f32[] : ;", "line 1", "token"),
        ("%0 = CONST f32[] : " + "(" * 5000, "line 1", "at most 32 levels"),
        ("%0 = CONST index[] : " + "9" * 5000, "line 1", "a number"),
        ("%0 = CONST f32[] : add<f32>", "line 1", "op table"),
        ('%0 = COPY f32[] : "\\x"', "line 1", "JSON"),
        ("!0 = 4", "line 1", "Monoid"),
        ("%0 = CONST f32[] : frobnicate<f32>", "line 1", "built-in monoid"),
        ("%0 = CONST f32[4 : 1.0", "line 1", "','"),
    ],
)
def test_broken_text_is_refused(text: str, line: str, wanted: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        parse(text)
    assert line in str(caught.value)
    assert wanted in str(caught.value)


@pytest.mark.property
def test_mutated_text_gives_a_node_or_our_error() -> None:
    rng = random.Random(4)
    texts = [dump(make()) for make in GRAPHS.values()]
    alphabet = '%0123456789=:,()[]!&$@<> abcNODE"\\.-\n'
    for _ in range(3000):
        text = list(rng.choice(texts))
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(text))
            text[place : place + rng.randrange(3)] = rng.choice(alphabet)
        try:
            parse("".join(text))
        except BaregradError:
            continue
