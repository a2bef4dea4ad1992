"""Scores that are made a tile of keys ahead of the sums that their powers are for."""

from __future__ import annotations

import re

import numpy as np
import pytest

from baregrad.base.errors import ScheduleError
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.kernel import lower, parse_schedule
from baregrad.render import get
from baregrad.testing.examples.nests import attended
from baregrad.testing.virtual_gpu.ptx.errors import IllegalInstruction, SharedMemoryRace
from tests.kernel.applying.test_stream_tiles import arrays_of, attention
from tests.kernel.gpu_kernels import HOPPER, lowered, run_text, run_threads

CASES = (
    (130, 140, 64, True, (2, 1, 64)), (64, 96, 128, False, (1, 1, 32)),
    (128, 130, 64, True, (1, 2, 32)), (70, 20, 64, False, (1, 1, 32)),
)  # fmt: skip


def text(step: tuple[int, int, int]) -> str:
    return f"Schedule(stream_tiles({', '.join(map(str, step))}, instruction='wgmma', ahead=1))"


@pytest.mark.parametrize(("rows", "keys", "width", "causal", "step"), CASES)
def test_every_level_gives_what_numpy_gives(
    rows: int, keys: int, width: int, causal: bool, step: tuple[int, int, int]
) -> None:
    """Of one tile of keys, of several, and of as many as a mask shows a block's rows."""
    arrays = arrays_of(rows, keys, width)
    loop, program = lowered(attended(rows, keys, width, causal), text(step))
    blocks = {slot: np.array(array) for slot, array in arrays.items()}
    evaluate_loop(loop, blocks)
    limit = 2.0**-10 * np.abs(arrays[3]).max()
    found = blocks, run_threads(loop, program, arrays), run_text(loop, program, arrays)
    for one in found:
        assert np.abs(one[0] - attention(arrays, causal)).max() < limit
    np.testing.assert_array_equal(found[1][0], found[2][0])


def machines(program: Node) -> list[str]:
    """The instructions of the loop over keys that order work, in their order."""
    code = list(program.src)
    begins = [at for at, node in enumerate(code) if node.op is Ops.BEGIN]
    ends = [at for at, node in enumerate(code) if node.op is Ops.END]
    inside = code[begins[0] : ends[-1]]
    found: list[str] = []
    for node in inside:
        if node.op is Ops.MACHINE and not node.arg.name.startswith(("shfl", "cvt", "cp.async")):
            name = node.arg.name
            name += f" {node.arg.immediates[0]}" if name == "wgmma.wait" else ""
            found += [name] if found[-1:] != [name] else []
    return found


def test_powers_are_raised_while_the_unit_sums() -> None:
    _, program = lowered(attended(64, 256, 64), text((1, 1, 32)))
    assert machines(program) == [
        "fence.proxy.async", "bar.sync",
        "wgmma.fence", "wgmma", "wgmma.commit", "wgmma.fence", "wgmma.held", "wgmma.commit",
        "wgmma.wait 1", "wgmma.wait 0",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["bar.sync", "wgmma.commit", "wgmma.wait", "cp.async.wait"])
def test_nothing_that_orders_the_loop_can_be_left_out(name: str) -> None:
    """The virtual GPU finds a race, or the numbers are wrong."""
    arrays = arrays_of(64, 256, 64)
    loop, program = lowered(attended(64, 256, 64), text((1, 1, 32)))
    code = list(program.src)
    begin = next(at for at, one in enumerate(code) if one.op is Ops.BEGIN)
    place = next(
        at for at, one in enumerate(code)
        if at > begin and one.op is Ops.MACHINE and one.arg.name == name
    )  # fmt: skip
    changed = program.replace(src=(*code[:place], *code[place + 1 :]))
    try:
        made = run_text(loop, changed, arrays)[0]
    except (SharedMemoryRace, IllegalInstruction):
        return
    assert not np.abs(made - attention(arrays, False)).max() < 0.01


@pytest.mark.parametrize("spelled", [
    "stream_tiles(4, 1, 32, ahead=1)", "stream_tiles(1, 1, 32, instruction='wgmma', ahead=2)",
])  # fmt: skip
def test_what_is_refused(spelled: str) -> None:
    with pytest.raises(ScheduleError, match="one tile ahead"):
        lower(attended(64, 64, 64), HOPPER, parse_schedule(f"Schedule({spelled})"))


@pytest.mark.parametrize(("step", "why"), [
    ("16, 1, 64, instruction='wgmma'", "so many threads: found 2048, wanted at most 1024"),
    ("64, 1, 64", "so many threads"), ("1, 1, 24, instruction='wgmma'", "multiples of 16"),
])  # fmt: skip
def test_tiles_that_no_block_has_are_refused(step: str, why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        lower(attended(64, 64, 64), HOPPER, parse_schedule(f"Schedule(stream_tiles({step}))"))


def test_the_assembler_may_not_wait_ahead_of_the_powers() -> None:
    """A store of what they are summed to, which is never made, stands ahead of the second wait."""
    _, program = lowered(attended(64, 256, 64), text((1, 1, 32)))
    lines = get("ptx").render(program, HOPPER).split("\n")
    first = next(at for at, line in enumerate(lines) if re.match(r"L\d+:$", line))
    loop = [line.strip() for line in lines[first:]]
    wait = loop.index("wgmma.wait_group.sync.aligned 0;")
    assert loop[wait - 1].startswith("@") and "st.shared.b32 [shared_memory]" in loop[wait - 1]
    powers = [at for at, line in enumerate(loop[:wait]) if line.startswith("ex2.approx")]
    ahead = loop.index("wgmma.wait_group.sync.aligned 1;")
    assert powers and ahead < min(powers) and "st.shared" not in loop[ahead - 1]
