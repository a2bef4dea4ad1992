"""One-instruction kernels, their inputs, and what they should give, by other means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

NUMPY = {
    "u16": np.uint16, "s16": np.int16, "u32": np.uint32, "s32": np.int32, "b32": np.uint32,
    "u64": np.uint64, "s64": np.int64, "b64": np.uint64, "f32": np.float32, "f64": np.float64,
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f16x2": np.uint32, "bf16x2": np.uint32,
    "b16": np.uint16, "e4m3x2": np.uint16, "e5m2x2": np.uint16,
}
COUNT = 256


def bits_of(name: str) -> int:
    return 8 * np.dtype(NUMPY[name]).itemsize


def kernel_text(body: str, sources: list[str], result: str) -> str:
    """A kernel that loads a, b, c (one a thread), runs `body`, and stores d."""
    names = "abcd"[: len(sources)]
    lines = [".version 8.0", ".target sm_90a", ".address_size 64", ".visible .entry one("]
    lines.append(",\n".join(f"    .param .u64 p{k}" for k in range(len(sources) + 1)))
    lines += [") {", "    .reg .b64 at, offset;", "    .reg .b32 tid;", "    .reg .pred p, q;"]
    for name, kind in zip([*names, "r"], [*sources, result], strict=True):
        lines.append(f"    .reg .b{bits_of(kind)} {name};")
    lines.append("    mov.u32 tid, %tid.x;")
    for place, (name, kind) in enumerate(zip(names, sources, strict=True)):
        nbytes = bits_of(kind) // 8
        lines += [
            f"    ld.param.u64 at, [p{place}];", f"    mul.wide.u32 offset, tid, {nbytes};",
            "    add.u64 at, at, offset;", f"    ld.global.b{8 * nbytes} {name}, [at];",
        ]
    nbytes = bits_of(result) // 8
    lines += [
        f"    {body}", f"    ld.param.u64 at, [p{len(sources)}];",
        f"    mul.wide.u32 offset, tid, {nbytes};", "    add.u64 at, at, offset;",
        f"    st.global.b{8 * nbytes} [at], r;", "    ret;", "}",
    ]
    return "\n".join(lines) + "\n"


def inputs(kinds: list[str], seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Values of each type, the awkward ones among them."""
    random = np.random.default_rng(seed)
    out = []
    for kind in kinds:
        dtype = np.dtype(NUMPY[kind])
        if kind in ("f32", "f64", "f16", "bf16"):
            scale = np.exp2(random.integers(-6, 7, COUNT).astype(np.float64))
            values = random.standard_normal(COUNT) * scale
            special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, 1e-40, -1e-40, 65504.0]
            values[random.permutation(COUNT)[: 4 * len(special)]] = special * 4
            out.append(values.astype(dtype))
        else:
            raw = random.integers(0, 256, COUNT * dtype.itemsize).astype(np.uint8)
            values = raw.view(dtype).copy()
            values[random.permutation(COUNT)[:16]] = np.array([0, 1, 2, 3] * 4).astype(dtype)
            values[random.permutation(COUNT)[:8]] = ~dtype.type(0)
            out.append(values)
    return out


@dataclass(frozen=True)
class Case:
    """An instruction of a, b, c and r, and the function of their arrays that r should be."""

    body: str
    sources: tuple[str, ...]
    result: str
    oracle: Callable[..., Any]

    @property
    def label(self) -> str:
        return self.body.split(";")[0].split(" ")[0]


def whole(function: Callable[..., int], bits: int) -> Callable[..., Any]:
    """A function of Python integers, wrapped to so many bits, over arrays."""

    def over(*arrays: Any) -> Any:
        mask = (1 << bits) - 1
        rows = zip(*[one.tolist() for one in arrays], strict=True)
        return np.array([function(*row) & mask for row in rows], f"uint{bits}")

    return over


def trunc_div(a: int, b: int) -> int:
    quotient = abs(a) // abs(b) if b else 0
    return quotient if (a < 0) == (b < 0) else -quotient


def shift_right(a: int, by: int, bits: int) -> int:
    return a >> min(by, 200 if a >= 0 else bits)


