"""Streaming attention on Hopper: two rings, products by wgmma, the running state in registers.

Each of two warpgroups keeps 64 queries: scores are an accumulator, their exponentials become the
next instruction's operand without leaving their registers.
"""

from __future__ import annotations

from dataclasses import dataclass

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import KernelInfo, Param, Reduce
from baregrad.ir.core.layout import Digit, Layout, swizzled_tile, wgmma_accumulator
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node, alu, cast, const
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.protocol.attributes import (
    Barrier,
    CopyTo,
    Done,
    Fence,
    Pipe,
    Role,
    operand_layouts,
    wgmma,
)
from baregrad.ir.protocol.derive import derive_synchronisation
from baregrad.testing.examples.matmul_hopper import (
    HOPPER,
    M_ATOM,
    alloc,
    axis,
    copy,
    effect,
    load,
    seq,
    store,
)

BF16 = dtypes.bfloat16
F32 = dtypes.float32


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """Elements; `tile` keys at a time through rings of `stages`, depth of a head 64 or less."""

    queries: int = 256
    keys: int = 128
    depth: int = 64
    tile: int = 32
    stages: int = 2
    groups: int = 2


def row_layout() -> Layout:
    """One value per row of an accumulator, in each of the four lanes that hold the row."""
    return Layout(
        (
            Digit(4, "", 0, "lane", 1),
            Digit(8, "m", 1, "lane", 4),
            Digit(4, "m", 16, "warp", 1),
            Digit(2, "m", 8, "reg", 1),
        )
    )


