"""Kernels that do what they must not, each found out with its line, thread and address."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad.testing.virtual_gpu.ptx.errors import (
    DivergentBarrier,
    KernelFault,
    KernelHang,
    MisalignedAccess,
    OutOfBoundsAccess,
    SharedMemoryRace,
    UninitialisedRead,
    WindowOverrun,
)
from baregrad.testing.virtual_gpu.ptx.memory import PtxMemory
from baregrad.testing.virtual_gpu.ptx.program import PtxModule

HEAD = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry f(.param .u64 p0) {
.reg .pred p, q; .reg .b32 t, v, w, at; .reg .b64 a, b; .reg .f32 x;
.shared .align 16 .b32 s[256];
mov.u32 t, %tid.x; ld.param.u64 a, [p0]; mul.wide.u32 b, t, 4; add.u64 b, a, b;
mov.u32 at, s; mad.lo.u32 at, t, 4, at; mov.u32 v, 7;
"""
FIRST = HEAD.count("\n") + 1


def run(body: str, threads: int = 64, memory: PtxMemory | None = None, **options: Any) -> PtxMemory:
    memory = memory or PtxMemory()
    address = memory.put(np.arange(64, dtype=np.uint32))
    kernel = PtxModule.parse(HEAD + body + "\nret;\n}\n").kernel("f")
    kernel.launch(memory, (1,), (threads,), [address], **options)
    return memory


def caught(kind: type[KernelFault], body: str, threads: int = 64, **options: Any) -> KernelFault:
    with pytest.raises(kind) as found:
        run(body, threads, **options)
    assert type(found.value) is kind
    assert found.value.block == (0, 0, 0)
    return found.value


def test_outside_all_allocations() -> None:
    fault = caught(OutOfBoundsAccess, "st.global.u32 [b], v;", threads=80)
    assert fault.line == FIRST
    assert fault.thread == (64, 0, 0)
    assert fault.address == 0x7F00_0000_0000 + 256
    assert "0 bytes past the end" in str(fault) and "st.global.u32 [b], v;" in str(fault)


def test_outside_shared_memory() -> None:
    fault = caught(WindowOverrun, "ld.shared.u32 v, [at+900];")
    assert fault.thread == (31, 0, 0)
    assert fault.address == 1024


def test_a_freed_allocation() -> None:
    memory = PtxMemory()
    address = memory.put(np.zeros(4, np.uint32))
    memory.free(address)
    text = HEAD + f"mov.u64 b, {address}; ld.global.u32 v, [b]; ret; }}"
    with pytest.raises(OutOfBoundsAccess, match="below all"):
        PtxModule.parse(text).kernel("f").launch(memory, (1,), (1,), [0])


def test_misaligned() -> None:
    fault = caught(MisalignedAccess, "ld.global.v2.u32 {v, w}, [b];")
    assert fault.thread == (1, 0, 0)
    caught(MisalignedAccess, "ld.shared.u32 v, [at+2];")


def test_memory_that_nobody_wrote() -> None:
    memory = PtxMemory()
    empty = memory.allocate(64)
    fault = caught(UninitialisedRead, f"mov.u64 b, {empty}; ld.global.u8 v, [b+5];", memory=memory)
    assert fault.address == empty + 5
    fault = caught(UninitialisedRead, "setp.lt.u32 p, t, 9; @p st.shared.u32 [at], v;\n"
                   "bar.sync 0; ld.shared.u32 v, [at];")
    assert (fault.thread, fault.line) == ((9, 0, 0), FIRST + 1)


def test_a_register_that_nobody_wrote() -> None:
    fault = caught(UninitialisedRead, "add.u32 v, v, w;")
    assert "register w" in str(fault)


SHIFT = "mov.u32 at, s; xor.b32 w, t, 33; mad.lo.u32 w, w, 4, at; mad.lo.u32 at, t, 4, at;"


def test_a_missing_barrier() -> None:
    fault = caught(SharedMemoryRace, f"{SHIFT} st.shared.u32 [at], t;\nld.shared.u32 v, [w];")
    assert fault.line == FIRST + 1
    assert "thread (33, 0, 0)" in str(fault)
    run(f"{SHIFT} st.shared.u32 [at], t; bar.sync 0; ld.shared.u32 v, [w];")


