"""Bulk copies, barriers of phases and warpgroup matrices: pipelines as a renderer emits them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from baregrad.testing.virtual_gpu.ptx.errors import (
    IllegalInstruction,
    KernelHang,
    MisalignedAccess,
    SharedMemoryRace,
    UninitialisedRead,
)
from baregrad.testing.virtual_gpu.ptx.memory import PtxMemory
from baregrad.testing.virtual_gpu.ptx.ops.wgmma import descriptor_offsets
from baregrad.testing.virtual_gpu.ptx.program import PtxModule
from baregrad.testing.virtual_gpu.ptx.tensor_map import DecodedTensorMap, swizzle

HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n"
CODES = {"uint8": (0, 1), "bfloat16": (10, 2), "float32": (7, 4)}


def tensor_map(address: int, array: Any, box: tuple[int, ...], span: int = 0) -> np.ndarray:
    """The 128 bytes that describe a dense array; `box` is innermost first."""
    code, nbytes = CODES[array.dtype.name]
    words = np.zeros(32, np.uint32)
    sizes = array.shape[::-1]
    words[0], words[1] = address & 0xFFFFFFFF, address >> 32
    words[2] = (len(sizes) - 1) << 4 | code << 7 | {0: 0, 32: 1, 64: 2, 128: 3}[span] << 13
    stride = nbytes
    for axis, size in enumerate(sizes):
        words[8 + axis] = size - 1
        if axis:
            words[2 + axis] = stride // 16
            words[14] |= (box[axis] - 1) << 8 * (axis - 1)
        stride *= size
    words[13] = (box[0] - 1) << 24
    return words.view(np.uint8)


WAIT_FULL = "WAIT: mbarrier.try_wait.parity.shared.b64 q, [m], 0; @!q bra WAIT;"
COPY = HEAD + f"""
.visible .entry f(.param .align 64 .b8 pm[128], .param .u64 po, .param .u32 px, .param .u32 py) {{
.reg .pred p, q; .reg .b32 t, s, m, x, y, at, v; .reg .b64 map, out, d, state;
.shared .align 128 .b8 tile[2048]; .shared .align 8 .b64 full;
mov.u32 t, %tid.x; setp.eq.u32 p, t, 0; mov.u32 s, tile; mov.u32 m, full;
mov.b64 map, pm; ld.param.u64 out, [po]; ld.param.u32 x, [px]; ld.param.u32 y, [py];
@p mbarrier.init.shared.b64 [m], 1;
@p fence.mbarrier_init.release.cluster;
bar.sync 0;
cvta.param.u64 map, map;
@p mbarrier.arrive.expect_tx.shared.b64 state, [m], BYTES;
@p cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes
   [s], [map, {{x, y}}], [m];
{WAIT_FULL}
shl.b32 at, t, 2; add.u32 at, at, s; ld.shared.u32 v, [at];
mul.wide.u32 d, t, 4; add.u64 d, out, d; st.global.u32 [d], v;
ret; }}
"""


def copy_box(
    x: Any, box: tuple[int, int], at: tuple[int, int], span: int = 0, expects: int = 0,
    text: str = COPY,
) -> Any:
    memory = PtxMemory()
    address = memory.put(x)
    nbytes = box[0] * box[1] * x.dtype.itemsize
    out = memory.put(np.zeros(nbytes, np.uint8))
    text = text.replace("BYTES", str(expects or nbytes))
    arguments = [tensor_map(address, x, box, span).tobytes(), out, at[0], at[1]]
    PtxModule.parse(text).kernel("f").launch(memory, (1,), (nbytes // 4,), arguments)
    return memory.get(out, x.dtype, (box[1], box[0]))


def test_a_box_arrives() -> None:
    x = np.arange(40 * 20, dtype=np.float32).reshape(40, 20)
    np.testing.assert_array_equal(copy_box(x, (8, 4), (4, 30)), x[30:34, 4:12])


def test_outside_the_tensor_are_zeros() -> None:
    x = np.arange(40 * 20, dtype=np.float32).reshape(40, 20) + 1
    wanted = np.pad(x, ((3, 3), (4, 4)))
    np.testing.assert_array_equal(copy_box(x, (8, 4), (16, 38)), wanted[41:45, 20:28])
    np.testing.assert_array_equal(copy_box(x, (8, 4), (-4, -2)), wanted[1:5, 0:8])


def test_swizzled_boxes() -> None:
    x = np.arange(64 * 64).reshape(64, 64).astype(np.float32)
    found = copy_box(x, (32, 8), (32, 8), 128).reshape(8, 8, 4)
    for row in range(8):
        for chunk in range(8):
            wanted = x[8 + row, 32 + 4 * chunk : 36 + 4 * chunk]
            np.testing.assert_array_equal(found[row, chunk ^ row], wanted)


def test_wrong_counts_of_bytes_hang() -> None:
    x = np.zeros((40, 20), np.float32)
    with pytest.raises(KernelHang, match="waits for a phase"):
        copy_box(x, (8, 4), (0, 0), expects=64)


def test_what_the_hardware_refuses() -> None:
    x = np.zeros((40, 20), np.float32)
    with pytest.raises(IllegalInstruction, match="multiple of 16 bytes"):
        copy_box(x, (8, 4), (1, 0))


def test_reading_without_the_wait_is_a_race() -> None:
    with pytest.raises(SharedMemoryRace, match="asynchronous copy"):
        copy_box(np.zeros((40, 20), np.float32), (8, 4), (0, 0),
                 text=COPY.replace(WAIT_FULL, "bar.sync 0;"))


BULK = HEAD + """
.visible .entry f(.param .u64 from, .param .u64 to) {
.reg .pred p, q; .reg .b32 t, s, m, at, v; .reg .b64 a, b;
.shared .align 128 .b8 tile[256]; .shared .align 8 .b64 full;
mov.u32 t, %tid.x; setp.eq.u32 p, t, 0; mov.u32 s, tile; mov.u32 m, full;
ld.param.u64 a, [from]; ld.param.u64 b, [to];
@p mbarrier.init.shared.b64 [m], 1;
bar.sync 0;
@p mbarrier.arrive.expect_tx.shared.b64 _, [m], 256;
@p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [a], 256, [m];
WAIT: mbarrier.try_wait.parity.shared.b64 q, [m], 0; @!q bra WAIT;
mad.lo.u32 at, t, 4, s; ld.shared.u32 v, [at]; add.u32 v, v, 1; st.shared.u32 [at], v;
FENCE
bar.sync 0;
@p cp.async.bulk.global.shared::cta.bulk_group [b], [s], 256;
@p cp.async.bulk.commit_group;
GROUP
bar.sync 0;
st.shared.u32 [at], t;
ret; }
"""
FENCE, GROUP = "fence.proxy.async.shared::cta;", "@p cp.async.bulk.wait_group.read 0;"


def bulk(fence: str, group: str) -> Any:
    memory = PtxMemory()
    x = np.arange(64, dtype=np.uint32)
    places = memory.put(x), memory.put(x * 0)
    text = BULK.replace("FENCE", fence).replace("GROUP", group)
    PtxModule.parse(text).kernel("f").launch(memory, (1,), (64,), list(places))
    return memory.get(places[1], np.uint32, (64,))


def test_bulk_copies_both_ways() -> None:
    np.testing.assert_array_equal(bulk(FENCE, GROUP), np.arange(64) + 1)


def test_a_missing_fence() -> None:
    with pytest.raises(IllegalInstruction, match="fence.proxy.async"):
        bulk("", GROUP)


def test_a_missing_wait_for_the_store() -> None:
    with pytest.raises(SharedMemoryRace, match="what is read by an asynchronous copy"):
        bulk(FENCE, "")


def test_bulk_copies_are_aligned() -> None:
    memory = PtxMemory()
    place = memory.put(np.zeros(128, np.uint32))
    text = BULK.replace("FENCE", FENCE).replace("GROUP", GROUP)
    with pytest.raises(MisalignedAccess):
        PtxModule.parse(text).kernel("f").launch(memory, (1,), (64,), [place + 4, place])


def test_an_mbarrier_that_nobody_initialised() -> None:
    text = BULK.replace("@p mbarrier.init.shared.b64 [m], 1;", "").replace(
        "FENCE", FENCE).replace("GROUP", GROUP)
    memory = PtxMemory()
    place = memory.put(np.zeros(64, np.uint32))
    with pytest.raises(UninitialisedRead, match="no mbarrier"):
        PtxModule.parse(text).kernel("f").launch(memory, (1,), (64,), [place, place])


def test_tensor_maps_decode() -> None:
    x = np.zeros((3, 5, 64), ml_dtypes.bfloat16)
    found = DecodedTensorMap.decode(tensor_map(0x7F0012345670, x, (64, 4, 2), 128).tobytes())
    assert found == DecodedTensorMap(
        0x7F0012345670, (64, 5, 3), (128, 640), (64, 4, 2), (1, 1, 1), 2, 10, 128, 0, False,
        rounds=False,
    )
    assert found.nbytes == 64 * 4 * 2 * 2


# ---- warpgroup matrices -------------------------------------------------------------------------


def descriptor(leading: int, stride: int, span: int) -> int:
    code = {0: 0, 128: 1, 64: 2, 32: 3}[span]
    return (leading >> 4) << 16 | (stride >> 4) << 32 | code << 62


def wgmma_kernel(columns: int, wait: str, turn_b: int, desc_a: int, desc_b: int) -> str:
    """64 x 16 times 16 x `columns`: tiles are copied to shared memory as they stand in memory."""
    count = columns // 2
    registers = ", ".join(f"f{k}" for k in range(count))
    size_b = columns * 32
    lines = [HEAD, ".visible .entry f(.param .u64 pa, .param .u64 pb, .param .u64 pd) {"]
    lines.append(f".reg .f32 f<{count}>; .reg .pred yes, p; .reg .b32 t, s, at, v, n;")
    lines.append(".reg .b64 a, b, d, da, db, o;")
    lines.append(f".shared .align 1024 .b8 left[2048]; .shared .align 1024 .b8 right[{size_b}];")
    lines.append("mov.u32 t, %tid.x; ld.param.u64 d, [pd]; setp.eq.u32 yes, t, t;")
    for source, target, nbytes in (("pa", "left", 2048), ("pb", "right", size_b)):
        lines.append(f"ld.param.u64 a, [{source}]; mov.u32 s, {target}; shl.b32 n, t, 2;")
        lines.append(f"{target}_more: setp.ge.u32 p, n, {nbytes}; @p bra {target}_end;")
        lines.append("cvt.u64.u32 o, n; add.u64 o, a, o; ld.global.b32 v, [o]; add.u32 at, s, n;")
        lines.append(f"st.shared.b32 [at], v; add.u32 n, n, 512; bra {target}_more;")
        lines.append(f"{target}_end:")
    lines.append("fence.proxy.async.shared::cta; bar.sync 0;")
    for name, target, value in (("da", "left", desc_a), ("db", "right", desc_b)):
        lines.append(f"mov.u32 s, {target}; shr.u32 s, s, 4; cvt.u64.u32 o, s;")
        lines.append(f"mov.u64 {name}, {value}; or.b64 {name}, {name}, o;")
    mma = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16 {{{registers}}}, da, db,"
    lines.append("wgmma.fence.sync.aligned; setp.ne.u32 p, t, t;")
    # The second adds the same product once more, negated twice.
    lines.append(f"{mma} p, 1, 1, 0, {turn_b};")
    lines.append(f"{mma} yes, -1, -1, 0, {turn_b};")
    lines.append("wgmma.commit_group.sync.aligned;")
    lines.append(wait)
    # D: register i of lane l of warp w.
    lines.append("shr.u32 s, t, 5; and.b32 v, t, 31; shr.u32 at, v, 2; and.b32 v, v, 3;")
    lines.append("mad.lo.u32 at, s, 16, at; shl.b32 v, v, 1;")
    for k in range(count):
        row, column = 8 * (k >> 1 & 1), 8 * (k >> 2) + (k & 1)
        lines.append(f"add.u32 n, at, {row}; mul.lo.u32 n, n, {columns}; add.u32 n, n, v;")
        lines.append(f"add.u32 n, n, {column}; mul.wide.u32 o, n, 4; add.u64 o, o, d;")
        lines.append(f"st.global.f32 [o], f{k};")
    return "\n".join([*lines, "ret; }"])


WAIT = "wgmma.wait_group.sync.aligned 0;"


def laid_out(matrix: Any, offsets: Any, span: int, nbytes: int) -> Any:
    """A matrix's elements at byte offsets, exchanged as the swizzle says."""
    out = np.zeros(nbytes // 2, matrix.dtype)
    out[swizzle(offsets, span) // 2] = matrix
    return out


def multiply(
    columns: int, span: int, turned: bool = False, wait: str = WAIT, fence: str = FENCE
) -> tuple[Any, Any]:
    random = np.random.default_rng(columns)
    a = random.integers(-4, 5, (64, 16)).astype(ml_dtypes.bfloat16)
    b = random.integers(-4, 5, (columns, 16)).astype(ml_dtypes.bfloat16)
    row, k = np.arange(64)[:, None], np.arange(16)[None, :]
    # A: rows of 32 bytes, 8 of them the unit of the stride, 32-byte swizzle.
    desc_a = descriptor(16, 256, 32)
    flat_a = laid_out(a, row * 32 + k * 2, 32, 2048)
    column = np.arange(columns)[:, None]
    if turned:
        # Rows of K in panels of 64 columns.
        desc_b = descriptor(2048, 1024, 128)
        where = column // 64 * 2048 + k * 128 + column % 64 * 2
    elif span == 32:
        desc_b, where = descriptor(16, 256, 32), column * 32 + k * 2
    else:
        # 8 x 16-byte cores: K's two halves follow each other, then the next 8 columns.
        desc_b = descriptor(128, 256, 0)
        where = column // 8 * 256 + k // 8 * 128 + column % 8 * 16 + k % 8 * 2
    flat_b = laid_out(b, where, 128 if turned else span, columns * 32)
    memory = PtxMemory()
    places = [memory.put(one) for one in (flat_a, flat_b, np.zeros((64, columns), np.float32))]
    text = wgmma_kernel(columns, wait, int(turned), desc_a, desc_b).replace(FENCE, fence)
    PtxModule.parse(text).kernel("f").launch(memory, (1,), (128,), places)
    wanted = 2 * a.astype(np.float32) @ b.astype(np.float32).T
    return memory.get(places[2], np.float32, (64, columns)), wanted


@pytest.mark.parametrize("columns,span,turned", [
    (8, 32, False), (64, 0, False), (128, 32, False), (64, 0, True), (128, 0, True),
])
def test_wgmma(columns: int, span: int, turned: bool) -> None:
    found, wanted = multiply(columns, span, turned)
    np.testing.assert_array_equal(found, wanted)


def test_results_are_not_there_before_the_wait() -> None:
    found, _ = multiply(8, 32, wait="")
    assert np.isnan(found).all()
    found, _ = multiply(8, 32, wait="wgmma.wait_group.sync.aligned 1;")
    assert np.isnan(found).all()


def test_operands_that_bulk_copies_may_not_see_yet() -> None:
    with pytest.raises(IllegalInstruction, match="fence.proxy.async"):
        multiply(8, 32, fence="")


def test_descriptors_of_wide_rows() -> None:
    """A 128-byte swizzle: four instructions along K step by 32 bytes within one tile."""
    offsets = descriptor_offsets(descriptor(0, 1024, 128), 16, 16, 2, False)
    assert offsets[9, 3] == 1024 + 128 + 6


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize("text", [
    COPY.replace("BYTES", "128"),
    BULK.replace("FENCE", FENCE).replace("GROUP", GROUP),
    wgmma_kernel(64, WAIT, 1, descriptor(16, 256, 32), descriptor(2048, 1024, 128)),
], ids=["tensor copy", "bulk copy", "wgmma"])
def test_the_vendor_accepts_these_kernels(text: str, tmp_path: Path) -> None:
    (tmp_path / "one.ptx").write_text(text)
    command = ["ptxas", "-arch=sm_90a", str(tmp_path / "one.ptx"), "-o", str(tmp_path / "cubin")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "serialized" not in done.stderr
