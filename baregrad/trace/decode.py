"""From a raw call to names: what was asked, the fields that say something, and the answer."""

from __future__ import annotations

import errno
import struct as packing
from collections.abc import Iterator
from dataclasses import dataclass

from baregrad.runtime.nvidia.abi.status import status_name
from baregrad.runtime.nvidia.abi.vendor import SCALARS, VendorMember, VendorTables
from baregrad.trace.calls import (
    RM_ALLOC,
    RM_CONTROL,
    CallBlock,
    DriverRequest,
    RawCall,
    integer,
    request_of,
)

_MOST_VALUES = 8
_STATUS_FIELDS = ("status", "params.status", "rmStatus", "Status")


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field that was not zero or that the call changed, its values as text."""

    name: str
    before: str
    after: str

    def __str__(self) -> str:
        if self.before == self.after:
            return f"{self.name}={self.before}"
        return f"{self.name}={self.before}->{self.after}"


@dataclass(frozen=True)
class DriverCall:
    """A call understood. `verb` is the outer name, `subject` the control's or class's if any.

    `known` says whether all of its names were found; `params_known` whether its struct was;
    `measured` whether the name is ours, for what it was measured to answer.
    """

    raw: RawCall
    verb: str
    subject: str
    struct: str
    changes: tuple[FieldChange, ...]
    status: int | None
    handles: tuple[int, int, int]
    known: bool
    params_known: bool
    measured: bool = False

    @property
    def name(self) -> str:
        """Return the name under which calls are counted."""
        return f"{self.verb} {self.subject}".rstrip()

    @property
    def answer(self) -> str:
        """Return what came of it, by name."""
        if self.raw.value < 0:
            return f"-1 {errno.errorcode.get(-self.raw.value, str(-self.raw.value))}"
        if self.status is not None:
            return status_name(self.status)
        return hex(self.raw.value) if self.raw.call == "mmap" else str(self.raw.value)

    @property
    def failed(self) -> bool:
        """Whether the kernel or the driver refused; a warning of the driver's is no refusal."""
        return self.raw.value < 0 or bool(self.status and self.status < 0x10000)


def decode(tables: VendorTables, raw: RawCall) -> DriverCall:
    """Return what a raw call means in a release."""
    if raw.call != "ioctl":
        return _plain(raw)
    found = request_of(tables, raw.node, raw.arguments[1])
    blocks = raw.blocks
    if found.kind == "rm" and found.number == 211 and len(blocks) > 1:
        number = int.from_bytes(blocks[0].before[:4], "little")
        named = tables.escapes.get(number)
        found = DriverRequest("rm", number, len(blocks[1].before), named)
        blocks = blocks[1:]
    argument = blocks[0] if blocks else CallBlock("argument", "", 0, b"")
    subject, known = "", found.named is not None
    struct = argument.struct
    params_known = tables.struct(struct) is not None if argument.before else known
    measured = False
    if found.kind == "rm" and found.number in (RM_CONTROL, RM_ALLOC):
        control = found.number == RM_CONTROL
        name = "cmd" if control else "hClass"
        number = integer(tables, argument.struct, argument.before, name) or 0
        entry = (tables.controls if control else tables.classes).get(number)
        subject = entry.name if entry else f"{'control' if control else 'class'} {number:#x}"
        if entry is None and control and (category := tables.category(number)):
            subject += f" of {category}"
        known, measured = known and entry is not None, entry is not None and entry.measured
        params = next((one for one in blocks if one.role == "params"), None)
        if params is not None:
            struct = params.struct
            params_known = struct in SCALARS or tables.struct(struct) is not None
    changes = [change for one in blocks for change in changes_of(tables, one)]
    after = argument.after or argument.before
    answers = (integer(tables, argument.struct, after, name) for name in _STATUS_FIELDS)
    status = next((one for one in answers if one is not None), None)
    return DriverCall(raw, found.name, subject, struct, tuple(changes), status,
                _handles(tables, argument), known, params_known, measured)  # fmt: skip


def _plain(raw: RawCall) -> DriverCall:
    shown = {
        "mmap": ("address", "length", "protection", "flags", "fd", "offset"),
        "munmap": ("address", "length"),
    }.get(raw.call, ())
    changes = tuple(
        FieldChange(name, hex(value), hex(value))
        for name, value in zip(shown, raw.arguments, strict=False)
    )
    return DriverCall(raw, raw.call, "", "", changes, None, (0, 0, 0), True, True)


def _handles(tables: VendorTables, argument: CallBlock) -> tuple[int, int, int]:
    """Return the client, the parent (or the object that is asked), and the object after it."""
    after = argument.after or argument.before

    def first(*names: str) -> int:
        found = (integer(tables, argument.struct, after, name) for name in names)
        return next((one for one in found if one), 0)

    return (
        first("hRoot", "hClient", "params.hRoot", "params.hClient"),
        first("hObjectParent", "hObject", "hParent", "hDevice", "params.hObjectParent",
              "params.hDevice"),
        first("hObjectNew", "hObjectOld", "hMemory", "hObject", "params.hObjectNew",
              "params.hMemory", "hChannel", "hVaSpace"),
    )  # fmt: skip


