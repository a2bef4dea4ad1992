"""Sums that a warp's matrix unit makes: every level and the PTX agree, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node, alu, cast
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.alu import to_array
from baregrad.kernel import choose_schedule, lower, parse_schedule
from baregrad.render import get
from baregrad.target import gpu_row
from baregrad.target.gpu import GPU_ROWS
from baregrad.tensor import Tensor
from baregrad.testing.examples.levels import example_target
from baregrad.testing.ptx_device import ptx_session
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, check_gpu, lowered, run_text
from tests.kernel.test_gpu_assembles import assembled, needs_ptxas

HALF, BRAIN = dtypes.float16, dtypes.bfloat16
F32 = dtypes.float32
HEAD = (
    "split('i0', outer='a', w=2, u=2, m=16, masked=True),"
    "split('i1', outer='b', v=2, n=8, masked=True),"
    "split('r2', outer='ko', ki=2, kk=16, masked=True), bind('a', 'grid'), bind('b', 'grid'),"
    "bind('w', 'thread_y'), bind('u', 'unroll'), bind('v', 'unroll')"
)
# The steps of a panel, `ki`, are written out where copies of the next one begin between them.
STEPS = 2
MMA = "tensorize('m', 'n', 'kk', instruction='mma')"
ALONG = "stage_input(1, 'w', 'u', 'm', 'ki', 'kk'), stage_input(2, 'v', 'n', 'ki', 'kk')"
ACROSS = "stage_input(1, 'ki', 'kk', 'w', 'u', 'm'), stage_input(2, 'ki', 'kk', 'v', 'n')"


def product(
    m: int, n: int, r: int, a_t: bool = False, b_t: bool = False, dtype: DType = HALF,
    bias: bool = False,
) -> Node:  # fmt: skip
    """c = a b in float32, of 16-bit factors; with `bias`, what follows the sum too."""
    i, j, q = (k.range_node(size, place) for place, size in enumerate((m, n, r)))
    a = k.param(1, *((r, m) if a_t else (m, r)), dtype=dtype)
    b = k.param(2, *((n, r) if b_t else (r, n)), dtype=dtype)
    left = cast(k.at(a, *((q, i) if a_t else (i, q))), F32)
    right = cast(k.at(b, *((j, q) if b_t else (q, j))), F32)
    total = k.reduce(Ops.ADD, alu(Ops.MUL, left, right), q)
    if bias:
        total = alu(Ops.MAX, alu(Ops.ADD, total, k.at(k.param(3, n), j)), k.const(0.0, F32))
    return k.kernel(k.out(k.param(0, m, n), total, i, j), name="matmul")


def text(copies: str = ALONG, head: str = HEAD, more: str = "") -> str:
    return f"Schedule({head}, {MMA}, {copies}{more})"


def count(program: Node, name: str) -> int:
    return sum(n.op is Ops.MACHINE and n.arg.name == name for n in program.src)


@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=str)
@pytest.mark.parametrize("copies", [ALONG, ACROSS], ids=["along", "across"])
@pytest.mark.parametrize("turned", [(False, False), (True, True)], ids=str)
def test_a_product_of_any_order(dtype: DType, copies: str, turned: tuple[bool, bool]) -> None:
    program = check_gpu(product(64, 16, 64, *turned, dtype=dtype), text(copies))
    # Two by two tiles; a step loads both matrices of the left factor, and the right one's at once.
    assert (count(program, "mma.sync"), count(program, "ldmatrix")) == (4 * STEPS, 3 * STEPS)


@pytest.mark.parametrize("shape", [(40, 20, 50), (33, 9, 16), (1, 1, 8), (70, 8, 31)])
@pytest.mark.parametrize("deep", [8, 16])
def test_partial_tiles(shape: tuple[int, int, int], deep: int) -> None:
    check_gpu(product(*shape), text(head=HEAD.replace("kk=16", f"kk={deep}")))


def test_what_follows_the_sum_runs_on_its_tile() -> None:
    check_gpu(product(40, 20, 40, bias=True), text())


@pytest.mark.parametrize("shape", [(64, 16, 64), (40, 20, 40)], ids=str)
def test_one_tile_of_sums_has_several_outputs(shape: tuple[int, int, int]) -> None:
    """A weight's gradient with what an optimiser makes of it: each reads, and writes, the tile."""
    (write,) = product(*shape).src
    total, i, j = write.src[1:]
    m, n, _ = shape
    old, bias = k.at(k.param(3, m, n), i, j), k.at(k.param(4, n, dtype=BRAIN), j)
    mean = alu(Ops.ADD, alu(Ops.MUL, old, k.const(0.9, F32)), total)
    gate = cast(alu(Ops.MAX, alu(Ops.ADD, mean, cast(bias, F32)), k.const(0.0, F32)), BRAIN)
    outs = [k.out(k.param(slot, m, n, dtype=value.dtype), value, i, j)
            for slot, value in ((0, total), (5, mean), (6, gate))]
    program = check_gpu(k.kernel(*outs, name="several"), text())
    assert count(program, "mma.sync") == 4 * STEPS


