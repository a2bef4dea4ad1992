"""How a call reaches the virtual driver: a struct's bytes by the driver's own layout, an answer.

The driver reads with the structs of its own release, whatever the caller took it for: a field that
moved is read where the driver has it.
"""

from __future__ import annotations

from types import MappingProxyType

from baregrad.base.errors import BaregradError
from baregrad.runtime.nvidia.abi.layout import Struct
from baregrad.runtime.nvidia.abi.status import NAMES

STATUS = MappingProxyType(
    {name.removeprefix("NV_ERR_"): number for number, name in NAMES.items()}
)


class Refusal(BaregradError):
    """The driver says no, with a status; `why` is for people who read the trace."""

    def __init__(self, status: str, why: str = "") -> None:
        super().__init__(f"{status}: {why}" if why else status)
        self.status = STATUS[status]


class Arguments:
    """A struct's fields over bytes that the caller gave, or over a copy of them."""

    def __init__(self, struct: Struct, data: memoryview | bytearray) -> None:
        self.struct = struct
        self.bytes = data

    def __getitem__(self, name: str) -> int:
        row = self.struct.fields[name]
        data = self.bytes[row.offset : row.offset + row.nbytes]
        return int.from_bytes(data, "little", signed=row.kind.startswith("i"))

    def __setitem__(self, name: str, value: int | bytes) -> None:
        row = self.struct.fields[name]
        if isinstance(value, int):
            value = (value & (1 << 8 * row.nbytes) - 1).to_bytes(row.nbytes, "little")
        self.bytes[row.offset : row.offset + row.nbytes] = value.ljust(row.nbytes, b"\0")

    def data(self, name: str) -> bytes:
        """Return a field's bytes."""
        row = self.struct.fields[name]
        return bytes(self.bytes[row.offset : row.offset + row.nbytes])

    def has(self, name: str) -> bool:
        """Return whether this release's struct has a field."""
        return name in self.struct.fields
