"""Buffers, command lists and programs on devices; sees bytes and launches, never the IR."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from baregrad.base.errors import DeviceError

if TYPE_CHECKING:
    from baregrad.runtime.interface import Device

OPEN_NAMES = ("CPU", "REF", "NULL", "NV", "CUDA")


def open_device(name: str, *, assemble: Callable[[str], bytes] | None = None) -> Device:
    """Open the device called `name`.

    `assemble` turns LLVM IR text into an object; the CPU device needs it for its native executor
    and its threads, and does without it on one thread. Raises DeviceError for a name that does
    not exist, UnsupportedDevice for a GPU that is not there, DriverError where its driver is
    missing. `NV:1` and `CUDA:1` are the second GPU of this machine.
    """
    if name == "CPU":
        from baregrad.runtime.cpu.device import CpuDevice

        return CpuDevice(assemble=assemble)
    if name == "REF":
        from baregrad.runtime.ref import RefDevice

        return RefDevice()
    if name == "NULL":
        from baregrad.runtime.null import NullDevice

        return NullDevice()
    if name == "NV" or name.startswith("NV:"):
        from baregrad.runtime.nvidia.device import NvDevice

        return NvDevice(name, index=_ordinal(name))
    if name == "CUDA" or name.startswith("CUDA:"):
        from baregrad.runtime.cuda.device import CudaDevice

        return CudaDevice(name, _ordinal(name))
    raise DeviceError(f"there is no device {name!r}", wanted=" | ".join(OPEN_NAMES))


def _ordinal(name: str) -> int:
    """Return the number of a device called `NAME` or `NAME:number`."""
    _, _, number = name.partition(":")
    if number and not (number.isascii() and number.isdigit()):
        raise DeviceError("a device's number is a number", found=name, wanted="NV:0, CUDA:1, ...")
    return int(number or 0)
