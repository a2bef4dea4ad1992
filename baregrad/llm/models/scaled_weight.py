"""Weights whose file keeps a scale beside them: one number, or one for each matrix of a stack.

Files of NVFP4 have such, since the blocks' own scales reach no further than 448.
"""

from __future__ import annotations

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import as_dtype, dtypes
from baregrad.io.gguf import PackedWeight
from baregrad.tensor import Tensor


class ScaledWeight(PackedWeight):
    """Another weight's numbers times a scale in float32, of shape () or that of leading axes."""

    __slots__ = ("scale", "weight")

    def __init__(self, weight: PackedWeight, scale: Tensor) -> None:
        self.weight = weight
        self.scale = scale
        self.type, self.shape, self.grid = weight.type, weight.shape, weight.grid
        self.is_exact = weight.is_exact

    @property
    def bytes(self) -> Tensor:
        """The bytes of the weight that is scaled."""
        return self.weight.bytes

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that the weight is read from."""
        return (*self.weight.tensors, self.scale)

    @property
    def device(self) -> str:
        """The name of the device that holds the bytes."""
        return self.weight.device

    @property
    def nbytes(self) -> int:
        """Bytes that the weight takes, its scale aside."""
        return self.weight.nbytes

    def dense(self, dtype: object = dtypes.float32) -> Tensor:
        """Return the numbers, scaled in float32 and rounded to `dtype`, lazily."""
        found, scale = self.weight.dense(), self.scale
        # Leading axes have scales; the others are the matrix's.
        scale = scale.reshape(*scale.shape, *[1] * (found.ndim - scale.ndim))
        return (found * scale).cast(as_dtype(dtype))

    def in_planes(self) -> PackedWeight:
        """Return the weight with the fields of its blocks apart (see `PackedWeight`)."""
        return ScaledWeight(self.weight.in_planes(), self.scale)

    def exactly(self) -> PackedWeight:
        """Return the weight with products that take activations as they are."""
        return ScaledWeight(self.weight.exactly(), self.scale)

    def at(self, index: Tensor | int | slice) -> PackedWeight:
        """Return the part at an index of the first axis: rows, or matrices of a stack."""
        part = self.weight.at(index)
        return ScaledWeight(part, self.scale[index] if self.scale.ndim else self.scale)

    def as_rows(self) -> PackedWeight:
        """Nothing asks a scaled weight for its rows: files are written without the scale."""
        raise CompilerBug("rows of a scaled weight", found=repr(self))

    def each(self, x: Tensor) -> Tensor:
        """Return rows each times a matrix of its own (see `PackedWeight`)."""
        product, scale = self.weight.each(x), self.scale.cast(x.dtype)
        return product * scale.reshape(*scale.shape, *[1] * (product.ndim - scale.ndim))

    def linear(self, x: Tensor, *, exact: bool = False, wide: bool = False) -> Tensor:
        """Return `x` (..., in) times the transposed matrix (see `PackedWeight`)."""
        product = self.weight.linear(x, exact=exact, wide=wide)
        found: Tensor = product * self.scale.cast(product.dtype)
        return found
