"""Sums that the matrix unit of four warps makes: every level and the PTX agree; what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import DType, dtypes, encode
from baregrad.ir.core.node import Node, alu, cast
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.alu import to_array
from baregrad.kernel import grid_size, lower, parse_schedule
from baregrad.kernel.instructions import wgmma
from baregrad.render import get
from baregrad.target import gpu_row
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, check_gpu, lowered, run_text, run_threads
from tests.kernel.instructions.test_mma_sync import count, product
from tests.kernel.test_gpu_assembles import assembled, needs_ptxas

HALF, BRAIN = dtypes.float16, dtypes.bfloat16
E4M3, E5M2 = dtypes.float8_e4m3fn, dtypes.float8_e5m2
TF32 = dtypes.tfloat32
Kinds = tuple[DType, DType]
HEAD = (
    "split('i0', outer='a', w={groups}, u={tiles}, m=64, masked=True),"
    "split('i1', outer='b', p={panels}, v=8, n=8, masked=True),"
    "split('r2', outer='ko', ki=4, kk=16, masked=True), bind('a', 'grid'), bind('b', 'grid'),"
    "bind('w', 'thread_z'), bind('u', 'unroll'), bind('p', 'unroll'), bind('v', 'unroll'),"
    "reorder('w', 'ko', 'ki', 'u', 'p', 'v', 'm', 'n', 'kk'),"
    "tensorize('m', 'n', 'kk', instruction='wgmma')"
)
LEFT = (
    "stage_factor(0, 'w', 'u', 'm', 'ki', 'kk', swizzle=3)",
    "stage_factor(0, 'w', 'u', 'ki', 'kk', 'm', swizzle=3)",
)
RIGHT = (
    "stage_factor(1, 'p', 'ki', 'kk', 'v', 'n', swizzle=3)",
    "stage_factor(1, 'p', 'v', 'n', 'ki', 'kk', swizzle=3)",
)
ASYNC = "pipeline('ko', {}, 'async')"


def roles_text(warps: int) -> str:
    """Four warps copy for so many, and leave them what they can of their registers."""
    return f"roles(copies=(4, 40), products=({warps}, { {4: 216, 8: 232, 16: 104}[warps]}))"


def text(
    turned: tuple[bool, bool], pipe: str = "", groups: int = 1, tiles: int = 1, panels: int = 1
) -> str:
    head = HEAD.format(groups=groups, tiles=tiles, panels=panels)
    steps = [head, LEFT[turned[0]], RIGHT[turned[1]], *([pipe] if pipe else [])]
    if "'tma'" in pipe:
        steps.append(roles_text(4 * groups))
    return f"Schedule({', '.join(steps)})"


@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=str)
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
def test_a_product_of_any_order(dtype: DType, left: bool, right: bool) -> None:
    program = check_gpu(product(64, 64, 64, left, right, dtype=dtype), text((left, right)))
    # One instruction for each 16 steps, of all columns, in one group.
    assert [count(program, f"wgmma{part}") for part in ("", ".commit")] == [4, 1]


PIPED = (
    ((64, 64, 320), (False, True), ASYNC.format(4), {}),
    ((64, 128, 256), (True, False), ASYNC.format(3), {"panels": 2}),
    ((64, 64, 192), (False, True), ASYNC.format(2), {}),
    ((64, 64, 192), (False, True), "pipeline('ko', 2)", {}),
    ((128, 64, 192), (False, False), ASYNC.format(3), {"groups": 2}),
    ((128, 64, 192), (True, True), ASYNC.format(3), {"tiles": 2}),
    ((70, 50, 130), (False, False), ASYNC.format(3), {}),
)  # fmt: skip


@pytest.mark.parametrize(("shape", "turned", "pipe", "sizes"), PIPED, ids=str)
def test_rings_of_panels(
    shape: tuple[int, int, int], turned: tuple[bool, bool], pipe: str, sizes: dict[str, int]
) -> None:
    """The evaluators read operands as late as may be: a slot that is filled too early shows."""
    program = check_gpu(product(*shape, *turned), text(turned, pipe, **sizes))
    keeps = [node.arg.immediates[0] for node in program.src
             if node.op is Ops.MACHINE and node.arg.name == "wgmma.wait"]  # fmt: skip
    # In the loop the group that was begun last may still run; behind it none.
    assert keeps == [1, 0]


PERSISTENT = (
    ((320, 64, 320), (False, True), ASYNC.format(3), 2),
    ((320, 64, 256), (False, False), ASYNC.format(4), 3),
    ((200, 50, 200), (True, False), ASYNC.format(3), 2),
    ((200, 64, 192), (True, True), ASYNC.format(2), 2),
    ((200, 64, 192), (False, True), "pipeline('ko', 2)", 3),
    ((200, 64, 64), (False, True), "", 2),
    ((64, 64, 192), (False, True), ASYNC.format(3), 2),
)


@pytest.mark.few(3)
@pytest.mark.parametrize(("shape", "turned", "pipe", "blocks"), PERSISTENT, ids=str)
def test_blocks_that_do_several_tiles(
    shape: tuple[int, int, int], turned: tuple[bool, bool], pipe: str, blocks: int
) -> None:
    """As few blocks as are asked for, and all tiles; one of them where there is but one tile."""
    spelled = f"{text(turned, pipe)[:-1]}, persist({blocks}))"
    kernel = product(*shape, *turned, bias=True)
    loop, _ = lowered(kernel, spelled)
    assert grid_size(loop) == min(blocks, -(-shape[0] // 64))
    check_gpu(kernel, spelled)


def test_what_follows_the_sum_waits_for_it() -> None:
    check_gpu(product(70, 64, 100, bias=True), text((False, False), ASYNC.format(3)))


def test_sums_are_those_of_numpy_in_float64() -> None:
    """Independent of our own evaluators of the kernel: exact products, float32's rounding."""
    kernel = product(64, 64, 256, b_t=True, dtype=BRAIN)
    loop, program = lowered(kernel, text((False, True), ASYNC.format(3)))
    arrays = k.arguments(kernel)
    left, right = (to_array(arrays[slot], BRAIN).astype(np.float64) for slot in (1, 2))
    found = run_text(loop, program, arrays)[0]
    wanted = left @ right.T
    assert np.abs(found - wanted).max() < 256 * 2.0**-24 * np.abs(wanted).max()


