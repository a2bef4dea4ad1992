"""Results that go through shared memory: all levels and the PTX agree; what may not be left out."""

from __future__ import annotations

import pytest

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node, cast, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose, choose_schedule, lower, parse_schedule
from baregrad.kernel.language.schedule import Schedule, stage_output
from baregrad.kernel.planning.common.decisions import Decisions
from baregrad.render import get
from baregrad.target import gpu_row
from baregrad.testing.virtual_gpu.ptx.errors import IllegalInstruction, SharedMemoryRace
from tests.kernel import kernels as k
from tests.kernel.contractions import contraction
from tests.kernel.gpu_kernels import HOPPER, check_gpu, lowered, run_text
from tests.kernel.instructions.test_mma_sync import product
from tests.kernel.instructions.test_wgmma import ASYNC, text
from tests.kernel.test_gpu_assembles import assembled, needs_ptxas

Sizes = dict[str, int]


def staged(turned: tuple[bool, bool], blocks: int = 0, slots: int = 3, **sizes: int) -> str:
    many = f"persist({blocks}), " if blocks else ""
    return f"{text(turned, ASYNC.format(slots), **sizes)[:-1]}, {many}stage_output(0))"


CASES: tuple[tuple[tuple[int, int, int], tuple[bool, bool], int, Sizes], ...] = (
    ((320, 64, 192), (False, True), 2, {}),
    ((192, 128, 192), (False, False), 2, {"panels": 2}),
    ((256, 128, 192), (True, True), 1, {"groups": 2}),
    ((256, 64, 192), (True, False), 1, {"tiles": 2}),
    ((128, 64, 192), (False, True), 0, {}),
)


@pytest.mark.few(3)
@pytest.mark.parametrize(("shape", "turned", "blocks", "sizes"), CASES, ids=str)
def test_results_are_those_that_are_stored_at_once(
    shape: tuple[int, int, int], turned: tuple[bool, bool], blocks: int, sizes: Sizes
) -> None:
    kernel = product(*shape, *turned, bias=True)
    program = check_gpu(kernel, staged(turned, blocks, **sizes))
    assert [node for node in program.src if _is(node, "bulk.store")]
    stores = [node for node in program.src if node.op is Ops.VSTORE]
    assert all(node.src[0].op is Ops.ALLOC for node in stores)


def test_all_wait_for_stores_before_they_write_again_and_at_the_end() -> None:
    """The virtual GPU finds out what lacks any of it."""
    kernel = product(320, 64, 192, b_t=True)
    loop, program = lowered(kernel, staged((False, True), 2))
    arrays = k.arguments(kernel)
    k.assert_equal(k.run_kernel(kernel, arrays), run_text(loop, program, arrays))
    code = list(program.src)
    first = next(at for at, one in enumerate(code) if _is(one, "bulk.wait"))
    assert [one.arg.immediates for one in code if _is(one, "bulk.wait")] == [(0, 1), (0, 0)]
    run = next(at for at, one in enumerate(code) if _is(one, "bulk.store"))
    met = max(at for at in range(run) if _is(code[at], "bar.sync"))
    fenced = max(at for at in range(met) if _is(code[at], "fence.proxy.async"))
    assert first < fenced
    faults = {first: SharedMemoryRace, met: SharedMemoryRace, fenced: IllegalInstruction}
    for at, fault in faults.items():
        with pytest.raises(fault):
            run_text(loop, program.replace(src=(*code[:at], *code[at + 1 :])), arrays)


def _is(node: Node, name: str) -> bool:
    return node.op is Ops.MACHINE and bool(node.arg.name == name)


REFUSED = {
    "tiles past an edge": (product(70, 64, 192, b_t=True), staged((False, True)), "one store"),
    "no such output": (
        product(64, 64, 192, b_t=True), staged((False, True)).replace("output(0)", "output(1)"),
        "one store"),
    "twice": (
        product(64, 64, 192, b_t=True),
        staged((False, True)).replace("stage_output(0)", "stage_output(0), stage_output(0)"),
        "staged already"),
    "no product": (
        k.elementwise(64, 64), "Schedule(bind('i0', 'grid'), stage_output(0))",
        "groups of four warps"),
    "single warps": (
        product(64, 64, 64, b_t=True),
        f"{choose_schedule(product(64, 64, 64, b_t=True), HOPPER)}"[:-1] + ", stage_output(0))",
        "groups of four warps"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    kernel, spelled, why = REFUSED[name]
    with pytest.raises(ScheduleError, match=why):
        lower(kernel, HOPPER, parse_schedule(spelled))


def test_a_machine_without_bulk_copies() -> None:
    with pytest.raises(ScheduleError, match="beside its threads"):
        steps = parse_schedule("Schedule(stage_output(0))")
        lower(k.elementwise(64, 64), gpu_row("sm_80"), steps)


def test_lanes_of_neighbouring_rows_write_to_all_banks() -> None:
    """Eight lanes of a warp write sixteen bytes each: four of a row, and four of the next one."""
    for sizes in ({}, {"panels": 2}, {"tiles": 2}):
        kernel = product(128, 128, 192, b_t=True)
        loop, _ = lowered(kernel, staged((False, True), **sizes))
        (array,) = {
            node.src[0] for node in toposort(loop)
            if node.op is Ops.COPYTO and node.arg.engine == "bulk" for node in [node.src[1]]
        }
        beside = sizes.get("tiles", 1)
        assert beside * array.arg.shape[1] * array.dtype.itemsize % 128 == 64


@needs_ptxas
@pytest.mark.parametrize("arrays", [("ax", "nx"), ("ax", "xn"), ("xa", "nx")], ids=str)
def test_large_products_store_beside_their_next_tile(arrays: tuple[str, str]) -> None:
    kernel = contraction((4096,), (4096,), (4096,), *arrays, "an")
    (out,) = kernel.src
    array, total, *places = out.src
    half = (array.replace(dtype=dtypes.float16), cast(total, dtypes.float16), *places)
    kernel = kernel.replace(src=(out.replace(src=half),))
    # A fourth slot would leave no room for results.
    decisions = Decisions({"warp tile": "128x256 for 2x1 groups, 3 panels"})
    steps = choose(kernel, HOPPER, decisions).schedule.steps
    loop, program = lowered(kernel, Schedule((*steps, stage_output(0))))
    assert loop.arg.grid and [node for node in program.src if _is(node, "bulk.store")]
    registers, spilled = assembled(get("ptx").render(program, HOPPER), HOPPER.name)
    assert spilled == 0 and registers <= 255


def test_runs_that_are_shorter_than_a_tile() -> None:
    """As those of a convolution are, whose columns are images and places."""
    kernel = contraction((128,), (3, 64), (192,), "ax", "nox", "nao")
    rows, columns = "split('i0', outer='a'", "split('i1', outer='b'"
    spelled = staged((False, True), 2, panels=3).replace(columns, "split('f', outer='b'")
    spelled = spelled.replace(rows, "split('i1', outer='a'").replace("'r2'", "'r3'")
    collapsed = "Schedule(collapse('i0', 'i2', name='f'), "
    program = check_gpu(kernel, collapsed + spelled.removeprefix("Schedule("))
    (nbytes,) = {node.arg.immediates[0] for node in program.src if _is(node, "bulk.store")}
    assert nbytes == 64 * 4
