"""A matmul as a ring: one producer lane, a warpgroup of consumers, and what breaks it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from baregrad.testing.virtual_gpu.ptx.errors import IllegalInstruction, KernelHang, SharedMemoryRace
from baregrad.testing.virtual_gpu.ptx.memory import PtxMemory
from baregrad.testing.virtual_gpu.ptx.program import PtxModule
from tests.testing.virtual_gpu.test_ptx_hopper import HEAD, descriptor, tensor_map

STAGES = 2
TILE = 64 * 128
COPY = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
REGISTERS = ", ".join(f"f{k}" for k in range(32))

PRODUCER_WAIT = "WE: mbarrier.try_wait.parity.shared.b64 q, [me], par; @!q bra WE;"
CONSUMER_WAIT = "WF: mbarrier.try_wait.parity.shared.b64 q, [mf], par; @!q bra WF;"
RETIRE = "wgmma.wait_group.sync.aligned 0;"
ARRIVE = "@lead mbarrier.arrive.shared.b64 _, [me];"
ADVANCE = """add.u32 st, st, 1; setp.eq.u32 q, st, 2; @q mov.u32 st, 0; @q xor.b32 par, par, 1;
add.u32 k, k, 1; setp.lt.u32 q, k, tiles;"""
PLACES = """mad.lo.u32 mf, st, 8, bars; add.u32 me, mf, 16;
shl.b32 n, st, 13; add.u32 la, n, left; add.u32 lb, n, right;"""

MMA = "\n".join(
    f"add.u64 da, d1, {2 * step}; add.u64 db, d2, {2 * step};\n"
    f"wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {{{REGISTERS}}}, da, db, more, "
    "1, 1, 0, 0;\nsetp.eq.u32 more, t, t;"
    for step in range(4)
)
STORES = "\n".join(
    f"st.global.f32 [d1+{4 * (64 * 8 * (k >> 1 & 1) + 8 * (k >> 2) + (k & 1))}], f{k};"
    for k in range(32)
)

RING = HEAD + f"""
.visible .entry f(.param .align 64 .b8 pa[128], .param .align 64 .b8 pb[128], .param .u64 pd,
                  .param .u32 pk) .maxntid 160, 1, 1 {{
.reg .f32 f<32>; .reg .pred p, q, e, lead, more;
.reg .b32 t, w, bars, left, right, la, lb, mf, me, st, par, k, tiles, n, x, zero;
.reg .b64 ma, mb, da, db, d1, d2;
.shared .align 1024 .b8 tiles_a[{STAGES * TILE}]; .shared .align 1024 .b8 tiles_b[{STAGES * TILE}];
.shared .align 8 .b64 barriers[{2 * STAGES}];
mov.u32 t, %tid.x; shr.u32 w, t, 5; setp.eq.u32 p, t, 0; mov.u32 bars, barriers;
mov.u32 left, tiles_a; mov.u32 right, tiles_b; ld.param.u32 tiles, [pk];
@p mbarrier.init.shared.b64 [bars], 1; @p mbarrier.init.shared.b64 [bars+8], 1;
@p mbarrier.init.shared.b64 [bars+16], 1; @p mbarrier.init.shared.b64 [bars+24], 1;
@p fence.mbarrier_init.release.cluster;
bar.sync 0;
mov.u32 st, 0; mov.u32 k, 0; mov.u32 zero, 0;
setp.ne.u32 q, w, 4; @q bra CONSUME;

mov.b64 ma, pa; cvta.param.u64 ma, ma; mov.b64 mb, pb; cvta.param.u64 mb, mb;
elect.sync _|e, 0xffffffff; @!e bra DONE;
mov.u32 par, 1;
PRODUCE:
{PLACES}
{PRODUCER_WAIT}
mbarrier.arrive.expect_tx.shared.b64 _, [mf], {2 * TILE};
shl.b32 x, k, 6;
{COPY} [la], [ma, {{x, zero}}], [mf];
{COPY} [lb], [mb, {{x, zero}}], [mf];
{ADVANCE} @q bra PRODUCE;
bra DONE;

CONSUME:
setp.eq.u32 lead, t, 0; setp.ne.u32 more, t, t;
mov.u32 par, 0;
STEP:
{PLACES}
{CONSUMER_WAIT}
shr.u32 la, la, 4; shr.u32 lb, lb, 4; cvt.u64.u32 d1, la; cvt.u64.u32 d2, lb;
or.b64 d1, d1, {descriptor(16, 1024, 128)}; or.b64 d2, d2, {descriptor(16, 1024, 128)};
wgmma.fence.sync.aligned;
{MMA}
wgmma.commit_group.sync.aligned;
{RETIRE}
{ARRIVE}
{ADVANCE} @q bra STEP;
ld.param.u64 d1, [pd]; and.b32 n, t, 31; shr.u32 x, n, 2; and.b32 n, n, 3; shl.b32 n, n, 1;
mad.lo.u32 x, w, 16, x; mad.lo.u32 n, x, 64, n; mul.wide.u32 d2, n, 4; add.u64 d1, d1, d2;
{STORES}
DONE:
ret; }}
"""


def run(depth: int, text: str = RING) -> tuple[Any, Any]:
    random = np.random.default_rng(depth)
    a, b = (random.integers(-3, 4, (64, depth)).astype(ml_dtypes.bfloat16) for _ in range(2))
    memory = PtxMemory()
    maps = [tensor_map(memory.put(one), one, (64, 64), 128).tobytes() for one in (a, b)]
    out = memory.put(np.zeros((64, 64), np.float32))
    PtxModule.parse(text).kernel("f").launch(memory, (1,), (160,), [*maps, out, depth // 64])
    return memory.get(out, np.float32, (64, 64)), a.astype(np.float32) @ b.astype(np.float32).T


@pytest.mark.parametrize("tiles", [1, 2, 5])
def test_the_ring_multiplies(tiles: int) -> None:
    found, wanted = run(64 * tiles)
    np.testing.assert_array_equal(found, wanted)


def broken(old: str, new: str) -> str:
    assert RING.count(old) == 1
    return RING.replace(old, new)


def test_a_producer_that_does_not_wait_for_an_empty_stage() -> None:
    with pytest.raises(SharedMemoryRace, match="asynchronous copy"):
        run(64 * 5, broken(PRODUCER_WAIT, ""))


def test_a_consumer_that_does_not_wait_for_a_full_stage() -> None:
    with pytest.raises((SharedMemoryRace, IllegalInstruction)) as caught:
        run(64 * 5, broken(CONSUMER_WAIT, "bar.sync 1, 128;"))
    assert "wgmma.mma_async" in caught.value.text or "arrivals" in str(caught.value)


def test_a_stage_released_before_its_last_reader_retired() -> None:
    with pytest.raises(SharedMemoryRace, match="product of the warpgroup"):
        run(64 * 5, broken(f"{RETIRE}\n{ARRIVE}", f"{ARRIVE}\n{RETIRE}"))


def test_a_stage_that_is_never_released() -> None:
    with pytest.raises(KernelHang, match="waits for a phase"):
        run(64 * 5, broken(ARRIVE, ""))


def test_the_wrong_parity_at_the_start() -> None:
    with pytest.raises(KernelHang, match="waits for a phase"):
        run(64 * 5, broken("mov.u32 par, 1;", "mov.u32 par, 0;"))


def test_too_few_bytes_expected() -> None:
    """The phase ends with the first of the two copies, so the second is read too early."""
    with pytest.raises(SharedMemoryRace, match="asynchronous copy"):
        run(64 * 5, broken(f"[mf], {2 * TILE};", f"[mf], {TILE};"))


def test_too_many_bytes_expected() -> None:
    with pytest.raises(KernelHang, match="waits for a phase"):
        run(64 * 5, broken(f"[mf], {2 * TILE};", f"[mf], {3 * TILE};"))


def test_one_arrival_too_many() -> None:
    with pytest.raises((IllegalInstruction, SharedMemoryRace, KernelHang)):
        run(64 * 5, broken(ARRIVE, "mbarrier.arrive.shared.b64 _, [me];"))


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not installed")
def test_the_vendor_accepts_the_ring(tmp_path: Path) -> None:
    (tmp_path / "ring.ptx").write_text(RING)
    command = ["ptxas", "-arch=sm_90a", str(tmp_path / "ring.ptx"), "-o", str(tmp_path / "cubin")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "C75" not in done.stderr