def test_a_missing_second_barrier() -> None:
    body = f"{SHIFT} st.shared.u32 [at], t; bar.sync 0; ld.shared.u32 v, [w];"
    fault = caught(SharedMemoryRace, f"{body}\nst.shared.u32 [at], v;")
    assert fault.line == FIRST + 1
    run(f"{body} bar.sync 0; st.shared.u32 [at], v;")


def test_two_stores_to_one_place() -> None:
    body = "mov.u32 at, s; st.shared.u32 [at], {};"
    caught(SharedMemoryRace, body.format("t"))
    # The same value from all of them harms nobody.
    run(body.format("v"))


def test_two_copies_of_one_instruction_to_one_place() -> None:
    copy = "mov.u32 at, s; mad.lo.u32 at, t, {}, at; cp.async.ca.shared.global [at], [a], 8;"
    run(copy.format(8), threads=32)
    caught(SharedMemoryRace, copy.format(0), threads=2)


def test_a_warp_barrier_orders_its_warp_only() -> None:
    within = SHIFT.replace("33", "1")
    store, load = "st.shared.u32 [at], t;", "ld.shared.u32 v, [w];"
    caught(SharedMemoryRace, f"{within} {store} {load}")
    run(f"{within} {store} bar.warp.sync 0xffffffff; {load}")
    caught(SharedMemoryRace, f"{SHIFT} {store} bar.warp.sync 0xffffffff; {load}")


def test_named_barriers_of_part_of_the_block() -> None:
    within = SHIFT.replace("33", "1")
    body = (f"{within} st.shared.u32 [at], t; shr.u32 v, t, 5; add.u32 v, v, 1;"
            "bar.sync v, 32; ld.shared.u32 v, [w];")
    run(body)
    caught(SharedMemoryRace, body.replace("xor.b32 w, t, 1", "xor.b32 w, t, 33"))


def test_atomics_do_not_race_with_each_other() -> None:
    run("mov.u32 at, s; setp.eq.u32 p, t, 0; mov.u32 w, 0; @p st.shared.u32 [at], w; bar.sync 0;"
        "red.shared.add.u32 [at], 1; bar.sync 0; ld.shared.u32 v, [at]; setp.ne.u32 p, v, 64;"
        "@p trap;")
    caught(SharedMemoryRace,
           "mov.u32 at, s; setp.eq.u32 p, t, 0; mov.u32 w, 0; @p st.shared.u32 [at], w;"
           "bar.sync 0; red.shared.add.u32 [at], 1; ld.shared.u32 v, [at];")


def test_races_need_not_be_checked() -> None:
    run(f"{SHIFT} st.shared.u32 [at], t; ld.shared.u32 v, [w];", check_races=False)


def test_a_barrier_that_not_all_reach() -> None:
    fault = caught(DivergentBarrier, "setp.lt.u32 p, t, 32; @p bra SKIP; bar.sync 0;\nSKIP:")
    assert "64" not in str(fault) and "32 threads have ended" in str(fault)
    body = "setp.lt.u32 p, t, 40; @p bra SKIP;\nbar.sync 0;\nSKIP:"
    assert caught(DivergentBarrier, body).line == FIRST + 1


def test_a_warp_that_parts_at_two_barriers() -> None:
    caught(DivergentBarrier, "and.b32 w, t, 1; setp.eq.u32 p, w, 0; @p bra ODD;"
           "bar.sync 0; bra END;\nODD: bar.sync 0;\nEND:")


def test_a_shuffle_without_all_its_lanes() -> None:
    fault = caught(DivergentBarrier, "setp.lt.u32 p, t, 20; @p ret;\n"
                   "shfl.sync.idx.b32 v, t, 0, 31, 0xffffffff;")
    assert fault.line == FIRST + 1
    run("setp.lt.u32 p, t, 20; @p ret; setp.ge.u32 p, t, 32; @p ret;"
        "shfl.sync.idx.b32 v, t, 25, 31, 0xfff00000; setp.ne.u32 p, v, 25; @p trap;")


def test_branches_marked_uniform() -> None:
    caught(DivergentBarrier, "setp.lt.u32 p, t, 20; @p bra.uni OUT;\nOUT:")


def test_a_wait_for_a_phase_that_never_comes() -> None:
    body = ("setp.eq.u32 p, t, 0; @p mbarrier.init.shared.b64 [s], 2; bar.sync 0;"
            "@p mbarrier.arrive.shared.b64 _, [s];\n"
            "WAIT: mbarrier.try_wait.parity.shared.b64 q, [s], 0; @!q bra WAIT;")
    fault = caught(KernelHang, body)
    assert fault.line == FIRST + 1 and "waits for a phase" in str(fault)
    run(body.replace("[s], 2", "[s], 1"))


