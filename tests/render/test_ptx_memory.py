"""Accesses, memory of each kind, control and threads' instructions in PTX, against NumPy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from baregrad import render
from baregrad.base.errors import CompilerBug, UnsupportedDevice
from baregrad.dtypes import COMPUTED, DType, dtypes
from baregrad.ir.core.attrs import Param
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import Ops
from baregrad.render.gpu import gpu_signature
from baregrad.target.gpu import gpu_row
from baregrad.testing.virtual_gpu.ptx.program import PtxModule
from tests.render.gpu_harness import (
    BLOCK,
    HOPPER,
    I64,
    INTERPRETED,
    TOKEN,
    Writer,
    alloc,
    run_ptx,
    thread,
)

pytestmark = pytest.mark.differential
F32, F64, I32 = dtypes.float32, dtypes.float64, dtypes.int32
RANDOM = np.random.default_rng(5)


def param(slot: int, count: int, dtype: DType = F32) -> Node:
    return Node(Ops.PARAM, dtype, (), Param(slot, (count,)))


def text_of(program: Node, target: Any = HOPPER) -> str:
    return render.get("ptx").render(program, target)


def accesses(text: str, kind: str) -> list[str]:
    """The bytes and instructions of loads or stores of global memory."""
    return re.findall(rf"{kind}\.global\S*", text)


def stored(dtype: DType, count: int) -> Any:
    if dtype.kind == "bool":
        return RANDOM.integers(0, 2, count).astype(bool)
    storage = dtype.storage
    assert storage is not None
    # Every pattern of bits; NaNs have theirs kept, since nothing is computed.
    raw = RANDOM.integers(0, 256, count * dtype.itemsize).astype(np.uint8)
    return raw.view(storage)


# --- vector accesses -----------------------------------------------------------------------------


def copy_program(
    dtype: DType, width: int, align: int, threads: int = 4, stride: int = 1, mask: Any = None
) -> Node:
    w = Writer()
    x, out = param(1, threads * width * stride, dtype), param(0, threads * width, dtype)
    place = w.do(Ops.MUL, w.thread(threads), const(width, I64))
    source = place if stride == 1 else w.do(Ops.MUL, place, const(stride, I64))
    masks = () if mask is None else (mask(w, place),)
    value = w.load(x, source, *masks, width=width, stride=stride, align=align)
    w.store(out, place, value, width=width, align=align)
    return w.program()


@pytest.mark.parametrize("width", (1, 2, 3, 4, 6, 8, 16))
@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
def test_copies_take_as_few_instructions_as_alignment_allows(dtype: DType, width: int) -> None:
    nbytes = width * dtype.itemsize
    x = stored(dtype, 4 * width)
    align = dtype.itemsize
    while align <= 32 and nbytes % align == 0:
        program = copy_program(dtype, width, align)
        found = np.zeros_like(x)
        run_ptx(program, [found, x])
        np.testing.assert_array_equal(found, x)
        for row, most in ((HOPPER, 16), (gpu_row("sm_100a"), 32)):
            text = text_of(program, row)
            wanted = -(-nbytes // min(align, most))
            assert len(accesses(text, "ld")) == len(accesses(text, "st")) == wanted
        align *= 2


@pytest.mark.parametrize(("is_set_anew", "words"), [(False, True), (True, True), (False, False)])
def test_upper_halves_of_words_are_widened_by_one_instruction(
    is_set_anew: bool, words: bool
) -> None:
    """What was loaded into a REG is another's once something else sets that.

    Only where words are multiplied.
    """
    w = Writer()
    if words:
        w.put(Ops.DOT4, dtypes.int32, *[const(1, dtypes.int32)] * 3)
    x, y, out = (param(slot, 32, dtypes.bfloat16 if slot else F32) for slot in (1, 2, 0))
    number = w.thread(4)
    place = w.do(Ops.MUL, number, const(8, I64))
    value = w.load(x, place, width=8, align=16)
    if is_set_anew:
        register = w.register(dtypes.bfloat16, 8)
        w.set(register, value)
        w.branch(w.test(Ops.CMPLT, number, const(2, I64)))
        w.set(register, w.load(y, place, width=8, align=16))
        w.end()
        value = register
    w.store(out, place, w.cast(value, F32), width=8, align=32)
    program = w.program()
    codes = RANDOM.integers(0, 1 << 16, (2, 32)).astype(np.uint16)
    found = np.zeros(32, np.float32)
    run_ptx(program, [found, *codes])
    wanted = np.where((np.arange(32) < 16) & is_set_anew, codes[1], codes[0])
    np.testing.assert_array_equal(found.view(np.uint32), wanted.astype(np.uint32) << 16)
    assert text_of(program).count("0xFFFF0000") == 4 * (words and not is_set_anew)


def test_an_odd_tail_takes_narrower_accesses() -> None:
    """11 floats from an address that is a multiple of 16 bytes: 4, 4, 2 and 1."""
    w = Writer()
    w.store(param(0, 11), 0, w.load(param(1, 11), 0, width=11, align=16), width=11, align=16)
    program = w.program()
    x, found = np.arange(11, dtype=np.float32), np.zeros(11, np.float32)
    run_ptx(program, [found, x])
    np.testing.assert_array_equal(found, x)
    kinds = [one.rpartition("global.")[2] for one in accesses(text_of(program), "ld")]
    assert kinds == ["v4.f32", "v4.f32", "v2.f32", "f32"]


@pytest.mark.parametrize("dtype", (dtypes.bool, dtypes.int8, dtypes.float16, F32, F64), ids=str)
@pytest.mark.parametrize("stride", (2, -1))
def test_strided_lanes(dtype: DType, stride: int) -> None:
    w = Writer()
    x, out = param(1, 16, dtype), param(0, 4, dtype)
    value = w.load(x, const(8, I64), width=4, stride=stride)
    w.store(out, const(0, I64), value, width=4)
    data = stored(dtype, 16)
    found = np.zeros(4, data.dtype)
    run_ptx(w.program(), [found, data])
    np.testing.assert_array_equal(found, data[8 : 8 + 4 * stride : stride])


@pytest.mark.parametrize("dtype", (dtypes.bool, dtypes.int8, dtypes.float16, F32, F64), ids=str)
def test_masked_lanes_are_zero_and_are_not_read(dtype: DType) -> None:
    """Lane masks, and one mask for all lanes; what is off reaches beyond the array."""
    data = stored(dtype, 13)
    for shared_mask in (False, True):
        w = Writer()
        x, out = param(1, 13, dtype), param(0, 16, dtype)
        place = w.do(Ops.MUL, w.thread(4), const(4, I64))
        if shared_mask:
            mask = w.test(Ops.CMPLT, place, const(12, I64))
            mask = w.put(Ops.SPLAT, dtypes.bool, mask, arg=4)
        else:
            lanes = w.put(Ops.LANES, I64, arg=4)
            lane_place = w.do(Ops.ADD, w.put(Ops.SPLAT, I64, place, arg=4), lanes)
            mask = w.test(Ops.CMPLT, lane_place, const(13, I64))
        value = w.load(x, place, mask, width=4, align=min(16, 4 * dtype.itemsize))
        w.store(out, place, value, width=4)
        found = stored(dtype, 16)
        run_ptx(w.program(), [found, data])
        end = 12 if shared_mask else 13
        np.testing.assert_array_equal(found[:end], data[:end])
        assert not found[end:].any()


def test_masked_stores_leave_the_rest_alone() -> None:
    w = Writer()
    x, out = param(1, 8), param(0, 8)
    lanes = w.put(Ops.LANES, I64, arg=8)
    odd = w.test(Ops.CMPEQ, w.do(Ops.AND, lanes, const(1, I64)), const(1, I64))
    w.store(out, 0, w.load(x, 0, width=8), odd, width=8)
    data, found = np.arange(8, dtype=np.float32), np.full(8, -1, np.float32)
    run_ptx(w.program(), [found, data])
    np.testing.assert_array_equal(found, [-1, 1, -1, 3, -1, 5, -1, 7])


def test_gathers_take_an_offset_for_each_lane() -> None:
    w = Writer()
    x, places, out = param(2, 9), param(1, 4, I32), param(0, 4)
    offsets = w.load(places, 0, width=4)
    w.store(out, 0, w.load(x, offsets, width=4), width=4)
    data, found = RANDOM.standard_normal(9).astype(np.float32), np.zeros(4, np.float32)
    order = np.array([8, 0, 3, 3], np.int32)
    run_ptx(w.program(), [found, order, data])
    np.testing.assert_array_equal(found, data[order])


def test_what_the_kernel_does_not_write_may_come_through_the_read_only_path() -> None:
    for constant, inplace, wanted in ((True, False, 1), (False, False, 0), (True, True, 0)):
        w = Writer()
        x = param(0 if inplace else 1, 4)
        w.store(param(0, 4), 0, w.load(x, 0, width=4, constant=constant), width=4)
        assert text_of(w.program(), gpu_row("sm_80")).count(".nc") == (4 if wanted else 0)


def test_kernels_that_may_begin_early_read_nothing_through_the_read_only_path() -> None:
    # ptxas moves ld.nc before griddepcontrol.wait, and reads what the kernel in front has not yet
    # written.
    w = Writer()
    w.store(param(0, 4), 0, w.load(param(1, 4), 0, width=4, constant=True), width=4)
    assert HOPPER.dependent_launch
    assert ".nc" not in text_of(w.program(), HOPPER)


def test_far_offsets_do_not_fit_a_displacement() -> None:
    w = Writer()
    far = (1 << 32) + 5
    w.store(param(0, 1), 0, w.load(param(1, 2 << 32), const(far, I64)))
    text = text_of(w.program())
    assert f"add.s64 %rd3, %rd2, {4 * far};" in text
    assert "[%rd3]" in text


# --- the block's memory and the thread's own -----------------------------------------------------


@pytest.mark.parametrize("spare", (0, 50_000))
@pytest.mark.parametrize("dtype", (dtypes.int8, dtypes.float16, F32, F64), ids=str)
def test_a_block_turns_an_array_through_shared_memory(dtype: DType, spare: int) -> None:
    """Each block of 64 threads reverses its part; beyond 48 KiB the memory is dynamic."""
    w = Writer()
    buffer = alloc(1, 64, dtype, "shared")
    more = alloc(2, spare, dtypes.uint8, "shared")
    x, out = param(1, 192, dtype), param(0, 192, dtype)
    me = w.thread(64)
    first = w.do(Ops.MUL, w.cast(BLOCK, I64), const(64, I64))
    place = w.do(Ops.ADD, first, me)
    if spare:
        w.store(more, w.do(Ops.ADD, me, const(spare - 64, I64)), const(1, dtypes.uint8))
    w.store(buffer, me, w.load(x, place))
    w.machine("bar.sync", imm=(0,))
    w.store(out, place, w.load(buffer, w.do(Ops.SUB, const(63, I64), me)))
    program = w.program()
    data = stored(dtype, 192)
    found = np.zeros_like(data)
    run_ptx(program, [found, data], grid=3)
    np.testing.assert_array_equal(found, data.reshape(3, 64)[:, ::-1].reshape(-1))
    dynamic = gpu_signature(program).dynamic_nbytes(HOPPER)
    assert (dynamic > 0) == (spare > 0) == (".extern .shared" in text_of(program))


@INTERPRETED
def test_a_missing_barrier_is_seen() -> None:
    """The interpreter finds the race, so that the barrier above is known to be one."""
    w = Writer()
    buffer = alloc(1, 64, F32, "shared")
    me = w.thread(64)
    w.store(buffer, me, w.load(param(1, 64), me))
    w.store(param(0, 64), me, w.load(buffer, w.do(Ops.SUB, const(63, I64), me)))
    data = np.zeros(64, np.float32)
    with pytest.raises(Exception, match="race|nobody wrote"):
        run_ptx(w.program(), [data.copy(), data])


@pytest.mark.parametrize("space", ("register", "scratch"))
@pytest.mark.parametrize("dtype", (dtypes.bool, dtypes.int16, dtypes.float16, F64), ids=str)
def test_a_threads_own_array_with_an_index_is_in_local_memory(dtype: DType, space: str) -> None:
    w = Writer()
    mine = alloc(3, 4, dtype, space)
    x, out = param(1, 32, dtype), param(0, 32, dtype)
    first = w.do(Ops.MUL, w.thread(8), const(4, I64))
    w.store(mine, 0, w.load(x, first, width=4), width=4, align=min(16, 4 * dtype.itemsize))
    i = w.begin(0, 4)
    back = w.do(Ops.SUB, const(3, I64), i)
    w.store(out, w.do(Ops.ADD, first, i), w.load(mine, back))
    w.end()
    program = w.program()
    data = stored(dtype, 32)
    found = np.zeros_like(data)
    run_ptx(program, [found, data])
    np.testing.assert_array_equal(found, data.reshape(8, 4)[:, ::-1].reshape(-1))
    assert ".local" in text_of(program)


def test_a_threads_own_array_with_constant_places_is_in_registers() -> None:
    w = Writer()
    mine = alloc(3, 4, F32, "register")
    w.store(mine, 0, w.load(param(1, 4), 0, width=4), width=4)
    i = w.begin(0, 3)
    w.store(mine, 1, w.do(Ops.ADD, w.load(mine, 1), w.load(mine, 2)))
    w.end()
    w.store(param(0, 4), 0, w.load(mine, 0, width=4), width=4)
    program = w.program()
    assert i is not None and ".local" not in text_of(program)
    data, found = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    run_ptx(program, [found, data])
    np.testing.assert_array_equal(found, [0, 1 + 3 * 2, 2, 3])


# --- control -------------------------------------------------------------------------------------


def test_registers_that_swap() -> None:
    """READ is a copy: what follows changes the register, not it."""
    w = Writer()
    a, b = w.register(F32), w.register(F32)
    x = param(1, 2)
    w.set(a, w.load(x, 0))
    w.set(b, w.load(x, 1))
    w.begin(0, 3)
    old = w.put(Ops.READ, F32, a)
    w.set(a, b)
    w.set(b, old)
    w.end()
    w.store(param(0, 2), 0, a)
    w.store(param(0, 2), 1, b)
    found = np.zeros(2, np.float32)
    run_ptx(w.program(), [found, np.array([1, 2], np.float32)])
    np.testing.assert_array_equal(found, [2, 1])


@pytest.mark.parametrize("dtype", (dtypes.bool, dtypes.uint8, I32, F32, F64), ids=str)
def test_an_accumulator_is_written_by_the_instruction_itself(dtype: DType) -> None:
    w = Writer()
    total = w.register(dtype)
    x = param(1, 8, dtype)
    w.set(total, w.load(x, 0))
    i = w.begin(1, 8)
    w.set(total, w.do(Ops.ADD, total, w.load(x, i)))
    w.end()
    w.store(param(0, 1, dtype), 0, total)
    program = w.program()
    if dtype is F32:
        assert re.search(r"add.rn.f32 (%f\d+), \1, ", text_of(program))
    data = np.array([1, 1, 0, 1, 0, 0, 1, 1], dtype.numpy)
    found = np.zeros(1, dtype.numpy)
    run_ptx(program, [found, data])
    assert found[0] == data.sum(dtype=dtype.numpy)


def test_a_value_with_another_reader_keeps_its_register() -> None:
    """The register changes between the sum and its use, which must still see the sum."""
    w = Writer()
    total = w.register(F32)
    w.set(total, w.load(param(1, 2), 0))
    more = w.do(Ops.ADD, total, w.load(param(1, 2), 1))
    w.set(total, more)
    w.set(total, w.do(Ops.MUL, total, total))
    w.store(param(0, 2), 0, more)
    w.store(param(0, 2), 1, total)
    found = np.zeros(2, np.float32)
    run_ptx(w.program(), [found, np.array([2, 3], np.float32)])
    np.testing.assert_array_equal(found, [5, 25])


def test_a_register_that_is_read_before_it_is_set_keeps_the_old_value_till_then() -> None:
    w = Writer()
    x, out = param(1, 2), param(0, 2)
    total = w.register(F32)
    w.set(total, w.load(x, 0))
    more = w.do(Ops.ADD, total, w.load(x, 1))
    w.store(out, 0, total)
    w.set(total, more)
    w.store(out, 1, total)
    found = np.zeros(2, np.float32)
    run_ptx(w.program(), [found, np.array([2, 3], np.float32)])
    np.testing.assert_array_equal(found, [2, 5])


@pytest.mark.parametrize("stop", (-2, 0, 1, 5))
def test_loops_to_a_symbolic_integer(stop: int) -> None:
    from baregrad.ir.core.axes import Var

    w = Writer()
    n = Node(Ops.VAR, I64, (), Var("n", -9, 9))
    count = w.register(I64)
    w.set(count, const(0, I64))
    w.begin(0, n)
    w.set(count, w.do(Ops.ADD, count, const(1, I64)))
    w.end()
    w.store(param(0, 1, I64), 0, count)
    found = np.full(1, -1, np.int64)
    run_ptx(w.program(), [found], {"n": stop})
    assert found[0] == max(stop, 0)


def test_threads_part_at_conditions_and_meet_again() -> None:
    w = Writer()
    me = w.thread(64)
    out = param(0, 64, I64)
    value = w.register(I64)
    w.set(value, const(-1, I64))
    w.branch(w.test(Ops.CMPLT, me, const(10, I64)))
    w.begin(0, me)
    w.set(value, w.do(Ops.ADD, value, const(2, I64)))
    w.end()
    w.end()
    w.machine("bar.sync", imm=(0,))
    w.store(out, me, value)
    found = np.zeros(64, np.int64)
    run_ptx(w.program(), [found])
    lanes = np.arange(64)
    np.testing.assert_array_equal(found, np.where(lanes < 10, 2 * lanes - 1, -1))


def test_any_of_a_vector() -> None:
    for width in (1, 2, 5):
        w = Writer()
        x = w.load(param(1, 4 * width, I32), w.do(Ops.MUL, w.thread(4), const(width, I64)),
                   width=width)
        if width == 1:
            x = w.put(Ops.SPLAT, I32, x, arg=1)
        some = w.put(Ops.ANY, dtypes.bool, w.test(Ops.CMPLT, x, const(0, I32)))
        w.store(param(0, 4, dtypes.bool), w.thread(4), some)
        data = np.zeros((4, width), np.int32)
        data[1, -1] = data[2, 0] = -1
        found = np.ones(4, bool)
        run_ptx(w.program(), [found, data.reshape(-1)])
        np.testing.assert_array_equal(found, [False, True, True, False])


# --- what lanes do together ----------------------------------------------------------------------

SHUFFLED = (dtypes.bool, dtypes.int8, dtypes.uint16, dtypes.float16, I32, F32, I64, F64)


@pytest.mark.parametrize("dtype", SHUFFLED, ids=str)
@pytest.mark.parametrize("mode", ("bfly", "down", "up", "idx"))
def test_shuffles(dtype: DType, mode: str) -> None:
    by = 5
    w = Writer()
    me = w.thread(64)
    value = w.load(param(1, 64, dtype), me)
    w.store(param(0, 64, dtype), me, w.machine(f"shfl.sync.{mode}", value, imm=(by,), dtype=dtype))
    data = stored(dtype, 64)
    found = np.zeros_like(data)
    run_ptx(w.program(), [found, data])
    lane = np.arange(64) % 32
    source = {"bfly": lane ^ by, "down": lane + by, "up": lane - by, "idx": 0 * lane + by}[mode]
    source = np.where((source >= 0) & (source < 32), source, lane)
    np.testing.assert_array_equal(found, data[np.arange(64) // 32 * 32 + source])


@pytest.mark.parametrize("dtype", (I32, dtypes.uint32, I64, dtypes.uint64, F32, F64), ids=str)
@pytest.mark.parametrize("space", ("global", "shared"))
def test_atomic_sums(dtype: DType, space: str) -> None:
    """Every thread adds to one of four places; what it saw is what was there."""
    w = Writer()
    me = w.thread(64)
    out, seen = param(0, 4, dtype), param(1, 64, dtype)
    slot = w.do(Ops.AND, me, const(3, I64))
    target = out
    first = w.test(Ops.CMPLT, me, const(4, I64))
    if space == "shared":
        target = alloc(1, 4, dtype, "shared")
        w.branch(first)
        w.store(target, me, const(0.0 if dtype.is_float else 0, dtype))
        w.end()
        w.machine("bar.sync", imm=(0,))
    one = const(1.0 if dtype.is_float else 1, dtype)
    w.store(seen, me, w.machine("atom.add", target, slot, one, dtype=dtype))
    w.machine("atom.add", target, slot, one)
    if space == "shared":
        w.machine("bar.sync", imm=(0,))
        w.branch(first)
        w.store(out, me, w.load(target, me))
        w.end()
    found, saw = np.zeros(4, dtype.numpy), np.zeros(64, dtype.numpy)
    run_ptx(w.program(), [found, saw])
    np.testing.assert_array_equal(found, np.full(4, 32))
    np.testing.assert_array_equal(np.sort(saw.reshape(16, 4), axis=0)[:, 0], np.arange(16))


def test_an_atomic_sum_has_a_displacement_and_a_mask() -> None:
    w = Writer()
    me = w.thread(64)
    odd = w.test(Ops.CMPEQ, w.do(Ops.AND, me, const(1, I64)), const(1, I64))
    slot = w.do(Ops.AND, me, const(3, I64))
    w.machine("atom.add", param(0, 9, I64), slot, me, odd, imm=(5,))
    found = np.zeros(9, np.int64)
    run_ptx(w.program(), [found])
    wanted = np.zeros(9, np.int64)
    np.add.at(wanted, 5 + np.arange(1, 64, 2) % 4, np.arange(1, 64, 2))
    np.testing.assert_array_equal(found, wanted)


# --- what cannot be ------------------------------------------------------------------------------


def bad_programs() -> list[tuple[str, Node]]:
    found = []
    half, index = dtypes.float16, dtypes.index
    w = Writer()
    value = w.load(param(1, 4, half), 0)
    w.do(Ops.ADD, value, value)
    found.append(("narrow floats", w.program()))
    w = Writer()
    w.put(Ops.ADD, index, const(1, index), const(2, index))
    found.append(("lowered", w.program()))
    w = Writer()
    w.put(Ops.EXP, F32, w.load(param(1, 4), 0))
    found.append(("lowered", w.program()))
    w = Writer()
    w.machine("teleport")
    found.append(("no rule for a machine", w.program()))
    w = Writer()
    w.put(Ops.BEGIN, I64, const(0, I64), const(1, I64), const(2, I64), arg=1)
    w.end()
    found.append(("a CPU's chunks", w.program()))
    w = Writer()
    w.load(alloc(1, 4, F32, "disk"), 0)
    found.append(("no such memory", w.program()))
    w = Writer()
    w.put(Ops.BARRIER, TOKEN)
    found.append(("no rule", w.program()))
    return found


@pytest.mark.parametrize("words,program", bad_programs())
def test_what_has_no_ptx_is_named(words: str, program: Node) -> None:
    with pytest.raises(CompilerBug, match=words):
        text_of(program)


@pytest.mark.parametrize("name", ("ptx", "cuda"))
def test_a_block_that_is_too_large_is_refused(name: str) -> None:
    w = Writer()
    w.store(param(0, 2048), w.thread(2048), const(1.0, F32))
    with pytest.raises(CompilerBug, match="threads: found 2048, wanted at most 1024"):
        render.get(name).render(w.program(), HOPPER)
    w = Writer()
    w.store(alloc(1, 70_000, dtypes.uint8, "shared"), w.thread(32), const(1, dtypes.uint8))
    assert render.get(name).render(w.program(), HOPPER)
    with pytest.raises(CompilerBug, match="sm_75 cannot have so many bytes of shared memory"):
        render.get(name).render(w.program(), gpu_row("sm_75"))


def test_generations_are_named() -> None:
    with pytest.raises(UnsupportedDevice, match="sm_90a"):
        gpu_row("sm_42")


@pytest.mark.parametrize("name,places", [
    ("ptx", ["p0", "p1", "p2", "p3", "v0", "v1"]), ("cuda", ["b0", "b1", "b2", "b3", "n0", "n1"]),
])
def test_arrays_that_nothing_uses_are_parameters_all_the_same(
    name: str, places: list[str]
) -> None:
    """Where an argument lies must not depend on what became of the others."""
    w = Writer()
    w.store(param(0, 4), 0, w.load(param(2, 4), 0))
    text = render.get(name).render(w.program(), HOPPER, ("m", "n"), 4)
    head = text.partition("{")[0].rpartition("(")[2]
    assert re.findall(r"\b([pvbn]\d)\b", head) == places
    if name == "ptx":
        kernel = PtxModule.parse(text).kernel("k")
        assert kernel.parameter_nbytes == 8 * len(places)


def test_a_block_is_as_large_as_its_threads_say() -> None:
    w = Writer()
    w.store(param(0, 96), w.thread(96), const(1.0, F32))
    text = text_of(w.program())
    assert ".reqntid 96, 1, 1" in text
    assert thread(96).arg.hi == 95


@pytest.mark.parametrize(("threads", "loads", "shares"), [
    (512, 4, False), (512, 16, True), (512, 40, False), (256, 16, False), (1024, 16, False),
])
def test_large_blocks_leave_registers_for_another(threads: int, loads: int, shares: bool) -> None:
    """Where its threads meet, and would take a few more registers than leave room for two."""
    x, out = (param(place, 4 * loads * threads) for place in (1, 0))
    for meets in (True, False):
        w = Writer()
        place = w.do(Ops.MUL, w.thread(threads), const(4 * loads, I64))
        found = [w.load(x, place, width=4, at=4 * turn) for turn in range(loads)]
        if meets:
            w.machine("bar.sync", imm=(0,))
        for turn, value in enumerate(found):
            w.store(out, place, value, width=4, at=4 * turn)
        assert (".minnctapersm 2" in text_of(w.program())) == (shares and meets)
