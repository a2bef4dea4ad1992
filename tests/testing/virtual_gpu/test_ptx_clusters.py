"""Clusters of blocks: each other's shared memory, copies to several, and registers handed on."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

from baregrad.assemble.ptxas import PtxAssembler
from baregrad.base.errors import ArgumentError
from baregrad.testing.virtual_gpu.ptx.errors import (
    AbsentBlock,
    DivergentBarrier,
    IllegalInstruction,
    KernelHang,
    RegisterDeadlock,
    SharedMemoryRace,
    UninitialisedRead,
)
from baregrad.testing.virtual_gpu.ptx.memory import PtxMemory
from baregrad.testing.virtual_gpu.ptx.program import PtxModule
from tests.testing.virtual_gpu.test_ptx_hopper import HEAD, tensor_map

needs_ptxas = pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not installed")

MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
NAMES = """.reg .pred p, q; .reg .b32 t, r, s, w, v, m, n, k, size, id;
.reg .b64 o, d, g, map;"""
# Each block gives the next one of its cluster a row of numbers.
EXCHANGE = HEAD + f"""
.visible .entry f(.param .u64 po) .reqnctapercluster 4, 1, 1 {{
{NAMES} .shared .align 16 .b32 row[32];
mov.u32 t, %tid.x; mov.u32 r, %cluster_ctarank; mov.u32 size, %cluster_nctarank;
mov.u32 id, %ctaid.x; ld.param.u64 o, [po];
mov.u32 s, row; shl.b32 n, t, 2; add.u32 s, s, n;
FIRST
add.u32 w, r, 1; rem.u32 w, w, size; mapa.shared::cluster.u32 k, s, w;
mad.lo.u32 v, id, 100, t;
STORE
MIDDLE
ld.shared.u32 v, [s];
mad.lo.u32 n, id, 32, t; mul.wide.u32 d, n, 4; add.u64 o, o, d; st.global.u32 [o], v;
ret; }}
"""
STORE = "st.shared::cluster.u32 [k], v;"


def exchange(first: str = MEET, store: str = STORE, middle: str = MEET, **launch: Any) -> Any:
    text = EXCHANGE.replace("FIRST", first).replace("STORE", store).replace("MIDDLE", middle)
    memory = PtxMemory()
    out = memory.put(np.zeros((8, 32), np.uint32))
    PtxModule.parse(text).kernel("f").launch(memory, (8,), (32,), [out], **launch)
    return memory.get(out, np.uint32, (8, 32))


def test_blocks_write_to_each_other() -> None:
    block, thread = np.arange(8)[:, None], np.arange(32)
    before = block // 4 * 4 + (block + 3) % 4
    np.testing.assert_array_equal(exchange(), before * 100 + thread)


def test_generic_addresses_of_another_block() -> None:
    store = "cvt.u64.u32 d, s; cvta.shared.u64 d, d; mapa.u64 g, d, w; st.u32 [g], v;"
    np.testing.assert_array_equal(exchange(store=store), exchange())


def test_no_barrier_after_another_blocks_store() -> None:
    with pytest.raises(SharedMemoryRace, match=r"of block \("):
        exchange(middle="barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;")


def test_a_block_that_may_not_have_begun() -> None:
    with pytest.raises(AbsentBlock, match="may not have begun"):
        exchange(first="bar.sync 0;")


def test_a_block_that_ends_too_early() -> None:
    with pytest.raises(AbsentBlock, match="ended|ends while"):
        exchange(middle="ret;")


def test_arrivals_and_waits_alternate() -> None:
    with pytest.raises(DivergentBarrier, match="second arrival"):
        exchange(first="barrier.cluster.arrive.aligned;" + MEET)
    with pytest.raises(DivergentBarrier, match="no arrival"):
        exchange(first="barrier.cluster.wait.aligned;")


def test_a_block_that_never_arrives() -> None:
    late = "setp.eq.u32 p, r, 2; mov.u32 k, 0; @p bra SPIN; bra ON; SPIN: bar.sync 1, 64; ON: "
    with pytest.raises((KernelHang, DivergentBarrier), match="nobody can go on"):
        exchange(first=late + MEET)


def test_threads_that_have_ended_are_not_waited_for() -> None:
    leave = "setp.eq.u32 p, r, 3; @p ret;"
    with pytest.raises(AbsentBlock, match="has ended"):
        exchange(first=leave + MEET)


def test_sizes_of_clusters() -> None:
    with pytest.raises(ArgumentError, match="cluster of its own size"):
        exchange(cluster=(2,))
    text = EXCHANGE.replace("FIRST", MEET).replace("STORE", STORE).replace("MIDDLE", MEET)
    memory = PtxMemory()
    with pytest.raises(ArgumentError, match="not made of clusters"):
        PtxModule.parse(text).kernel("f").launch(memory, (6,), (32,), [0])


# ---- copies to several blocks -------------------------------------------------------------------

LOADS = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
# Block 0 of two loads a box for both; each adds its rank and stores the box in bulk.
MULTICAST = HEAD + f"""
.visible .entry f(.param .align 64 .b8 pm[128], .param .u64 po) .reqnctapercluster 2, 1, 1 {{
{NAMES} .shared .align 128 .b8 tile[1024]; .shared .align 8 .b64 full;
mov.u32 t, %tid.x; mov.u32 r, %cluster_ctarank; setp.eq.u32 p, t, 0; setp.eq.and.u32 q, r, 0, p;
mov.u32 s, tile; mov.u32 m, full; mov.b64 map, pm; cvta.param.u64 map, map; ld.param.u64 o, [po];
@p mbarrier.init.shared.b64 [m], 1;
@p fence.mbarrier_init.release.cluster;
{MEET}
@p mbarrier.arrive.expect_tx.shared.b64 _, [m], 1024;
mov.u32 n, 4;
.reg .b16 mask; mov.b16 mask, MASK;
@q {LOADS}.multicast::cluster [s], [map, {{n, n}}], [m], mask;
WAIT
mad.lo.u32 w, t, 4, s; ld.shared.u32 v, [w]; add.u32 v, v, r; st.shared.u32 [w], v;
fence.proxy.async.shared::cta;
bar.sync 0;
mul.wide.u32 d, r, 1024; add.u64 o, o, d;
@p cp.async.bulk.global.shared::cta.bulk_group [o], [s], 1024;
@p cp.async.bulk.commit_group;
@p cp.async.bulk.wait_group 0;
LAST
ret; }}
"""
WAIT = "WF: mbarrier.try_wait.parity.shared.b64 p, [m], 0; @!p bra WF; setp.eq.u32 p, t, 0;"


def multicast(mask: int = 3, wait: str = WAIT, last: str = "") -> tuple[Any, Any]:
    x = np.arange(40 * 32, dtype=np.uint32).reshape(40, 32).view(np.float32)
    memory = PtxMemory()
    described = tensor_map(memory.put(x), x, (16, 16)).tobytes()
    out = memory.put(np.zeros((2, 16, 16), np.uint32))
    text = MULTICAST.replace("MASK", str(mask)).replace("WAIT", wait).replace("LAST", last)
    PtxModule.parse(text).kernel("f").launch(memory, (2,), (256,), [described, out])
    box = x.view(np.uint32)[4:20, 4:20]
    return memory.get(out, np.uint32, (2, 16, 16)), np.stack([box, box + 1])


def test_a_box_for_both_blocks() -> None:
    found, wanted = multicast()
    np.testing.assert_array_equal(found, wanted)


def test_a_block_that_the_mask_leaves_out_waits_for_ever() -> None:
    with pytest.raises(KernelHang, match="waits for a phase"):
        multicast(1)


def test_blocks_that_the_cluster_does_not_have() -> None:
    with pytest.raises(IllegalInstruction, match="0b101 of a cluster of 2"):
        multicast(5)


def test_reading_without_the_wait_is_a_race() -> None:
    with pytest.raises(SharedMemoryRace, match="asynchronous copy"):
        multicast(wait=MEET)


# A consumer of each block tells the producer of block 0 that it is done.
REMOTE = HEAD + f"""
.visible .entry f(.param .u64 po) .reqnctapercluster 2, 1, 1 {{
{NAMES} .shared .align 8 .b64 empty; .shared .b32 word;
mov.u32 t, %tid.x; mov.u32 r, %cluster_ctarank; setp.eq.u32 p, t, 0; setp.eq.and.u32 q, r, 0, p;
mov.u32 m, empty; mov.u32 s, word; ld.param.u64 o, [po];
@p mbarrier.init.shared.b64 [m], COUNT;
{MEET}
mov.u32 n, 0;
mapa.shared::cluster.u32 k, s, n; mapa.shared::cluster.u32 w, m, n; mov.u32 v, 7;
setp.eq.and.u32 p, r, 1, p;
@p st.shared::cluster.u32 [k], v;
setp.eq.u32 p, t, 0;
@p mbarrier.arrive.ORDER.shared::cluster.b64 _, [w];
@!q bra DONE;
WE: mbarrier.try_wait.parity.shared.b64 p, [m], 0; @!p bra WE;
ld.shared.u32 v, [s]; st.global.u32 [o], v;
DONE: LAST
ret; }}
"""


def remote(count: int = 2, last: str = MEET, skip: str = "@!q bra DONE;") -> int:
    memory = PtxMemory()
    out = memory.put(np.zeros(1, np.uint32))
    text = REMOTE.replace("COUNT", str(count)).replace("LAST", last)
    text = text.replace(".ORDER", ".release.cluster").replace("@!q bra DONE;", skip)
    PtxModule.parse(text).kernel("f").launch(memory, (2,), (32,), [out])
    return int(memory.get(out, np.uint32, (1,))[0])


def test_arrivals_at_another_blocks_barrier() -> None:
    """The wait for all arrivals keeps block 0, so no last barrier of the cluster is needed."""
    assert remote() == 7
    assert remote(last="") == 7


def test_an_arrival_that_nobody_waits_for_may_come_too_late() -> None:
    with pytest.raises(AbsentBlock, match="block .*ends while thread|has ended"):
        remote(last="", skip="bra DONE;")


def test_an_arrival_that_is_missing() -> None:
    with pytest.raises(KernelHang, match="waits for a phase"):
        remote(count=3)


# Each block gives the other one a row, and waits for the bytes of its own.
ROWS = HEAD.replace("8.0", "8.1") + f"""
.visible .entry f(.param .u64 po) .reqnctapercluster 2, 1, 1 {{
{NAMES} .shared .align 16 .b32 row[64]; .shared .align 8 .b64 full;
mov.u32 t, %tid.x; mov.u32 r, %cluster_ctarank; setp.eq.u32 p, t, 0;
mov.u32 m, full; mov.u32 s, row; ld.param.u64 o, [po];
@p mbarrier.init.shared.b64 [m], 1;
@p mbarrier.arrive.expect_tx.shared.b64 _, [m], NBYTES;
{MEET}
xor.b32 n, r, 1; shl.b32 v, t, 3; add.u32 s, s, v;
mapa.shared::cluster.u32 k, s, n; mapa.shared::cluster.u32 w, m, n;
mad.lo.u32 v, r, 100, t; add.u32 n, v, 50;
st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [k], {{v, n}}, [w];
WAIT
ld.shared.v2.b32 {{v, n}}, [s];
mad.lo.u32 t, r, 32, t; mul.wide.u32 d, t, 8; add.u64 o, o, d; st.global.v2.b32 [o], {{v, n}};
LAST
ret; }}
"""
FULL = "WF: mbarrier.try_wait.parity.shared.b64 p, [m], 0; @!p bra WF;"


def rows(nbytes: int = 256, wait: str = FULL, last: str = MEET) -> Any:
    memory = PtxMemory()
    out = memory.put(np.zeros((2, 32, 2), np.uint32))
    text = ROWS.replace("NBYTES", str(nbytes)).replace("WAIT", wait).replace("LAST", last)
    PtxModule.parse(text).kernel("f").launch(memory, (2,), (32,), [out])
    return memory.get(out, np.uint32, (2, 32, 2))


def test_stores_that_say_when_they_are_there() -> None:
    first = np.array([100, 0])[:, None] + np.arange(32)
    np.testing.assert_array_equal(rows(), np.stack([first, first + 50], 2))
    with pytest.raises((SharedMemoryRace, UninitialisedRead), match="asynchronous copy|nobody"):
        rows(wait="")
    with pytest.raises(KernelHang, match="waits for a phase"):
        rows(264)


@needs_ptxas
@pytest.mark.parametrize("text", [
    ROWS.replace("NBYTES", "256").replace("WAIT", FULL).replace("LAST", MEET),
    EXCHANGE.replace("FIRST", MEET).replace("STORE", STORE).replace("MIDDLE", MEET),
    MULTICAST.replace("MASK", "3").replace("WAIT", WAIT).replace("LAST", ""),
    REMOTE.replace("COUNT", "2").replace("LAST", MEET).replace(".ORDER", ".release.cluster"),
], ids=["rows", "stores", "multicast", "arrivals"])  # fmt: skip
def test_the_vendor_accepts_these_kernels(text: str) -> None:
    assert PtxAssembler("sm_90a").assemble(text)[:4] == b"\x7fELF"


# ---- registers ----------------------------------------------------------------------------------

# Warpgroup 0 gives registers back, the two others take some.
REGISTERS = HEAD + f"""
.visible .entry f(.param .u64 po) BOUNDS {{
{NAMES} mov.u32 t, %tid.x; shr.u32 w, t, 7; setp.eq.u32 p, w, 0; @p bra FEW;
setmaxnreg.inc.sync.aligned.u32 MANY;
bra ON;
FEW: setmaxnreg.dec.sync.aligned.u32 LOW;
ON: ld.param.u64 o, [po]; mul.wide.u32 d, t, 4; add.u64 o, o, d; st.global.u32 [o], t;
ret; }}
"""
BOUNDS = ".reqntid 384, 1, 1 .minnctapersm 1"


def registers(low: int, many: int, bounds: str = BOUNDS) -> Any:
    memory = PtxMemory()
    out = memory.put(np.zeros(384, np.uint32))
    text = REGISTERS.replace("LOW", str(low)).replace("MANY", str(many)).replace("BOUNDS", bounds)
    PtxModule.parse(text).kernel("f").launch(memory, (1,), (384,), [out])
    return memory.get(out, np.uint32, (384,))


@pytest.mark.parametrize("low,many", [(24, 240), (40, 232)])
def test_registers_go_from_one_warpgroup_to_others(low: int, many: int) -> None:
    """504 times 128 in all: 24 + 240 + 240, or 40 + 232 + 232."""
    np.testing.assert_array_equal(registers(low, many), np.arange(384))


@pytest.mark.parametrize("low,many", [(32, 240), (40, 240)])
def test_more_registers_than_the_block_has(low: int, many: int) -> None:
    with pytest.raises(RegisterDeadlock, match="waits for registers"):
        registers(low, many)


def test_counts_that_cannot_be_had() -> None:
    for low, many in ((20, 240), (28, 240), (24, 264)):
        with pytest.raises(IllegalInstruction, match="can be had"):
            registers(low, many)
    with pytest.raises(IllegalInstruction, match=r"168 registers are to become 160 by .*inc"):
        registers(24, 160)
    with pytest.raises(IllegalInstruction, match="count at the entry"):
        registers(24, 240, "")
    np.testing.assert_array_equal(registers(24, 240, ".maxnreg 168"), np.arange(384))