def test_a_loop_without_end() -> None:
    caught(KernelHang, "AGAIN: bra AGAIN;", step_limit=1000)


def test_a_thread_may_wait_for_another() -> None:
    """The one that waits comes first in the text; the other is run all the same."""
    run("setp.ne.u32 q, t, 63; @!q bra SET;\n"
        "WAIT: ld.volatile.global.u32 v, [a]; setp.ne.u32 p, v, 99; @p bra WAIT; bra OUT;\n"
        "SET: mov.u32 v, 99; st.volatile.global.u32 [a], v;\nOUT:")


def test_traps() -> None:
    caught(KernelFault, "setp.eq.u32 p, t, 5; @p trap;")


def test_generic_addresses_reach_every_space() -> None:
    run("cvt.u64.u32 b, at; cvta.shared.u64 b, b; isspacep.shared p, b; @!p trap;"
        "st.u32 [b], t; ld.shared.u32 v, [at]; setp.ne.u32 p, v, t; @p trap;"
        "isspacep.global p, a; @!p trap; ld.u32 v, [a+8]; setp.ne.u32 p, v, 2; @p trap;")


# --- blocks that run as one -----------------------------------------------------------------------

BLOCK = "mov.u32 w, %ctaid.x; "


def caught_in(kind: type[KernelFault], body: str, blocks: int = 5) -> KernelFault:
    memory = PtxMemory()
    address = memory.put(np.arange(64, dtype=np.uint32))
    kernel = PtxModule.parse(HEAD + BLOCK + body + "\nret;\n}\n").kernel("f")
    with pytest.raises(kind) as found:
        kernel.launch(memory, (blocks,), (64,), [address])
    return found.value


def test_the_block_and_the_thread_in_it_are_named() -> None:
    body = "setp.eq.u32 p, w, 3; setp.eq.u32 q, t, 40; and.pred p, p, q; "
    fault = caught_in(OutOfBoundsAccess, body + "@p st.global.u32 [b+4096], v;")
    assert (fault.block, fault.thread) == ((3, 0, 0), (40, 0, 0))
    fault = caught_in(WindowOverrun, body + "@p st.shared.u32 [at+900], v;")
    assert (fault.block, fault.thread, fault.address) == ((3, 0, 0), (40, 0, 0), 1060)
    # A place of its own shared memory, whatever other blocks wrote to theirs.
    fault = caught_in(UninitialisedRead, "setp.ne.u32 p, w, 3; @p st.shared.u32 [at], v; "
                      "bar.sync 0; ld.shared.u32 v, [at];")  # fmt: skip
    assert (fault.block, fault.thread, fault.address) == ((3, 0, 0), (0, 0, 0), 0)


def test_races_and_barriers_are_of_one_block() -> None:
    race = "setp.eq.u32 p, w, 2; st.shared.u32 [at], t; @!p bar.sync 0; ld.shared.u32 v, [s];"
    fault = caught_in(SharedMemoryRace, race)
    assert fault.block == (2, 0, 0) and "thread (0, 0, 0)" in str(fault)
    # One block's second warp never comes, and another block's makes up for nothing.
    left = "setp.eq.u32 p, w, 1; setp.ge.u32 q, t, 32; and.pred p, p, q; @p ret; bar.sync 0;"
    fault = caught_in(DivergentBarrier, left)
    assert fault.block == (1, 0, 0) and "32 threads" in str(fault)


def test_blocks_have_shared_memory_and_places_of_their_own() -> None:
    memory = PtxMemory()
    address = memory.put(np.zeros(7 * 64, np.uint32))
    body = """mov.u32 w, %ctaid.x; mad.lo.u32 v, w, 1000, t; st.shared.u32 [at], v; bar.sync 0;
    xor.b32 at, at, 128; ld.shared.u32 v, [at];
    mad.lo.u32 t, w, 64, t; mul.wide.u32 b, t, 4; add.u64 b, a, b; st.global.u32 [b], v; ret; }"""
    kernel = PtxModule.parse(HEAD + body).kernel("f")
    for blocks in (1, 7):
        kernel.launch(memory, (blocks,), (64,), [address])
        found = memory.get(address, np.uint32, (blocks, 64))
        wanted = np.arange(blocks)[:, None] * 1000 + (np.arange(64) ^ 32)
        np.testing.assert_array_equal(found, wanted)
