"""Runs of products of tiles, by a core's matrix unit, as C with GNU assembly."""

from __future__ import annotations

from types import MappingProxyType

from baregrad.ir.analysis.words import TILE
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op, Ops
from baregrad.render.c.text import CText, Rule
from baregrad.render.tile_runs import CONFIGURATION, CONFIGURED, ROW_NBYTES, TileRun


def _c_run(f: CText, node: Node) -> None:
    """A call of the function that does a run, which is written once."""
    run = TileRun(node)
    f.functions.setdefault(CONFIGURED, _c_configuration())
    f.functions.setdefault(run.name, _c_function(run))
    arguments = []
    for base, offset, at, pitch, stride in run.arrays:
        place = f"(char *)({f.names[base]} + {f.use(offset)} + {at})"
        arguments += [place, f"{pitch}LL", f"{stride}LL"]
    arguments += [str(run.steps), f.use(run.keep)]
    f.line(f"{run.name}({', '.join(arguments)});")


def c_configured(f: CText, lines: list[str]) -> list[str]:
    """The lines of a function that has runs: tiles are made ready first, and given back last."""
    if CONFIGURED not in f.functions:
        return lines
    ready = f'  __asm__ volatile("ldtilecfg %0" : : "m"({CONFIGURED}));'
    return [ready, *lines, '  __asm__ volatile("tilerelease");']


def _c_configuration() -> str:
    text = ", ".join(map(str, CONFIGURATION))
    return f"static const struct {{ unsigned char b[64]; }} {CONFIGURED} = {{{{{text}}}}};"


def _c_function(run: TileRun) -> str:
    """As the function of LLVM IR, in GNU assembly: compilers need not know the instructions."""
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


TILE_RULES: MappingProxyType[Op, Rule] = MappingProxyType({Ops.MACHINE: _c_run})
