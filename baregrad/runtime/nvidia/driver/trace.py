"""Traces: what the runtime asked of a driver and what it answered, recorded once and replayed.

`RecordingPort` stands before another port and writes each call down; `ReplayPort` answers from the
file, on any machine, and raises FileFormatError where the runtime asks something else by now. A
trace is gzipped text of one JSON object a line, in the order of the calls.

Structs are written field by field, and only the fields that the runtime knows, so that what else
the driver says (serial numbers, say) never reaches the file; nor do places on the bus. The GPU's
UUID is replaced wherever it stands, addresses of this process by the mapping that they lie in, and
descriptors by their order. From the first doorbell on, what changed in memory between two
calls is recorded too, and appears in a replay with the first of the two: work that a doorbell
started is done when it returns. So a program that is recorded should wait for its work before it
does anything that depends on how far it is.
"""

from __future__ import annotations

import ctypes
import gzip
import json
import mmap
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from baregrad.base.errors import FileFormatError
from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.runtime.nvidia.driver.doorbell import ByStores

if TYPE_CHECKING:
    from baregrad.runtime.nvidia.abi.layout import Record
    from baregrad.runtime.nvidia.driver.port import Port

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]

FORMAT = "baregrad trace 1"
MASKED_UUID = b"baregrad's trace"
Event = dict[str, Any]

# Fields that hold descriptors, and such that hold addresses of this process, which differ from run
# to run.
_DESCRIPTORS = frozenset({"fd", "ctl_fd", "uvmFd", "rmCtrlFd"})
_POINTERS = frozenset({"pAllocParms", "params", "classList", "grInfoList", "fbInfoList"})
_HOST_ADDRESSES = frozenset({"params.pMemory"})
_OPAQUE = frozenset({"params.pLinearAddress", "pLinearAddress"})
# What the driver says of a machine and nobody needs for a replay.
_PRIVATE = ("pci_info.", "fb_address")
# Lists that the driver reads and writes beside a struct: how many, and bytes of each.
_LISTS = MappingProxyType({
    "classList": ("numClasses", 4), "grInfoList": ("grInfoListSize", 8),
    "fbInfoList": ("fbInfoListSize", 8),
})  # fmt: skip
_USERMODE_CLASS = 0x61  # the low byte of every class of doorbells (cl*61.h)
_MOST_PAUSES = 20_000


@dataclass
class _Names:
    """What stands in a trace for descriptors, mappings, opaque addresses and the UUID."""

    descriptors: dict[int, int] = field(default_factory=dict)
    maps: dict[int, tuple[int, int]] = field(default_factory=dict)
    opaque: dict[int, int] = field(default_factory=dict)
    uuid: bytes = b""

    def value(self, name: str, value: int | bytes) -> Any:
        """Return a field's value as it is written: numbers, hexadecimal bytes, or a name."""
        if isinstance(value, bytes):
            masked = value.replace(self.uuid, MASKED_UUID) if self.uuid else value
            return masked.rstrip(b"\0").hex()
        if name in _DESCRIPTORS:
            return f"fd {self.descriptors[value]}" if value in self.descriptors else value
        if name in _POINTERS:
            return "pointer"
        if name in _HOST_ADDRESSES:
            number, offset = self.place(value)
            return f"map {number}+{offset}"
        if name in _OPAQUE:
            return f"address {self.opaque.setdefault(value, len(self.opaque))}"
        return value

    def place(self, address: int) -> tuple[int, int]:
        """Return the mapping that an address lies in, and how far from its start."""
        for base, (number, nbytes) in self.maps.items():
            if base <= address < base + nbytes:
                return number, address - base
        return -1, 0


def _fields(record: Record | None) -> Iterator[tuple[str, str | tuple[str, int], bool]]:
    """Yield every field of a record: its name in a trace, its key, and whether it is bytes."""
    if record is None:
        return
    count = record.nbytes // record.struct.nbytes
    for index in range(count):
        for name, row in record.struct.fields.items():
            if name.startswith(_PRIVATE):
                continue
            label = f"{name}@{index}" if index else name
            yield label, (name, index), row.is_bytes


