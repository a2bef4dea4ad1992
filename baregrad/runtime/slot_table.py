"""What a submit fills in: buffers into slots and values into variables, checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from baregrad.base.errors import DeviceError
from baregrad.program import LaunchExpr, substitute
from baregrad.runtime.buffers import Buffer
from baregrad.runtime.commands import Command, CommandList, Exec, Operand, needed_nbytes

_INT64 = range(-(1 << 63), 1 << 63)


class SlotTable:
    """The checks of a command list's buffers and variables, made once and done at each submit."""

    def __init__(self, commands: CommandList) -> None:
        self._commands = commands
        self._device = commands.device
        self._static_needed = commands.slot_nbytes
        self._needed = list(commands.slot_nbytes)
        self._values: tuple[int, ...] | None = None
        self._sizes = symbolic_sizes(commands.commands)

    def fill(
        self, buffers: Sequence[Buffer], variables: Mapping[str, int]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the slots' addresses and the variables' values, in the list's orders.

        Raises DeviceError where a buffer or a value is missing, too small, closed, read-only where
        it is written, or elsewhere.
        """
        values = self._commands.check_variables(variables)
        if values != self._values:
            # Not before all of it fits are the values those of the list.
            self._values = None
            self._set_sizes(values, variables)
            self._values = values
        return tuple(self._commands.addresses(buffers, self._needed)), values

    def _set_sizes(self, values: tuple[int, ...], variables: Mapping[str, int]) -> None:
        for value in values:
            if value not in _INT64:
                raise DeviceError("a variable does not fit in 64 bits", found=value)
        self._needed = needed_nbytes(
            self._static_needed, self._sizes.items(), variables, self._device
        )


def symbolic_sizes(commands: Iterable[Command]) -> dict[tuple[Operand, LaunchExpr], str]:
    """Return operands whose least size depends on variables, that size, and what they are called.

    The others were checked when they were recorded.
    """
    found: dict[tuple[Operand, LaunchExpr], str] = {}
    for command in commands:
        if not isinstance(command, Exec):
            continue
        program = command.kernel.program
        for operand, param in zip(command.buffers, program.params, strict=True):
            size = 0 if param.nbytes is None else substitute(param.nbytes, command.variables)
            if not isinstance(size, int):
                found.setdefault((operand, size), f"{param.name!r} of {program.name}")
    return found
