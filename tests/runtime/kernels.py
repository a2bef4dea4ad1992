"""Kernels written by hand for the tests of the runtime, and programs made of them."""

from __future__ import annotations

import functools

import numpy as np

from baregrad.assemble.llvm import LlvmAssembler
from baregrad.program import CPU_OBJECT, LaunchExpr, ParamSpec, Program, Resources
from baregrad.runtime.buffers import Buffer
from baregrad.runtime.cpu.device import CpuDevice

HEAD = """
define void @{name}(ptr noalias %buffers, ptr %vars, i64 %from, i64 %to, ptr %scratch) nounwind {{
entry:
"""


@functools.cache
def assembled(text: str) -> bytes:
    """The object of a text, made once a test run."""
    return LlvmAssembler().assemble(text)


def open_cpu(threads: int = 1, native: bool = True) -> CpuDevice:
    return CpuDevice(assemble=assembled if native else None, threads=threads)


def program(
    name: str,
    text: str,
    params: tuple[tuple[str, str, LaunchExpr | None], ...],
    *,
    chunks: LaunchExpr = 1,
    variables: tuple[str, ...] = (),
    meta: Resources | None = None,
) -> Program:
    specs = tuple(ParamSpec(label, "float32", size, access) for label, access, size in params)
    return Program(
        name=name,
        kind=CPU_OBJECT,
        code=assembled(text),
        entry=name,
        params=specs,
        variables=variables,
        chunks=chunks,
        source=text,
        meta=meta or Resources(),
    )


def _pointers(names: str) -> str:
    lines = []
    for index, name in enumerate(names):
        lines.append(f"  %{name}_at = getelementptr ptr, ptr %buffers, i64 {index}")
        lines.append(f"  %{name} = load ptr, ptr %{name}_at")
    return "\n".join(lines) + "\n"


def _loop(lanes: int, chunk: int, body: str) -> str:
    """Run `body`, `lanes` elements at %i, over the elements of the chunks."""
    return f"""
  %at = alloca i64
  %first = mul i64 %from, {chunk}
  %last = mul i64 %to, {chunk}
  store i64 %first, ptr %at
  br label %head
head:
  %i = load i64, ptr %at
  %more = icmp slt i64 %i, %last
  br i1 %more, label %body, label %out
body:
{body}
  %next = add i64 %i, {lanes}
  store i64 %next, ptr %at
  br label %head
out:
  ret void
}}
"""


def add_multiply(chunk: int, chunks: LaunchExpr, meta: Resources | None = None) -> Program:
    """o = a * b + c over `chunks` chunks of `chunk` floats, eight at a time."""
    body = "".join(
        f"  %{x}_p = getelementptr float, ptr %{x}, i64 %i\n"
        f"  %{x}_v = load <8 x float>, ptr %{x}_p, align 4\n"
        for x in "abc"
    )
    body += """  %m = fmul <8 x float> %a_v, %b_v
  %s = fadd <8 x float> %m, %c_v
  %o_p = getelementptr float, ptr %o, i64 %i
  store <8 x float> %s, ptr %o_p, align 4"""
    text = HEAD.format(name="add_multiply") + _pointers("oabc") + _loop(8, chunk, body)
    size: LaunchExpr = ("mul", chunks, chunk * 4)
    params = tuple((x, "w" if x == "o" else "r", size) for x in "oabc")
    variables = ("n",) if chunks == ("var", "n") else ()
    return program("add_multiply", text, params, chunks=chunks, variables=variables, meta=meta)


def increment(chunk: int, chunks: int) -> Program:
    """o = a + 1 over `chunks` chunks of `chunk` floats."""
    body = """  %a_p = getelementptr float, ptr %a, i64 %i
  %a_v = load float, ptr %a_p
  %s = fadd float %a_v, 1.0
  %o_p = getelementptr float, ptr %o, i64 %i
  store float %s, ptr %o_p"""
    text = HEAD.format(name="increment") + _pointers("oa") + _loop(1, chunk, body)
    size = chunk * chunks * 4
    return program("increment", text, (("o", "w", size), ("a", "r", size)), chunks=chunks)


