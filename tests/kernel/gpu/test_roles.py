"""Copies of boxes by a warp of their own: the PTX gives what copies by all threads give."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import DType, dtypes
from baregrad.graph import canonicalise
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose, codegen_passes, lower, parse_schedule
from baregrad.render import get
from baregrad.schedule import make_plan
from baregrad.tensor import Tensor
from baregrad.testing.virtual_gpu.ptx.errors import KernelFault
from baregrad.testing.virtual_gpu.ptx.program import PtxModule
from tests.graph.streams.test_passes import graph_of
from tests.kernel import kernels as k
from tests.kernel.contractions import contraction
from tests.kernel.gpu_kernels import HOPPER, lowered, run_text, run_threads
from tests.kernel.instructions.test_mma_sync import count, product
from tests.kernel.instructions.test_wgmma import (
    ASYNC,
    bytes_product,
    roles_text,
    text,
    text_of_bytes,
)
from tests.kernel.test_gpu_assembles import assembled, needs_ptxas
from tests.render.gpu_harness import run_module

TMA = "pipeline('ko', {}, 'tma')"
BRAIN = dtypes.bfloat16
Sizes = dict[str, int]


def piped(turned: tuple[bool, bool], pipe: str, blocks: int = 0, **sizes: int) -> str:
    many = f", persist({blocks})" if blocks else ""
    return f"{text(turned, pipe, **sizes)[:-1]}{many})"


def by_threads(spelled: str) -> str:
    """A schedule whose boxes all threads copy instead: none of their warps has a role."""
    return re.sub(r", roles\(.*?\)\)", "", spelled).replace("'tma'", "'async'")


def agree(kernel: Node, *schedules: str) -> Node:
    """All levels give what the kernel does, and schedules the same bits; the last one's PROGRAM."""
    arrays = k.arguments(kernel)
    wanted = k.run_kernel(kernel, arrays)
    found = []
    for schedule in schedules:
        loop, program = lowered(kernel, schedule)
        k.assert_equal(wanted, k.run_loop(loop, arrays))
        found.append(run_text(loop, program, arrays)[0])
    np.testing.assert_array_equal(*found)
    np.testing.assert_array_equal(run_threads(loop, program, arrays)[0], found[0])
    assert count(program, "tma.box") and not count(program, "cp.async")
    return program


CASES: tuple[tuple[tuple[int, int, int], tuple[bool, bool], int, int, Sizes], ...] = (
    ((64, 128, 256), (True, False), 3, 0, {"panels": 2}),
    ((128, 64, 192), (True, True), 2, 0, {"tiles": 2}),
    # Past edges of rows, columns and steps.
    ((72, 56, 136), (False, False), 3, 0, {}),
    ((72, 56, 136), (True, True), 3, 0, {}),
    # Blocks that persist, whose rings go on from a tile to the next.
    ((320, 64, 320), (False, True), 3, 2, {}),
    ((200, 56, 136), (True, False), 4, 3, {"groups": 2}),
)


@pytest.mark.parametrize(("shape", "turned", "slots", "blocks", "sizes"), CASES, ids=str)
def test_sums_have_the_bits_of_copies_by_all_threads(
    shape: tuple[int, int, int], turned: tuple[bool, bool], slots: int, blocks: int, sizes: Sizes
) -> None:
    kernel = product(*shape, *turned, bias=True)
    pipes = [pipe.format(slots) for pipe in (ASYNC, TMA)]
    agree(kernel, *[piped(turned, pipe, blocks, **sizes) for pipe in pipes])


@pytest.mark.parametrize("dtype", [dtypes.int8], ids=str)
def test_bytes_come_as_boxes(dtype: DType) -> None:
    kernel = bytes_product(72, 64, 400, (dtype, dtype))
    agree(kernel, *[text_of_bytes(pipe.format(3)) for pipe in (ASYNC, TMA)])


def test_panels_of_8_bit_floats_are_sums_of_their_own() -> None:
    """What threads add up they do in the order of copies by all threads."""
    kernel = bytes_product(72, 64, 384, (dtypes.float8_e4m3fn, dtypes.float8_e5m2))
    arrays = k.arguments(kernel)
    found = [
        run_text(*lowered(kernel, text_of_bytes(pipe.format(3))), arrays)[0]
        for pipe in (ASYNC, TMA)
    ]
    np.testing.assert_array_equal(*found)


