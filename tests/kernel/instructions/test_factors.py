"""Factors that are computed as they are copied: every level and the PTX agree."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import numpy as np
import pytest

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, cast, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.alu import to_array
from baregrad.kernel import choose_schedule, lower, parse_schedule
from baregrad.render import get
from baregrad.testing.examples.levels import example_target
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, check_gpu, lowered, run_text

HALF, BRAIN, F32 = dtypes.float16, dtypes.bfloat16, dtypes.float32
HEAD = (
    "split('i0', outer='a', w=2, u=1, m=16, masked=True),"
    "split('i1', outer='b', v=2, n=8, masked=True),"
    "split('r2', outer='ko', ki=2, kk=16, masked=True), bind('a', 'grid'), bind('b', 'grid'),"
    "bind('w', 'thread_y'), bind('u', 'unroll'), bind('v', 'unroll'),"
    "tensorize('m', 'n', 'kk', instruction='mma')"
)
COPIES = "stage_factor(0, 'w', 'u', 'm', 'ki', 'kk'), stage_factor(1, 'v', 'n', 'ki', 'kk')"
PIPES = ("", ", pipeline('ko')", ", pipeline('ko', 3, 'async')")
Factor = Callable[[Node, Node, tuple[int, int], DType], Node]


def rounded(i: Node, q: Node, shape: tuple[int, int], dtype: DType) -> Node:
    """Elements of float32, rounded."""
    return cast(k.at(k.param(1, *shape, dtype=F32), i, q), dtype)


def scaled(i: Node, q: Node, shape: tuple[int, int], dtype: DType) -> Node:
    """Elements times a number, rounded."""
    element = cast(k.at(k.param(1, *shape, dtype=dtype), i, q), F32)
    return cast(alu(Ops.MUL, element, k.const(0.3, F32)), dtype)


def normal(i: Node, q: Node, shape: tuple[int, int], dtype: DType) -> Node:
    """Elements less something of their row, times something of it and of their column."""
    element = cast(k.at(k.param(1, *shape, dtype=dtype), i, q), F32)
    mean, scale = (k.at(k.param(slot, shape[0]), i) for slot in (3, 4))
    weight = cast(k.at(k.param(5, shape[1], dtype=dtype), q), F32)
    centred = alu(Ops.MUL, alu(Ops.SUB, element, mean), scale)
    return cast(alu(Ops.MUL, centred, weight), dtype)


def shifted(i: Node, q: Node, shape: tuple[int, int], dtype: DType) -> Node:
    """Elements of the next column, and 1 past the last one: a guard inside of an expression."""
    place = index.as_node(index.add(q, 1))
    inside = index.less(place, shape[1])
    element = Node(Ops.GUARD, dtype, (inside, k.at(k.param(1, *shape, dtype=dtype), i, place)))
    return alu(Ops.WHERE, inside, element, k.const(1.0, dtype))


def padded(i: Node, q: Node, shape: tuple[int, int], dtype: DType) -> Node:
    """Elements of the row before, and zeros: a guarded read."""
    place = index.as_node(index.sub(i, 1))
    read = k.at(k.param(1, *shape, dtype=dtype), place, q)
    return Node(Ops.GUARD, dtype, (index.less(-1, place), read))


def dequantised(i: Node, q: Node, shape: tuple[int, int], dtype: DType) -> Node:
    """Bytes with a scale for each sixteen of a row."""
    code = cast(k.at(k.param(1, *shape, dtype=dtypes.int8), i, q), F32)
    group = index.as_node(index.floordiv(q, 16))
    scale = k.at(k.param(3, shape[0], -(-shape[1] // 16)), i, group)
    return cast(alu(Ops.MUL, code, scale), dtype)




def pushed(i: Node, q: Node, shape: tuple[int, int], dtype: DType) -> Node:
    """Something of the elements of the row before, and zeros: a guard around an expression."""
    place = index.as_node(index.sub(i, 1))
    element = cast(k.at(k.param(1, *shape, dtype=dtype), place, q), F32)
    value = cast(alu(Ops.MUL, element, k.const(3.0, F32)), dtype)
    return Node(Ops.GUARD, dtype, (index.less(-1, place), value))


def gathered(i: Node, q: Node, shape: tuple[int, int], dtype: DType) -> Node:
    """Elements of rows that an array of indices tells: those outside are zeros."""
    row = cast(k.at(k.param(3, shape[0], dtype=dtypes.int32), i), dtypes.index)
    read = k.at(k.param(1, *shape, dtype=dtype), row, q)
    return Node(Ops.GUARD, dtype, (index.inside(row, shape[0]), read))


FACTORS: tuple[Factor, ...] = (
    rounded, scaled, normal, shifted, padded, pushed, dequantised, gathered
)  # fmt: skip


def product(
    make: Factor, m: int, n: int, r: int, dtype: DType = BRAIN, turned: bool = False
) -> Node:
    """c = f(a) b, or with b turned; `make` is f."""
    i, j, q = (k.range_node(size, place) for place, size in enumerate((m, n, r)))
    b = k.param(2, *((r, n) if turned else (n, r)), dtype=dtype)
    right = cast(k.at(b, *((q, j) if turned else (j, q))), F32)
    left = cast(make(i, q, (m, r), dtype), F32)
    total = k.reduce(Ops.ADD, alu(Ops.MUL, left, right), q)
    return k.kernel(k.out(k.param(0, m, n), total, i, j), name="matmul")


@pytest.mark.parametrize("pipe", PIPES, ids=["", "lanes", "async"])
@pytest.mark.parametrize("make", FACTORS, ids=lambda make: make.__name__)
def test_a_factor_is_computed_as_it_is_copied(make: Factor, pipe: str) -> None:
    check_gpu(product(make, 32, 16, 64), f"Schedule({HEAD}, {COPIES}{pipe})")


@pytest.mark.parametrize("shape", [(40, 20, 50), (33, 9, 33), (70, 8, 47)])
@pytest.mark.parametrize("pipe", PIPES, ids=["", "lanes", "async"])
def test_what_is_past_the_end_adds_nothing(shape: tuple[int, int, int], pipe: str) -> None:
    """Less the mean, a zero is no zero."""
    check_gpu(product(normal, *shape, dtype=HALF), f"Schedule({HEAD}, {COPIES}{pipe})")
    check_gpu(product(shifted, *shape, turned=True), f"Schedule({HEAD}, {COPIES}{pipe})")


@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
@pytest.mark.parametrize("make", FACTORS, ids=lambda make: make.__name__)
def test_the_first_schedule_computes_any_factor_as_it_is_copied(
    make: Factor, turned: bool
) -> None:
    kernel = product(make, 48, 64, 96, turned=turned)
    schedule = choose_schedule(kernel, HOPPER)
    assert "tensorize" in str(schedule)
    program = check_gpu(kernel, schedule)
    asynchronous = [n for n in program.src if n.op is Ops.MACHINE and n.arg.name == "cp.async"]
    # What lies in whole words goes by itself, wherever an index says that it is.
    assert len(asynchronous) > 0
    stored = [n for n in program.src if n.op is Ops.VSTORE and n.src[0].op is Ops.ALLOC]
    # Zeros past an edge are no values.
    stored = [n for n in stored if any(one.op is Ops.VLOAD for one in toposort(n.src[2]))]
    assert bool(stored) == (make not in (padded, gathered))


@pytest.mark.property
@pytest.mark.parametrize("seed", range(12))
def test_any_tiles_copies_and_sizes(seed: int) -> None:
    """Every level and the PTX agree about random schedules; races are found out."""
    rng = random.Random(seed)
    w, u, v, ki = (rng.choice((1, 2)) for _ in range(4))
    beside = rng.choice((1, 2, 4))
    own = "'w', 'u', 'm'", "'v', 'nv', 'n'"
    copies = []
    for place, names in enumerate(own):
        axes = rng.choice((f"{names}, 'ki', 'kk'", f"'ki', 'kk', {names}"))
        copies.append(f"stage_factor({place}, {axes}{rng.choice(('', ', pad=8'))})")
    text = (
        f"Schedule(split('i0', outer='a', w={w}, u={u}, m=16, masked=True),"
        f"split('i1', outer='b', v={v}, n=8, nv={beside}, masked=True),"
        f"split('r2', outer='ko', ki={ki}, kk=16, masked=True), bind('a', 'grid'),"
        "bind('b', 'grid'), bind('w', 'thread_y'), bind('u', 'unroll'), bind('v', 'unroll'),"
        "bind('nv', 'vector'), tensorize('m', 'n', 'kk', instruction='mma'),"
        f"{', '.join(copies)}{rng.choice(PIPES)})"
    )
    m, n, r = rng.randrange(1, 70), rng.randrange(1, 70), rng.randrange(16 * ki + 1, 100)
    dtype = rng.choice((HALF, BRAIN))
    check_gpu(product(rng.choice(FACTORS), m, n, r, dtype, rng.random() < 0.5), text)


def test_rows_are_swizzled_and_padded() -> None:
    head = HEAD.replace("ki=2", "ki=4")
    copies = ("stage_factor(0, 'w', 'u', 'm', 'ki', 'kk', swizzle=3),"
              "stage_factor(1, 'ki', 'kk', 'v', 'n', pad=8)")  # fmt: skip
    for pipe in PIPES:
        check_gpu(product(scaled, 64, 16, 192, turned=True), f"Schedule({head}, {copies}{pipe})")


def test_both_factors_may_be_of_one_array() -> None:
    """c = a a^T: a copy for each place of the product."""
    i, j, q = (k.range_node(size, place) for place, size in enumerate((32, 32, 64)))
    a = k.param(1, 32, 64, dtype=HALF)
    left, right = (cast(k.at(a, each, q), F32) for each in (i, j))
    total = k.reduce(Ops.ADD, alu(Ops.MUL, left, right), q)
    kernel = k.kernel(k.out(k.param(0, 32, 32), total, i, j), name="gram")
    check_gpu(kernel, f"Schedule({HEAD}, {COPIES}, pipeline('ko', 3, 'async'))")


def test_copies_store_sixteen_bytes_at_once() -> None:
    """As many elements as the read has together; those of float32 come by two loads."""
    for make in (rounded, scaled, normal):
        _, program = lowered(product(make, 32, 16, 64), f"Schedule({HEAD}, {COPIES})")
        text = get("ptx").render(program, HOPPER)
        assert (text.count("st.shared.v4.b32"), text.count("st.shared.b16")) == (3, 0)


def test_sums_are_those_of_numpy_in_float64() -> None:
    """Independent of our own evaluators of the kernel: exact products, float32's rounding."""
    kernel = product(rounded, 32, 16, 256)
    loop, program = lowered(kernel, f"Schedule({HEAD}, {COPIES}, pipeline('ko', 3, 'async'))")
    arrays = k.arguments(kernel)
    left = to_array(arrays[1], F32)
    bits = left.view(np.uint32)
    nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).view(np.float32)
    right = to_array(arrays[2], BRAIN).astype(np.float64)
    found = run_text(loop, program, arrays)[0]
    wanted = nearest.astype(np.float64) @ right.T
    assert np.abs(found - wanted).max() < 256 * 2.0**-24 * np.abs(wanted).max()


REFUSED = (
    ("stage_factor(0, 'w', 'm', 'ki', 'kk')", "wanted stage_factor of both factors"),
    ("stage_factor(0, 'ki'), stage_factor(0, 'ki')", "the factor is kept already"),
    ("stage_factor(0, 'v', 'n', 'ki', 'kk')", "runs along all of these axes"),
    ("stage_factor(2, 'ki')", "arguments of the wrong type"),
)


@pytest.mark.parametrize(("steps", "message"), REFUSED)
def test_what_is_no_factor_is_refused(steps: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(message)):
        lowered(product(scaled, 32, 16, 64), f"Schedule({HEAD}, {steps})")


def test_other_kernels_and_machines_have_no_such_factors() -> None:
    with pytest.raises(ScheduleError, match="one sum, of products"):
        lowered(k.row_reduce(32, 64), "Schedule(stage_factor(0, 'r1'))")
    with pytest.raises(ScheduleError, match="only a GPU's block"):
        lower(product(scaled, 32, 16, 64), example_target(),
              parse_schedule("Schedule(stage_factor(0, 'r2'))"))
