"""Programs by keys: what computes values that were computed before, over other arrays.

Whoever gives a key answers for it: equal keys are equal graphs over arrays of equal shapes and
dtypes, which are numbered alike.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from baregrad.base.tracing import span
from baregrad.engine.canonical import Canonical
from baregrad.engine.executor import Executable
from baregrad.ir.core.attrs import BufferRef

KEYS_KEPT = 512


class KeyedProgram:
    """An executable, which leaf each of its arguments is, and the shapes of its results."""

    __slots__ = ("arguments", "executable", "shapes", "variables")

    def __init__(
        self, executable: Executable, arguments: Sequence[int],
        variables: Mapping[str, int], shapes: Sequence[tuple[int, ...]],
    ) -> None:
        self.executable = executable
        self.arguments = tuple(arguments)
        self.variables = variables
        self.shapes = tuple(shapes)

    def run(self, leaves: Sequence[BufferRef], device: str) -> list[BufferRef] | None:
        """Compute the results over other arrays: where each lies."""
        with span("run"):
            inputs = [leaves[place].handle for place in self.arguments]
            outputs, _ = self.executable.run(inputs, self.variables)
        return [
            BufferRef(buffer, shape, device)
            for buffer, shape in zip(outputs, self.shapes, strict=True)
        ]


class NoProgram(KeyedProgram):
    """What is known of a key under which nothing can be computed."""

    __slots__ = ()

    def __init__(self) -> None:
        """There is nothing to keep."""

    def run(self, leaves: Sequence[BufferRef], device: str) -> list[BufferRef] | None:
        """Compute nothing."""
        return None


class KeyedPrograms:
    """The last `KEYS_KEPT` programs that were asked for, by their keys."""

    def __init__(self) -> None:
        self._programs: OrderedDict[Any, KeyedProgram] = OrderedDict()

    def get(self, key: Any) -> KeyedProgram | None:
        """The program of a key, None where it is new."""
        found = self._programs.get(key)
        if found is not None:
            self._programs.move_to_end(key)
        return found

    def add(self, key: Any, program: KeyedProgram | None) -> KeyedProgram:
        """Note the program of a key, or that there is none."""
        found = self._programs[key] = program or NoProgram()
        if len(self._programs) > KEYS_KEPT:
            self._programs.popitem(last=False)
        return found

    def clear(self) -> None:
        """Forget every program."""
        self._programs.clear()


def keyed_program(
    executable: Executable, program: Canonical, leaves: Sequence[BufferRef],
    shapes: Sequence[tuple[int, ...]],
) -> KeyedProgram | None:
    """What runs `executable`, made for `program`, over other leaves.

    None where an argument is no leaf, or where a result is an argument or another result: that
    memory is shared has to be told.
    """
    places = {ref: place for place, ref in enumerate(leaves)}
    if not all(ref in places for ref in program.inputs) or not executable.has_own_results:
        return None
    arguments = [places[ref] for ref in program.inputs]
    return KeyedProgram(executable, arguments, program.variables, shapes)
