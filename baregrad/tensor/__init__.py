"""The user's arrays by family, gradients as one table, randomness, indexing."""

from __future__ import annotations

from baregrad.tensor.tensor import Tensor

__all__ = ["Tensor"]
