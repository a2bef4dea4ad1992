"""A function of ours for each of PyTorch's core operators.

They are found by name, and by `name.overload` where one overload differs.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from baregrad.bridges.aten.elementwise import ELEMENTWISE
from baregrad.bridges.aten.indexing import INDEXING, asks_for_a_count
from baregrad.bridges.aten.layers import LAYERS
from baregrad.bridges.aten.reductions import REDUCTIONS
from baregrad.bridges.aten.resampling import RESAMPLING
from baregrad.bridges.aten.shapes import SHAPES
from baregrad.bridges.aten.strides import STRIDED, refused

Operator = Callable[..., Any]

OPERATORS: MappingProxyType[str, Operator] = MappingProxyType(
    {
        **ELEMENTWISE, **INDEXING, **LAYERS, **REDUCTIONS, **RESAMPLING, **SHAPES, **STRIDED,
    }
)

# Whether a traced node asks its operator for what cannot be done here, where some may.
REFUSED: MappingProxyType[str, Callable[[Any], bool]] = MappingProxyType({
    **dict.fromkeys(STRIDED, refused),
    **dict.fromkeys(
        ("index", "_unsafe_index", "index_put", "_unsafe_index_put"), asks_for_a_count
    ),
})

__all__ = ["OPERATORS", "REFUSED", "Operator"]
