"""The vendor's names of classes and control commands, for messages.

Sources: SDK `class/cl*.h`, `ctrl/*`.
"""

from __future__ import annotations

from baregrad.runtime.nvidia.abi import numbers

# The classes of `target/nvidia.py`.
CLASSES = {
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
}

_CLASSES = {
    **CLASSES,
    **{
        getattr(numbers, name): name
        for name in (
            "NV01_ROOT_CLIENT", "NV01_MEMORY_SYSTEM", "NV01_MEMORY_LOCAL_USER",
            "NV01_MEMORY_SYSTEM_OS_DESCRIPTOR", "NV01_DEVICE_0", "NV20_SUBDEVICE_0",
            "FERMI_VASPACE_A", "FERMI_CONTEXT_SHARE_A", "KEPLER_CHANNEL_GROUP_A", "GT200_DEBUGGER",
        )
    },
}  # fmt: skip
_COMMANDS = {
    value: name
    for name, value in numbers.FROM_HEADERS.items()
    if "_CTRL_" in name and "_INDEX_" not in name
}
_ESCAPES = {v: k for k, v in numbers.FROM_HEADERS.items() if k.startswith("NV_ESC_")}
_UVM = {
    v: k for k, v in numbers.FROM_HEADERS.items() if k.startswith("UVM_") and "_FLAGS_" not in k
}


def class_name(kind: int) -> str:
    """Return the name of a class of objects."""
    return _CLASSES.get(kind, f"class {kind:#x}")


def command_name(command: int) -> str:
    """Return the name of a control command."""
    return _COMMANDS.get(command, f"control {command:#x}")


def escape_name(number: int) -> str:
    """Return the name of an ioctl of the resource manager."""
    return _ESCAPES.get(number, f"ioctl {number:#x}")


def uvm_name(number: int) -> str:
    """Return the name of an ioctl of the unified memory driver."""
    return _UVM.get(number, f"UVM ioctl {number:#x}")