def _values(record: Record | None, names: _Names) -> dict[str, Any]:
    """Return a record's fields that are not zero, as they are written."""
    found = {}
    for label, key, is_bytes in _fields(record):
        assert record is not None
        raw = record.data(key) if is_bytes else record[key]
        if any(raw) if isinstance(raw, bytes) else raw:
            found[label] = names.value(label.partition("@")[0], raw)
    return found


def lists_of(record: Record | None) -> dict[str, tuple[int, int]]:
    """Return where the lists lie that a record refers to, and their sizes in bytes."""
    found = {}
    if record is not None:
        for name, (count, nbytes) in _LISTS.items():
            row = record.struct.fields.get(name)
            # Newer controls have lists of these names in the struct itself.
            if row is not None and not row.is_bytes and record[name]:
                found[name] = (record[name], record[count] * nbytes)
    return found


def _list_bytes(places: Mapping[str, tuple[int, int]]) -> dict[str, str]:
    return {name: ctypes.string_at(*place).hex() for name, place in places.items()}


class RecordingPort(ByStores):
    """A port in front of another, which writes a trace of all calls to `path`.

    `about` is written into the head of the file. `close_trace` ends the file.
    """

    def __init__(self, port: Port, path: str | Path, about: str = "") -> None:
        self._port = port
        self._file = gzip.open(path, "wt", encoding="utf-8", newline="\n")  # noqa: SIM115
        self._names = _Names()
        self._pending: Event | None = None
        self._shadows: dict[int, tuple[int, Bytes, Bytes]] = {}
        self._usermode: set[int] = set()
        self._next_map = self._next_fd = 0
        self._mapped_handle = 0
        self._rung = False
        self._write({"format": FORMAT, "about": about})

    # The protocol.

    def open(self, path: str) -> int:
        """Open a device node."""
        event: Event = {"call": "open", "path": path}
        fd: int = self._asked(event, lambda: self._port.open(path))
        self._names.descriptors[fd] = event["fd"] = self._next_fd
        self._next_fd += 1
        self._put(event)
        return fd

    def exists(self, path: str) -> bool:
        """Return whether a device node is there."""
        event: Event = {"call": "exists", "path": path}
        event["answer"] = found = bool(self._asked(event, lambda: self._port.exists(path)))
        self._put(event)
        return found

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        event: Event = {"call": "close", "fd": self._names.descriptors.get(fd, fd)}
        self._asked(event, lambda: self._port.close(fd))
        self._names.descriptors.pop(fd, None)
        self._put(event)

    def ioctl(self, fd: int, request: int, argument: Record, inner: Record | None = None) -> None:
        """Call the driver, and write down what it was given and what it changed."""
        event = _question(self._names, fd, request, argument, inner)
        before = (_values(argument, self._names), _values(inner, self._names))
        lists = lists_of(inner)
        self._asked(event, lambda: self._port.ioctl(fd, request, argument, inner))
        self._learn(argument, inner)
        after = (_values(argument, self._names), _values(inner, self._names))
        for key, one, two in zip(("out", "inner_out"), before, after, strict=True):
            changed = {name: two.get(name, 0) for name in {**one, **two}
                       if one.get(name, 0) != two.get(name, 0)}
            if changed:
                event[key] = changed
        if lists:
            event["lists_out"] = _list_bytes(lists)
        self._put(event)

    def map_device(self, fd: int, nbytes: int) -> int:
        """Map what the driver attached to `fd`."""
        event: Event = {"call": "map_device", "fd": self._names.descriptors[fd], "nbytes": nbytes}
        address = self._asked(event, lambda: self._port.map_device(fd, nbytes))
        registers = self._mapped_handle in self._usermode
        return self._mapped(event, address, nbytes, registers)

    def map_memory(self, nbytes: int) -> int:
        """Map zeroed pages of host memory."""
        event: Event = {"call": "map_memory", "nbytes": nbytes}
        address = self._asked(event, lambda: self._port.map_memory(nbytes))
        return self._mapped(event, address, nbytes, False)

    def unmap(self, address: int, nbytes: int) -> None:
        """Undo a map."""
        number, _ = self._names.place(address)
        event: Event = {"call": "unmap", "map": number, "nbytes": nbytes}
        self._flush()
        self._names.maps.pop(address, None)
        self._shadows.pop(address, None)
        self._asked(event, lambda: self._port.unmap(address, nbytes))
        self._put(event)

    def view(self, address: int, nbytes: int) -> memoryview:
        """Return the bytes of mapped memory."""
        return self._port.view(address, nbytes)

    def store(self, address: int, value: int) -> None:
        """Store 32 bits; what the GPU then does is written down before the next call."""
        self._flush()
        number, offset = self._names.place(address)
        self._port.store(address, value)
        self._put({"call": "store", "map": number, "offset": offset, "value": value})

    def pause(self) -> None:
        """Pass a moment; how often that is differs from run to run and is not written down."""
        self._port.pause()

    def close_trace(self) -> None:
        """Write what is left, and close the file."""
        self._flush()
        self._file.close()

    # Inside.

    def _asked(self, event: Event, call: Callable[[], Any]) -> Any:
        """Make a call; one that the system refuses is written down, and raises as it did."""
        self._flush()
        try:
            return call()
        except OSError as error:
            event["errno"] = error.errno
            self._put(event)
            raise

    def _learn(self, argument: Record, inner: Record | None) -> None:
        """Keep what distinguishes later calls: doorbells' objects, and the UUID."""
        fields = argument.struct.fields
        if "hClass" in fields and argument["hClass"] & 0xFF == _USERMODE_CLASS:
            self._usermode.add(argument["hObjectNew"])
        if "params.hMemory" in fields and "params.pLinearAddress" in fields:
            self._mapped_handle = argument["params.hMemory"]
        asked = argument["cmd"] if "cmd" in fields else 0
        if inner is not None and "data" in inner.struct.fields:
            if asked == nv.NV2080_CTRL_CMD_GPU_GET_GID_INFO:
                self._names.uuid = inner.data("data")[:16]

    def _mapped(self, event: Event, address: int, nbytes: int, registers: bool) -> int:
        event["map"] = number = self._next_map
        self._next_map += 1
        self._names.maps[address] = (number, nbytes)
        if registers:
            event["registers"] = True
        else:
            now = np.frombuffer(self._port.view(address, nbytes), np.uint8)
            self._shadows[address] = (number, now, now.copy())
        self._put(event)
        return address

    def _put(self, event: Event) -> None:
        """Hold an event back until it is known what the GPU did after it."""
        self._pending = event

    def _flush(self) -> None:
        event, self._pending = self._pending, None
        if event is None:
            return
        self._rung = self._rung or event["call"] == "store"
        if self._rung:
            changes = [
                [number, *change]
                for number, now, shadow in self._shadows.values()
                for change in _changes(now, shadow)
            ]
            if changes:
                event["then"] = changes
        self._write(event)

    def _write(self, event: Event) -> None:
        self._file.write(json.dumps(event, separators=(",", ":")) + "\n")


