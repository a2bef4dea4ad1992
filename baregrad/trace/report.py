"""What is printed of calls: a line each, counts and times, a tree of objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from baregrad.base.bits import human_bytes
from baregrad.trace.decode import DriverCall

_ALLOC = ("RM_ALLOC", "RM_FREE", "RM_DUP_OBJECT", "RM_VID_HEAP")
_CHANNEL = ("GPFIFO", "CHANNEL", "TSG", "CTXSHARE", "CONTEXT_SHARE", "_COMPUTE_", "DMA_COPY",
            "USERMODE", "NVA06C", "NVA06F", "NVC36F", "NV906F")  # fmt: skip


def categories(call: DriverCall) -> set[str]:
    """Return which of CATEGORIES a call belongs to."""
    found = set()
    if any(part in call.verb for part in _ALLOC):
        found.add("alloc")
    if call.raw.call in ("mmap", "munmap") or "MAP" in call.verb:
        found.add("map")
    if "nvidia-uvm" in call.raw.node:
        found.add("uvm")
    if any(part in call.name for part in _CHANNEL):
        found.add("channel")
    if "DMA_COPY" in call.name or "_CE_" in call.name:
        found.add("copy")
    if "_COMPUTE_" in call.name:
        found.add("launch")
    return found


def line(call: DriverCall) -> str:
    """Return a call as a line: time, thread, node, names, fields, answer, duration, library."""
    raw = call.raw
    node = raw.node.removeprefix("/dev/")
    fields = ", ".join(map(str, call.changes))
    subject = f" {call.subject}" if call.subject else ""
    struct = f" {call.struct}" if call.struct else ""
    where = f"{raw.fd}<{node}>" if raw.fd >= 0 else node
    library = f" {raw.library}" if raw.library else ""
    return (
        f"{raw.time:10.6f} {raw.tid} {where} {call.verb}{subject}{struct}({fields})"
        f" = {call.answer} {raw.seconds * 1e6:.0f} us{library}"
    )


@dataclass
class CallCounts:
    """Counts and times by name, and what had none."""

    calls: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    unknown: Counter[str] = field(default_factory=Counter)
    measured: int = 0
    without_struct: Counter[str] = field(default_factory=Counter)

    def add(self, call: DriverCall) -> None:
        """Count a call."""
        self.calls[call.name] += 1
        self.seconds[call.name] = self.seconds.get(call.name, 0.0) + call.raw.seconds
        self.failures[call.name] += call.failed
        self.measured += call.measured
        if not call.known:
            self.unknown[call.name] += 1
        elif not call.params_known:
            self.without_struct[call.name] += 1

    def table(self) -> str:
        """Return the table, longest first, as `strace -c` has it."""
        total = sum(self.seconds.values()) or 1e-9
        rows = [f"{'% time':>7} {'seconds':>10} {'us/call':>9} {'calls':>7} {'errors':>7} call"]
        for name, seconds in sorted(self.seconds.items(), key=lambda row: -row[1]):
            calls = self.calls[name]
            errors = str(self.failures[name] or "")
            rows.append(
                f"{100 * seconds / total:7.2f} {seconds:10.6f} {1e6 * seconds / calls:9.0f} "
                f"{calls:7d} {errors:>7} {name}"
            )
        return "\n".join(rows)

    def footer(self) -> list[str]:
        """Return how much was understood, and what was not."""
        total = sum(self.calls.values())
        if not total:
            return ["no calls of the driver"]
        named = total - sum(self.unknown.values())
        whole = named - sum(self.without_struct.values())
        share = 100 / total
        parted = sum(count for name, count in self.unknown.items()
                     if name.startswith("NV_ESC_RM_CONTROL") and " of " in name)  # fmt: skip
        rows = [f"{total} calls, {named} by name ({named * share:.2f} %), "
                f"{whole} with their fields ({whole * share:.2f} %)"]  # fmt: skip
        if self.measured:
            rows[0] += (f", {self.measured} of them by names of ours, for what they were measured "
                        "to answer or decide, or when they are asked: no published source names "
                        "them")  # fmt: skip
        if parted:
            rows[0] += f", {parted} more by their number and category ({parted * share:.2f} %)"
        rows += [f"no name: {name}: {count}" for name, count in self.unknown.most_common()]
        rows += [f"no struct: {name}: {count}" for name, count in self.without_struct.most_common()]
        return rows


@dataclass
class _Object:
    handle: int
    kind: str
    parent: int
    begin: float
    end: float | None = None
    note: str = ""


@dataclass
class ObjectTree:
    """The driver's objects by client, with when they were made and freed."""

    clients: dict[int, dict[int, _Object]] = field(default_factory=dict)

    def add(self, call: DriverCall) -> None:
        """Follow an allocation, a copy of an object, or an end."""
        client, parent, handle = call.handles
        if call.failed or not handle:
            return
        if call.verb in ("NV_ESC_RM_ALLOC", "NV_ESC_RM_ALLOC_MEMORY", "NV_ESC_RM_DUP_OBJECT"):
            client = client or handle
            kind = call.subject or _change(call, "params.hClass") or "copy of an object"
            # Engines' parameters have a field of that name too, which nobody fills in.
            is_memory = any("_MEMORY_" in block.struct for block in call.raw.blocks)
            size = _change(call, "size") if is_memory else ""
            note = f", {human_bytes(int(size, 0))}" if size else ""
            made = _Object(handle, kind, parent, call.raw.time, None, note)
            self.clients.setdefault(client, {})[handle] = made
        elif call.verb == "NV_ESC_RM_FREE":
            objects = self.clients.get(client, {})
            ended = [handle]
            for one in ended:
                if one in objects and objects[one].end is None:
                    objects[one].end = call.raw.time
                ended += [row.handle for row in objects.values()
                          if row.parent == one != row.handle and row.end is None]  # fmt: skip

    def lines(self) -> Iterator[str]:
        """Yield the tree, a line an object."""
        for objects in self.clients.values():
            roots = [one for one in objects.values()
                     if one.parent not in objects or one.parent == one.handle]  # fmt: skip
            waiting = [(one, 0) for one in reversed(roots)]
            while waiting:
                one, depth = waiting.pop()
                life = f"from {one.begin:.6f} s" + (
                    f" to {one.end:.6f} s" if one.end is not None else ""
                )
                yield f"{'  ' * depth}{one.kind} {one.handle:#x}{one.note} ({life})"
                inner = [row for row in objects.values()
                         if row.parent == one.handle and row is not one and row not in roots]
                waiting += [(row, depth + 1) for row in reversed(inner)]


def _change(call: DriverCall, name: str) -> str:
    return next((one.after for one in call.changes if one.name == name), "")
