"""Random statements of the loop level: every route gives what the loop level's evaluator gives.

Statements lie in loops and under conditions on loops, unrolled places, lanes and data, in any
order. They read memory, registers and shared memory, by places that may be read themselves, some
of them under guards, and fold what they read.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, cast, const, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.loop_level import evaluate_loop
from tests.render import gpu_harness
from tests.render.harness import (
    F32,
    I32,
    alloc,
    branch,
    fold,
    guard,
    kernel,
    load,
    loop,
    outputs,
    param,
    same_bits,
    store,
    unroll,
    vector,
)

pytestmark = pytest.mark.differential
STEPS, ROWS, COLUMNS, LANES = 2, 3, 2, 4
# Elements of an array beside those that are read under conditions alone.
ELEMENTS = 6


class Statements:
    """Makes random statements over one loop, two unrolled ranges and the lanes of a vector."""

    def __init__(self, rng: random.Random, on_gpu: bool) -> None:
        self.rng = rng
        self.step = range_node(STEPS, 0)
        self.tile = (unroll(ROWS, 1), unroll(COLUMNS, 2), vector(LANES, 3))
        shape = (STEPS, ROWS, COLUMNS, LANES)
        self.outs = [param(slot, *shape) for slot in (0, 1)]
        self.inputs = [param(slot, ELEMENTS) for slot in (2, 3)]
        self.places = param(4, ELEMENTS, dtype=I32)
        spaces = ("register", "shared" if on_gpu else "register")
        self.kept = [alloc(at, *shape[1:], space=space) for at, space in enumerate(spaces)]
        self.next_id = 10
        self.conditions: list[Node] = []
        self.values: list[Node] = []
        self.around: list[Node] = []

    def arrays(self) -> list[Any]:
        """Arguments: outputs, inputs, and places in them."""
        rng = np.random.default_rng(self.rng.randrange(1 << 30))
        outs = [rng.integers(-4, 5, out.arg.shape).astype(np.float32) for out in self.outs]
        inputs = [rng.integers(-4, 5, ELEMENTS).astype(np.float32) for _ in self.inputs]
        return [*outs, *inputs, rng.integers(0, ELEMENTS, ELEMENTS).astype(np.int32)]

    def kernel(self) -> Node:
        """A kernel whose registers are all set before they are read."""
        begin = [store(one, const(2.0, F32), *self.tile) for one in self.kept]
        return kernel(*begin, loop(self.step, *self.body(0)))

    def body(self, depth: int) -> list[Node]:
        """Statements, some of them under a condition or in a loop of their own."""
        found = []
        for _ in range(self.rng.randint(1, 3)):
            if depth < 3 and self.rng.random() < 0.5:
                self.around.append(self.condition(self.tile))
                found.append(branch(self.around[-1], *self.body(depth + 1)))
                self.around.pop()
            elif depth < 3 and self.rng.random() < 0.15:
                self.next_id += 1
                again = range_node(2, self.next_id)
                found.append(loop(again, *self.body(depth + 1)))
            else:
                found.append(self.store())
        return found

    def store(self) -> Node:
        value = self.value(2, self.tile)
        if self.rng.random() < 0.6:
            return store(self.rng.choice(self.outs), value, self.step, *self.tile)
        return store(self.rng.choice(self.kept), value, *self.tile)

    def place(self, axes: tuple[Node, ...]) -> tuple[Any, int]:
        """An index, and what it is smaller than."""
        some = [(axis, axis.src[0].arg) for axis in (*axes, self.step)]
        total: Any = self.rng.randrange(2)
        most = total + 1
        for axis, size in self.rng.sample(some, self.rng.randint(0, min(len(some), 2))):
            total, most = index.add(total, axis), most + size - 1
        return total, most

    def condition(self, axes: tuple[Node, ...]) -> Node:
        """A condition on places, on data or on both; mostly one that is there already."""
        rng = self.rng
        known = [one for one in self.conditions if self.fits(one, axes)]
        if known and rng.random() < 0.4:
            return rng.choice(known)
        which = rng.randrange(4)
        place, most = self.place(axes)
        if which == 0:
            found = index.as_node(index.less(place, rng.randint(1, most)))
        elif which == 1:
            # No constant before the last passes.
            half = index.floordiv(index.mul(place, -1), 2)
            found = index.as_node(index.less(half, -rng.randrange(2)))
        elif which == 2:
            three = index.as_node(index.mod(place, 3))
            found = alu(Ops.CMPEQ, three, const(rng.randrange(3), dtypes.index))
        else:
            found = alu(Ops.CMPLT, self.value(1, axes), const(1.0, F32))
        if found.op is Ops.CONST:
            return self.condition(axes)
        self.conditions.append(found)
        return found

    def fits(self, node: Node, axes: tuple[Node, ...]) -> bool:
        """Whether a value or condition that is there already may stand for one along some axes."""
        folds = [one for one in toposort(node) if one.op is Ops.REDUCE]
        lanes = any(axis.arg.bind == "vector" for one in folds for axis in one.src[1:])
        return node.ranges <= {*axes, self.step} and not (lanes and self.has_lanes(axes))

    def has_lanes(self, axes: tuple[Node, ...]) -> bool:
        """Whether something has lanes already, which a fold of others may not meet."""
        return any(self.tile[2] in one.ranges for one in (*axes, *self.around))

    def value(self, depth: int, axes: tuple[Node, ...]) -> Node:
        """A value that differs along no other axes than these and the loop."""
        rng = self.rng
        known = [one for one in self.values if self.fits(one, axes)]
        if known and rng.random() < 0.3:
            return rng.choice(known)
        found = self._value(depth, axes)
        if found.op is not Ops.CONST:
            self.values.append(found)
        return found

    def _value(self, depth: int, axes: tuple[Node, ...]) -> Node:
        rng = self.rng
        which = rng.randrange(9) if depth else rng.randrange(3)
        if which == 0 and axes == self.tile and depth:
            if rng.random() < 0.4:
                return load(rng.choice(self.outs), self.step, *axes)
            return load(rng.choice(self.kept), *axes)
        if which == 0 and self.tile[2] in axes:
            steps = [axis for axis in axes if axis.arg.bind == "unroll"]
            dims: list[Any] = [rng.randrange(ROWS), rng.randrange(COLUMNS)]
            for dim, size in enumerate((ROWS, COLUMNS)):
                few = [axis for axis in steps if axis.src[0].arg <= size]
                if few and rng.random() < 0.7:
                    dims[dim] = rng.choice(few)
            return load(rng.choice(self.kept), *dims, self.tile[2])
        if which <= 1:
            return self.read(axes)
        if which == 2:
            at, most = self.place(axes)
            where = load(self.places, at)
            if rng.random() < 0.5 or most > ELEMENTS:
                where = guard(index.as_node(index.less(at, rng.randint(1, ELEMENTS))), where)
            return load(rng.choice(self.inputs), cast(where, dtypes.index))
        if which == 3:
            return guard(self.condition(axes), self.read(axes))
        if which == 4:
            return guard(self.condition(axes), self.arithmetic(depth, axes))
        if which == 5:
            self.next_id += 1
            lanes = rng.random() < 0.5 and not self.has_lanes(axes)
            inner = (vector if lanes else unroll)(rng.choice((2, 3, 4)), self.next_id)
            own = self.value(depth - 1, (*axes, inner))
            return fold(rng.choice((Ops.ADD, Ops.MAX)), own, inner)
        if which == 6 and axes:
            return self.value(depth, tuple(rng.sample(axes, len(axes) - 1)))
        return self.arithmetic(depth, axes)

    def read(self, axes: tuple[Node, ...]) -> Node:
        """An element of an input; where it may lie outside, under a guard that it does not."""
        place, most = self.place(axes)
        if self.rng.random() < 0.3:
            more = self.rng.randrange(ELEMENTS)
            place, most = index.add(place, more), most + more
        found = load(self.rng.choice(self.inputs), place)
        if most <= ELEMENTS:
            return found
        return guard(index.as_node(index.less(place, ELEMENTS)), found)

    def arithmetic(self, depth: int, axes: tuple[Node, ...]) -> Node:
        op = self.rng.choice((Ops.ADD, Ops.MAX, Ops.MUL))
        first = self.value(depth - 1, axes)
        if op is Ops.MUL:
            return alu(op, first, const(0.5, F32))
        return alu(op, first, self.value(depth - 1, axes))


def check_random(seed: int, on_gpu: bool, routes: tuple[str, ...] = ("loop", "linear")) -> None:
    """Assert that a random kernel gives the same bits by all routes; PTX is one on a GPU."""
    made = Statements(random.Random(seed), on_gpu)
    node, arrays = made.kernel(), made.arrays()
    found = {}
    if on_gpu:
        found = {route: [np.array(one) for one in arrays] for route in ("loop", "ptx")}
        evaluate_loop(node, found["loop"])
        node = node.replace(arg=node.arg._replace(device="GPU", block=(1, 1, 1)))
        program = gpu_harness.lower(node, gpu_harness.HOPPER)
        gpu_harness.run_ptx(program, found["ptx"])
    else:
        found = outputs(node, arrays, routes=routes)
    for route, ours in found.items():
        for slot, (one, other) in enumerate(zip(found["loop"], ours, strict=True)):
            assert same_bits(one, other), f"seed {seed}, slot {slot}: loop {one}, {route} {other}"


# In the last one a store's own condition reads, at other places, what it writes.
SEEDS = [*range(30), *[pytest.param(seed, marks=pytest.mark.slow) for seed in range(30, 788)]]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_statements(seed: int) -> None:
    check_random(seed, False, ("loop", "linear", "llvm") if seed % 10 == 0 else ("loop", "linear"))


# In the last ones what is read under a condition is read again further out, or is part of that.
@pytest.mark.parametrize("seed", [*SEEDS[:15], *SEEDS[30:500], 3290, 3878])
def test_random_statements_of_a_gpus_thread(seed: int) -> None:
    check_random(seed, True)
