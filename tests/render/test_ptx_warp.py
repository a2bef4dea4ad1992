"""The matrix unit of a warp and copies to shared memory in PTX, against NumPy."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest

from baregrad import render
from baregrad.base.errors import CompilerBug
from baregrad.dtypes import DType, decode, dtypes, encode
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import Ops
from baregrad.target.gpu import GPU_ROWS, NvidiaTarget, gpu_row
from tests.kernel.gpu_kernels import lowered
from tests.kernel.instructions.test_mma_sync import product
from tests.kernel.instructions.test_wgmma import text as groups_text
from tests.render.gpu_harness import HOPPER, I64, INTERPRETED, Writer, alloc, run_ptx
from tests.render.test_ptx_assembles import assemble
from tests.render.test_ptx_assembles import pytestmark as needs_ptxas
from tests.render.test_ptx_memory import param

pytestmark = pytest.mark.differential
U32, F32 = dtypes.uint32, dtypes.float32
RANDOM = np.random.default_rng(9)
SHAPES = [("float16", 16), ("float16", 8), ("bfloat16", 16), ("bfloat16", 8), ("tfloat32", 8),
          ("tfloat32", 4), ("int8", 32), ("uint8", 16)]  # fmt: skip
SIZES = {"float16": 2, "bfloat16": 2, "tfloat32": 4, "int8": 1, "uint8": 1}


def store_accumulators(w: Writer, out: Node, total: list[Node]) -> None:
    """Register i of lane l is element [l/4 + 8(i/2)][2(l%4) + i%2]."""
    lane = w.thread(32)
    row = w.do(Ops.SHR, lane, const(2, I64))
    column = w.do(Ops.MUL, w.do(Ops.AND, lane, const(3, I64)), const(2, I64))
    place = w.do(Ops.ADD, w.do(Ops.MUL, row, const(8, I64)), column)
    for number, register in enumerate(total):
        w.store(out, place, register, at=64 * (number // 2) + number % 2)


def product_program(kind: str, depth: int) -> Node:
    """One product of fragments that are read word by word: 16 x depth by 8 x depth."""
    w = Writer()
    row_words = depth * SIZES[kind] // 4
    integers = "int8" in kind
    dtype: DType = dtypes.int32 if integers else F32
    a, b, out = param(1, 16 * row_words, U32), param(2, 8 * row_words, U32), param(0, 128, dtype)
    lane = w.thread(32)
    row, part = w.do(Ops.SHR, lane, const(2, I64)), w.do(Ops.AND, lane, const(3, I64))
    first = w.do(Ops.ADD, w.do(Ops.MUL, row, const(row_words, I64)), part)
    left = [
        w.load(a, first, at=8 * row_words * (number & 1) + 4 * (number >> 1))
        for number in range(row_words // 2)
    ]
    right = [w.load(b, first, at=4 * number) for number in range(row_words // 4)]
    total = [w.register(dtype) for _ in range(4)]
    for number, register in enumerate(total):
        w.set(register, const(number if integers else float(number), dtype))
    w.machine("mma.sync", *left, *right, *total, imm=(depth, kind))
    store_accumulators(w, out, total)
    return w.program()


def values_of(kind: str, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Small integers as stored, and as they are."""
    values = RANDOM.integers(0 if kind == "uint8" else -4, 5, shape)
    if kind in ("int8", "uint8"):
        return values.astype(kind), values
    if kind == "tfloat32":
        return values.astype(np.float32), values
    return encode(values.astype(np.float32), getattr(dtypes, kind)), values


@pytest.mark.parametrize("kind,depth", SHAPES)
def test_products_of_fragments(kind: str, depth: int) -> None:
    left, a = values_of(kind, (16, depth))
    right, b = values_of(kind, (8, depth))
    found = np.zeros((16, 8), np.int32 if "int8" in kind else np.float32)
    words = [np.ascontiguousarray(one).view(np.uint32).reshape(-1) for one in (left, right)]
    flat = found.reshape(-1)
    run_ptx(product_program(kind, depth), [flat, *words])
    start = np.empty((16, 8))
    # What the accumulators held before.
    start[:8, 0::2], start[:8, 1::2], start[8:, 0::2], start[8:, 1::2] = 0, 1, 2, 3
    np.testing.assert_array_equal(flat.reshape(16, 8), a @ b.T + start)


def tile_program(masked: bool, lines: tuple[int, ...] = ()) -> Node:
    """A (16 x 16) and B (8 x 16) of bfloat16 by way of shared memory.

    lines: (0, 0, 1) where whole lines of A may come at once.
    """
    w = Writer()
    half = dtypes.bfloat16
    a, b, out = param(1, 256, half), param(2, 128, half), param(0, 128)
    shared_a, shared_b = alloc(1, 256, half, "shared"), alloc(2, 128, half, "shared")
    lane = w.thread(32)
    eight = w.do(Ops.MUL, lane, const(8, I64))
    rows = (w.test(Ops.CMPLT, eight, const(128, I64)),) if masked else ()
    w.machine("cp.async", shared_a, eight, a, eight, *rows, imm=(16, *lines))
    w.machine("cp.async.commit")
    few = w.test(Ops.CMPLT, lane, const(16, I64))
    w.branch(few)
    w.machine("cp.async", shared_b, eight, b, eight, imm=(16,))
    w.end()
    w.machine("cp.async.commit")
    w.machine("cp.async.wait", imm=(0,))
    w.machine("bar.sync", imm=(0,))
    left = [w.register(U32) for _ in range(4)]
    right = [w.register(U32) for _ in range(2)]
    # Lanes 0 to 15 tell rows of the left half of A, the others those of the right half.
    row = w.do(Ops.MUL, w.do(Ops.AND, lane, const(15, I64)), const(16, I64))
    side = w.do(Ops.MUL, w.do(Ops.SHR, lane, const(4, I64)), const(8, I64))
    w.machine("ldmatrix", shared_a, w.do(Ops.ADD, row, side), *left, imm=(4, 0))
    row = w.do(Ops.MUL, w.do(Ops.AND, lane, const(7, I64)), const(16, I64))
    side = w.do(Ops.AND, lane, const(8, I64))
    w.machine("ldmatrix", shared_b, w.do(Ops.ADD, row, side), *right, imm=(2, 0))
    total = [w.register(F32) for _ in range(4)]
    for register in total:
        w.set(register, const(0.0, F32))
    w.machine("mma.sync", *left, *right, *total, imm=(16, "bfloat16"))
    store_accumulators(w, out, total)
    return w.program()


