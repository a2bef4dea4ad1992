"""What is seen of a call before it is understood: plain values and bytes, kept as they were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from baregrad.runtime.nvidia.abi.vendor import SCALARS, VendorName, VendorTables
from baregrad.trace.memory import Read

# The kinds of calls that may be asked for alone.
CATEGORIES = ("alloc", "map", "uvm", "channel", "copy", "launch")
_MOST_NBYTES = 1 << 16
_SECOND_ALLOC_NBYTES = 48  # of NVOS64_PARAMETERS, which RM_ALLOC also takes
RM_CONTROL, RM_ALLOC, XFER = 0x2A, 0x2B, 211


@dataclass(frozen=True)
class CallBlock:
    """Bytes that a call hands over, before and after it: `role` is argument, params or a field."""

    role: str
    struct: str
    address: int
    before: bytes
    after: bytes = b""


@dataclass
class RawCall:
    """One call as it was made: `value` is what the kernel returned, negative for an error."""

    time: float
    seconds: float
    pid: int
    tid: int
    call: str
    node: str
    fd: int
    arguments: tuple[int, ...] = ()
    value: int = 0
    blocks: list[CallBlock] = field(default_factory=list)
    library: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return it as what JSON holds, bytes as hexadecimal."""
        row = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "blocks"}
        row["blocks"] = [
            {**vars(one), "before": one.before.hex(), "after": one.after.hex()}
            for one in self.blocks
        ]
        return row


def raw_call(row: Mapping[str, Any]) -> RawCall:
    """Return the call that `as_json` wrote."""
    blocks = [
        CallBlock(**{**one, "before": bytes.fromhex(one["before"]),
                 "after": bytes.fromhex(one["after"])})
        for one in row["blocks"]
    ]  # fmt: skip
    return RawCall(**{**row, "arguments": tuple(row["arguments"]), "blocks": blocks})


@dataclass(frozen=True)
class DriverRequest:
    """Which call of the driver an ioctl is: `kind` is rm, uvm or other."""

    kind: str
    number: int
    nbytes: int
    named: VendorName | None

    @property
    def name(self) -> str:
        """Return its name, or a number with its size."""
        if self.named is not None:
            return self.named.name
        return f"{self.kind} {self.number:#x} of {self.nbytes} bytes"


def request_of(tables: VendorTables, node: str, request: int) -> DriverRequest:
    """Return what a request means on a node."""
    leaf = node.rpartition("/")[2]
    if leaf.startswith("nvidia-uvm"):
        named = tables.uvm.get(request)
        layout = tables.struct(named.struct) if named else None
        return DriverRequest("uvm", request, layout.nbytes if layout else 0, named)
    number, nbytes = request & 0xFF, request >> 16 & 0x3FFF
    if leaf == "nvidiactl" or leaf.removeprefix("nvidia").isdigit():
        named = tables.escapes.get(number)
        if number == RM_ALLOC and nbytes == _SECOND_ALLOC_NBYTES and named is not None:
            named = VendorName(named.name, "NVOS64_PARAMETERS")
        return DriverRequest("rm", number, nbytes, named)
    return DriverRequest("other", number, nbytes, None)


def integer(tables: VendorTables, struct: str, data: bytes, name: str) -> int | None:
    """Return a field of a struct's bytes, the first of an array, None where it has no such."""
    found = tables.place(struct, name)
    if found is None or found[1] not in SCALARS:
        return None
    return int.from_bytes(data[found[0] : found[0] + SCALARS[found[1]]], "little")


def inner_struct(tables: VendorTables, number: int, data: bytes, struct: str) -> tuple[str, int]:
    """Return the struct of a control's or an allocation's parameters, and how many bytes."""
    said = integer(tables, struct, data, "paramsSize") or 0
    if number == RM_CONTROL:
        named = tables.controls.get(integer(tables, struct, data, "cmd") or 0)
        known = tables.struct(named.struct) if named else None
        # A caller of another release, whose struct has another size, is not read by our fields.
        return (known.name if known and known.nbytes == said else ""), said
    named = tables.classes.get(integer(tables, struct, data, "hClass") or 0)
    if named is None or not named.struct:
        return "", said
    return named.struct, tables.nbytes(named.struct) or said