IN_PART = "stage_factor(1, 'v/8', 'ki', 'kk', 'v%8', 'n', swizzle=3)"


@pytest.mark.parametrize(
    "pipe", ["", "pipeline('ko', 2)", ASYNC.format(3), "pipeline('ko', 2, 'tma')"]
)
@pytest.mark.parametrize("shape", [(128, 160, 192), (120, 88, 200)])
def test_a_panel_that_is_read_in_part(shape: tuple[int, int, int], pipe: str) -> None:
    """80 columns are a panel and a quarter of one: nothing past the end of the array is read."""
    steps = [HEAD.format(groups=2, tiles=1, panels=1).replace("v=8", "v=10"), LEFT[0], IN_PART]
    steps += [pipe] * bool(pipe) + [roles_text(8)] * ("tma" in pipe)
    spelled = f"Schedule({', '.join(steps)})"
    kernel = product(*shape, dtype=BRAIN)
    check_gpu(kernel, spelled)
    arrays = k.arguments(kernel)
    left, right = (to_array(arrays[slot], BRAIN).astype(np.float64) for slot in (1, 2))
    found = run_text(*lowered(kernel, spelled), arrays)[0]
    bound = shape[2] * 2.0**-24 * (np.abs(left) @ np.abs(right))
    assert (np.abs(found - left @ right) <= bound).all()


def bytes_product(m: int, n: int, r: int, kinds: Kinds) -> Node:
    """c = a b.T of bytes that lie along the sums: in int32, or of floats in float32."""
    i, j, q = (k.range_node(size, place) for place, size in enumerate((m, n, r)))
    total = dtypes.float32 if kinds[0].is_float else dtypes.int32
    left, right = k.param(1, m, r, dtype=kinds[0]), k.param(2, n, r, dtype=kinds[1])
    value = alu(Ops.MUL, cast(k.at(left, i, q), total), cast(k.at(right, j, q), total))
    summed = k.reduce(Ops.ADD, value, q)
    return k.kernel(k.out(k.param(0, m, n, dtype=total), summed, i, j), name="bytes")


def text_of_bytes(pipe: str = "", groups: int = 1, tiles: int = 1, panels: int = 1) -> str:
    """Both lie along the sums, of which an instruction does 32 steps."""
    return text((False, True), pipe, groups, tiles, panels).replace("kk=16", "kk=32")


# Of the sum of a panel's magnitudes, of which no product is the largest.
CUT_OFF = 2.0**-12
SIZES_OF_BYTES = (
    ((64, 64, 320), ASYNC.format(3), {}), ((70, 66, 256), "", {"panels": 2}),
    ((128, 128, 384), ASYNC.format(4), {"tiles": 2, "panels": 2}),
)  # fmt: skip


@pytest.mark.parametrize(("shape", "pipe", "sizes"), SIZES_OF_BYTES, ids=str)
@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.uint8], ids=str)
def test_products_of_integers(
    shape: tuple[int, int, int], pipe: str, sizes: dict[str, int], dtype: DType
) -> None:
    check_gpu(bytes_product(*shape, (dtype, dtype)), text_of_bytes(pipe, **sizes))


