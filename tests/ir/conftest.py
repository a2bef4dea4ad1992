"""Random tensor-level graphs for the tests of this room."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from baregrad.dtypes import COMPUTED, DType, dtypes
from baregrad.ir.core.attrs import Pad, Param, Reduce, Scan, Scatter, Slice, Window
from baregrad.ir.core.monoid import arg_extreme, primitive
from baregrad.ir.core.node import Node, alu, cast, const
from baregrad.ir.core.op import ALU, WORD_PRODUCTS, Ops

VIEWS = ("RESHAPE", "PERMUTE", "EXPAND", "PAD", "SHRINK", "FLIP", "WINDOW")
Graph = Callable[[random.Random, int], Node]


class Maker:
    """Grows a pool of arrays by random ops that are legal for them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.pool: list[Node] = []
        for slot in range(3):
            shape = tuple(rng.choice((1, 2, 3, 4)) for _ in range(rng.randrange(1, 4)))
            self.pool.append(Node(Ops.PARAM, self.kind(), (), Param(slot, shape)))

    def kind(self) -> DType:
        return self.rng.choice((dtypes.float32, dtypes.int32, *COMPUTED))

    def grow(self) -> None:
        makers = (self.elementwise, self.elementwise, self.view, self.view, self.fold, self.index)
        made = self.rng.choice(makers)(self.rng.choice(self.pool))
        size = 1
        for extent in made.shape if made is not None else ():
            size *= extent
        if made is not None and 0 < size < 400:
            self.pool.append(made)

    def fitting(self, x: Node) -> Node:
        """An operand of x's shape and dtype."""
        same = [n for n in self.pool if n.shape == x.shape and n.dtype is x.dtype]
        choice = self.rng.random()
        if same and choice < 0.6:
            return self.rng.choice(same)
        if choice < 0.8:
            return const(self.rng.choice((0, 1, 2, 3)), x.dtype)
        shaped = [n for n in self.pool if n.shape == x.shape]
        return cast(self.rng.choice(shaped), x.dtype)

    def elementwise(self, x: Node) -> Node | None:
        ops = [op for op in sorted(ALU, key=str) if "tensor" in op.levels]
        op = self.rng.choice([op for op in ops if x.dtype.kind in op.kinds])
        only = {
            Ops.THREEFRY: dtypes.uint64, **dict.fromkeys(WORD_PRODUCTS, dtypes.int32)
        }.get(op, x.dtype)  # fmt: skip
        if x.dtype is not only:
            return cast(x, self.kind())
        if op is Ops.WHERE:
            return alu(op, cast(x, dtypes.bool), x, self.fitting(x))
        if self.rng.random() < 0.2:
            return cast(x, self.kind())
        return alu(op, x, *(self.fitting(x) for _ in range(op.arity[0] - 1)))

    def view(self, x: Node) -> Node | None:
        rank = len(x.shape)
        if not rank:
            return None
        op = self.rng.choice(VIEWS)
        axis = self.rng.randrange(rank)
        shape = list(x.shape)
        if op == "RESHAPE":
            arg: object = (x.shape[0], 1, *x.shape[1:]) if rank < 4 else (-1,)
            if rank > 1 and self.rng.random() < 0.6:
                arg = (x.shape[0] * x.shape[1], *x.shape[2:])
            if arg == (-1,):
                return None
        elif op == "PERMUTE":
            arg = tuple(self.rng.sample(range(rank), rank))
        elif op == "EXPAND":
            arg = tuple(self.rng.choice((2, 3)) if e == 1 else e for e in shape)
        elif op == "PAD":
            arg = tuple(Pad(*self.rng.choices((0, 0, 1, 2), k=3)) for _ in shape)
        elif op == "SHRINK":
            arg = tuple(self.slice(extent) for extent in shape)
        elif op == "FLIP":
            arg = tuple(sorted(self.rng.sample(range(rank), self.rng.randrange(1, rank + 1))))
        else:
            arg = Window(axis, 2, self.rng.choice((1, 2)), 1)
            if shape[axis] < 2:
                return None
            windowed = Node(Ops.WINDOW, x.dtype, (x,), arg)
            if self.rng.random() < 0.5 or x.dtype.kind == "bool":
                return windowed
            fold = Window(axis, 2, arg.stride, 1, shape[axis])
            return Node(Ops.FOLD, x.dtype, (windowed,), fold)
        return Node(getattr(Ops, op), x.dtype, (x,), arg)

    def slice(self, extent: int) -> Slice:
        start = self.rng.randrange(extent)
        return Slice(start, self.rng.randrange(start + 1, extent + 1), self.rng.choice((1, 1, 2)))

    def fold(self, x: Node) -> Node | None:
        rank = len(x.shape)
        if not rank:
            return None
        axes = tuple(sorted(self.rng.sample(range(rank), self.rng.randrange(1, rank + 1))))
        ops = [op for op in (Ops.ADD, Ops.MUL, Ops.MAX, Ops.MIN, Ops.AND, Ops.XOR)
               if x.dtype.kind in op.kinds]  # fmt: skip
        monoid = primitive(self.rng.choice(ops), x.dtype)
        choice = self.rng.random()
        if choice < 0.2:
            return Node(Ops.SCAN, x.dtype, (x,), Scan(monoid, axes[0]))
        if choice < 0.4:
            places = const(0, dtypes.int64)
            best = arg_extreme(self.rng.choice((Ops.MAX, Ops.MIN)), x.dtype)
            both = Node(Ops.REDUCE, x.dtype, (x, places), Reduce(best, axes))
            part = self.rng.randrange(2)
            return Node(Ops.PROJ, best.states[part], (both,), part)
        return Node(Ops.REDUCE, x.dtype, (x,), Reduce(monoid, axes))

    def index(self, x: Node) -> Node | None:
        rank = len(x.shape)
        if rank != 1:
            return None
        count = self.rng.choice((1, 3, 5))
        iota = Node(Ops.IOTA, dtypes.int64, (), count)
        places = alu(Ops.MOD, alu(Ops.MUL, iota, const(7, dtypes.int64)),
                     const(x.shape[0], dtypes.int64))  # fmt: skip
        picked = Node(Ops.GATHER, x.dtype, (x, places))
        if self.rng.random() < 0.5:
            return picked
        how = primitive(Ops.MAX, x.dtype) if self.rng.random() < 0.5 else None
        return Node(Ops.SCATTER, x.dtype, (x, picked, places), Scatter(how))


@pytest.fixture(autouse=True)
def _own_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Graphs that a VerifyError saves go where the test's other files go."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def random_tensor_graph() -> Graph:
    """A function of a random generator and a size: a graph over three PARAMs."""

    def make(rng: random.Random, size: int) -> Node:
        maker = Maker(rng)
        for _ in range(size):
            maker.grow()
        return Node(Ops.SINK, dtypes.token, tuple(maker.pool[-3:]))

    return make