def exact_fma(mode: str) -> Callable[..., Any]:
    """f32 fma by rational arithmetic."""

    def over(a: Any, b: Any, c: Any) -> Any:
        out = np.empty(len(a), np.float32)
        for place, row in enumerate(zip(a, b, c, strict=True)):
            x, y, z = map(float, row)
            plain = x * y + z
            if not np.isfinite([x, y, z]).all() or plain == 0:
                out[place] = plain
                continue
            total = Fraction(x) * Fraction(y) + Fraction(z)
            out[place] = rounded_fraction(total, mode)
        return out

    return over


def rounded_fraction(total: Fraction, mode: str) -> np.float32:
    """A rational as float32, in any direction, by looking at the neighbours."""
    near = np.float32(float(total)) if total else np.float32(0)
    around = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
    around = [one for one in around if np.isfinite(one)]
    infinity = np.float32(np.inf)
    below = max((one for one in around if Fraction(float(one)) <= total), default=-infinity)
    above = min((one for one in around if Fraction(float(one)) >= total), default=infinity)
    if mode == "rm":
        return below
    if mode == "rp":
        return above
    if mode == "rz":
        return below if total > 0 else above
    low, high = total - Fraction(float(below)), Fraction(float(above)) - total
    if low == high:
        return below if int(below.view(np.uint32)) % 2 == 0 else above
    return below if low < high else above


def exact(operation: Callable[..., Fraction], mode: str) -> Callable[..., Any]:
    """An operation on f32 by rational arithmetic; zeros and what is not finite as NumPy has it."""

    def over(*arrays: Any) -> Any:
        out = []
        for row in zip(*arrays, strict=True):
            numbers = [float(one) for one in row]
            if not np.isfinite(numbers).all() or 0 in numbers:
                wide = [np.float64(one) for one in numbers]
                out.append(np.float32(operation(*wide)))
            else:
                total = operation(*map(Fraction, numbers))
                out.append(rounded_fraction(total, mode) if total else np.float32(0))
        return np.array(out, np.float32)

    return over


def root_below(a: Any) -> Any:
    """The largest f32 whose square is at most `a`."""
    out = np.sqrt(a.astype(np.float64)).astype(np.float32)
    for place, value in enumerate(out):
        if np.isfinite(value) and Fraction(float(value)) ** 2 > Fraction(float(a[place])):
            out[place] = np.nextafter(value, np.float32(0))
    return out


def bf16(values: Any) -> Any:
    return values.astype(ml_dtypes.bfloat16)


def packed(function: Callable[..., Any], lane: Any) -> Callable[..., Any]:
    """A function of 16-bit lanes over arrays of packed words."""

    def over(*arrays: Any) -> Any:
        halves = [one.view(lane).astype(np.float64) for one in arrays]
        return function(*halves).astype(lane).view(np.uint32)

    return over


def minimum(a: Any, b: Any) -> Any:
    return np.where((a == b) & np.signbit(a), a, np.where((a == b), b, np.fmin(a, b)))


def saturating(dtype: Any) -> Callable[[Any], Any]:
    info = np.iinfo(dtype)

    def over(a: Any) -> Any:
        exact = [0 if np.isnan(x) else np.clip(x, -1e30, 1e30) for x in a.astype(np.float64)]
        return np.array([min(max(int(x), info.min), info.max) for x in exact], dtype)

    return over


def prmt(a: int, b: int, selector: int) -> int:
    octets = (a | b << 32).to_bytes(8, "little")
    out = 0
    for place in range(4):
        nibble = selector >> 4 * place & 15
        value = octets[nibble & 7]
        if nibble & 8:
            value = 0xFF if value & 0x80 else 0
        out |= value << 8 * place
    return out


def bfe_signed(a: int, position: int, length: int, bits: int = 32) -> int:
    position, length = position & 255, length & 255
    if length == 0:
        return 0
    sign_at = min(position + length - 1, bits - 1)
    raw = a & ((1 << bits) - 1)
    sign = raw >> sign_at & 1
    value = 0
    for place in range(bits):
        inside = place < length and position + place < bits
        value |= (raw >> (position + place) & 1 if inside else sign) << place
    return value


