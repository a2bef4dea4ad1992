"""The user's arrays by family, gradients as one table, randomness, indexing."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from baregrad.tensor.tensor import Tensor

__all__ = ["Tensor"]


class _Room(ModuleType):
    """This room, which is PyTorch's function `tensor` as well: `baregrad.tensor([1.0, 2.0])`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return a leaf of a copy of data."""
        from baregrad.tensor import torch_names

        return torch_names.tensor(*args, **kwargs)


sys.modules[__name__].__class__ = _Room
