"""`torch.accelerator`: whatever GPU there is, without the name of its kind."""

from __future__ import annotations

from baregrad.base.namespaces import unknown_name
from baregrad.cuda import current_device, device_count, empty_cache, is_available, synchronize
from baregrad.tensor.ops.creation import choose_device

__all__ = [
    "current_accelerator", "current_device_idx", "current_device_index", "device_count",
    "empty_cache", "is_available", "synchronize",
]  # fmt: skip

current_device_index = current_device_idx = current_device


def current_accelerator(check_available: bool = False) -> str | None:
    """Return the device of tensors that are put on a GPU, None where there is none."""
    return choose_device("cuda") if is_available() else None


def __getattr__(name: str) -> object:
    raise unknown_name("baregrad.accelerator", name, __all__)