@pytest.mark.parametrize("dtype", [F32, BRAIN], ids=str)
@pytest.mark.parametrize(("shape", "beside"), [
    ((64, 64, 64), 4), ((40, 64, 40), 4), ((70, 32, 33), 2), ((33, 40, 31), 4),
])  # fmt: skip
def test_columns_that_take_turns_lie_together_in_a_lane(
    shape: tuple[int, int, int], beside: int, dtype: DType
) -> None:
    """What a lane has of several tiles is one vector, of the sums and of all that follows them."""
    (write,) = product(*shape, b_t=True, bias=True).src
    total, i, j = write.src[1:]
    m, n, depth = shape
    value = cast(alu(Ops.ADD, total, cast(k.at(k.param(4, m, n, dtype=BRAIN), i, j), F32)), dtype)
    kernel = k.kernel(k.out(k.param(0, m, n, dtype=dtype), value, i, j), name="taking_turns")
    head = HEAD.replace("v=2, n=8", f"v=2, n=8, nv={beside}") + ", bind('nv', 'vector')"
    program = check_gpu(kernel, text(ALONG.replace("'v', 'n'", "'v', 'nv', 'n'"), head))
    assert count(program, "mma.sync") == 2 * 2 * beside * (STEPS if depth > 16 * STEPS else 1)
    found = get("ptx").render(program, HOPPER)
    if n % (8 * beside) == 0 and beside * dtype.itemsize == 8:
        # A lane's two rows of each of two by two tiles, and no store of less than 16 bytes.
        assert found.count("st.global") == found.count("st.global.v4") == 8


PIPED = (
    (False, True, ALONG.replace(")", ", pad=8)"), ", pipeline('ko', 3, 'async')"),
    (False, True, ALONG, ", pipeline('ko')"),
    (True, False, "stage_input(1, 'ki', 'kk', 'w', 'u', 'm', swizzle=2),"
     "stage_input(2, 'ki', 'kk', 'v', 'n', swizzle=1)", ", pipeline('ko', 3, 'async')"),
)  # fmt: skip


@pytest.mark.parametrize(("a_t", "b_t", "copies", "pipe"), PIPED)
def test_with_pipelines_and_layouts(a_t: bool, b_t: bool, copies: str, pipe: str) -> None:
    check_gpu(product(64, 16, 128, a_t, b_t), text(copies, more=pipe))


def test_rows_of_128_bytes_are_swizzled() -> None:
    head = HEAD.replace("ki=2", "ki=4")
    check_gpu(product(64, 16, 192, b_t=True), text(ALONG.replace(")", ", swizzle=3)"), head,
                                                   ", pipeline('ko', 2, 'async')"))


def test_sums_are_those_of_numpy_in_float64() -> None:
    """Independent of our own evaluators of the kernel: exact products, float32's rounding."""
    kernel = product(64, 16, 256, b_t=True, dtype=BRAIN)
    loop, program = lowered(kernel, text())
    arrays = k.arguments(kernel)
    left, right = (to_array(arrays[slot], BRAIN).astype(np.float64) for slot in (1, 2))
    found = run_text(loop, program, arrays)[0]
    wanted = left @ right.T
    assert np.abs(found - wanted).max() < 256 * 2.0**-24 * np.abs(wanted).max()