def lists_of(tables: VendorTables, struct: str, data: bytes) -> list[tuple[str, str, int, int]]:
    """Return (field, kind of element, address, how many) of the lists that a struct points to."""
    layout = tables.struct(struct)
    found = []
    members = {row.name: row for row in layout.members} if layout else {}
    for row in members.values():
        if row.kind != "ptr":
            continue
        address = integer(tables, struct, data, row.name) or 0
        for count_name, kind in _counts(struct, row.name):
            if address and count_name in members:
                count = integer(tables, struct, data, count_name) or 0
                found.append((row.name, kind, address, count))
                break
    return found


_KINDS = MappingProxyType({
    "classList": "u32", "capsTbl": "u8", "engineList": "u32", "pRegOps": "NV2080_CTRL_GPU_REG_OP",
})  # fmt: skip


def _counts(struct: str, pointer: str) -> list[tuple[str, str]]:
    """Return what may say how long a list is, with what its elements are."""
    stem = pointer.removesuffix("List").removesuffix("Tbl")
    kind = _KINDS.get(pointer, "")
    if not kind and pointer.endswith("InfoList"):
        # Lists of indices and values, which all have one form: SDK ctrl/ctrlxxxx.h:71.
        kind = "NVXXXX_CTRL_XXX_INFO"
    if not kind:
        return []
    plural = "num" + stem[:1].upper() + stem[1:]
    return [(f"{pointer}Size", kind), (f"{stem}Count", kind), (f"{plural}es", kind),
            (f"{plural}s", kind), ("regOpCount", kind)]  # fmt: skip


def capture(
    tables: VendorTables, read: Read, found: DriverRequest, address: int
) -> list[CallBlock]:
    """Read what an ioctl hands over: its argument, and what that points to."""
    if found.kind == "rm" and found.number == XFER:
        outer = read(address, 16)
        inner = int.from_bytes(outer[8:16], "little")
        nested = DriverRequest(
            "rm", int.from_bytes(outer[:4], "little"), int.from_bytes(outer[4:8], "little"),
            tables.escapes.get(int.from_bytes(outer[:4], "little")),
        )  # fmt: skip
        blocks = [CallBlock("argument", found.named.struct if found.named else "", address, outer)]
        if nested.number == XFER or nested.nbytes > _MOST_NBYTES:
            return blocks
        return blocks + capture(tables, read, nested, inner)
    data = read(address, min(found.nbytes, _MOST_NBYTES))
    struct = found.named.struct if found.named else ""
    blocks = [CallBlock("argument", struct, address, data)]
    if found.kind != "rm" or found.number not in (RM_CONTROL, RM_ALLOC):
        return blocks
    names = ("params", "pAllocParms")
    place = next((one for name in names if (one := integer(tables, struct, data, name))), 0)
    name, nbytes = inner_struct(tables, found.number, data, struct)
    if not place or not 0 < nbytes <= _MOST_NBYTES:
        return blocks
    params = read(place, nbytes)
    blocks.append(CallBlock("params", name, place, params))
    for label, kind, begin, count in lists_of(tables, name, params):
        each = tables.nbytes(kind) or 8
        if 0 < count * each <= _MOST_NBYTES:
            blocks.append(CallBlock(label, kind, begin, read(begin, count * each)))
    return blocks


def read_again(read: Read, blocks: list[CallBlock]) -> list[CallBlock]:
    """Return the blocks with what they hold after the call."""
    return [
        CallBlock(one.role, one.struct, one.address, one.before, read(one.address, len(one.before)))
        for one in blocks
    ]
