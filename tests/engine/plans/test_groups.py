"""Launches that have nothing to do with each other, as one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad import bind, optim, render, variable
from baregrad.dtypes import dtypes
from baregrad.engine.compiler import Compiler
from baregrad.engine.plans.groups import LARGE, MOST_MEMBERS, MOST_SMALL, grouped
from baregrad.engine.session import current_session
from baregrad.graph import canonicalise
from baregrad.ir.core.attrs import Param, Reduce
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node, alu, const
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.kernel_level import evaluate_kernel
from baregrad.ir.verify.verify import verify
from baregrad.kernel import choose
from baregrad.kernel.facts.analysis import facts_of, iterations
from baregrad.kernel.language.schedule import Bind
from baregrad.schedule import make_plan
from baregrad.schedule.plan import Plan
from baregrad.target import gpu_row
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit
from baregrad.testing.ptx_device import ptx_session

HOPPER = gpu_row("sm_90a")
F32 = dtypes.float32
RNG = np.random.default_rng(5)


def argument(slot: int, *shape: int) -> Node:
    return Node(Ops.PARAM, F32, (), Param(slot, shape))


def plan_of(*values: Node) -> Plan:
    sink = Node(Ops.SINK, dtypes.token, values)
    return grouped(make_plan(canonicalise(sink, None, HOPPER), donate={}, target=HOPPER))


def doubled(x: Node) -> Node:
    two = Node(Ops.EXPAND, F32, (Node(Ops.RESHAPE, F32, (const(2.0, F32),), (1,) * len(x.shape)),),
               x.shape)
    return alu(Ops.ADD, alu(Ops.MUL, x, two), x)


def test_values_of_arrays_of_their_own_are_one_launch() -> None:
    shapes = ((16, 4), (100,), (4,), (8192,))
    plan = plan_of(*[doubled(argument(slot, *shape)) for slot, shape in enumerate(shapes)])
    assert len(plan.kernels) == 1
    (step,) = plan.steps
    verify(step.kernel, "kernel")
    arrays = [RNG.standard_normal(shape).astype(np.float32) for shape in shapes]
    given: dict[int, Any] = {}
    for slot, place in enumerate(step.buffers):
        buffer = plan.buffers[place]
        held = arrays[buffer.slot] if buffer.kind == "param" else np.zeros(buffer.shape, np.float32)
        given[slot] = np.ascontiguousarray(held).reshape(-1)
    evaluate_kernel(step.kernel, given)
    found = {place: given[slot] for slot, place in enumerate(step.buffers)}
    for place, array in zip(plan.outputs, arrays, strict=True):
        np.testing.assert_array_equal(found[place], (array * 2 + array).reshape(-1))


def test_others_are_launches_of_their_own() -> None:
    x, y = argument(0, 64), argument(1, 1 << 12, LARGE >> 12)
    total = Node(Ops.REDUCE, F32, (y,), Reduce(primitive(Ops.ADD, F32), (1,)))
    turned = Node(Ops.PERMUTE, F32, (y,), (1, 0))
    # A sum, a large one that is read in another order, and one of values that depend on a sum.
    assert len(plan_of(doubled(x), total).kernels) == 2
    assert len(plan_of(doubled(x), doubled(turned)).kernels) == 2
    # What reads the other's result is not beside it.
    stored = Node(Ops.CONTIGUOUS, F32, (doubled(x),))
    assert len(plan_of(doubled(stored)).kernels) == 2


def test_what_is_written_to_a_part_of_an_array_leaves_the_rest() -> None:
    @jit
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x, y = x * 1.5, y * 2.5
        x[Tensor.arange(8)] = 7.0
        y[Tensor.arange(8)] = 7.0
        return x, y

    x, y = RNG.standard_normal((2, 16)).astype(np.float32)
    with ptx_session():
        found = [array.numpy() for array in step(Tensor(x), Tensor(y))]
    for array, whole in zip(found, (x * np.float32(1.5), y * np.float32(2.5)), strict=True):
        np.testing.assert_array_equal(array, np.concatenate((np.full(8, 7.0), whole[8:])))


def test_groups_have_no_more_than_so_many_members() -> None:
    for most, size in ((MOST_SMALL, 4), (MOST_MEMBERS, LARGE)):
        values = [doubled(argument(slot, size + 4 * slot)) for slot in range(2 * most + 1)]
        assert len(plan_of(*values).kernels) == 3


def test_large_and_small_members_are_apart() -> None:
    """What threads of large ones do would mostly lie beyond the ends of small ones."""
    sizes = (LARGE, 768, 2 * LARGE, 768)
    plan = plan_of(*[doubled(argument(slot, size)) for slot, size in enumerate(sizes)])
    written = [sorted(out.src[0].shape for out in kernel.src) for kernel in plan.kernels]
    assert written == [[(768,)] * 2, [(LARGE,), (2 * LARGE,)]]


def test_bodies_of_many_members_are_short() -> None:
    """A thread has one access of each array, of one as of eight: all is code."""

    def heavy(x: Node) -> Node:
        for _ in range(10):
            x = doubled(alu(Ops.DIV, doubled(x), x))
        return x

    unrolled = []
    for count in (1, MOST_MEMBERS):
        values = [heavy(argument(slot, 1 << 25)) for slot in range(count)]
        (kernel,) = plan_of(*values).kernels
        steps = choose(kernel, HOPPER).schedule.steps
        unrolled.append(any(isinstance(one, Bind) and one.unit == "unroll" for one in steps))
    assert unrolled == [False, False]


SHAPES = ((64, 128), (128,), (100,), (4,), (3,), (1,), (20, 5))


def trained(jitted: bool) -> list[Any]:
    """Parameters and states after steps of AdamW, computed alike on every device."""
    random = np.random.default_rng(0)
    parameters = [Tensor(random.standard_normal(s).astype(np.float32)) for s in SHAPES]
    for parameter in parameters:
        parameter.requires_grad_()
    optimiser = optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)

    def step(*gradients: Tensor) -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimiser.step()

    run = jit(step) if jitted else step
    for _ in range(3):
        run(*[Tensor(random.standard_normal(s).astype(np.float32)) for s in SHAPES])
    states = [tensor for state in optimiser.state.values() for tensor in state.values()]
    return [tensor.numpy() for tensor in (*parameters, *states)]


@pytest.mark.parametrize("jitted", (False, True))
def test_a_step_of_an_optimiser_has_the_bits_of_the_cpu(jitted: bool) -> None:
    wanted = trained(False)
    with ptx_session():
        assert current_session().default_device() == "NV"
        found = trained(jitted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def test_blocks_skip_what_is_not_theirs() -> None:
    """Also where the last block of a member is not full: others ask no thread for it."""
    shapes = ((1 << 21,), (3072,), ((1 << 21) + 4,), (1000,), (8192 + 4,))
    plan = plan_of(*[doubled(argument(n, *shape)) for n, shape in enumerate(shapes)])
    branches = 0
    for kernel in plan.kernels:
        *_, last = Compiler(HOPPER, render.get("ptx"), None, None).stages(kernel)
        for line in str(last.result).splitlines():
            branches += line.startswith("  @!") and " bra " in line
            if "ld.global" in line or "st.global" in line:
                assert line.startswith("    "), line  # inside a branch
    assert branches == len(shapes)


def test_arrays_that_rows_are_written_into_are_not_copied() -> None:
    """As the pages of a cache, of which a step of decoding writes one row each."""
    with ptx_session() as session:
        arrays = [Tensor.zeros(4096, 4).contiguous().realize() for _ in range(3)]
        runs: list[Any] = []
        session.watching.observers.append(runs.append)

        def step(place: Tensor, rows: Tensor) -> None:
            for number, array in enumerate(arrays):
                array[place] = rows + number

        run = jit(step)
        place = Tensor(np.array([7, 4000]))
        for _ in range(4):
            run(place, Tensor(np.ones((2, 4), np.float32)))
        found = [array.numpy() for array in arrays]
        points = [iterations(facts_of(kernel).data) for kernel in runs[-1].executable.plan.kernels]
        del run
    assert points
    assert max(points) <= 8
    for number, array in enumerate(found):
        assert array.sum() == 8 * (1 + number)


def test_rows_that_are_written_to_pages_and_turned_are_one_launch() -> None:
    """As of one token: a value and a turned key into its page, and a turned query, side by side."""
    random = np.random.default_rng(3)
    given = random.standard_normal((40, 16)).astype(np.float32)
    angles = random.standard_normal((2, 8)).astype(np.float32)
    with ptx_session() as session:
        cache = [Tensor.zeros(5, 4, 8, 16).contiguous().realize() for _ in range(2)]

        def turned(rows: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
            first, second = rows.chunk(2, -1)
            return Tensor.cat(first * cosines - second * sines, second * cosines + first * sines,
                              dim=-1)

        def step(rows: Tensor, angles: Tensor, page: Tensor, place: Tensor) -> Tensor:
            cache[1][page, place] = rows[None, 32:]
            cache[0][page, place] = turned(rows[None, 24:32], angles[0], angles[1])
            return turned(rows[:24], angles[0], angles[1])

        run = jit(step)
        device = session.backend("NV").device
        for number in range(4):
            arguments = [Tensor(given + number), Tensor(angles), *(
                Tensor(np.array([number + first], np.int64)) for first in (1, 0)
            )]
            for one in arguments:
                one.realize()
            before = device.launches
            query = run(*arguments)
            found = query.numpy()
            launches = device.launches - before
        pages = [array.numpy() for array in cache]
        del run, arguments, query, cache[:]
    first, second = np.split(given, 2, -1)
    assert launches == 1
    for number in range(4):
        first, second = np.split(given + np.float32(number), 2, -1)
        whole = np.concatenate(
            (first * angles[0] - second * angles[1], second * angles[0] + first * angles[1]), -1
        )
        np.testing.assert_allclose(pages[0][number + 1, number], whole[24:32], rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(pages[1][number + 1, number], given[32:] + np.float32(number))
    np.testing.assert_allclose(found, whole[:24], rtol=1e-6, atol=1e-6)
    assert not pages[0][0].any()
    assert not pages[1][4, :3].any()


@pytest.mark.parametrize(("count", "is_symbolic"), [(16, False), (16, True), (5, True)])
def test_where_rows_go_is_read_within_the_arrays_that_say_so(
    count: int, is_symbolic: bool
) -> None:
    """Of several tokens: blocks of the one member look nothing up for rows of the other."""
    keys, values = RNG.standard_normal((2, 16, 4, 8)).astype(np.float32)
    table = (7 * np.arange(16) % 19).astype(np.int32)
    with ptx_session() as session:
        cache = [Tensor.zeros(19, 16, 4, 8).contiguous().realize() for _ in range(2)]
        given = [Tensor(array).realize() for array in (keys, values, table)]
        rows: Any = bind(variable("rows", 1, 16), count) if is_symbolic else count
        runs: list[Any] = []
        session.watching.observers.append(runs.append)
        page = given[2][:rows] + 0
        for array, new in zip(cache, given, strict=False):
            array[page, page % 16] = new[:rows]
        cache[0].realize(cache[1])
        names = [kernel.arg.name for kernel in runs[-1].executable.plan.kernels]
        found = [array.numpy() for array in cache]
        del cache, given, page, array, new, runs
    assert "maps_2_16384" in names
    for array, new in zip(found, (keys, values), strict=True):
        wanted = np.zeros_like(array)
        wanted[table[:count], table[:count] % 16] = new[:count]
        np.testing.assert_array_equal(array, wanted)
