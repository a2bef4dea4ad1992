"""What PyTorch has of ours in other places, under its names: data sets, checkpoints, settings.

Nothing lives here but names; imports `data`, `func` and `tensor`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from baregrad.base.namespaces import unknown_name

if TYPE_CHECKING:
    from baregrad.utils import backends as backends
    from baregrad.utils import checkpoint as checkpoint
    from baregrad.utils import data as data

__all__ = ["backends", "checkpoint", "data"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise unknown_name("baregrad.utils", name, __all__)