def _changes(now: Bytes, shadow: Bytes) -> Iterator[list[Any]]:
    """Yield [offset, hexadecimal bytes] for each run that changed, and bring the shadow up."""
    current = now.copy()
    places = np.flatnonzero(current != shadow)
    if not len(places):
        return
    # Runs with less than 16 equal bytes between them are written as one.
    breaks = np.flatnonzero(np.diff(places) > 16)
    begins = places[np.concatenate(([0], breaks + 1))]
    ends = places[np.concatenate((breaks, [len(places) - 1]))] + 1
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        yield [begin, current[begin:end].tobytes().hex()]
    shadow[:] = current


def _question(
    names: _Names, fd: int, request: int, argument: Record, inner: Record | None
) -> Event:
    """Return what an ioctl asks, as it is written and compared."""
    event: Event = {
        "call": "ioctl", "fd": names.descriptors.get(fd, fd), "request": request,
        "struct": argument.struct.name, "in": _values(argument, names),
    }  # fmt: skip
    if inner is not None:
        event |= {"inner": inner.struct.name, "inner_in": _values(inner, names)}
    lists = lists_of(inner)
    if lists:
        event["lists_in"] = _list_bytes(lists)
    return event


def read_trace(path: str | Path) -> tuple[Event, list[Event]]:
    """Return the head and the calls of a trace; raise FileFormatError where it is none."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            head, *events = [json.loads(line) for line in file]
    except (OSError, EOFError, ValueError) as error:
        raise FileFormatError("a trace cannot be read", found=f"{path}: {error}") from error
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise FileFormatError("not a trace of this version", found=path, wanted=FORMAT)
    if not all(isinstance(event, dict) and "call" in event for event in events):
        raise FileFormatError("a trace has a line that is no call", found=path)
    return head, events


class ReplayPort(ByStores):
    """The driver of a trace: answers what that one answered, as long as it is asked the same.

    Raises FileFormatError for another call than the recorded one, naming both. What comes after
    that is no use and only lets go of what there is: such calls are taken without a word, and
    `finish` raises the first error again, in case somebody made do with it. It also raises if not
    all calls were made.

    Stores pass no call, so that a file which was taken down from outside has none: they are made
    then, nothing comes of them, and whoever waits for a GPU's work is told that there is none.
    """

    def __init__(self, path: str | Path) -> None:
        self.name = Path(path).name
        self.head, self._events = read_trace(path)
        self._has_stores = any(event["call"] == "store" for event in self._events)
        self._at = 0
        self._names = _Names()
        self._pages: dict[int, tuple[mmap.mmap, int]] = {}
        self._registers: set[int] = set()
        self._pauses = 0
        self._broken: FileFormatError | None = None

    # The protocol.

    def open(self, path: str) -> int:
        """Open what was opened."""
        event = self._next({"call": "open", "path": path})
        self._refuse(event)
        # Numbers that no descriptor of this process has.
        fd = int(event["fd"]) + (1 << 20)
        self._names.descriptors[fd] = event["fd"]
        return fd

    def exists(self, path: str) -> bool:
        """Return whether a device node was there."""
        return bool(self._next({"call": "exists", "path": path})["answer"])

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        number = self._names.descriptors.pop(fd, fd)
        if self._broken is None:
            self._refuse(self._next({"call": "close", "fd": number}))

    def ioctl(self, fd: int, request: int, argument: Record, inner: Record | None = None) -> None:
        """Give the recorded answer."""
        if self._broken is not None:
            return
        event = self._next(_question(self._names, fd, request, argument, inner))
        lists = lists_of(inner)
        self._refuse(event)
        self._fill(argument, event.get("out", {}))
        self._fill(inner, event.get("inner_out", {}))
        for name, text in event.get("lists_out", {}).items():
            address, nbytes = lists[name]
            ctypes.memmove(address, bytes.fromhex(text), min(nbytes, len(text) // 2))

    def map_device(self, fd: int, nbytes: int) -> int:
        """Map pages that stand for what the driver attached to `fd`."""
        number = self._names.descriptors[fd]
        return self._map({"call": "map_device", "fd": number, "nbytes": nbytes}, nbytes)

    def map_memory(self, nbytes: int) -> int:
        """Map zeroed pages."""
        return self._map({"call": "map_memory", "nbytes": nbytes}, nbytes)

    def unmap(self, address: int, nbytes: int) -> None:
        """Undo a map."""
        number, _ = self._names.place(address)
        if self._broken is None:
            self._refuse(self._next({"call": "unmap", "map": number, "nbytes": nbytes}))
        self._names.maps.pop(address)
        # Views of it may live on, so the pages go when these do.
        self._pages.pop(number)

    def view(self, address: int, nbytes: int) -> memoryview:
        """Return the bytes of mapped memory; the GPU's clock is this machine's."""
        if address in self._registers:
            clock = ctypes.c_uint64.from_address(address + nv.NVC361_TIME_0)
            clock.value = time.perf_counter_ns()
        return memoryview((ctypes.c_ubyte * nbytes).from_address(address)).cast("B")

    def store(self, address: int, value: int) -> None:
        """Store 32 bits; what the GPU did next is in memory when this returns."""
        number, offset = self._names.place(address)
        if not self._has_stores:
            ctypes.c_uint32.from_address(address).value = value
            return
        asked = {"call": "store", "map": number, "offset": offset, "value": value}
        event = self._next(asked)
        ctypes.c_uint32.from_address(address).value = value
        self._change(event)

    def pause(self) -> None:
        """Nothing happens; raise FileFormatError where the runtime waits for what never came."""
        self._pauses += 1
        if self._pauses > _MOST_PAUSES:
            self._broken = self._broken or FileFormatError(
                f"the trace {self.name} shows no work that the runtime waits for",
                found=f"waiting after call {self._at} of {len(self._events)}",
                hint="record the trace again with this version" if self._has_stores
                else "what a GPU did is not in a recording of calls alone",
            )  # fmt: skip
            raise self._broken

    def finish(self) -> None:
        """Raise FileFormatError unless every recorded call was made, and no other."""
        if self._broken is not None:
            raise self._broken
        if self._at != len(self._events):
            raise FileFormatError(
                f"the runtime made fewer calls than the trace {self.name}",
                found=self._at,
                wanted=f"{len(self._events)}, the next being {_brief(self._events[self._at])}",
            )

    # Inside.

    def _next(self, asked: Event) -> Event:
        """Return the recorded call, which must be the one that is made."""
        if self._broken is not None:
            raise self._broken
        if self._at == len(self._events):
            self._broken = FileFormatError(
                f"the trace {self.name} ended", found=_brief(asked), wanted="no further call"
            )
            raise self._broken
        event = self._events[self._at]
        alike = asked["call"] == event["call"]
        keys = {"call": None, **asked, "inner": None, "inner_in": None, "lists_in": None}
        different = {
            key: (asked.get(key), event.get(key))
            for key in (keys if alike else ("call",))
            if asked.get(key) != event.get(key)
        }
        if different:
            self._broken = FileFormatError(
                f"call {self._at + 1} of the trace {self.name} is another one: "
                + "; ".join(_difference(key, *pair) for key, pair in different.items()),
                found=_brief(asked), wanted=_brief(event),
                hint="the runtime changed: record the trace again where that is meant",
            )  # fmt: skip
            raise self._broken
        self._at += 1
        self._pauses = 0
        if event["call"] != "store":
            self._change(event)
        return event

    def _change(self, event: Event) -> None:
        """Let what changed in memory after a call be there, as far as it is mapped already."""
        for number, offset, text in event.get("then", ()):
            if number in self._pages:
                data = bytes.fromhex(text)
                ctypes.memmove(self._pages[number][1] + offset, data, len(data))

    @staticmethod
    def _refuse(event: Event) -> None:
        if "errno" in event:
            raise OSError(event["errno"], "the recorded call failed so")

    def _fill(self, record: Record | None, answers: Mapping[str, Any]) -> None:
        """Set the fields that the driver set."""
        for label, key, is_bytes in _fields(record):
            if label not in answers:
                continue
            assert record is not None
            value = answers[label]
            if is_bytes:
                nbytes = record.field_at(key)[0].nbytes
                text = "" if value == 0 else value
                record[key] = bytes.fromhex(text).ljust(nbytes, b"\0")
            elif isinstance(value, str):
                record[key] = self._named(value)
            else:
                record[key] = value

    def _named(self, text: str) -> int:
        """Return a value for an opaque address, the same each time."""
        number = int(text.rpartition(" ")[2])
        value = 0x1000 * (number + 1)
        self._names.opaque[value] = number
        return value

    def _map(self, asked: Event, nbytes: int) -> int:
        event = self._next(asked)
        self._refuse(event)
        pages = mmap.mmap(-1, nbytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        self._pages[event["map"]] = (pages, address)
        self._change(event)
        self._names.maps[address] = (event["map"], nbytes)
        if event.get("registers"):
            self._registers.add(address)
        return address


def _difference(key: str, asked: Any, recorded: Any) -> str:
    """Say how a call differs from the recorded one."""
    if isinstance(asked, dict) and isinstance(recorded, dict):
        names = [name for name in {**asked, **recorded} if asked.get(name) != recorded.get(name)]
        return ", ".join(
            f"{name} is {_shown(asked.get(name, 0))}, was {_shown(recorded.get(name, 0))}"
            for name in names
        )
    return f"{key} is {_shown(asked)}, was {_shown(recorded)}"


def _shown(value: Any) -> str:
    return hex(value) if isinstance(value, int) and value > 9 else str(value)


def _brief(event: Event) -> str:
    """Return a call in few words."""
    if event["call"] != "ioctl":
        rest = " ".join(f"{key} {event[key]}" for key in ("path", "fd", "map") if key in event)
        return f"{event['call']} {rest}".rstrip()
    inner = f" with {event['inner']}" if "inner" in event else ""
    return f"ioctl {event['request'] & 0xFF:#x} {event['struct']}{inner}"
