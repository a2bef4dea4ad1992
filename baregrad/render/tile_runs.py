"""Runs of products of tiles, by a core's matrix unit: as LLVM IR, and as C with GNU assembly.

A run keeps up to 2 x 2 tiles of results in registers 0 to 3; rows of the first factor pass through
registers 4 and 5, those of the second through 6 and 7. All tiles have 16 rows of 64 bytes, so one
configuration serves a kernel from its first instruction to its last.
"""

from __future__ import annotations

from types import MappingProxyType

from baregrad.base.errors import CompilerBug
from baregrad.ir.analysis.words import PRODUCTS, TILE, WORD_NBYTES
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op, Ops
from baregrad.render.c.text import CText
from baregrad.render.c.text import Rule as CRule
from baregrad.render.llvm.text import FunctionText, Rule

ROW_NBYTES = TILE * WORD_NBYTES
TILES = 8
# Palette 1, the bytes of each tile's rows (16 bits each, from byte 16 on) and its rows (from 48).
CONFIGURATION = (
    bytes([1]) + bytes(15) + ROW_NBYTES.to_bytes(2, "little") * TILES + bytes(16)
    + bytes([TILE]) * TILES + bytes(8)
)  # fmt: skip
_RUN = "tile_run"
_CONFIGURED = "tile_configuration"


class _Run:
    """What a MACHINE says of a run: tiles each way, steps, and where its three arrays lie."""

    def __init__(self, node: Node) -> None:
        if node.arg.name not in PRODUCTS:
            raise CompilerBug("not an instruction of a CPU", found=node)
        rows, columns, self.steps, *places = node.arg.immediates
        self.instruction: str = node.arg.name
        self.rows, self.columns = rows // TILE, columns // TILE
        self.name = f"{_RUN}_{self.instruction}_{self.rows}x{self.columns}"
        self.keep = node.src[0]
        # Of the results and both factors: array, offset, constant offset, and bytes between rows
        # and between steps.
        self.arrays = [
            (*node.src[1 + 2 * n : 3 + 2 * n], places[3 * n],
             places[3 * n + 1] * WORD_NBYTES, places[3 * n + 2] * WORD_NBYTES)
            for n in range(3)
        ]

    def results(self) -> list[tuple[int, int, int]]:
        """The register, row and column of each tile of results."""
        return [(2 * r + c, r, c) for r in range(self.rows) for c in range(self.columns)]


# --- LLVM IR -------------------------------------------------------------------------------------


def _llvm_run(f: FunctionText, node: Node) -> None:
    """A call of the function that does a run, which is written once."""
    run = _Run(node)
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
    constant = f"@{_CONFIGURED} = private unnamed_addr constant [{nbytes} x i8] [{text}], align 64"
    f.declarations[constant] = None
    f.lines.insert(place, f"  call void @llvm.x86.ldtilecfg(ptr @{_CONFIGURED})")
    f.lines.append("  call void @llvm.x86.tilerelease()")


def _llvm_function(run: _Run) -> str:
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


LLVM_RULES: MappingProxyType[Op, Rule] = MappingProxyType({Ops.MACHINE: _llvm_run})


# --- C -------------------------------------------------------------------------------------------


def _c_run(f: CText, node: Node) -> None:
    """A call of the function that does a run, which is written once."""
    run = _Run(node)
    f.functions.setdefault(_CONFIGURED, _c_configuration())
    f.functions.setdefault(run.name, _c_function(run))
    arguments = []
    for base, offset, at, pitch, stride in run.arrays:
        place = f"(char *)({f.names[base]} + {f.use(offset)} + {at})"
        arguments += [place, f"{pitch}LL", f"{stride}LL"]
    arguments += [str(run.steps), f.use(run.keep)]
    f.line(f"{run.name}({', '.join(arguments)});")


def c_configured(f: CText, lines: list[str]) -> list[str]:
    """The lines of a function that has runs: tiles are made ready first, and given back last."""
    if _CONFIGURED not in f.functions:
        return lines
    ready = f'  __asm__ volatile("ldtilecfg %0" : : "m"({_CONFIGURED}));'
    return [ready, *lines, '  __asm__ volatile("tilerelease");']


def _c_configuration() -> str:
    text = ", ".join(map(str, CONFIGURATION))
    return f"static const struct {{ unsigned char b[64]; }} {_CONFIGURED} = {{{{{text}}}}};"


def _c_function(run: _Run) -> str:
    """As `_llvm_function`, in GNU assembly: compilers need not know the instructions."""
    def load(tile: int, place: str, pitch: str) -> str:
        text = f'"tileloadd (%0,%1,1), %%tmm{tile}" : : "r"({place}), "r"({pitch}) : "memory"'
        return f"__asm__ volatile({text});"

    def c_place(r: int, c: int) -> str:
        return f"c + {r * TILE} * pc + {c * ROW_NBYTES}"

    results = run.results()
    lines = [
        f"static void {run.name}(char *c, int64_t pc, int64_t sc, const char *a, int64_t pa, "
        "int64_t sa, const char *b, int64_t pb, int64_t sb, int64_t steps, int keep) {",
        "  if (keep) {",
        *[f"    {load(t, c_place(r, c), 'pc')}" for t, r, c in results],
        "  } else {",
        *[f'    __asm__ volatile("tilezero %tmm{t}");' for t, _, _ in results],
        "  }",
        "  for (; steps; steps--, a += sa, b += sb) {",
    ]
    for tile, r, c in results:
        if not r:
            lines.append(f"    {load(6 + c, f'b + {c * ROW_NBYTES}', 'pb')}")
        if not c:
            lines.append(f"    {load(4 + r, f'a + {r * TILE} * pa', 'pa')}")
        what = f"{run.instruction} %tmm{6 + c}, %tmm{4 + r}, %tmm{tile}"
        lines.append(f'    __asm__ volatile("{what}");')
    lines.append("  }")
    for tile, r, c in results:
        text = f'"tilestored %%tmm{tile}, (%0,%1,1)" : : "r"({c_place(r, c)}), "r"(pc) : "memory"'
        lines.append(f"  __asm__ volatile({text});")
    return "\n".join([*lines, "}"])


C_RULES: MappingProxyType[Op, CRule] = MappingProxyType({Ops.MACHINE: _c_run})
