"""Streams of keys in tiles: every level and the PTX give what NumPy gives, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node, const, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.kernel import choose, lower, parse_schedule
from baregrad.kernel.language.schedule import StreamTiles
from baregrad.render import get
from baregrad.target import gpu_row
from baregrad.testing.examples.nests import attended, product
from baregrad.testing.virtual_gpu.ptx.errors import IllegalInstruction, SharedMemoryRace
from tests.kernel.gpu_kernels import HOPPER, lowered, run_text, run_threads
from tests.kernel.test_gpu_assembles import assembled, needs_ptxas

# rows, keys, width, causal; warps, tiles of rows, keys at a time
CASES = (
    (32, 48, 16, False, (2, 1, 16)),
    (32, 48, 16, True, (2, 1, 16)),
    (70, 70, 32, True, (2, 2, 32)),
    (33, 50, 16, False, (1, 1, 16)),
    (1, 40, 64, False, (1, 1, 32)),
    (20, 9, 48, True, (2, 1, 32)),
)


def text(step: tuple[int, int, int]) -> str:
    return f"Schedule(stream_tiles{step})"


def arrays_of(rows: int, keys: int, width: int) -> dict[int, Any]:
    rng = np.random.default_rng(rows + keys)
    shapes = ((rows, width), (keys, width), (keys, width))
    found: dict[int, Any] = {0: np.full((rows, width), np.nan, np.float32)}
    for slot, shape in enumerate(shapes, 1):
        found[slot] = rng.standard_normal(shape).astype(np.float16)
    return found


def attention(arrays: dict[int, Any], causal: bool) -> Any:
    """In float64, by powers of 2 as the kernels' are."""
    q, k, v = (arrays[slot].astype(np.float64) for slot in (1, 2, 3))
    scores = q @ k.T
    if causal:
        hidden = np.arange(len(k))[None, :] > np.arange(len(q))[:, None]
        scores = np.where(hidden, -np.inf, scores)
    power = np.exp2(scores - scores.max(-1, keepdims=True))
    return power @ v / power.sum(-1, keepdims=True)


@pytest.mark.parametrize(("rows", "keys", "width", "causal", "step"), CASES)
def test_every_level_gives_what_numpy_gives(
    rows: int, keys: int, width: int, causal: bool, step: tuple[int, int, int]
) -> None:
    kernel = attended(rows, keys, width, causal)
    arrays = arrays_of(rows, keys, width)
    loop, program = lowered(kernel, text(step))
    blocks = {slot: np.array(array) for slot, array in arrays.items()}
    evaluate_loop(loop, blocks)
    # Powers are rounded to 11 bits before they are multiplied.
    wanted = attention(arrays, causal)
    limit = 2.0**-10 * np.abs(arrays[3]).max()
    for found in (blocks, run_threads(loop, program, arrays), run_text(loop, program, arrays)):
        assert np.abs(found[0] - wanted).max() < limit


GROUPS = (
    (130, 140, 64, True, (2, 1, 64)), (64, 96, 128, False, (1, 1, 32)),
    (128, 130, 64, True, (1, 2, 32)),
)  # fmt: skip


@pytest.mark.parametrize(("rows", "keys", "width", "causal", "step"), GROUPS)
def test_groups_of_warps_give_what_numpy_gives(
    rows: int, keys: int, width: int, causal: bool, step: tuple[int, int, int]
) -> None:
    kernel = attended(rows, keys, width, causal)
    arrays = arrays_of(rows, keys, width)
    warps, tiles, passing = step
    spelled = f"stream_tiles({warps}, {tiles}, {passing}, instruction='wgmma')"
    loop, program = lowered(kernel, f"Schedule({spelled})")
    blocks = {slot: np.array(array) for slot, array in arrays.items()}
    evaluate_loop(loop, blocks)
    limit = 2.0**-10 * np.abs(arrays[3]).max()
    found = blocks, run_threads(loop, program, arrays), run_text(loop, program, arrays)
    for one in found:
        assert np.abs(one[0] - attention(arrays, causal)).max() < limit
    np.testing.assert_array_equal(found[1][0], found[2][0])


@pytest.mark.parametrize("name", ["bar.sync", "wgmma.commit", "wgmma.wait", "fence.proxy.async"])
def test_nothing_that_orders_products_of_groups_can_be_left_out(name: str) -> None:
    """The virtual GPU finds out what lacks any one of it in the loop over keys."""
    kernel = attended(64, 256, 64)
    arrays = arrays_of(64, 256, 64)
    loop, program = lowered(kernel, "Schedule(stream_tiles(1, 1, 32, instruction='wgmma'))")
    code = list(program.src)
    places = [at for at, one in enumerate(code) if one.op is Ops.MACHINE and one.arg.name == name]
    begin = next(at for at, one in enumerate(code) if one.op is Ops.BEGIN)
    place = min(at for at in places if at > begin)
    found = program.replace(src=(*code[:place], *code[place + 1 :]))
    wanted = attention(arrays, False)
    try:
        made = run_text(loop, found, arrays)[0]
    except (SharedMemoryRace, IllegalInstruction):
        return
    assert not np.abs(made - wanted).max() < 0.01


