"""`--record`: a traced program's calls as a file that the runtime's port replays.

The runtime has a recorder of its own calls, which stands before a port. Here the port behind it is
one that answers what another process was answered. Memory that a GPU wrote is not in the file: it
replays a program's way to its first submission. A port is one process's, so of a program that
forks, the process is in the file that is the first to open a node.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from baregrad.runtime.nvidia.abi import rm_structs
from baregrad.runtime.nvidia.abi.layout import Field, Record, Struct
from baregrad.runtime.nvidia.abi.releases import release_for
from baregrad.runtime.nvidia.abi.vendor import SCALARS, VendorTables
from baregrad.runtime.nvidia.driver.trace import RecordingPort, lists_of
from baregrad.trace.calls import CallBlock, RawCall, integer

if TYPE_CHECKING:
    from baregrad.runtime.nvidia.driver.port import Port

_KINDS = MappingProxyType({
    "u8": "u8", "u16": "u16", "u32": "u32", "u64": "u64", "i32": "i32", "ptr": "u64",
    "handle": "u32", "bool": "u8", "status": "u32",
})  # fmt: skip
_PINNED = "params.pMemory"
# A larger mapping of a program is not followed.
_MOST_MAPPED = 1 << 28
# A longer list is one whose size was never written.
_MOST_LISTED = 1 << 20


@dataclass
class _Answers:
    """A port that says what another process was told, one call at a time."""

    now: RawCall | None = None
    pages: dict[int, mmap.mmap] = field(default_factory=dict)
    lists: list[tuple[Record, str, int, bytes]] = field(default_factory=list)
    after: list[tuple[Record, bytes]] = field(default_factory=list)

    def _value(self) -> int:
        assert self.now is not None
        if self.now.value < 0:
            raise OSError(-self.now.value, "the traced call failed so")
        return self.now.value

    def open(self, path: str) -> int:
        return self._value()

    def exists(self, path: str) -> bool:
        return self.now is not None and self.now.value >= 0

    def close(self, fd: int) -> None:
        self._value()

    def ioctl(self, fd: int, request: int, argument: Record, inner: Record | None = None) -> None:
        self._value()
        for record, name, address, data in self.lists:
            if data:
                ctypes.memmove(address, data, len(data))
            record[name] = address
        for record, data in self.after:
            # Addresses are those of here, and the driver changes none.
            names = [name for held, name, _, _ in self.lists if held is record]
            names += [_PINNED] if _PINNED in record.struct.fields else []
            kept = {name: record[name] for name in names}
            record.view()[: len(data)] = data[: record.nbytes]
            for name, value in kept.items():
                record[name] = value

    def _map(self, nbytes: int) -> int:
        pages = mmap.mmap(-1, nbytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        self.pages[address] = pages
        return address

    def map_device(self, fd: int, nbytes: int) -> int:
        self._value()
        return self._map(nbytes)

    def map_memory(self, nbytes: int) -> int:
        self._value()
        return self._map(nbytes)

    def unmap(self, address: int, nbytes: int) -> None:
        self.pages.pop(address, None)

    def view(self, address: int, nbytes: int) -> memoryview:
        return memoryview((ctypes.c_ubyte * nbytes).from_address(address)).cast("B")


class TraceRecorder:
    """Writes the calls of a traced process to a file; `close` ends it.

    `left_out` counts what cannot be in it: calls of other processes, and mappings and closes of
    descriptors whose opening was not seen.
    """

    def __init__(self, path: str, tables: VendorTables) -> None:
        self._tables = tables
        self._answers = _Answers()
        self._port = RecordingPort(cast("Port", self._answers), path, "traced")
        release = release_for(tables.version)
        self._structs = {one.name: one for one in release.structs.values()}
        self._mapped: dict[int, tuple[int, int]] = {}
        self._fds: set[int] = set()
        self._pid = 0
        # By process, what came before it is known which one is written.
        self._held: dict[int, list[RawCall]] = {}
        self.left_out = 0

    def take(self, raw: RawCall) -> None:
        """Write one call, once it is known that its process is the one to be written."""
        if not self._pid:
            self._held.setdefault(raw.pid, []).append(raw)
            if raw.call == "ioctl" or (raw.call == "open" and raw.value >= 0):
                self._choose(raw.pid)
        elif raw.pid == self._pid:
            self._write(raw)
        else:
            self.left_out += 1

    def close(self) -> None:
        """Write what is left."""
        if self._held:
            # None opened a node: how the first was refused.
            self._choose(next(iter(self._held)))
        self._port.close_trace()

    def _choose(self, pid: int) -> None:
        held, self._held, self._pid = self._held, {}, pid
        for raw in held.pop(pid):
            self._write(raw)
        self.left_out += sum(map(len, held.values()))

    def _write(self, raw: RawCall) -> None:
        self._answers.now = raw
        # An error is in the file as well.
        with contextlib.suppress(OSError):
            self._put(raw)

    def _put(self, raw: RawCall) -> None:
        if raw.call == "open":
            self._fds.add(self._port.open(raw.node))
        elif raw.call == "exists":
            self._port.exists(raw.node)
        elif raw.call in ("close", "mmap") and raw.fd >= 0 and raw.fd not in self._fds:
            self.left_out += 1
        elif raw.call == "close":
            self._fds.discard(raw.fd)
            self._port.close(raw.fd)
        elif raw.call == "mmap" and raw.arguments[1] <= _MOST_MAPPED:
            nbytes = raw.arguments[1]
            here = (self._port.map_device(raw.fd, nbytes) if raw.fd >= 0
                    else self._port.map_memory(nbytes))  # fmt: skip
            self._mapped[raw.value] = (here, nbytes)
        elif raw.call == "munmap" and raw.arguments[0] in self._mapped:
            here, nbytes = self._mapped.pop(raw.arguments[0])
            self._port.unmap(here, nbytes)
        elif raw.call == "ioctl" and raw.blocks:
            self._ioctl(raw)

    def _ioctl(self, raw: RawCall) -> None:
        blocks = {one.role: one for one in raw.blocks[:2]}
        argument = self._record(blocks["argument"])
        inner = None
        if "params" in blocks:
            params = blocks["params"]
            inner = self._record(params, self._newer(blocks["argument"], params))
        answers = self._answers
        answers.after = [(argument, blocks["argument"].after)]
        if inner is not None:
            answers.after.append((inner, blocks["params"].after))
        answers.lists = []
        # Theirs until the call is written down.
        held = [] if inner is None else self._lists(raw, inner)
        self._port.ioctl(raw.fd, raw.arguments[1], argument, inner)
        del held

    def _lists(self, raw: RawCall, inner: Record) -> list[Any]:
        """Put the lists that a record refers to into memory of ours, which is returned.

        A list of which less was read than the record says is as long as it says, but for one that
        no program meant: it is left out.
        """
        sizes = {name: nbytes for name, (_, nbytes) in lists_of(inner).items()}
        read = {one.role: one for one in raw.blocks[2:] if one.role in inner.struct.fields}
        held = []
        for name in dict.fromkeys([*read, *sizes]):
            block, nbytes = read.get(name), sizes.get(name, 0)
            before = block.before if block is not None else b""
            after = block.after or before if block is not None else b""
            if nbytes > _MOST_LISTED:
                inner[name] = 0
                self._answers.lists.append((inner, name, 0, b""))
                continue
            size = max(nbytes, len(before), len(after), 1)
            memory = ctypes.create_string_buffer(before.ljust(size, b"\0"), size)
            held.append(memory)
            inner[name] = ctypes.addressof(memory)
            self._answers.lists.append((inner, name, ctypes.addressof(memory), after))
        return held

    def _record(self, block: CallBlock, known: Struct | None = None) -> Record:
        """Return the bytes of a block as the runtime's record, its addresses those of here."""
        struct = known or self._structs.get(block.struct) or self._alike(block) or self._made(block)
        count = max(len(block.before) // struct.nbytes, 1)
        record = Record(struct, count)
        record.view()[: len(block.before)] = block.before[: record.nbytes]
        if _PINNED in struct.fields:
            record[_PINNED] = self._address(record[_PINNED])
        return record

    def _newer(self, outer: CallBlock, block: CallBlock) -> Struct | None:
        """Return the struct by which the runtime asks a driver that may be too old for it."""
        command = integer(self._tables, outer.struct, outer.before, "cmd")
        named = self._tables.controls.get(command or 0)
        if block.struct or named is None:
            return None
        rows = [one for one in vars(rm_structs).values() if isinstance(one, Struct)]
        return next((one for one in rows
                     if one.name == named.struct and one.nbytes == len(block.before)), None)

    def _alike(self, block: CallBlock) -> Struct | None:
        """Return the runtime's struct that another class's has for a double under its own name."""
        end = block.struct.partition("_CTRL_")[2]
        for name, struct in self._structs.items():
            if end and name.endswith(f"_CTRL_{end}") and struct.nbytes == len(block.before):
                return struct
        return None

    def _address(self, address: int) -> int:
        for base, (here, nbytes) in self._mapped.items():
            if base <= address < base + nbytes:
                return here + address - base
        return address

    def _made(self, block: CallBlock) -> Struct:
        """Return a struct of the headers that the runtime has no use for."""
        layout = self._tables.struct(block.struct)
        nbytes = layout.nbytes if layout is not None else max(len(block.before), 1)
        fields: dict[str, Field] = {}
        if layout is None:
            fields["bytes"] = Field("bytes", 0, f"bytes[{nbytes}]", nbytes)
        else:
            _flatten(self._tables, block.struct, "", 0, fields)
        made = Struct(block.struct or f"bytes{nbytes}", "vendor", nbytes, fields)
        if block.struct:
            self._structs[block.struct] = made
        return made


def _flatten(
    tables: VendorTables, name: str, prefix: str, base: int, fields: dict[str, Field]
) -> None:
    """Add a struct's fields with dotted names, arrays as bytes."""
    layout = tables.struct(name)
    for row in layout.members if layout is not None else ():
        label, offset = f"{prefix}{row.name}", base + row.offset
        nbytes = tables.nbytes(row.kind) * row.count
        if row.kind not in SCALARS and row.count == 1:
            _flatten(tables, row.kind, label + ".", offset, fields)
        elif row.count == 1 and row.kind in _KINDS:
            fields[label] = Field(label, offset, _KINDS[row.kind], nbytes)
        elif nbytes:
            fields[label] = Field(label, offset, f"bytes[{nbytes}]", nbytes)