class Builder:
    """The nodes that both roles share, and the statements of each."""

    def __init__(self, sizes: AttentionSizes) -> None:
        s = self.sizes = sizes
        self.o = Node(Ops.PARAM, BF16, (), Param(0, (s.queries, s.depth), "o"))
        self.q = Node(Ops.PARAM, BF16, (), Param(1, (s.queries, s.depth), "q"))
        self.k = Node(Ops.PARAM, BF16, (), Param(2, (s.keys, s.depth), "k"))
        self.v = Node(Ops.PARAM, BF16, (), Param(3, (s.keys, s.depth), "v"))
        span = s.depth * 2
        height = M_ATOM * s.groups
        as_q = swizzled_tile("m", height, "k", s.depth, 16, span)
        as_k = swizzled_tile("n", s.tile, "k", s.depth, 16, span)
        as_v = swizzled_tile("k", s.tile, "n", s.depth, 16, span)
        as_o = swizzled_tile("m", M_ATOM, "n", s.depth, 16, span)
        self.staged_q = alloc(1, "shared", BF16, (height, s.depth), "sQ", as_q)
        self.staged_k = alloc(2, "shared", BF16, (s.tile, s.depth), "sK", as_k, s.stages)
        self.staged_v = alloc(3, "shared", BF16, (s.tile, s.depth), "sV", as_v, s.stages)
        self.staged_o = alloc(4, "shared", BF16, (s.groups, M_ATOM, s.depth), "sO", as_o)
        wide = (M_ATOM, s.tile)
        self.scores = alloc(5, "register", F32, wide, "scores", wgmma_accumulator(s.tile))
        self.power = alloc(6, "register", BF16, wide, "power", wgmma_accumulator(s.tile))
        self.total = alloc(7, "register", F32, (M_ATOM, s.depth), "out", wgmma_accumulator(s.depth))
        self.top, self.next_top, self.sum = (
            alloc(8 + i, "register", F32, (M_ATOM,), name, row_layout())
            for i, name in enumerate(("top", "next_top", "sum"))
        )
        self.q_pipe = self.pipe("q", 1, self.staged_q)
        self.k_pipe = self.pipe("k", s.stages, self.staged_k)
        self.v_pipe = self.pipe("v", s.stages, self.staged_v)
        self.block = axis(0, s.queries // height, "block", "grid")
        self.group = axis(1, s.groups, "group", "warpgroup")
        self.step = axis(2, s.keys // s.tile, "step")
        self.m = axis(10, M_ATOM, "m", "tile")
        self.j = axis(11, s.tile, "j", "tile")
        self.d = axis(12, s.depth, "d", "tile")
        self.once = index.as_node(0)

    def pipe(self, name: str, depth: int, buffer: Node) -> Node:
        """A ring from the load role to the math role."""
        return effect(Ops.PIPE, buffer, arg=Pipe(name, depth, "load", ("math",)))

    def fill(self, pipe: Node, counter: Node, array: Node, first: Node, rows: int, id: int) -> Node:
        """Acquire a slot and have `rows` rows from row `first` copied there."""
        row, column = axis(id, rows, "row", "tile"), axis(id + 1, self.sizes.depth, "d", "tile")
        slot = index.mod(counter, pipe.arg.depth)
        value = load(array, index.add(first, row), column)
        moved = copy(pipe.src[0], value, slot, row, column, pipe, counter, how=CopyTo("tma"))
        ends = (pipe, counter)
        return seq(effect(Ops.ACQUIRE, *ends), moved, effect(Ops.COMMIT, *ends))

    def load_role(self) -> Node:
        """One thread: the queries once, then keys and values tile by tile."""
        s = self.sizes
        height = M_ATOM * s.groups
        first = index.as_node(index.mul(self.block, height))
        key = index.as_node(index.mul(self.step, s.tile))
        body = seq(
            self.fill(self.k_pipe, self.step, self.k, key, s.tile, 22),
            self.fill(self.v_pipe, self.step, self.v, key, s.tile, 24),
        )
        queries = self.fill(self.q_pipe, self.once, self.q, first, height, 20)
        role = Role("load", 4, 0, 24, elect=True)
        return effect(Ops.ROLE, seq(queries, effect(Ops.LOOP, self.step, body)), arg=role)

    def fold(self, op: Op, value: Node, over: Node) -> Node:
        """A reduction along a tile: registers first, then the four lanes of a row."""
        return Node(Ops.REDUCE, F32, (value, over), Reduce(primitive(op, F32)))

    def update(self) -> Node:
        """The stream monoid's combination, a tile of keys at a time."""
        m, j, d = self.m, self.j, self.d
        score = load(self.scores, m, j)
        before, after = load(self.top, m), load(self.next_top, m)
        power = Node(Ops.EXP, F32, (alu(Ops.SUB, score, after),))
        moved = Node(Ops.EXP, F32, (alu(Ops.SUB, before, after),))
        rescale = alu(Ops.WHERE, alu(Ops.CMPEQ, before, after), const(1, F32), moved)
        kept = alu(Ops.MUL, load(self.sum, m), rescale)
        highest = self.fold(Ops.MAX, score, j)
        return seq(
            store(self.next_top, alu(Ops.MAX, before, highest), m),
            store(self.power, cast(power, BF16), m, j),
            store(self.sum, alu(Ops.ADD, kept, self.fold(Ops.ADD, power, j)), m),
            store(self.total, alu(Ops.MUL, load(self.total, m, d), rescale), m, d),
            store(self.top, after, m),
        )

    def math_role(self) -> Node:
        """A warpgroup: scores, update, product, for every tile of keys."""
        s, m, j, d = self.sizes, self.m, self.j, self.d
        k_slot, v_slot = (index.mod(self.step, p.arg.depth) for p in (self.k_pipe, self.v_pipe))
        row = index.add(index.mul(self.group, M_ATOM), m)
        q, key = load(self.staged_q, 0, row, d), load(self.staged_k, k_slot, j, d)
        fence = effect(Ops.FENCE, arg=Fence("registers", "wgmma"))
        ready = effect(Ops.DONE, arg=Done("mma", 0))
        never, always = const(False, dtypes.bool), const(True, dtypes.bool)
        times = wgmma(s.depth, a_space="register", b_major="n")
        power = load(self.power, m, j)
        operand = Node(Ops.CONVERT, BF16, (power,), operand_layouts(times, s.tile)[1])
        value = load(self.staged_v, v_slot, j, d)
        body = seq(
            effect(Ops.WAIT, self.k_pipe, self.step),
            fence,
            effect(Ops.MMA, self.scores, q, key, never, m, j, d, arg=wgmma(s.tile)),
            ready,
            effect(Ops.RELEASE, self.k_pipe, self.step),
            self.update(),
            effect(Ops.WAIT, self.v_pipe, self.step),
            fence,
            effect(Ops.MMA, self.total, operand, value, always, m, d, j, arg=times),
            ready,
            effect(Ops.RELEASE, self.v_pipe, self.step),
        )
        role = Role("math", 4 * s.groups, 4, 240)
        begin = seq(
            store(self.top, const(float("-inf"), F32), m),
            store(self.sum, const(0, F32), m),
            store(self.total, const(0, F32), m, d),
            effect(Ops.WAIT, self.q_pipe, self.once),
        )
        end = effect(Ops.RELEASE, self.q_pipe, self.once)
        whole = seq(begin, effect(Ops.LOOP, self.step, body), end, self.write())
        return effect(Ops.ROLE, whole, arg=role)

    def write(self) -> Node:
        """The delayed division, and the output through shared memory."""
        s, m, d = self.sizes, self.m, self.d
        value = cast(alu(Ops.DIV, load(self.total, m, d), load(self.sum, m)), BF16)
        row = index.add(index.mul(self.block, M_ATOM * s.groups), index.mul(self.group, M_ATOM))
        return seq(
            store(self.staged_o, value, self.group, m, d),
            effect(Ops.FENCE, arg=Fence("generic", "async")),
            effect(Ops.BARRIER, arg=Barrier("warpgroup")),
            copy(
                self.o, load(self.staged_o, self.group, m, d), index.add(row, m), d,
                how=CopyTo("tma_store"),
            ),
            effect(Ops.DONE, arg=Done("tma_store", 0)),
        )  # fmt: skip


def attention_hopper_loop(sizes: AttentionSizes) -> Node:
    """softmax(q k^T) v in bf16, as roles, with its synchronisation derived."""
    builder = Builder(sizes)
    blocks = sizes.queries // (M_ATOM * sizes.groups)
    info = KernelInfo("attention_hopper", "NV", (blocks,), 1, 4 + 4 * sizes.groups)
    body = (builder.load_role(), builder.math_role())
    return derive_synchronisation(Node(Ops.KERNEL, dtypes.token, body, info), HOPPER)
