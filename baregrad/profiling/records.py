"""What a profile keeps of the work that it saw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from baregrad.program import Program, evaluate
from baregrad.runtime.commands import Command, CommandList, Copy, Exec


@dataclass(frozen=True, slots=True)
class CommandFacts:
    """A command of a list: its name, the user's line if that was noted, what it runs or moves.

    program: None for copies and fills, which move `nbytes`. fixed: variables that never change.
    """

    name: str
    where: str
    program: Program | None
    nbytes: int = 0
    fixed: Mapping[str, int] = field(default_factory=dict)

    def work(self, variables: Mapping[str, int]) -> tuple[int, int]:
        """Return the operations of one run and the bytes that it reads and writes."""
        if self.program is None:
            return 0, self.nbytes
        meta, known = self.program.meta, {**variables, **self.fixed}
        nbytes = evaluate(meta.bytes_read, known) + evaluate(meta.bytes_written, known)
        return evaluate(meta.flops, known), nbytes


def facts_of_list(commands: CommandList) -> tuple[CommandFacts, ...]:
    """Return the facts of each command of a list."""
    return tuple(map(_facts, commands.commands))


def _facts(command: Command) -> CommandFacts:
    if isinstance(command, Exec):
        name, _, where = command.label.partition(" ")
        return CommandFacts(name, where, command.kernel.program, 0, command.variables)
    touched = 2 if isinstance(command, Copy) else 1
    return CommandFacts(command.label, "", None, command.nbytes * touched)


@dataclass(slots=True)
class ListRun:
    """One run of a command list; times are in nanoseconds of `time.perf_counter`.

    measured: each command was timed in this run; else the list as a whole, and in it each command
    has its share of the time, by the runs before and after in which they were timed. own_ns: how
    much of the time between commands is what timing them took.
    """

    device: str
    facts: tuple[CommandFacts, ...]
    variables: Mapping[str, int]
    begin_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    where: str
    measured: bool = True
    own_ns: int = 0


@dataclass(frozen=True, slots=True)
class HostCall:
    """A call of a device by a Python thread: what, from when to when, who asked for it."""

    kind: Literal["replay", "run", "copy in", "copy out", "wait"]
    device: str
    thread: int
    begin_ns: int
    end_ns: int
    where: str
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """A piece of a device's memory and its owner: the line that asked for it, in which span."""

    device: str
    nbytes: int
    where: str
    span: str

    @property
    def owner(self) -> str:
        """The owner in words."""
        return f"{self.where} in {self.span}" if self.span else self.where
