"""Making a failing program small, and printing it as a script that shows the failure alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from baregrad.base.options import options
from baregrad.testing.fuzz_compare import (
    CALLS,
    EAGER,
    JITTED,
    LINEAR,
    LOWERED,
    REFERENCE,
    Difference,
    Way,
)
from baregrad.testing.fuzz_program import Program, Statement

Check = Callable[[Program], Difference | None]


def shrink(program: Program, difference: Difference, check: Check) -> tuple[Program, Difference]:
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


def _smaller(program: Program) -> Iterator[Program]:
    """Programs with one thing less, the largest steps first."""
    for name in program.results:
        if len(program.results) > 1:
            yield replace(program, results=(name,))
    for position in reversed(range(len(program.statements))):
        yield program.without(position)
    for position, statement in enumerate(program.statements):
        yield from _bypassed(program, position, statement)
    read = {name for s in program.statements for name in (*s.reads, *s.defines)}
    read.update(program.results)
    arguments = {n: d for n, d in program.arguments.items() if n in read}
    state = {n: d for n, d in program.state.items() if n in read}
    if len(arguments) < len(program.arguments) or len(state) < len(program.state):
        yield replace(program, arguments=arguments, state=state)


def _bypassed(program: Program, position: int, statement: Statement) -> Iterator[Program]:
    """Programs in which readers of a statement read what it read."""
    if len(statement.defines) != 1:
        return
    (name,) = statement.defines
    for other in dict.fromkeys(statement.reads):
        if other == name or other == "total":
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


_LARGE = (
    "from baregrad.engine.session import current_session",
    "from baregrad.testing.large_schedules import use_large_schedules",
)


def script(program: Program, difference: Difference, large: int | None = None) -> str:
    """A Python program that needs nothing but baregrad and NumPy, and shows the difference.

    large: it had the schedules of large arrays, on that machine.
    """
    use = f"use_large_schedules(current_session(), {large})"
    left, right = _ways(difference)
    calls = [program.data(call) for call in range(min(difference.call + 1, CALLS))]
    lines = [
        f'"""{difference} (seed {program.seed})."""',
        "",
        "import numpy as np",
        "",
        "from baregrad.base.options import options",
        "from baregrad.tensor import Tensor",
        "from baregrad.tensor.jit import jit",
        *(() if large is None else (*_LARGE, "", use)),
        "",
        "nan, inf = np.nan, np.inf",
        "",
        "",
        *program.source().splitlines(),
        "",
        "",
        f"STATE = {_literals(program, program.data(-1))}",
        f"CALLS = [{', '.join(_literals(program, data) for data in calls)}]",
        "",
        "",
        "def run(device, level, jitted):",
        "    with options.override(device=device, ref_level=level):",
        "        globals().update({n: Tensor(v, dtype=d) for n, (v, d) in STATE.items()})",
        "        function = jit(program) if jitted else program",
        "        for call in CALLS:",
        "            arguments = [Tensor(v, dtype=d) for v, d in call.values()]",
        "            results = function(*arguments)",
        "            held = [*results, *arguments, *(globals()[n] for n in STATE)]",
        "            held[0].realize(*held[1:])",
        "        return [t.cast('float64').numpy() for t in held]",
        "",
        "",
        f"names = {[*program.results, *program.arguments, *program.state]}",
        f"left = run({_device(left)!r}, {left.level!r}, {left.jitted})",
        f"right = run({_device(right)!r}, {right.level!r}, {right.jitted})",
        "for name, a, b in zip(names, left, right):",
        f"    print(name, {left.name!r}, a, {right.name!r}, b, sep='\\n')",
    ]
    return "\n".join(lines) + "\n"


def _literals(program: Program, data: dict[str, np.ndarray]) -> str:
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
