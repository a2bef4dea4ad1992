"""Packed weights are on their way before a kernel waits, and nothing else is."""

from __future__ import annotations

import dataclasses
import re
from math import prod

import pytest

from baregrad.dtypes import dtypes
from baregrad.io.gguf import weight
from baregrad.ir.core.node import Node, alu, const, instruction
from baregrad.ir.core.op import Ops
from baregrad.kernel import grid_size
from baregrad.kernel.gpu.ahead.loads_ahead import (
    MOST_HELD,
    REGISTERS,
    _refilled,
    load_ahead,
    machine,
)
from baregrad.kernel.planning.common.decisions import Decisions
from baregrad.kernel.planning.first_schedule import choose
from baregrad.render import get
from baregrad.render.gpu import gpu_signature, read_early
from tests.kernel.gpu_kernels import HOPPER, check_gpu, lowered
from tests.kernel.packed_products import packed_product

WAIT = "griddepcontrol.wait;"
COPY = re.compile(r"cp\.async\.c[ag]\.shared\.global")


@pytest.fixture(autouse=True)
def words_of_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight, "LARGE_NBYTES", 1)


def product(name: str, out: int, width: int) -> Node:
    return packed_product(name, 1, out, width, dtypes.bfloat16)


def in_turn(turns: int, rows: int = 2) -> Decisions:
    return Decisions({"rows in turn": str(turns), "rows of a thread": str(rows)})


def activations(program: Node) -> set[int]:
    """The slots of arrays that all blocks read alike: those of 16-bit rows."""
    params = {one for node in program.src for one in node.src if one.op is Ops.PARAM}
    return {one.arg.slot for one in params if one.dtype is dtypes.bfloat16}


@pytest.mark.parametrize(("name", "rows"), [("Q4_K", 4), ("Q6_K", 2), ("Q5_K", 2), ("Q4_K", 2)])
def test_words_of_one_turn_are_asked_for_before_the_wait(name: str, rows: int) -> None:
    kernel = product(name, 64, 1024)
    program = check_gpu(kernel, choose(kernel, HOPPER, in_turn(1, rows)).schedule)
    text = get("ptx").render(program, HOPPER)
    before, wait, after = text.partition(WAIT)
    assert wait and not COPY.search(text)
    assert len(re.findall(r"ld\.global\S*\.v4\.b32", before)) >= rows
    # What the kernel in front makes is read behind it.
    assert not activations(program) & set(read_early(program))
    assert re.search(r"ld\.global\S*\.v4\.b32", after)


def test_registers_hold_no_more_than_they_have_room_for() -> None:
    kernel = product("Q6_K", 64, 1024)
    _, program = lowered(kernel, choose(kernel, HOPPER, in_turn(1, 4)).schedule)
    at = next(k for k, one in enumerate(program.src) if one.op is Ops.MACHINE)
    loads = [one for one in program.src[:at] if one.op is Ops.VLOAD]
    assert 0 < sum(one.arg.width * one.dtype.itemsize for one in loads) <= MOST_HELD


@pytest.mark.parametrize(("name", "out", "turns"), [
    ("Q4_K", 256, 4), ("Q6_K", 64, 2), ("Q4_K", 250, 4),
])  # fmt: skip
def test_words_of_the_next_turn_are_copied_when_those_of_this_one_are_used(
    name: str, out: int, turns: int
) -> None:
    kernel = product(name, out, 1024)
    program = check_gpu(kernel, choose(kernel, HOPPER, in_turn(turns)).schedule)
    before, wait, after = get("ptx").render(program, HOPPER).partition(WAIT)
    assert wait and not re.search(r"(ld|st)\.global", before)
    assert len(COPY.findall(after)) == len(COPY.findall(before)) > 0
    assert not activations(program) & set(read_early(program))
    # All that is copied is read from its place before it is overwritten, and behind a wait.
    loop = after.partition("\nL")[2]
    used, _, copied = loop.partition("cp.async.c")
    assert "cp.async.wait_group 0" in used and "ld.shared" in used
    assert "shfl" in copied and "shfl" not in used
    # What was used first is filled again while other words are still to be read.
    assert "ld.shared.v4" in used and "ld.shared.v4" in copied


def test_a_word_that_is_used_later_is_copied_again_behind_its_read() -> None:
    """Of two words one is used in this part of a loop, the other only behind the part."""
    words = [const(number, dtypes.int32) for number in (3, 5)]
    loads, reads = (
        [instruction(op, dtypes.int32, (word,)) for word in words] for op in (Ops.CAST, Ops.NEG)
    )
    copies = dict(zip(loads, (machine("cp.async", 4, number) for number in (0, 1)), strict=True))
    use = alu(Ops.ADD, loads[0], loads[0])
    more = const(True, dtypes.bool)
    memo = dict(zip(loads, reads, strict=True))
    found = _refilled([loads[1], loads[0], use], memo, copies, more)
    assert [one for one in found if one in (*reads, use)] == [reads[1], reads[0], use]
    for load, last in ((loads[1], reads[1]), (loads[0], use)):
        assert found.count(copies[load]) == 1
        assert found.index(last) < found.index(copies[load])


@pytest.mark.parametrize(("out", "width", "share"), [
    (6144, 4096, 6), (128256, 4096, 8), (4096, 14336, 2),
])  # fmt: skip
def test_no_multiprocessor_has_room_for_more_blocks_than_its_share(
    out: int, width: int, share: int
) -> None:
    """Which are eight of four warps by their registers, at 64 a thread, and two of fourteen."""
    kernel = product("Q4_K", out, width)
    loop, program = lowered(kernel, choose(kernel, HOPPER).schedule)
    blocks = grid_size(loop)
    assert isinstance(blocks, int) and -(-blocks // HOPPER.units) == share
    warps = prod(program.arg.block) // HOPPER.warp_lanes
    nbytes = gpu_signature(program).shared_nbytes
    assert HOPPER.resident_blocks(warps, REGISTERS, nbytes) == share
    assert share == 2 or HOPPER.resident_blocks(warps, 1, nbytes) == share


def test_without_room_in_shared_memory_nothing_is_copied() -> None:
    kernel = product("Q4_K", 256, 1024)
    little = dataclasses.replace(HOPPER, shared_bytes_per_unit=HOPPER.shared_bytes_per_unit // 8)
    program = check_gpu(kernel, choose(kernel, HOPPER, in_turn(4, 4)).schedule, little)
    assert not COPY.search(get("ptx").render(program, HOPPER)) and not read_early(program)


def test_words_that_are_no_codes_are_loaded_as_they_were() -> None:
    kernel = product("Q8_0", 64, 1024)
    _, program = lowered(kernel, choose(kernel, HOPPER, in_turn(2)).schedule)
    assert load_ahead(program, HOPPER) is program and not read_early(program)


def test_kernels_that_begin_after_all_others_load_as_they_did() -> None:
    kernel = product("Q4_K", 64, 1024)
    later = dataclasses.replace(HOPPER, dependent_launch=False)
    _, program = lowered(kernel, choose(kernel, later, in_turn(1)).schedule, later)
    assert load_ahead(program, later) is program and not read_early(program)
