"""Calls of the driver and words for the GPU as lines of text: strace, and one level below."""

from __future__ import annotations

from baregrad.runtime.nvidia.abi import methods as m
from baregrad.runtime.nvidia.abi import names, status_name
from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.runtime.nvidia.abi.layout import Record

_SUBCHANNELS = ("host", "compute", "", "", "copy")
# Fields that the line's head says already, or that mean nothing to people.
_SILENT = frozenset({
    "hClass", "cmd", "params", "pAllocParms", "paramsSize", "hRoot", "hClient", "status",
    "rmStatus", "params.status", "params.hRoot", "params.hClient", "rmCtrlFd", "grInfoList",
    "classList", "owner",
})  # fmt: skip
_MAX_SHOWN_BYTES = 16


def call_line(request: int, argument: Record, inner: Record | None, why: str) -> str:
    """Return an ioctl as a line: its name, what it is given, what it answers."""
    fields = argument.struct.fields
    number = request & 0xFF
    if argument.struct.name.startswith("UVM_"):
        head = names.uvm_name(request)
    else:
        head = names.escape_name(number)
    if number == nv.NV_ESC_RM_ALLOC and "hClass" in fields:
        head += f" {names.class_name(argument['hClass'])}"
    elif number == nv.NV_ESC_RM_CONTROL and "cmd" in fields:
        head += f" {names.command_name(argument['cmd'])}"
    shown = [*_field_texts(argument), *(_field_texts(inner) if inner is not None else ())]
    answer = ""
    for name in ("status", "rmStatus", "params.status"):
        if name in fields and argument[name]:
            answer = f" = {status_name(argument[name])}" + (f": {why}" if why else "")
    return f"ioctl {head} {' '.join(shown)}".rstrip() + answer


def _field_texts(record: Record) -> list[str]:
    shown = []
    for row in record.struct.fields.values():
        data = record.data(row.name)
        if row.name in _SILENT or not any(data):
            continue
        name = row.name.removeprefix("params.").replace("perGpuAttributes[0].", "")
        if not row.is_bytes:
            shown.append(f"{name}={int.from_bytes(data, 'little'):#x}")
        elif len(data) <= _MAX_SHOWN_BYTES:
            shown.append(f"{name}={data.hex()}")
        else:
            text = data.split(b"\0")[0]
            readable = text.isascii() and text.decode("ascii", "replace").isprintable()
            shown.append(f"{name}={text.decode() if readable else data[:16].hex()}")
    return shown


def method_line(subchannel: int, method: int, data: int, is_compute: bool) -> str:
    """Return a method as a line: who takes it, its name, its data and their parts."""
    table = m.HOST
    if method >= 0x100:
        table = m.COMPUTE if is_compute else m.COPY
    who = _SUBCHANNELS[subchannel] if subchannel < len(_SUBCHANNELS) else ""
    for one in table.values():
        if one.address == method:
            parts = [(name, one.read(data, name)) for name in one.parts]
            words = " ".join(f"{name}={value:#x}" for name, value in parts if value)
            kind = f" {names.class_name(data)}" if one.name == "SET_OBJECT" else ""
            return f"  {who or subchannel}: {one.name} {data:#x}{kind}" + (
                f" ({words})" if len(parts) > 1 else ""
            )
    return f"  {who or subchannel}: method {method:#x} {data:#x}"