REFUSED = (
    ("tensorize('m', 'n', instruction='mma')", "found 2 axes, wanted loops of 16, 8, 8 or"),
    ("tensorize('n', 'm', 'kk', instruction='mma')", "found n of 8 on loop"),
    ("tensorize('m', 'n', 'ki', instruction='mma')", "found ki of 2 on loop"),
    ("tensorize('u', 'n', 'kk', instruction='mma')", "found u of 2 on unroll"),
    (f"{MMA}, {MMA}", "found m of 16 on tile"),
    (f"{MMA}, bind('ki', 'thread')", "the lanes of a warp are taken"),
    (f"{MMA}, bind('m', 'thread')", "an instruction does all of the axis"),
    (f"{MMA}, split('kk', outer='x', y=2)", "an instruction does all of the axis"),
    (f"{MMA}, stage_input(1, 'w', 'u', 'm', 'ki', 'kk')", "wanted stage_factor of both factors"),
    (MMA, "wanted stage_factor of both factors"),
    (f"{MMA}, {ALONG.replace(')', ', pad=1)')}", "rows (and pad) of a multiple of 8"),
)


@pytest.mark.parametrize(("steps", "message"), REFUSED)
def test_what_the_unit_cannot_do_is_refused(steps: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(message)):
        lowered(product(64, 16, 64), f"Schedule({HEAD}, {steps})")


def test_other_sums_and_machines_are_refused() -> None:
    for kernel in (k.matmul(64, 16, 64), k.matmul(64, 16, 64, dtype=HALF)):
        with pytest.raises(ScheduleError, match="each cast to float32"):
            lowered(kernel, text())
    with pytest.raises(ScheduleError, match="compute capability 8.0"):
        lower(product(64, 16, 64), gpu_row("sm_75"), parse_schedule(text()))
    with pytest.raises(ScheduleError, match="no such instruction"):
        steps = "Schedule(tensorize('i0', 'i1', 'r2', instruction='mma'))"
        lower(product(16, 8, 16), example_target(), parse_schedule(steps))


def test_a_turing_machine_has_the_shorter_sum() -> None:
    head = HEAD.replace("kk=16", "kk=8")
    check_gpu(product(64, 16, 64), text(head=head), gpu_row("sm_75"))


@pytest.mark.parametrize(("shape", "turned", "taken"), [
    ((80, 96, 160), (False, False), True),
    ((80, 96, 160), (True, True), True),
    ((65, 64, 64), (False, False), True),
    # Rows of 72 elements are no whole number of the steps of an instruction.
    ((64, 64, 72), (False, True), True),
    ((64, 48, 64), (False, False), True),
    ((16, 40, 64), (False, False), True),
    ((64, 3, 64), (False, False), True),
    ((32, 4, 64), (False, False), False),
    ((64, 64, 8), (False, False), False),
])  # fmt: skip
def test_what_fits_the_unit_is_given_to_it(
    shape: tuple[int, int, int], turned: tuple[bool, bool], taken: bool
) -> None:
    kernel = product(*shape, *turned, bias=turned[0])
    schedule = choose_schedule(kernel, HOPPER)
    assert ("tensorize" in str(schedule)) == taken
    assert "tensorize" not in str(choose_schedule(kernel, gpu_row("sm_75")))
    check_gpu(kernel, schedule)


def test_a_product_of_tensors_runs_on_the_unit() -> None:
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal((64, 64)).astype(np.float16) for _ in range(2))
    with ptx_session() as session:
        found = (Tensor(left) @ Tensor(right)).numpy()
        (made,) = session.backend("NV").compiler._programs.values()
        assert "mma.sync" in made.source
    wanted = left.astype(np.float64) @ right.astype(np.float64)
    assert np.abs(found - wanted).max() < 2.0**-10 * np.abs(wanted).max()


@needs_ptxas
@pytest.mark.parametrize("row", [row.name for row in GPU_ROWS])
def test_it_assembles_for_every_generation(row: str) -> None:
    target: Any = gpu_row(row)
    old = target.capability < (8, 0)
    head = HEAD.replace("kk=16", "kk=8") if old else HEAD
    more = "" if old else ", pipeline('ko', 3, 'async')"
    kernel = product(64, 16, 128, b_t=True)
    _, program = lowered(kernel, text(head=head, copies=ALONG.replace(")", ", pad=8)"), more=more),
                         target)
    registers, spilled = assembled(get("ptx").render(program, target), row)
    assert (registers < 128, spilled) == (True, 0)


def test_cuda_c_spells_it_too() -> None:
    _, program = lowered(product(64, 16, 64), text())
    found = get("cuda").render(program, HOPPER)
    assert found.count("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") == 4 * STEPS
    assert "ldmatrix.sync.aligned.m8n8.x4.trans" in get("cuda").render(
        lowered(product(64, 16, 64), text(ACROSS))[1], HOPPER
    )