def test_slots_are_empty_as_soon_as_their_products_were_waited_for() -> None:
    """Parts are waited for ahead of the next panel's products: there is room for another panel.

    The next panel is waited for while they are made.
    """
    kernel = bytes_product(128, 64, 512, (dtypes.float8_e4m3fn, dtypes.float8_e4m3fn))
    _, program = lowered(kernel, text_of_bytes(TMA.format(3), tiles=2))
    code = get("ptx").render(program, HOPPER)
    others = code[code.index("setmaxnreg.inc") :]
    names = re.findall("wait_group|mbarrier.arrive|try_wait|mma_async", others)
    steps = [one for one, before in zip(names, ["", *names], strict=False) if one != before]
    assert steps[:6] == [
        "try_wait", "wait_group", "mbarrier.arrive", "mma_async", "wait_group", "mma_async",
    ]  # fmt: skip


def test_results_are_stored_while_boxes_come() -> None:
    kernel = product(320, 64, 192, b_t=True, bias=True)
    pipes = [pipe.format(3) for pipe in (ASYNC, TMA)]
    texts = [f"{piped((False, True), pipe, 2)[:-1]}, stage_output(0))" for pipe in pipes]
    program = agree(kernel, *texts)
    # Those who compute meet by themselves.
    meets = [one.arg.immediates for one in program.src
             if one.op is Ops.MACHINE and one.arg.name == "bar.sync"]  # fmt: skip
    assert meets[0] == (0,) and set(meets[1:]) == {(4,)}


def test_a_map_has_a_dimension_for_each_side_and_what_is_batched() -> None:
    """Edges are those of the map, and elements past them zeros, whatever lies behind."""
    kernel = contraction((72,), (64,), (136,), "sax", "sxn", "san", batch=(3,))
    spelled = text((False, False), TMA.format(2))
    for old, new in (
        ("'i1'", "'i2'"), ("'i0'", "'i1'"), ("'r2'", "'r3'"),
        ("bind('a', 'grid')", "bind('i0', 'grid'), bind('a', 'grid')"),
    ):
        spelled = spelled.replace(old, new)
    program = agree(kernel, by_threads(spelled), spelled)
    boxes = [one.arg.immediates for one in program.src
             if one.op is Ops.MACHINE and one.arg.name == "tma.box"]  # fmt: skip
    assert boxes[0] == (3, 136, 72, 3, 1, 136, 72 * 136, 64, 64, 1)
    assert boxes[1] == (3, 64, 136, 3, 1, 64, 64 * 136, 64, 64, 1)


def by_experts(tiles: int, rows: int, columns: int, steps: int, experts: int) -> Node:
    """Tiles of rows, each times the matrix that an array names for it, where another says so."""
    x = Tensor.empty(tiles, rows, steps, dtype=BRAIN)
    weights = Tensor.empty(experts, columns, steps, dtype=BRAIN)
    which, used = Tensor.empty(tiles, dtype="int32"), Tensor.empty(tiles, dtype="bool")
    given = [one.realize() for one in (x, weights, which, used)]
    product = x.matmul(weights[which].mT, out_dtype="float32")
    found = used[:, None, None].where(product, 0)
    sink = canonicalise(graph_of(found, given), target=HOPPER)
    return make_plan(sink, target=HOPPER).kernels[0]


def of_tiles(pipe: str, slots: int, blocks: int) -> str:
    spelled = piped((False, True), pipe.format(slots), blocks)
    for old, new in (
        ("'i1'", "'i2'"), ("'i0'", "'i1'"), ("'r2'", "'r3'"),
        ("bind('a', 'grid')", "bind('i0', 'grid'), bind('a', 'grid')"),
    ):
        spelled = spelled.replace(old, new)
    return spelled


