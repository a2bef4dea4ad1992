"""`torch.distributed`, as far as programs ask whether there is more than one process: there is not.

PyTorch that is built without it says the same.
"""

from __future__ import annotations

from baregrad.base.errors import UnsupportedError
from baregrad.base.namespaces import unknown_name

__all__ = ["get_rank", "get_world_size", "init_process_group", "is_available", "is_initialized",
           "is_torchelastic_launched"]  # fmt: skip


def is_available() -> bool:
    """Return false: a program is one process here."""
    return False


is_initialized = is_torchelastic_launched = is_available


def init_process_group(*args: object, **kwargs: object) -> None:
    """Raise UnsupportedError: there are no groups of processes."""
    raise UnsupportedError(
        "a program is one process here", found="init_process_group()",
        hint="run it without torchrun; nn.DataParallel is a module on one device",
    )


def get_rank(group: object = None) -> int:
    """Return -1, which PyTorch gives to processes that are in no group."""
    return -1


get_world_size = get_rank


def __getattr__(name: str) -> object:
    raise unknown_name("baregrad.distributed", name, __all__)
