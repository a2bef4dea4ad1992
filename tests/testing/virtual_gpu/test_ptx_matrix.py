"""Matrix instructions of a warp against NumPy, fragments laid out as the PTX manual draws them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from baregrad.testing.virtual_gpu.ptx.memory import PtxMemory
from baregrad.testing.virtual_gpu.ptx.program import PtxModule

LANE = np.arange(32)
GROUP, WITHIN = LANE // 4, LANE % 4
HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n"
DTYPES = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "s8": np.int8,
    "u8": np.uint8, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
}


def place_in_a(element: int, nbytes: int) -> tuple[Any, Any]:
    """Row and column of a lane's element of A, (PTX ISA, "Matrix Fragments for mma.m16n8k*")."""
    each = 4 // nbytes
    register, part = divmod(element, each)
    row = GROUP + 8 * (register % 2)
    return row, WITHIN * each + part + (4 * each if register >= 2 else 0)


def place_in_b(element: int, nbytes: int) -> tuple[Any, Any]:
    each = 4 // nbytes
    register, part = divmod(element, each)
    return WITHIN * each + part + 4 * each * register, GROUP


def place_in_c(element: int) -> tuple[Any, Any]:
    return GROUP + (8 if element >= 2 else 0), 2 * WITHIN + element % 2


def fragment(matrix: Any, place: Any, count: int) -> Any:
    """Each lane's elements of a matrix as words: (32, words)."""
    nbytes = matrix.dtype.itemsize
    parts = [matrix[place(element, nbytes)] for element in range(count)]
    return np.ascontiguousarray(np.stack(parts, axis=1)).view(np.uint32)


def warp_kernel(inputs: int, outputs: int, body: str) -> str:
    """A kernel of one warp: words i0.. of each lane are loaded, o0.. are stored."""
    lines = [HEAD + ".visible .entry f(.param .u64 p, .param .u64 r) {"]
    lines.append(f".reg .b32 i<{inputs}>, o<{outputs}>, t; .reg .b64 a, b, d; .reg .pred p1;")
    lines.append("ld.param.u64 a, [p]; ld.param.u64 b, [r]; mov.u32 t, %tid.x;")
    lines.append(f"mul.wide.u32 d, t, {4 * inputs}; add.u64 a, a, d;")
    lines.append(f"mul.wide.u32 d, t, {4 * outputs}; add.u64 b, b, d;")
    lines += [f"ld.global.b32 i{k}, [a+{4 * k}];" for k in range(inputs)]
    lines.append(body)
    lines += [f"st.global.b32 [b+{4 * k}], o{k};" for k in range(outputs)]
    return "\n".join([*lines, "ret; }"])


def run_warp(words: Any, outputs: int, body: str) -> Any:
    memory = PtxMemory()
    given = memory.put(words)
    out = memory.put(np.zeros((32, outputs), np.uint32))
    text = warp_kernel(words.shape[1], outputs, body)
    PtxModule.parse(text).kernel("f").launch(memory, (1,), (32,), [given, out])
    return memory.get(out, np.uint32, (32, outputs))


def names(letter: str, start: int, count: int) -> str:
    return "{" + ", ".join(f"{letter}{start + k}" for k in range(count)) + "}"


SHAPES = [
    ("f32", "f16", "f16", 16), ("f32", "f16", "f16", 8), ("f16", "f16", "f16", 16),
    ("f32", "bf16", "bf16", 16), ("f32", "bf16", "bf16", 8), ("f32", "tf32", "tf32", 8),
    ("f32", "tf32", "tf32", 4), ("s32", "s8", "s8", 32), ("s32", "u8", "s8", 32),
    ("s32", "s8", "u8", 16), ("f32", "e4m3", "e5m2", 32),
]


def matrix_of(name: str, rows: int, columns: int, random: np.random.Generator) -> Any:
    if name in ("s8", "u8"):
        return random.integers(0, 256, (rows, columns)).astype(np.uint8).view(DTYPES[name])
    return random.integers(-8, 9, (rows, columns)).astype(np.float32).astype(DTYPES[name])


