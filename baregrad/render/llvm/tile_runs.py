"""Runs of products of tiles, by a core's matrix unit, as LLVM IR."""

from __future__ import annotations

from types import MappingProxyType

from baregrad.ir.analysis.words import TILE
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op, Ops
from baregrad.render.llvm.text import FunctionText, Rule
from baregrad.render.tile_runs import CONFIGURATION, CONFIGURED, ROW_NBYTES, TileRun


def _llvm_run(f: FunctionText, node: Node) -> None:
    """A call of the function that does a run, which is written once."""
    run = TileRun(node)
    f.declarations[_llvm_function(run)] = None
    for name, *kinds in (
        ("ldtilecfg", "ptr"), ("tilerelease",), ("tilezero", "i8"),
        ("tileloadd64", "i8", "ptr", "i64"), ("tilestored64", "i8", "ptr", "i64"),
        (run.instruction, "i8", "i8", "i8"),
    ):
        f.declare(f"llvm.x86.{name}", "void", *kinds)
    arguments = []
    for base, offset, at, pitch, stride in run.arrays:
        pointer = f.pointer(base, f.use(offset), at, base.dtype)
        arguments += [f"ptr {pointer}", f"i64 {pitch}", f"i64 {stride}"]
    arguments += [f"i64 {run.steps}", f"i1 {f.use(run.keep)}"]
    f.lines.append(f"  call void @{run.name}({', '.join(arguments)})")
    f.tiles = True


def llvm_configured(f: FunctionText, place: int) -> None:
    """Make tiles ready before the line at `place`, and give them back at the end."""
    text = ", ".join(f"i8 {byte}" for byte in CONFIGURATION)
    nbytes = len(CONFIGURATION)
    constant = f"@{CONFIGURED} = private unnamed_addr constant [{nbytes} x i8] [{text}], align 64"
    f.declarations[constant] = None
    f.lines.insert(place, f"  call void @llvm.x86.ldtilecfg(ptr @{CONFIGURED})")
    f.lines.append("  call void @llvm.x86.tilerelease()")


def _llvm_function(run: TileRun) -> str:
    """The function that does a run: results, first factor, second one, steps, whether to keep."""
    results = run.results()
    lines = [
        f"define internal void @{run.name}(ptr %c, i64 %pc, i64 %sc, ptr %a, i64 %pa, i64 %sa, "
        "ptr %b, i64 %pb, i64 %sb, i64 %steps, i1 %keep) #0 {",
        f"  %a1 = mul i64 %pa, {TILE}",
        f"  %c1 = mul i64 %pc, {TILE}",
        "  %below = getelementptr i8, ptr %c, i64 %c1",
    ]
    for tile, r, c in results:
        base = "%below" if r else "%c"
        lines.append(f"  %c{tile}p = getelementptr i8, ptr {base}, i64 {c * ROW_NBYTES}")
    lines += ["  br i1 %keep, label %old, label %new", "old:"]
    lines += [_llvm_call("tileloadd64", t, f"ptr %c{t}p, i64 %pc") for t, _, _ in results]
    lines += ["  br label %start", "new:"]
    lines += [_llvm_call("tilezero", t) for t, _, _ in results]
    lines += ["  br label %start", "start:", "  br label %step", "step:"]
    for name in "ab":
        lines.append(f"  %{name}p = phi ptr [ %{name}, %start ], [ %{name}n, %step ]")
    lines.append("  %left = phi i64 [ %steps, %start ], [ %less, %step ]")
    if run.rows > 1:
        lines.append("  %ap1 = getelementptr i8, ptr %ap, i64 %a1")
    if run.columns > 1:
        lines.append(f"  %bp1 = getelementptr i8, ptr %bp, i64 {ROW_NBYTES}")
    for tile, r, c in results:
        # Each factor is read just before the first product that wants it.
        if not r:
            lines.append(_llvm_call("tileloadd64", 6 + c, f"ptr %bp{'1' * c}, i64 %pb"))
        if not c:
            lines.append(_llvm_call("tileloadd64", 4 + r, f"ptr %ap{'1' * r}, i64 %pa"))
        lines.append(_llvm_call(run.instruction, tile, f"i8 {4 + r}, i8 {6 + c}"))
    lines += [
        "  %an = getelementptr i8, ptr %ap, i64 %sa",
        "  %bn = getelementptr i8, ptr %bp, i64 %sb",
        "  %less = sub i64 %left, 1",
        "  %more = icmp ne i64 %less, 0",
        "  br i1 %more, label %step, label %end",
        "end:",
    ]
    lines += [_llvm_call("tilestored64", t, f"ptr %c{t}p, i64 %pc") for t, _, _ in results]
    return "\n".join([*lines, "  ret void", "}"])


def _llvm_call(name: str, tile: int, rest: str = "") -> str:
    more = f", {rest}" if rest else ""
    return f"  call void @llvm.x86.{name}(i8 {tile}{more})"


TILE_RULES: MappingProxyType[Op, Rule] = MappingProxyType({Ops.MACHINE: _llvm_run})