@pytest.mark.parametrize(("shape", "pipe", "sizes"), SIZES_OF_BYTES, ids=str)
@pytest.mark.parametrize("kinds", [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3)], ids=str)
def test_products_of_8_bit_floats(
    shape: tuple[int, int, int], pipe: str, sizes: dict[str, int], kinds: Kinds
) -> None:
    """Threads add up the panels' sums, of which the unit cuts off all but their first bits."""
    kernel = bytes_product(*shape, kinds)
    loop, program = lowered(kernel, text_of_bytes(pipe, **sizes))
    arrays = k.arguments(kernel)
    left, right = (
        to_array(arrays[slot], kind).astype(np.float64)
        for slot, kind in zip((1, 2), kinds, strict=True)
    )
    found = run_text(loop, program, arrays)[0]
    np.testing.assert_array_equal(found, run_threads(loop, program, arrays)[0])
    bound = CUT_OFF * (np.abs(left) @ np.abs(right).T)
    assert (np.abs(found - left @ right.T) <= bound).all()
    # No instruction adds to sums of an earlier panel, and one is waited for ahead of the next.
    tiles = sizes.get("tiles", 1)
    parts = [one.arg.immediates[9] for one in program.src
             if one.op is Ops.MACHINE and one.arg.name == "wgmma"]  # fmt: skip
    assert parts == [0, 1, 1, 1] * tiles
    assert count(program, "wgmma.commit") == tiles


def test_long_sums_of_8_bit_floats_keep_their_digits() -> None:
    """A sum of thousands would have no room for an eighth, were it the unit's alone."""
    kernel = bytes_product(64, 64, 8192, (E4M3, E4M3))
    loop, program = lowered(kernel, text_of_bytes(ASYNC.format(3)))
    arrays = k.arguments(kernel)
    for slot, number in ((1, 1.0), (2, 1.125)):
        arrays[slot][:] = encode([number], E4M3)[0]
    assert (run_text(loop, program, arrays)[0] == 8192 * 1.125).all()


def turned_product(m: int, n: int, r: int) -> Node:
    """c = a.T b.T of tfloat32: the first factor lies across the sums."""
    i, j, q = (k.range_node(size, place) for place, size in enumerate((m, n, r)))
    left, right = k.param(1, r, m, dtype=TF32), k.param(2, n, r, dtype=TF32)
    factors = (cast(k.at(left, q, i), dtypes.float32), cast(k.at(right, j, q), dtypes.float32))
    summed = k.reduce(Ops.ADD, alu(Ops.MUL, *factors), q)
    return k.kernel(k.out(k.param(0, m, n), summed, i, j), name="turned")


def text_of_turned(pipe: str = "", **sizes: int) -> str:
    """Rows of 128 bytes are half of those that an instruction has."""
    spelled = text((True, True), pipe, **sizes).replace("kk=16", "kk=8")
    return spelled.replace("'ki', 'kk', 'm'", "'m/32', 'ki', 'kk', 'm%32'")


SIZES_OF_TURNED = (
    ((64, 64, 32), "", {}), ((64, 64, 160), "pipeline('ko', 3, 'tma')", {}),
    ((72, 56, 96), ASYNC.format(3), {}),
    ((256, 128, 96), "pipeline('ko', 2, 'tma')", {"groups": 2, "tiles": 2, "panels": 2}),
)  # fmt: skip


@pytest.mark.parametrize(("shape", "pipe", "sizes"), SIZES_OF_TURNED, ids=str)
def test_lanes_read_tfloat32_that_lies_across(
    shape: tuple[int, int, int], pipe: str, sizes: dict[str, int]
) -> None:
    """Within float32's rounding of the sums in float64."""
    kernel = turned_product(*shape)
    loop, program = lowered(kernel, text_of_turned(pipe, **sizes))
    arrays = k.arguments(kernel)
    left, right = (to_array(arrays[slot], TF32).astype(np.float64) for slot in (1, 2))
    found = run_text(loop, program, arrays)[0]
    np.testing.assert_array_equal(found, run_threads(loop, program, arrays)[0])
    bound = shape[2] * 2.0**-24 * (np.abs(left).T @ np.abs(right).T)
    assert (np.abs(found - left.T @ right.T) <= bound).all()
    assert count(program, "wgmma.held") and not count(program, "wgmma")


def test_half_a_warp_reads_all_banks_once() -> None:
    """Of 64 rows and 8 steps: each lane has two neighbours at once, and those of 4 steps on."""
    read = set()
    for begin in range(0, 128, 16):
        banks = []
        for lane in range(begin, begin + 16):
            row, step = wgmma.lane_of_turned(lane)
            assert isinstance(row, int) and isinstance(step, int)
            panel, column = divmod(row, 32)
            chunk = column // 4 ^ step
            banks += [4 * chunk + column % 4, 4 * chunk + column % 4 + 1]
            row = 32 * panel + column
            read |= {(row + both, step ^ late) for both in (0, 1) for late in (0, 4)}
        assert sorted(banks) == list(range(32))
    assert len(read) == 64 * 8