@pytest.mark.parametrize("result,left,right,depth", SHAPES)
def test_mma(result: str, left: str, right: str, depth: int) -> None:
    random = np.random.default_rng(depth)
    a, b = matrix_of(left, 16, depth, random), matrix_of(right, depth, 8, random)
    start = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[result]
    c = random.integers(-9, 9, (16, 8)).astype(start)
    each = 4 // a.dtype.itemsize
    words_a = fragment(a, place_in_a, 16 * depth // 32)
    words_b = fragment(b, place_in_b, 8 * depth // 32)
    words_c = fragment(c, lambda element, _: place_in_c(element), 4)
    words = np.concatenate([words_a, words_b, words_c], axis=1)
    na, nb, nc = words_a.shape[1], words_b.shape[1], words_c.shape[1]
    assert na == 16 * depth // 32 // each
    body = (f"mma.sync.aligned.m16n8k{depth}.row.col.{result}.{left}.{right}.{result} "
            f"{names('o', 0, nc)}, {names('i', 0, na)}, {names('i', na, nb)}, "
            f"{names('i', na + nb, nc)};")
    found = run_warp(words, nc, body).view(start).reshape(32, 4)
    wanted = a.astype(np.float64) @ b.astype(np.float64) + c
    for element in range(4):
        np.testing.assert_array_equal(found[:, element], wanted[place_in_c(element)].astype(start))


def test_integer_mma_saturates_when_asked() -> None:
    words = np.full((32, 10), 0x7F7F7F7F, np.uint32)
    words[:, 6:] = 0x7FFFFF00
    text = (
        "mma.sync.aligned.m16n8k32.row.col{}.s32.s8.s8.s32 {{o0, o1, o2, o3}}, "
        "{{i0, i1, i2, i3}}, {{i4, i5}}, {{i6, i7, i8, i9}};"
    )
    assert (run_warp(words, 4, text.format(".satfinite")) == 0x7FFFFFFF).all()
    wrapped = (0x7FFFFF00 + 32 * 127 * 127) & 0xFFFFFFFF
    assert (run_warp(words, 4, text.format("")) == wrapped).all()


TILE = """.shared .align 16 .b8 tile[512];
.reg .b32 s, at; mov.u32 s, tile; mad.lo.u32 at, t, 16, s;
"""
FILL = "st.shared.v4.b32 [at], {i0, i1, i2, i3}; bar.warp.sync -1;\n"


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("turn", ["", ".trans"])
def test_ldmatrix(count: int, turn: str) -> None:
    tiles = np.arange(256, dtype=np.uint16).reshape(4, 8, 8)
    rows = tiles.reshape(32, 8).view(np.uint32)
    body = TILE + FILL + (
        f"ldmatrix.sync.aligned.m8n8.x{count}{turn}.shared.b16 {names('o', 0, count)}, [at];"
    )
    found = run_warp(rows, count, body).view(np.uint16).reshape(32, count, 2)
    for number in range(count):
        tile = tiles[number].T if turn else tiles[number]
        for half in range(2):
            np.testing.assert_array_equal(found[:, number, half], tile[GROUP, 2 * WITHIN + half])


@pytest.mark.parametrize("turn", ["", ".trans"])
def test_stmatrix_undoes_ldmatrix(turn: str) -> None:
    rows = np.arange(256, dtype=np.uint16).reshape(32, 8).view(np.uint32)
    body = TILE + FILL + f"""
    ldmatrix.sync.aligned.m8n8.x4{turn}.shared.b16 {{i0, i1, i2, i3}}, [at];
    bar.warp.sync -1;
    stmatrix.sync.aligned.m8n8.x4{turn}.shared.b16 [at], {{i0, i1, i2, i3}};
    bar.warp.sync -1;
    ld.shared.v4.b32 {{o0, o1, o2, o3}}, [at];"""
    np.testing.assert_array_equal(run_warp(rows, 4, body), rows)
