"""A function of ours for each of PyTorch's core operators.

They are found by name, and by `name.overload` where one overload differs.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from baregrad.bridges.aten.elementwise import ELEMENTWISE
from baregrad.bridges.aten.indexing import INDEXING
from baregrad.bridges.aten.layers import LAYERS
from baregrad.bridges.aten.reductions import REDUCTIONS
from baregrad.bridges.aten.resampling import RESAMPLING
from baregrad.bridges.aten.shapes import SHAPES
from baregrad.bridges.aten.strides import STRIDED

Operator = Callable[..., Any]

OPERATORS: MappingProxyType[str, Operator] = MappingProxyType(
    {
        **ELEMENTWISE, **INDEXING, **LAYERS, **REDUCTIONS, **RESAMPLING, **SHAPES, **STRIDED,
    }
)

__all__ = ["OPERATORS", "Operator"]