@needs_ptxas
@pytest.mark.parametrize("kind", [E4M3, dtypes.int8], ids=str)
def test_products_of_bytes_stay_beside_threads(kind: DType) -> None:
    kernel = bytes_product(256, 128, 512, (kind, kind))
    spelled = text_of_bytes(ASYNC.format(4), groups=2, tiles=2, panels=2)
    registers, spilled = assembled(get("ptx").render(lowered(kernel, spelled)[1], HOPPER), "sm_90a")
    # A panel's own sums are those of one tile of rows at a time.
    assert registers < (232 if kind.is_float else 168) and not spilled


@pytest.mark.parametrize(("spelled", "match"), [
    (text((False, True)), "found 16 products of float8_e4m3fn and float8_e4m3fn"),
    (text_of_bytes().replace("swizzle=3", "pad=16"), "rows of 128 elements"),
])  # fmt: skip
def test_what_is_refused_of_bytes(spelled: str, match: str) -> None:
    with pytest.raises(ScheduleError, match=match):
        lower(bytes_product(128, 64, 256, (E4M3, E4M3)), HOPPER, parse_schedule(spelled))


@pytest.mark.parametrize(("old", "new", "match"), [
    ("swizzle=3", "pad=8", "rows of 64 elements"),
    ("'u', 'm', 'ki', 'kk'", "'u', 'ki', 'm', 'kk'", "rows of 64 elements"),
    ("bind('w', 'thread_z')", "bind('w', 'thread')", "lanes of the warps are taken"),
    ("m=64", "m=32", "no part of the size"),
])  # fmt: skip
def test_what_is_refused(old: str, new: str, match: str) -> None:
    spelled = text((False, True), groups=2).replace(old, new)
    with pytest.raises(ScheduleError, match=match):
        lower(product(128, 64, 64, False, True), HOPPER, parse_schedule(spelled))


@pytest.mark.parametrize("name", ["sm_80", "sm_100a", "sm_120"])
def test_other_generations_have_no_such_unit(name: str) -> None:
    with pytest.raises(ScheduleError, match="no such instruction"):
        lower(product(64, 64, 64), gpu_row(name), parse_schedule(text((False, False))))


@needs_ptxas
def test_the_assembler_keeps_products_beside_threads() -> None:
    kernel = product(256, 256, 512, b_t=True)
    _, program = lowered(kernel, text((False, True), ASYNC.format(4), groups=2, panels=4))
    registers, spilled = assembled(get("ptx").render(program, HOPPER), "sm_90a")
    # Of which 128 are results.
    assert registers < 192 and not spilled


@needs_ptxas
@pytest.mark.parametrize(("groups", "panels", "blocks"), [(2, 2, 2), (2, 4, 1), (1, 1, 4)])
def test_blocks_have_registers_for_as_many_as_shared_memory_holds(
    groups: int, panels: int, blocks: int
) -> None:
    kernel = product(256, 256, 512, b_t=True, bias=True)
    _, program = lowered(kernel, text((False, True), ASYNC.format(3), groups=groups, panels=panels))
    written = get("ptx").render(program, HOPPER)
    assert (f".minnctapersm {blocks}" in written) == (blocks > 1)
    registers, spilled = assembled(written, "sm_90a")
    assert not spilled and registers * 128 * groups * blocks <= HOPPER.registers_per_unit


@needs_ptxas
def test_what_is_read_ahead_stays_in_registers() -> None:
    """As rows that are no words come through registers, fewer blocks are promised room."""
    kernel = product(255, 255, 511, a_t=True, b_t=False)
    pipe = "pipeline('ko', 2, 'lanes')"
    _, program = lowered(kernel, text((True, False), pipe))
    written = get("ptx").render(program, HOPPER)
    assert ".minnctapersm 3" in written
    assert assembled(written, "sm_90a")[1] == 0


def test_loops_of_products_stay_loops() -> None:
    """An assembler that writes them out takes seconds."""
    kernel = product(256, 64, 512, b_t=True)
    spelled = f"{text((False, True), ASYNC.format(3))[:-1]}, persist(2))"
    _, program = lowered(kernel, spelled)
    written = get("ptx").render(program, HOPPER)
    # That over tiles, and that over panels in it.
    assert written.count('.pragma "nounroll";') == 2
    _, program = lowered(k.matmul(64, 64, 64), "Schedule(bind('i0', 'grid'))")
    assert "pragma" not in get("ptx").render(program, HOPPER)
