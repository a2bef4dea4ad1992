"""Buffers, command lists and programs on devices; sees bytes and launches, never the IR."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from baregrad.base.errors import DeviceError, UnsupportedDevice
from baregrad.base.options import DEVICE_NAMES

if TYPE_CHECKING:
    from baregrad.runtime.interface import Device

OPEN_NAMES = ("CPU", "REF", "NULL", "CUDA")
# Devices that there may be several of: CUDA:1 is the second.
_NUMBERED = ("CUDA",)


def open_device(name: str, *, assemble: Callable[[str], bytes] | None = None) -> Device:
    """Open the device called `name`.

    `assemble` turns LLVM IR text into an object; the CPU device needs it for its native executor
    and its threads, and does without it on one thread. Raises DeviceError for a name that does
    not exist, UnsupportedDevice for one that this version does not drive.
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
    kind, ordinal = split_name(name)
    if kind == "CUDA":
        from baregrad.runtime.cuda.device import CudaDevice

        return CudaDevice(name, ordinal)
    if name in DEVICE_NAMES:
        raise UnsupportedDevice(
            f"the device {name} is not driven by this version", wanted=" | ".join(OPEN_NAMES)
        )
    raise DeviceError(f"there is no device {name!r}", wanted=" | ".join(OPEN_NAMES))


def split_name(name: str) -> tuple[str, int]:
    """Return the kind and the number of a device: ("CUDA", 1) for CUDA:1, number 0 by default.

    A name that is not of such a form is its own kind.
    """
    kind, colon, number = name.partition(":")
    if kind in _NUMBERED and (not colon or (number.isascii() and number.isdecimal())):
        return kind, int(number or 0)
    return name, 0
