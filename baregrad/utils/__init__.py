"""What PyTorch's `torch.utils` has of ours, under its names: data sets, checkpoints of activations.

Nothing lives here but names; imports `data` and `func`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from baregrad.base.namespaces import unknown_name

if TYPE_CHECKING:
    from baregrad.utils import checkpoint as checkpoint
    from baregrad.utils import data as data

__all__ = ["checkpoint", "data"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise unknown_name("baregrad.utils", name, __all__)
