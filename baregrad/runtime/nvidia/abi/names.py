"""The vendor's names of classes and control commands, for messages.

Sources: SDK `class/cl*.h`, `ctrl/*`.
"""

from __future__ import annotations

from types import MappingProxyType

from baregrad.runtime.nvidia.abi import numbers

# The classes of `target/nvidia.py`.
CLASSES = MappingProxyType({
    0xC461: "TURING_USERMODE_A",
    0xC561: "AMPERE_USERMODE_A",
    0xC661: "HOPPER_USERMODE_A",
    0xC761: "BLACKWELL_USERMODE_A",
    0xC46F: "TURING_CHANNEL_GPFIFO_A",
    0xC56F: "AMPERE_CHANNEL_GPFIFO_A",
    0xC86F: "HOPPER_CHANNEL_GPFIFO_A",
    0xC96F: "BLACKWELL_CHANNEL_GPFIFO_A",
    0xCA6F: "BLACKWELL_CHANNEL_GPFIFO_B",
    0xC5C0: "TURING_COMPUTE_A",
    0xC6C0: "AMPERE_COMPUTE_A",
    0xC7C0: "AMPERE_COMPUTE_B",
    0xC9C0: "ADA_COMPUTE_A",
    0xCBC0: "HOPPER_COMPUTE_A",
    0xCDC0: "BLACKWELL_COMPUTE_A",
    0xCEC0: "BLACKWELL_COMPUTE_B",
    0xC5B5: "TURING_DMA_COPY_A",
    0xC6B5: "AMPERE_DMA_COPY_A",
    0xC7B5: "AMPERE_DMA_COPY_B",
    0xC8B5: "HOPPER_DMA_COPY_A",
    0xC9B5: "BLACKWELL_DMA_COPY_A",
    0xCAB5: "BLACKWELL_DMA_COPY_B",
})  # fmt: skip

_OBJECTS = (
    "NV01_ROOT_CLIENT", "NV01_MEMORY_SYSTEM", "NV01_MEMORY_LOCAL_USER",
    "NV01_MEMORY_SYSTEM_OS_DESCRIPTOR", "NV01_DEVICE_0", "NV20_SUBDEVICE_0",
    "FERMI_VASPACE_A", "FERMI_CONTEXT_SHARE_A", "KEPLER_CHANNEL_GROUP_A", "GT200_DEBUGGER",
)  # fmt: skip


def _name(value: int, kind: str, *, unless: str) -> str | None:
    """Return the name with `kind` in it, and without `unless`, that has this value."""
    for name, number in numbers.FROM_HEADERS.items():
        if number == value and kind in name and unless not in name:
            return name
    return None


def class_name(kind: int) -> str:
    """Return the name of a class of objects."""
    for name in _OBJECTS:
        if numbers.FROM_HEADERS[name] == kind:
            return name
    return CLASSES.get(kind, f"class {kind:#x}")


def command_name(command: int) -> str:
    """Return the name of a control command."""
    return _name(command, "_CTRL_CMD_", unless="_INDEX_") or f"control {command:#x}"


def escape_name(number: int) -> str:
    """Return the name of an ioctl of the resource manager."""
    return _name(number, "NV_ESC_", unless="_CMD_") or f"ioctl {number:#x}"


def uvm_name(number: int) -> str:
    """Return the name of an ioctl of the unified memory driver."""
    return _name(number, "UVM_", unless="_FLAGS_") or f"UVM ioctl {number:#x}"