def changes_of(tables: VendorTables, block: CallBlock) -> Iterator[FieldChange]:
    """Yield the fields of a block that are not zero or that changed."""
    before, after = block.before, block.after or block.before
    prefix = "" if block.role in ("argument", "params") else f"{block.role}."
    if not block.struct or (block.struct not in SCALARS and tables.struct(block.struct) is None):
        if any(before) or any(after):
            name = block.role if block.role != "argument" else "bytes"
            yield FieldChange(f"{name}[{len(before)}]", _hex(before), _hex(after))
        return
    each = tables.nbytes(block.struct)
    count = len(before) // each if each else 0
    single = block.struct in SCALARS
    rows = [VendorMember(0, block.struct, count, block.role)] if single else (
        [VendorMember(0, block.struct, count, prefix.rstrip("."))] if count > 1 else None
    )
    if rows is None:
        yield from _struct_changes(tables, block.struct, 0, prefix, before, after)
        return
    for row in rows:
        yield from _member_changes(tables, row, 0, "", before, after)


def _struct_changes(
    tables: VendorTables, name: str, base: int, prefix: str, before: bytes, after: bytes
) -> Iterator[FieldChange]:
    layout = tables.struct(name)
    for row in layout.members if layout else ():
        used = row.count
        if used > 1 and row.kind not in SCALARS:
            used = _used(tables, name, row, before[base:], after[base:])
        yield from _member_changes(tables, row, base, prefix, before, after, used)


def _used(
    tables: VendorTables, struct: str, row: VendorMember, before: bytes, after: bytes
) -> int:
    """Return how many elements of a list are meant, where a field beside it says so.

    What lies behind them is whatever the caller's memory held.
    """
    for end in ("Size", "Count"):
        said = [integer(tables, struct, data, row.name + end) or 0 for data in (before, after)]
        if 0 < max(said) < row.count:
            return max(said)
    return row.count


def _member_changes(
    tables: VendorTables, row: VendorMember, base: int, prefix: str, before: bytes, after: bytes,
    used: int | None = None,
) -> Iterator[FieldChange]:
    begin, each = base + row.offset, tables.nbytes(row.kind)
    end = begin + each * row.count
    one, two = before[begin:end], after[begin:end]
    if not any(one) and not any(two):
        return
    name = f"{prefix}{row.name}"
    if row.kind in SCALARS:
        if row.count == 1:
            yield FieldChange(name, _value(row, one, tables), _value(row, two, tables))
        else:
            yield FieldChange(name, _values(row, one), _values(row, two))
        return
    shown = 0
    for index in range(row.count if used is None else used):
        place = begin + index * each
        if not any(before[place : place + each]) and not any(after[place : place + each]):
            continue
        if shown == _MOST_VALUES:
            yield FieldChange(f"{name}[...]", f"{row.count} elements", f"{row.count} elements")
            return
        shown += 1
        label = f"{name}[{index}]." if row.count > 1 else f"{name}."
        yield from _struct_changes(tables, row.kind, place, label, before, after)


def _value(row: VendorMember, data: bytes, tables: VendorTables) -> str:
    """Return a scalar as text: what is a name by name, what is a place in hexadecimal."""
    if row.kind in ("f32", "f64") and len(data) == SCALARS[row.kind]:
        return repr(packing.unpack("<f" if row.kind == "f32" else "<d", data)[0])
    value = int.from_bytes(data, "little", signed=row.kind.startswith("i"))
    leaf = row.name.rpartition(".")[2]
    if row.kind == "status" or leaf in ("status", "rmStatus"):
        return status_name(value)
    if leaf == "hClass" and value in tables.classes:
        return tables.classes[value].name
    if leaf == "cmd" and value in tables.controls:
        return tables.controls[value].name
    return str(value) if -1024 < value < 1024 else hex(value)


def _values(row: VendorMember, data: bytes) -> str:
    """Return an array as text: a string where it is one, otherwise its first elements."""
    if row.kind in ("u8", "i8"):
        text = data.rstrip(b"\0")
        if text and all(32 <= byte < 127 for byte in text) and len(text) > 1:
            return repr(text.decode())
        return _hex(data)
    each = SCALARS[row.kind]
    found = [int.from_bytes(data[at : at + each], "little") for at in range(0, len(data), each)]
    while found and not found[-1]:
        found.pop()
    more = [f"... {len(found)}"] if len(found) > _MOST_VALUES else []
    return "[" + " ".join([hex(one) for one in found[:_MOST_VALUES]] + more) + "]"


def _hex(data: bytes) -> str:
    text = data.rstrip(b"\0")
    return text[:32].hex() + ("..." if len(text) > 32 else "") if text else "0"