def bfi(a: int, b: int, position: int, length: int) -> int:
    position, length = position & 255, length & 255
    for place in range(length):
        if position + place < 32:
            at = position + place
            b = b & ~(1 << at) | (a >> place & 1) << at
    return b


def shf(a: int, b: int, by: int, left: bool, wrap: bool) -> int:
    by = by & 31 if wrap else min(by, 32)
    pair = b << 32 | a
    return (pair << by >> 32 if left else pair >> by) & 0xFFFFFFFF


I3 = ("s32", "s32", "s32")
U2 = ("u32", "u32")
F2 = ("f32", "f32")
F3 = ("f32", "f32", "f32")
H2 = ("f16", "f16")

INTEGER_CASES = [
    Case("add.s32 r, a, b;", ("s32", "s32"), "s32", whole(lambda a, b: a + b, 32)),
    Case("add.sat.s32 r, a, b;", ("s32", "s32"), "s32",
         whole(lambda a, b: min(max(a + b, -2**31), 2**31 - 1), 32)),
    Case("sub.u16 r, a, b;", ("u16", "u16"), "u16", whole(lambda a, b: a - b, 16)),
    Case("mul.lo.u64 r, a, b;", ("u64", "u64"), "u64", whole(lambda a, b: a * b, 64)),
    Case("mul.hi.u32 r, a, b;", U2, "u32", whole(lambda a, b: a * b >> 32, 32)),
    Case("mul.hi.s32 r, a, b;", ("s32", "s32"), "s32", whole(lambda a, b: a * b >> 32, 32)),
    Case("mul.hi.u64 r, a, b;", ("u64", "u64"), "u64", whole(lambda a, b: a * b >> 64, 64)),
    Case("mul.hi.s64 r, a, b;", ("s64", "s64"), "s64", whole(lambda a, b: a * b >> 64, 64)),
    Case("mul.wide.s32 r, a, b;", ("s32", "s32"), "s64", whole(lambda a, b: a * b, 64)),
    Case("mul.wide.u16 r, a, b;", ("u16", "u16"), "u32", whole(lambda a, b: a * b, 32)),
    Case("mad.lo.s32 r, a, b, c;", I3, "s32", whole(lambda a, b, c: a * b + c, 32)),
    Case("mad.hi.u32 r, a, b, c;", (*U2, "u32"), "u32",
         whole(lambda a, b, c: (a * b >> 32) + c, 32)),
    Case("mad.wide.u32 r, a, b, c;", (*U2, "u64"), "u64", whole(lambda a, b, c: a * b + c, 64)),
    Case("div.s32 r, a, b;", ("s32", "s32"), "s32",
         whole(lambda a, b: trunc_div(a, b) if b else -1, 32)),
    Case("rem.s32 r, a, b;", ("s32", "s32"), "s32",
         whole(lambda a, b: a - b * trunc_div(a, b), 32)),
    Case("div.u64 r, a, b;", ("u64", "u64"), "u64", whole(lambda a, b: a // b if b else -1, 64)),
    Case("min.s32 r, a, b;", ("s32", "s32"), "s32", whole(min, 32)),
    Case("max.u32 r, a, b;", U2, "u32", whole(max, 32)),
    Case("abs.s32 r, a;", ("s32",), "s32", whole(abs, 32)),
    Case("neg.s64 r, a;", ("s64",), "s64", whole(lambda a: -a, 64)),
    Case("not.b32 r, a;", ("b32",), "b32", whole(lambda a: ~a, 32)),
    Case("cnot.b32 r, a;", ("b32",), "b32", whole(lambda a: int(a == 0), 32)),
    Case("sad.u32 r, a, b, c;", (*U2, "u32"), "u32", whole(lambda a, b, c: abs(a - b) + c, 32)),
    Case("popc.b64 r, a;", ("b64",), "u32", whole(lambda a: a.bit_count(), 32)),
    Case("clz.b32 r, a;", ("b32",), "u32", whole(lambda a: 32 - a.bit_length(), 32)),
    Case("clz.b64 r, a;", ("b64",), "u32", whole(lambda a: 64 - a.bit_length(), 32)),
    Case("bfind.u32 r, a;", ("u32",), "u32", whole(lambda a: a.bit_length() - 1, 32)),
    Case("brev.b32 r, a;", ("b32",), "b32", whole(lambda a: int(f"{a:032b}"[::-1], 2), 32)),
    Case("and.b32 a, a, 63; shl.b32 r, b, a;", U2, "b32", whole(lambda a, b: b << (a & 63), 32)),
    Case("and.b32 a, a, 63; shr.s32 r, b, a;", ("u32", "s32"), "s32",
         whole(lambda a, b: shift_right(b, a & 63, 32), 32)),
    Case("and.b32 a, a, 63; shr.u32 r, b, a;", U2, "u32", whole(lambda a, b: b >> (a & 63), 32)),
    Case("and.b32 c, c, 63; shf.l.wrap.b32 r, a, b, c;", (*U2, "u32"), "b32",
         whole(lambda a, b, c: shf(a, b, c & 63, True, True), 32)),
    Case("and.b32 c, c, 63; shf.r.clamp.b32 r, a, b, c;", (*U2, "u32"), "b32",
         whole(lambda a, b, c: shf(a, b, c & 63, False, False), 32)),
    Case("and.b32 b, b, 63; and.b32 c, c, 63; bfe.u32 r, a, b, c;", (*U2, "u32"), "u32",
         whole(lambda a, b, c: (a >> (b & 63)) & ((1 << (c & 63)) - 1), 32)),
    Case("and.b32 b, b, 63; and.b32 c, c, 63; bfe.s32 r, a, b, c;", ("s32", "u32", "u32"), "s32",
         whole(lambda a, b, c: bfe_signed(a, b & 63, c & 63), 32)),
    Case("and.b32 c, c, 63; bfi.b32 r, a, b, c, 9;", (*U2, "u32"), "b32",
         whole(lambda a, b, c: bfi(a, b, c & 63, 9), 32)),
    Case("prmt.b32 r, a, b, c;", (*U2, "u32"), "b32", whole(prmt, 32)),
    Case("lop3.b32 r, a, b, c, 0xe8;", (*U2, "u32"), "b32",
         whole(lambda a, b, c: a & b | a & c | b & c, 32)),
    Case("dp4a.s32.s32 r, a, b, c;", I3, "s32", whole(
        lambda a, b, c: c + sum(
            ((a >> 8 * k & 255) ^ 128) * ((b >> 8 * k & 255) ^ 128)
            - 128 * (((a >> 8 * k & 255) ^ 128) + ((b >> 8 * k & 255) ^ 128)) + 128 * 128
            for k in range(4)), 32)),
    Case("setp.lt.s32 p, a, b; selp.b32 r, a, b, p;", ("s32", "s32"), "s32", whole(min, 32)),
    Case("setp.hi.u32 p|q, a, b; selp.b32 r, 1, 0, q;", U2, "u32",
         whole(lambda a, b: int(a <= b), 32)),
    Case("set.eq.u32.u32 r, a, b;", U2, "u32", whole(lambda a, b: -(a == b), 32)),
    Case("slct.u32.s32 r, a, b, c;", (*U2, "s32"), "u32",
         whole(lambda a, b, c: a if c >= 0 else b, 32)),
    Case("add.cc.u32 r, a, b; addc.u32 r, c, 0;", (*U2, "u32"), "u32",
         whole(lambda a, b, c: c + (a + b >> 32), 32)),
    Case("sub.cc.u32 r, a, b; subc.u32 r, c, 0;", (*U2, "u32"), "u32",
         whole(lambda a, b, c: c - (a < b), 32)),
    Case("cvt.s64.s32 r, a;", ("s32",), "s64", lambda a: a.astype(np.int64)),
    Case("cvt.u8.u32 r, a;", ("u32",), "u32", whole(lambda a: a & 255, 32)),
    Case("cvt.s8.s32 r, a;", ("s32",), "s32", lambda a: a.astype(np.int8).astype(np.int32)),
    Case("cvt.sat.s8.s32 r, a;", ("s32",), "s32", lambda a: np.clip(a, -128, 127)),
    Case("cvt.sat.u16.s32 r, a;", ("s32",), "u16", lambda a: np.clip(a, 0, 65535)),
]

FLOAT_CASES = [
    Case("add.f32 r, a, b;", F2, "f32", lambda a, b: a + b),
    Case("mul.ftz.f32 r, a, b;", F2, "f32", lambda a, b: ftz(ftz(a) * ftz(b))),
    Case("add.sat.f32 r, a, b;", F2, "f32", lambda a, b: np.nan_to_num(np.clip(a + b, 0, 1))),
    *[Case(f"fma.{mode}.f32 r, a, b, c;", F3, "f32", exact_fma(mode))
      for mode in ("rn", "rz", "rm", "rp")],
    *[Case(f"{name}.{mode}.f32 r, a, b;", F2, "f32", exact(function, mode))
      for name, function in (
          ("add", lambda a, b: a + b), ("sub", lambda a, b: a - b), ("mul", lambda a, b: a * b),
          ("div", lambda a, b: a / b))
      for mode in ("rz", "rm", "rp")],
    Case("sqrt.rz.f32 r, a;", ("f32",), "f32", root_below),
    Case("cvt.rna.tf32.f32 r, a;", ("f32",), "f32", lambda a: np.where(
        np.isfinite(a), (a.view(np.uint32) + 0x1000 & 0xFFFFE000).view(np.float32), a)),
    Case("add.rp.f64 r, a, b;", ("f64", "f64"), "f64", lambda a, b: np.array([
        above_double(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)])),
    Case("add.f64 r, a, b;", ("f64", "f64"), "f64", lambda a, b: a + b),
    Case("div.rn.f32 r, a, b;", F2, "f32", lambda a, b: a / b),
    Case("sqrt.rn.f32 r, a;", ("f32",), "f32", np.sqrt),
    Case("rcp.rn.f32 r, a;", ("f32",), "f32", lambda a: np.float32(1) / a),
    Case("min.f32 r, a, b;", F2, "f32", minimum),
    Case("max.f32 r, a, b;", F2, "f32", lambda a, b: -minimum(-a, -b)),
    Case("max.NaN.f32 r, a, b;", F2, "f32",
         lambda a, b: np.where(np.isnan(a + b) & (np.isnan(a) | np.isnan(b)), np.nan,
                               -minimum(-a, -b))),
    Case("abs.f32 r, a;", ("f32",), "f32", np.abs),
    Case("neg.f32 r, a;", ("f32",), "f32", np.negative),
    Case("copysign.f32 r, a, b;", F2, "f32", lambda a, b: np.copysign(b, a)),
    Case("setp.ltu.f32 p, a, b; selp.b32 r, 1, 0, p;", F2, "u32",
         lambda a, b: (~(a >= b)).astype(np.uint32)),
    Case("setp.ne.f32 p, a, b; selp.b32 r, 1, 0, p;", F2, "u32",
         lambda a, b: ((a < b) | (a > b)).astype(np.uint32)),
    Case("add.f16 r, a, b;", H2, "f16",
         lambda a, b: (a.astype(np.float64) + b.astype(np.float64)).astype(np.float16)),
    Case("fma.rn.f16 r, a, b, c;", (*H2, "f16"), "f16", lambda a, b, c: (
        a.astype(np.longdouble) * b.astype(np.longdouble) + c.astype(np.longdouble)
    ).astype(np.float16)),
    Case("max.f16 r, a, b;", H2, "f16", lambda a, b: -minimum(-a, -b)),
    Case("fma.rn.bf16 r, a, b, c;", ("bf16",) * 3, "bf16", lambda a, b, c: bf16(
        exact_fma("rn")(a.astype(np.float32), b.astype(np.float32), c.astype(np.float32)))),
    Case("add.f16x2 r, a, b;", ("f16x2", "f16x2"), "f16x2", packed(np.add, np.float16)),
    Case("mul.rn.f16x2 r, a, b;", ("f16x2", "f16x2"), "f16x2", packed(np.multiply, np.float16)),
    Case("add.rn.bf16x2 r, a, b;", ("bf16x2", "bf16x2"), "bf16x2",
         packed(np.add, ml_dtypes.bfloat16)),
    Case("cvt.f32.f16 r, a;", ("f16",), "f32", lambda a: a.astype(np.float32)),
    Case("cvt.rn.f16.f32 r, a;", ("f32",), "f16", lambda a: a.astype(np.float16)),
    Case("cvt.rn.bf16.f32 r, a;", ("f32",), "bf16", bf16),
    Case("cvt.rz.bf16.f32 r, a;", ("f32",), "bf16", lambda a: np.where(
        np.isnan(a), np.uint16(0x7FFF), (a.view(np.uint32) >> 16).astype(np.uint16)
    ).view(ml_dtypes.bfloat16)),
    Case("cvt.f32.bf16 r, a;", ("bf16",), "f32", lambda a: a.astype(np.float32)),
    Case("cvt.rn.f32.f64 r, a;", ("f64",), "f32", lambda a: a.astype(np.float32)),
    Case("cvt.f64.f32 r, a;", ("f32",), "f64", lambda a: a.astype(np.float64)),
    Case("cvt.rzi.s32.f32 r, a;", ("f32",), "s32", saturating(np.int32)),
    Case("cvt.rni.s32.f32 r, a;", ("f32",), "s32", lambda a: saturating(np.int32)(np.rint(a))),
    Case("cvt.rmi.f32.f32 r, a;", ("f32",), "f32", np.floor),
    Case("cvt.rzi.u8.f32 r, a;", ("f32",), "u32",
         lambda a: saturating(np.uint8)(a).astype(np.uint32)),
    Case("cvt.rn.f32.s32 r, a;", ("s32",), "f32", lambda a: a.astype(np.float32)),
    Case("cvt.rn.f32.u64 r, a;", ("u64",), "f32", lambda a: np.array(
        [rounded_fraction(Fraction(int(x)), "rn") for x in a])),
    Case("cvt.rz.f32.s64 r, a;", ("s64",), "f32", lambda a: np.array(
        [rounded_fraction(Fraction(int(x)), "rz") for x in a])),
    Case("cvt.rn.f16.u16 r, a;", ("u16",), "f16", lambda a: a.astype(np.float16)),
    Case("cvt.rn.bf16x2.f32 r, a, b;", F2, "bf16x2", lambda a, b: (
        bf16(a).view(np.uint16).astype(np.uint32) << 16 | bf16(b).view(np.uint16))),
    Case("cvt.rn.f16x2.f32 r, a, b;", F2, "f16x2", lambda a, b: (
        a.astype(np.float16).view(np.uint16).astype(np.uint32) << 16
        | b.astype(np.float16).view(np.uint16))),
    Case("cvt.rn.satfinite.e4m3x2.f32 r, a, b;", F2, "e4m3x2", lambda a, b: (
        e4m3(a).astype(np.uint16) << 8 | e4m3(b))),
    Case("cvt.rn.f16x2.e4m3x2 r, a;", ("e4m3x2",), "f16x2", lambda a: a.view(np.uint8).view(
        ml_dtypes.float8_e4m3fn).astype(np.float16).view(np.uint32)),
    Case("mov.b32 r, {a, b};", ("b16", "b16"), "b32", whole(lambda a, b: a | b << 16, 32)),
]


def above_double(a: float, b: float) -> float:
    total = a + b
    if np.isfinite([a, b, total]).all() and Fraction(total) < Fraction(a) + Fraction(b):
        return float(np.nextafter(total, np.inf))
    return total


def ftz(a: Any) -> Any:
    return np.where(np.abs(a) < np.float32(2.0**-126), np.copysign(np.float32(0), a), a)


def e4m3(a: Any) -> Any:
    limited = np.clip(a, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return np.where(np.isnan(a), np.uint8(0x7F), limited)
