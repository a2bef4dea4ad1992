"""Every operator by domain and name."""

from __future__ import annotations

from types import MappingProxyType

from baregrad.io.onnx.call import Function, Key
from baregrad.io.onnx.ops import (
    attention,
    casting,
    control,
    image,
    indexing,
    math,
    microsoft,
    nn,
    quantised,
    recurrent,
    reductions,
    shape,
    signal,
    text,
)

OPERATORS: MappingProxyType[Key, Function] = MappingProxyType({
    **math.OPERATORS, **casting.OPERATORS, **shape.OPERATORS, **reductions.OPERATORS,
    **nn.OPERATORS, **indexing.OPERATORS, **quantised.OPERATORS, **recurrent.OPERATORS,
    **control.OPERATORS, **image.OPERATORS, **signal.OPERATORS, **text.OPERATORS,
    **attention.OPERATORS, **microsoft.OPERATORS,
})  # fmt: skip

# Operators whose results differ from run to run.
NOT_CONSTANT = frozenset(
    ("", name) for name in (
        "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli",
        "Multinomial", "Dropout",
    )
)  # fmt: skip