@pytest.mark.parametrize(("steps", "slots", "blocks"), [
    (256, 2, 2), pytest.param(320, 2, 2, marks=pytest.mark.slow),
    pytest.param(640, 3, 3, marks=pytest.mark.slow),
    pytest.param(256, 3, 0, marks=pytest.mark.slow),
])  # fmt: skip
def test_other_arrays_say_which_matrix_is_copied_and_whether_at_all(
    steps: int, slots: int, blocks: int
) -> None:
    """Matrices that are not there are zeros; what nobody reads has few steps or none."""
    kernel = by_experts(5, 64, 64, steps, 3)
    arrays = k.arguments(kernel)
    places = {leaf.dtype: leaf.arg.slot for leaf in toposort(kernel) if leaf.op is Ops.PARAM}
    arrays[places[dtypes.int32]] = np.array([2, -1, 7, 0, 1], np.int32)
    arrays[places[dtypes.bool]] = np.array([1, 1, 1, 0, 1], np.bool_)
    texts = [of_tiles(pipe, slots, blocks) for pipe in (ASYNC, TMA)]
    wanted = k.run_kernel(kernel, arrays)
    found = []
    for schedule in texts:
        loop, program = lowered(kernel, schedule)
        k.assert_equal(wanted, k.run_loop(loop, arrays))
        found.append(run_text(loop, program, arrays)[0])
    np.testing.assert_array_equal(*found)
    np.testing.assert_array_equal(run_threads(loop, program, arrays)[0], found[0])
    some = [bool(tile.any()) for tile in found[0].reshape(5, -1)]
    assert some == [True, True, False, False, True]
    # A loop for those who copy and one for those who multiply, each of which has two ends.
    ends = [one for one in toposort(ended(kernel, texts[1])) if one.op is Ops.RANGE
            and one.src[0].op is Ops.WHERE]  # fmt: skip
    whole = steps // 64
    assert [[end.arg for end in one.src[0].src[1:]] for one in ends] == (
        [[whole, whole % (2 * slots)]] if whole >= 2 * slots else []
    )


def ended(kernel: Node, schedule: str) -> Node:
    """The loop-level KERNEL of one thread, with roles."""
    node = lower(kernel, HOPPER, parse_schedule(schedule))
    for step in codegen_passes(HOPPER):
        node = step.run(node)
        if step.name == "roles":
            return node
    raise AssertionError(schedule)


WITHOUT = {
    "the wait for a full slot": (
        r"mbarrier.try_wait[^;]*;\s*@!%p\d+ bra W\d+;(?=\s*wgmma)", ""),
    "what is announced": (r"(mbarrier.arrive.expect_tx[^;]*), 16384;", r"\1, 8192;"),
    "a release": (r"mbarrier.arrive.shared.b64 _, \[[^;]*;", ""),
    "the wait for products": (r"wgmma.wait_group.sync.aligned 1;", ""),
    "barriers that are there": (r"bar.sync 0;", ""),
}  # fmt: skip


@pytest.mark.parametrize("what", WITHOUT)
def test_what_leaves_a_step_out_is_caught(what: str) -> None:
    kernel = product(64, 64, 320, b_t=True)
    _, program = lowered(kernel, piped((False, True), TMA.format(2)))
    arrays = [array for _, array in sorted(k.arguments(kernel).items())]
    right = get("ptx").render(program, HOPPER)
    run_module(PtxModule.parse(right), program, arrays)
    pattern, instead = WITHOUT[what]
    wrong, changed = re.subn(pattern, instead, right)
    assert changed
    with pytest.raises(KernelFault):
        run_module(PtxModule.parse(wrong), program, arrays)


def test_what_is_no_box_is_refused() -> None:
    spelled = parse_schedule(piped((False, True), TMA.format(3)))
    with pytest.raises(ScheduleError, match="no box of an input"):
        lower(product(64, 64, 100, b_t=True), HOPPER, spelled)
    with pytest.raises(ScheduleError, match="copied by an engine"):
        lower(product(64, 64, 192, b_t=True), replace(HOPPER, barrier_transfer_bytes=0), spelled)
    single = piped((False, True), TMA.format(3)).replace("wgmma", "mma").replace("m=64", "m=16")
    single = single.replace(roles_text(4), "roles(copies=4, products=1)")
    with pytest.raises(ScheduleError, match="groups of four warps multiply"):
        lower(product(64, 64, 192, b_t=True), HOPPER, parse_schedule(single))


@needs_ptxas
def test_products_stay_beside_threads() -> None:
    """The assembler says nothing of products that it puts in order, and spills nothing."""
    kernel = product(4096, 4096, 1024, b_t=True, bias=True, dtype=BRAIN)
    choice = choose(kernel, HOPPER)
    assert "engine='tma'" in str(choice.schedule)
    program = lowered(kernel, choice.schedule)[1]
    registers, spilled = assembled(get("ptx").render(program, HOPPER), "sm_90a")
    assert registers <= 168 and not spilled
