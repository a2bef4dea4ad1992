"""Making a failing program small, and printing it as a script that shows the failure alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from baregrad.base.options import options
from baregrad.testing.fuzz_compare import (
    EAGER,
    JITTED,
    LINEAR,
    LOWERED,
    REFERENCE,
    Difference,
    Way,
)
from baregrad.testing.fuzz_program import FuzzProgram, Statement

Check = Callable[[FuzzProgram], Difference | None]


def shrink(
    program: FuzzProgram, difference: Difference, check: Check
) -> tuple[FuzzProgram, Difference]:
    """The smallest program found, by deletions, that still fails in the same way."""
    changed = True
    while changed:
        changed = False
        for candidate in _smaller(program):
            found = check(candidate)
            if found is not None and _same_kind(found, difference):
                program, difference = candidate, found
                changed = True
                break
    return program, difference


def _same_kind(a: Difference, b: Difference) -> bool:
    # The same error, but for the numbers in its message.
    clean = [re.sub(r"[\d.]+", "", d.detail[:40]) for d in (a, b)]
    return a.kind == b.kind and ("raises" not in a.kind or clean[0] == clean[1])


def _smaller(program: FuzzProgram) -> Iterator[FuzzProgram]:
    """Programs with one thing less, the largest steps first."""
    for name in program.results:
        if len(program.results) > 1:
            yield replace(program, results=(name,))
    for position in reversed(range(len(program.statements))):
        yield program.without(position)
    yield from _less_between(program)
    for position, statement in enumerate(program.statements):
        yield from _bypassed(program, position, statement)
    outside = (*program.setup, *(s for each in program.between for s in each))
    read = {n for s in (*program.statements, *outside) for n in (*s.reads, *s.defines)}
    read.update(program.results)
    arguments = {n: d for n, d in program.arguments.items() if n in read}
    state = {n: d for n, d in program.state.items() if n in read}
    sizes = {n: d for n, d in program.sizes.items() if n in read}
    smaller = replace(program, arguments=arguments, state=state, sizes=sizes)
    if smaller != program:
        yield smaller


def _less_between(program: FuzzProgram) -> Iterator[FuzzProgram]:
    """Programs in which less happens between the calls, or before them."""
    for call, statements in enumerate(program.between):
        cases: list[tuple[Statement, ...]] = [()] if len(statements) > 1 else []
        cases += [statements[:i] + statements[i + 1 :] for i in range(len(statements))]
        for case in cases:
            yield replace(
                program, between=(*program.between[:call], case, *program.between[call + 1 :])
            )
    for position in range(len(program.setup)):
        kept = program.setup[:position] + program.setup[position + 1 :]
        gone = set(program.setup[position].defines) - set(program.state)
        others = (*kept, *program.statements, *(s for each in program.between for s in each))
        if not gone.intersection(n for s in others for n in s.reads):
            yield replace(program, setup=kept)


def _bypassed(program: FuzzProgram, position: int, statement: Statement) -> Iterator[FuzzProgram]:
    """Programs in which readers of a statement read what it read."""
    if len(statement.defines) != 1:
        return
    (name,) = statement.defines
    for other in dict.fromkeys(statement.reads):
        if other in (name, "total") or other not in program.known:
            continue
        rest = [
            Statement.parse(re.sub(rf"\b{name}\b", other, s.text)) if name in s.reads else s
            for s in program.statements[position + 1 :]
        ]
        results = tuple(dict.fromkeys(other if r == name else r for r in program.results))
        known = {**program.known, other: program.known[other]}
        yield replace(
            program,
            statements=(*program.statements[:position], *rest),
            results=results,
            known=known,
        )


# --- printing ------------------------------------------------------------------------------------


_VARIABLES = (
    "from baregrad.engine.canonical import bind",
    "from baregrad.ir.core.index import variable",
)


def _device_lines(large: int | None, guarded: bool) -> list[str]:
    if guarded:
        module, function = "guarded_memory", "use_guarded_memory"
        argument = "" if large is None else f", machines()[{large} % len(machines())]"
    else:
        module, function = "large_schedules", "use_large_schedules"
        argument = f", {large}"
    if large is None and not guarded:
        return []
    lines = ["from baregrad.engine.session import current_session"]
    lines.append(f"from baregrad.testing.{module} import {function}")
    if guarded and large is not None:
        lines.append("from baregrad.testing.large_schedules import machines")
    return [*lines, "", f"{function}(current_session(){argument})"]


def script(
    program: FuzzProgram, difference: Difference, large: int | None = None, guarded: bool = False
) -> str:
    """A Python program that needs nothing but baregrad and NumPy, and shows the difference.

    large: it had the schedules of large arrays, on that machine. guarded: its arrays were guarded.
    """
    left, right = _ways(difference)
    lines = [
        f'"""{difference} (seed {program.seed})."""',
        "",
        "import numpy as np",
        "",
        "from baregrad.base.options import options",
        "from baregrad.tensor import Tensor",
        "from baregrad.tensor.jit.jit import jit",
        *(_VARIABLES if program.sizes else ()),
        *(("from baregrad.testing.fuzz_program import given",) if program.is_foreign else ()),
        *_device_lines(large, guarded),
        "",
        "nan, inf = np.nan, np.inf",
        "",
        "",
        *program.source().splitlines(),
        "",
        "",
        *_data_lines(program, min(difference.call + 1, program.calls)),
        "",
        "",
        *_run_lines(program),
        "",
        "",
        f"names = {[*program.results, *program.arguments, *program.held()]}",
        f"left = run({_device(left)!r}, {left.level!r}, {left.jitted}, {left.plain})",
        f"right = run({_device(right)!r}, {right.level!r}, {right.jitted}, {right.plain})",
        "for name, a, b in zip(names, left, right):",
        f"    print(name, {left.name!r}, a, {right.name!r}, b, sep='\\n')",
    ]
    return "\n".join(lines) + "\n"


def _data_lines(program: FuzzProgram, count: int) -> list[str]:
    """What the program is called with, and what happens outside of it."""
    calls = [program.data(call) for call in range(count)]
    return [
        f"STATE = {_literals(program, program.data(-1))}",
        f"CALLS = [{', '.join(_literals(program, data) for data in calls)}]",
        f"SIZES = {[program.integers(call) for call in range(len(calls))]}",
        f"HELD = {program.held()}",
        f"SETUP = {[s.text for s in program.setup]}",
        f"BETWEEN = {[[s.text for s in each] for each in program.between]}",
        f"BOUNDS = { {n: (s.lowest, s.largest) for n, s in program.sizes.items()} }",
    ]


def _run_lines(program: FuzzProgram) -> list[str]:
    """The function that runs the program one way or the other."""
    return [
        "def run(device, level, jitted, plain):",
        "    with options.override(device=device, ref_level=level):",
        "        globals().update({n: Tensor(v, dtype=d) for n, (v, d) in STATE.items()})",
        *(("        globals().update(given(plain))",) if program.is_foreign else ()),
        *((f"        Tensor.manual_seed({program.seed})",) if program.draws else ()),
        "        exec('\\n'.join(SETUP), globals())",
        "        function = jit(program) if jitted else program",
        "        for i, (call, sizes) in enumerate(zip(CALLS, SIZES)):",
        "            if i and BETWEEN:",
        "                exec('\\n'.join(BETWEEN[i - 1]), globals())",
        "            arguments = [Tensor(v, dtype=d) for v, d in call.values()]",
        "            for n, k in sizes.items():",
        "                arguments.append(k if plain else bind(variable(n, *BOUNDS[n]), k))",
        "            results = function(*arguments)",
        "            arguments = arguments[: len(call)]",
        "            held = [*results, *arguments, *(globals()[n] for n in HELD)]",
        "            held[0].realize(*held[1:])",
        "        return [t.cast('float64').numpy() for t in held]",
    ]


def _literals(program: FuzzProgram, data: dict[str, np.ndarray]) -> str:
    rows = {**program.arguments, **program.state}
    cells = [
        f"{name!r}: (np.array({array.tolist()}, {array.dtype.name!r})"
        f".reshape({array.shape}), {rows[name].dtype.name!r})"
        for name, array in data.items()
    ]
    return "{" + ", ".join(cells) + "}"


def _device(way: Way) -> str:
    return way.device or options.device


def _ways(difference: Difference) -> tuple[Way, Way]:
    if difference.kind.startswith(JITTED.name):
        return JITTED, EAGER
    for way in (LOWERED, LINEAR):
        if difference.kind.startswith(way.name):
            return way, REFERENCE
    return EAGER, REFERENCE