def test_a_row_that_sees_nothing_divides_zeros() -> None:
    """Its maximum is -inf throughout: no NaN comes of it before the division."""
    kernel = attended(32, 32, 16)
    arrays = arrays_of(32, 32, 16)
    arrays[1][3] = -np.inf
    arrays[2][:] = np.abs(arrays[2]) + 1
    loop, program = lowered(kernel, text((2, 1, 16)))
    with np.errstate(invalid="ignore"):
        found = run_threads(loop, program, arrays)[0]
    assert np.isnan(found[3]).all() and np.isfinite(np.delete(found, 3, 0)).all()


def trips(kernel: Node) -> list[int]:
    """How many tiles of keys each block visits, the last block first."""
    loop = lower(kernel, HOPPER, parse_schedule(text((2, 1, 16))))
    (axis,) = [n for n in toposort(loop) if n.op is Ops.RANGE and n.arg.axis == "keys"]
    (rows,) = [n for n in toposort(loop) if n.op is Ops.RANGE and n.arg.axis == "rows"]
    count = int(rows.src[0].arg)
    extents = [substitute(axis.src[0], {rows: const(i, dtypes.index)}) for i in range(count)]
    return [int(extent.arg) for extent in extents]


def test_tiles_that_a_mask_hides_are_not_visited() -> None:
    assert trips(attended(128, 128, 16)) == [8, 8, 8, 8]
    # Blocks of 32 rows, the last first; 16 keys at a time.
    assert trips(attended(128, 128, 16, causal=True)) == [8, 6, 4, 2]
    # Rows that see all keys there are visit no more.
    assert trips(attended(128, 40, 16, causal=True)) == [3, 3, 3, 2]


def test_elements_are_asked_for_the_mask_where_it_cuts_a_tile_alone() -> None:
    """In 128 rows of 32 a block, tiles of 16 keys: those on the diagonal, two of each block."""
    loop = lower(attended(128, 128, 16, causal=True), HOPPER, parse_schedule(text((2, 1, 16))))
    asked = [node.src[0] for node in toposort(loop) if node.op is Ops.IF]
    (whole,) = [one.src[0] for one in asked if one.op is Ops.NOT]
    found = []
    for block, count in enumerate(trips(attended(128, 128, 16, causal=True))):
        seen = 0
        for tile in range(count):
            at = {axis: const(block if axis.arg.axis == "rows" else tile, dtypes.index)
                  for axis in whole.ranges}
            seen += bool(substitute(whole, at).arg)
        found.append((count, seen))
    assert found == [(8, 6), (6, 4), (4, 2), (2, 0)]


def test_what_a_warp_does_for_a_tile_of_keys() -> None:
    """16 rows, 32 keys, 64 columns: 4 x 4 products of 16 x 8 x 16 either way, and no more."""
    _, program = lowered(attended(64, 64, 64), text((4, 1, 32)))
    names = [n.arg.name for n in program.src if n.op is Ops.MACHINE]
    assert names.count("mma.sync") == 2 * 16
    # The largest of a row: over two lanes' bits, for two rows a lane; the sums once at the end.
    assert names.count("shfl.sync.bfly") == 2 * 2 + 2 * 2
    assert names.count("cvt.pack") == 2 * 4
    near = [n for n in program.src if n.op is Ops.EXP2_NEAR]
    assert len(near) == 2 * 4


REFUSED = (
    (attended(32, 32, 16), "stream_tiles(2, 1, 24)", "keys and widths are multiples of 16"),
    (attended(32, 32, 24), "stream_tiles(2, 1, 16)", "keys and widths are multiples of 16"),
    (product(32, 32, 16), "stream_tiles(2, 1, 16)", "a kernel that is one stream over keys"),
    (attended(32, 32, 16), "split('i0', outer='a', b=8), stream_tiles(2, 1, 16)", "the only step"),
)


@pytest.mark.parametrize(("kernel", "steps", "message"), REFUSED)
def test_what_is_no_stream_of_tiles_is_refused(kernel: Node, steps: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(message)):
        lower(kernel, HOPPER, parse_schedule(f"Schedule({steps})"))
    with pytest.raises(ScheduleError, match="no such instruction"):
        lower(attended(32, 32, 16), gpu_row("sm_75"), parse_schedule(text((2, 1, 16))))


BLOCKS = ((64, (4, 2, 64)), (128, (4, 2, 32)), (256, (4, 1, 32)))


@needs_ptxas
@pytest.mark.parametrize(("width", "step"), BLOCKS)
def test_registers_hold_a_block(width: int, step: tuple[int, int, int]) -> None:
    _, program = lowered(attended(1024, 1024, width, causal=True), text(step))
    registers, spilled = assembled(get("ptx").render(program, HOPPER), HOPPER.name)
    assert registers <= 255 and spilled == 0


@needs_ptxas
def test_a_multiprocessor_holds_as_many_blocks_as_the_plan_counts_on() -> None:
    """Left to itself the assembler takes registers for one block alone, at some lengths."""
    kernel = attended(16384, 16384, 128, causal=True)
    schedule = choose(kernel, HOPPER).schedule
    (step,) = schedule.steps
    assert isinstance(step, StreamTiles) and step.resident == 2
    written = get("ptx").render(lowered(kernel, str(schedule))[1], HOPPER)
    assert f".minnctapersm {step.resident}" in written
    registers, _ = assembled(written, HOPPER.name)
    assert HOPPER.resident_blocks(4 * step.warps, registers, 0) >= step.resident