def matmul(rows: int, inner: int, columns: int) -> Program:
    """o (rows, columns) = a (rows, inner) @ b (inner, columns); a chunk is 6 rows.

    A register tile of 6 x 16: two vectors of eight for each row, fused multiply-add.
    """
    tiles = [f"{m}{v}" for m in range(6) for v in range(2)]
    text = HEAD.format(name="matmul") + _pointers("oab")
    text += "".join(f"  %acc{t} = alloca <8 x float>, align 32\n" for t in tiles)
    zeros = "\n".join(f"  store <8 x float> zeroinitializer, ptr %acc{t}" for t in tiles)
    step = _tile_step(inner)
    finish = "\n".join(_tile_store(m, columns) for m in range(6))
    body = _MATMUL
    for mark, value in (
        ("INNER", str(inner)),
        ("COLUMNS", str(columns)),
        ("ZEROS", zeros),
        ("STEP", step),
        ("FINISH", finish),
    ):
        body = body.replace("{" + mark + "}", value)
    sizes = (rows * columns * 4, rows * inner * 4, inner * columns * 4)
    params = (("o", "w", sizes[0]), ("a", "r", sizes[1]), ("b", "r", sizes[2]))
    return program("matmul", text + body, params, chunks=rows // 6)


def _tile_step(inner: int) -> str:
    """One k of the tile: two vectors of b, and for each row an element of a, spread."""
    lines = []
    for v in range(2):
        lines.append(f"  %bi{v} = add i64 %brow, {8 * v}")
        lines.append(f"  %bp{v} = getelementptr float, ptr %b, i64 %bi{v}")
        lines.append(f"  %bv{v} = load <8 x float>, ptr %bp{v}, align 4")
    for m in range(6):
        lines.append(f"  %ar{m} = add i64 %row, {m}")
        lines.append(f"  %am{m} = mul i64 %ar{m}, {inner}")
        lines.append(f"  %ai{m} = add i64 %am{m}, %k")
        lines.append(f"  %ap{m} = getelementptr float, ptr %a, i64 %ai{m}")
        lines.append(f"  %as{m} = load float, ptr %ap{m}")
        lines.append(f"  %ax{m} = insertelement <8 x float> poison, float %as{m}, i32 0")
        lines.append(
            f"  %av{m} = shufflevector <8 x float> %ax{m}, <8 x float> poison, "
            "<8 x i32> zeroinitializer"
        )
        for v in range(2):
            lines.append(f"  %c{m}{v} = load <8 x float>, ptr %acc{m}{v}")
            lines.append(
                f"  %f{m}{v} = call <8 x float> @llvm.fma.v8f32(<8 x float> %av{m}, "
                f"<8 x float> %bv{v}, <8 x float> %c{m}{v})"
            )
            lines.append(f"  store <8 x float> %f{m}{v}, ptr %acc{m}{v}")
    return "\n".join(lines)


def _tile_store(m: int, columns: int) -> str:
    """Write row m of the tile."""
    lines = [
        f"  %or{m} = add i64 %row, {m}",
        f"  %om{m} = mul i64 %or{m}, {columns}",
        f"  %oi{m} = add i64 %om{m}, %n",
    ]
    for v in range(2):
        lines.append(f"  %oj{m}{v} = add i64 %oi{m}, {8 * v}")
        lines.append(f"  %op{m}{v} = getelementptr float, ptr %o, i64 %oj{m}{v}")
        lines.append(f"  %ov{m}{v} = load <8 x float>, ptr %acc{m}{v}")
        lines.append(f"  store <8 x float> %ov{m}{v}, ptr %op{m}{v}, align 4")
    return "\n".join(lines)


_MATMUL = """
  %m_at = alloca i64
  %n_at = alloca i64
  %k_at = alloca i64
  store i64 %from, ptr %m_at
  br label %rows
rows:
  %m = load i64, ptr %m_at
  %m_more = icmp slt i64 %m, %to
  br i1 %m_more, label %row_body, label %out
row_body:
  %row = mul i64 %m, 6
  store i64 0, ptr %n_at
  br label %columns
columns:
  %n = load i64, ptr %n_at
  %n_more = icmp slt i64 %n, {COLUMNS}
  br i1 %n_more, label %tile, label %row_end
tile:
{ZEROS}
  store i64 0, ptr %k_at
  br label %inner
inner:
  %k = load i64, ptr %k_at
  %k_more = icmp slt i64 %k, {INNER}
  br i1 %k_more, label %step, label %finish
step:
  %bm = mul i64 %k, {COLUMNS}
  %brow = add i64 %bm, %n
{STEP}
  %k_next = add i64 %k, 1
  store i64 %k_next, ptr %k_at
  br label %inner
finish:
{FINISH}
  %n_next = add i64 %n, 16
  store i64 %n_next, ptr %n_at
  br label %columns
row_end:
  %m_next = add i64 %m, 1
  store i64 %m_next, ptr %m_at
  br label %rows
out:
  ret void
}
declare <8 x float> @llvm.fma.v8f32(<8 x float>, <8 x float>, <8 x float>)
"""


def floats(device: CpuDevice, values: np.ndarray) -> Buffer:
    """A buffer of the device that holds float32 values."""
    data = np.ascontiguousarray(values, np.float32)
    buffer = device.allocate(data.nbytes)
    device.copy_in(buffer, data)
    return buffer


def read(buffer: Buffer) -> np.ndarray:
    """The floats of a buffer, without a copy."""
    return np.frombuffer(buffer.as_memoryview(), np.float32)