@pytest.mark.parametrize("masked", (False, True))
def test_a_tile_through_shared_memory(masked: bool) -> None:
    codes, a = values_of("bfloat16", (16, 16))
    right, b = values_of("bfloat16", (8, 16))
    found = np.zeros(128, np.float32)
    run_ptx(tile_program(masked), [found, codes.reshape(-1), right.reshape(-1)])
    kept = np.where(np.arange(16)[:, None] < 8, a, 0) if masked else a
    np.testing.assert_array_equal(found.reshape(16, 8), kept @ b.T)
    assert decode(codes, dtypes.bfloat16).shape == a.shape


@pytest.mark.parametrize("masked", (False, True))
def test_lines_of_memory_may_come_whole(masked: bool) -> None:
    program = tile_program(masked, (0, 0, 1))
    codes, a = values_of("bfloat16", (16, 16))
    right, b = values_of("bfloat16", (8, 16))
    found = np.zeros(128, np.float32)
    run_ptx(program, [found, codes.reshape(-1), right.reshape(-1)])
    kept = np.where(np.arange(16)[:, None] < 8, a, 0) if masked else a
    np.testing.assert_array_equal(found.reshape(16, 8), kept @ b.T)
    copies = re.findall(r"cp\.async\.c[ag]\S+", render.get("ptx").render(program, HOPPER))
    assert [copy.endswith(".L2::128B") for copy in copies] == [True, False]
    older = dataclasses.replace(HOPPER, ptx_isa=(7, 3))
    assert ".L2::" not in render.get("ptx").render(program, older)


@needs_ptxas
def test_copies_of_whole_lines_assemble() -> None:
    for row in GPU_ROWS:
        if row.async_copies:
            assemble([tile_program(True, (0, 0, 1))], row)


@INTERPRETED
def test_a_missing_wait_is_seen() -> None:
    program = tile_program(False)
    kept = [
        node
        for node in program.src
        if not (node.op is Ops.MACHINE and node.arg.name == "cp.async.wait")
    ]
    codes, right = values_of("bfloat16", (256,))[0], values_of("bfloat16", (128,))[0]
    with pytest.raises(Exception, match="race"):
        run_ptx(program.replace(src=tuple(kept)), [np.zeros(128, np.float32), codes, right])


def elect_program() -> Node:
    w = Writer()
    w.store(param(0, 64, dtypes.bool), w.thread(64), w.machine("elect", dtype=dtypes.bool))
    return w.program()


@pytest.mark.parametrize("target", (HOPPER, gpu_row("sm_75")), ids=lambda row: row.name)
def test_one_lane_of_each_warp_is_elected(target: NvidiaTarget) -> None:
    found = np.zeros(64, bool)
    run_ptx(elect_program(), [found], target=target)
    assert found.sum() == 2 and (np.arange(64)[found] // 32 == [0, 1]).all()


@needs_ptxas
@pytest.mark.parametrize("row", GPU_ROWS, ids=lambda row: row.name)
def test_each_generation_takes_what_it_has(row: NvidiaTarget) -> None:
    programs = [elect_program(), product_program("float16", 8)]
    if row.capability >= (8, 0):
        programs += [product_program(*shape) for shape in SHAPES]
        programs += [tile_program(False), tile_program(True)]
    assert assemble(programs, row)[:4] == b"\x7fELF"


@pytest.mark.parametrize("words,program", [
    ("sm_75 has no mma.sync", product_program("bfloat16", 8)),
    ("sm_75 has no mma.sync", product_program("float16", 16)),
    ("sm_75 has no cp.async", tile_program(False)),
])
def test_what_a_generation_lacks_is_named(words: str, program: Node) -> None:
    with pytest.raises(CompilerBug, match=words):
        render.get("ptx").render(program, gpu_row("sm_75"))


def test_a_block_prepares_its_barriers_before_it_waits() -> None:
    """Those and the maps of its boxes are the block's own; the first copy comes after the wait."""
    steps = groups_text((False, True), "pipeline('ko', 2, 'tma')")
    _, program = lowered(product(192, 64, 192, b_t=True), steps)
    text = render.get("ptx").render(program, HOPPER)
    before, wait, after = text.partition("  griddepcontrol.wait;\n")
    assert wait and "griddepcontrol.wait" not in after
    assert [f"prefetch.param.tensormap [m{number}]" in before for number in (0, 1, 2)] == [
        True, True, False
    ]  # fmt: skip
    assert before.count("mbarrier.init") == 4 and before.count("bar.sync") == 1
    assert "mbarrier.init" not in after and "cp.async.bulk" not in before
    # All threads come by.
    ends = re.findall(r"bra (E\d+);", before)
    assert ends and all(f"{label}:\n" in before for label in ends)
