"""Weights that stay packed: bytes on the device, numbers only within what reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from baregrad.base.errors import ShapeError
from baregrad.base.options import is_gpu
from baregrad.dtypes import DType, as_dtype, dtypes
from baregrad.io.gguf import grid_blocks, k_blocks, plain_blocks
from baregrad.io.gguf.bits import Blocks
from baregrad.io.gguf.byte_products import CODES, byte_linear
from baregrad.io.gguf.grids import grid_of
from baregrad.io.gguf.planes import Planes, planes_of
from baregrad.io.gguf.types import GgmlType
from baregrad.io.gguf.wide_products import BY_INTEGERS, wide_linear
from baregrad.io.tensors import mapped_tensor
from baregrad.ir.core import index
from baregrad.tensor import Tensor

if TYPE_CHECKING:
    from baregrad.io.gguf.reader import GgufTensor

_BLOCKS: Mapping[str, Callable[[Blocks], Tensor]] = MappingProxyType({
    "Q4_0": plain_blocks.q4_0, "Q4_1": plain_blocks.q4_1,
    "Q5_0": plain_blocks.q5_0, "Q5_1": plain_blocks.q5_1,
    "Q8_0": plain_blocks.q8_0, "Q8_1": plain_blocks.q8_1,
    "Q1_0": plain_blocks.q1_0, "Q2_0": plain_blocks.q2_0,
    "IQ4_NL": plain_blocks.iq4_nl,
    "TQ1_0": plain_blocks.tq1_0, "TQ2_0": plain_blocks.tq2_0,
    "MXFP4": plain_blocks.mxfp4, "NVFP4": plain_blocks.nvfp4,
    "Q2_K": k_blocks.q2_k, "Q3_K": k_blocks.q3_k, "Q4_K": k_blocks.q4_k,
    "Q5_K": k_blocks.q5_k, "Q6_K": k_blocks.q6_k, "Q8_K": k_blocks.q8_k,
    "IQ4_XS": k_blocks.iq4_xs,
})  # fmt: skip
_GRID_BLOCKS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType({
    "IQ1_S": grid_blocks.iq1_s, "IQ1_M": grid_blocks.iq1_m,
    "IQ2_XXS": grid_blocks.iq2_xxs, "IQ2_XS": grid_blocks.iq2_xs, "IQ2_S": grid_blocks.iq2_s,
    "IQ3_XXS": grid_blocks.iq3_xxs, "IQ3_S": grid_blocks.iq3_s,
})  # fmt: skip


# Bytes of a float16 or bfloat16.
HALF_BYTES = 2
# Bytes of a matrix from which on integers are made of the row that it is multiplied with: that may
# be a kernel more, but then four codes are multiplied at once.
LARGE_NBYTES = 8 << 20
# Rows, at most, each of which is multiplied so by itself: what is unpacked for more is numbers.
# (Four layers in 4 bits on an H200: 2, 4 and 8 rows took 494, 844 and 1,567 us, as numbers 2,695,
# 1,572 and 1,581.)
FEW_ROWS = 8


class PackedWeight:
    """A weight of `shape` (..., in) as its file holds it.

    It may be a matrix (out, in), a stack of them (experts, out, in), a table (words, width) or a
    vector. `bytes` is a uint8 tensor (..., bytes of a row); for types that pack nothing it holds
    the elements themselves, in their dtype. `grid` are the codes of the type's points where it has
    some, which weights of one type may share; left out, they are made. `is_exact`: products take
    the other factor's numbers as they are.
    """

    __slots__ = ("_bytes", "grid", "is_exact", "shape", "type")

    def __init__(
        self,
        type: GgmlType,
        shape: tuple[int | object, ...],
        bytes: Tensor,
        grid: Tensor | None = None,
        *,
        is_exact: bool = False,
    ) -> None:
        self.type = type
        self.shape = tuple(shape)
        self.is_exact = is_exact
        self._bytes = bytes
        points = grid_of(type.name)
        if grid is None and points is not None:
            grid = Tensor(points.codes(), device=bytes.device)
        self.grid = grid

    @classmethod
    def from_file(
        cls, tensor: GgufTensor, device: str | None = None, grid: Tensor | None = None
    ) -> PackedWeight:
        """Return a tensor of a file as a weight on a device.

        It stays mapped: on a device that sees host memory nothing is copied or read before use.
        """
        lead = tensor.shape[:-1]
        raw = tensor.raw().reshape(-1).data
        if tensor.type.dtype is not None:
            return cls(tensor.type, tensor.shape,
                       mapped_tensor(raw, tensor.type.dtype, tensor.shape, device))  # fmt: skip
        width = tensor.type.row_nbytes(tensor.shape[-1])
        packed = mapped_tensor(raw, dtypes.uint8, (*lead, width), device)
        return cls(tensor.type, tensor.shape, packed, grid)

    def __repr__(self) -> str:
        return f"PackedWeight({self.type}, {list(self.shape)}, {self.device})"

    @property
    def bytes(self) -> Tensor:
        """The bytes as a file has them, or the elements of a type that packs nothing."""
        return self._bytes

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that the weight is read from."""
        return (self.bytes,) if self.grid is None else (self.bytes, self.grid)

    @property
    def device(self) -> str:
        """The name of the device that holds the bytes."""
        return self.bytes.device

    @property
    def nbytes(self) -> int:
        """Bytes that the weight takes."""
        return int(np.prod(self.bytes.shape)) * self.bytes.dtype.itemsize

    def dense(self, dtype: object = dtypes.float32) -> Tensor:
        """Return the numbers, of `shape`, lazily: they become part of what reads them.

        They are computed in float32 as ggml does, then rounded to `dtype`.
        """
        wanted: DType = as_dtype(dtype)
        if not self.type.is_packed:
            return self.bytes.cast(wanted)
        if self.grid is None:
            values = _BLOCKS[self.type.name](self._blocks())
        else:
            values = _GRID_BLOCKS[self.type.name](self._byte_blocks(), self.grid)
        return values.flatten(-2).cast(wanted)

    def _blocks(self) -> Blocks:
        return self._byte_blocks()

    def _byte_blocks(self) -> Tensor:
        count = self.bytes.shape[-1] // self.type.nbytes
        return self.bytes.reshape(*self.bytes.shape[:-1], count, self.type.nbytes)

    def _has_words(self) -> bool:
        """Whether rows that are multiplied with the weight are rounded to bytes."""
        return self.type.name in CODES and not is_gpu(self.device)

    def in_planes(self) -> PackedWeight:
        """Return the weight with the fields of its blocks apart, in memory, for wide loads.

        Itself where it packs nothing, or its blocks are read in other ways.
        """
        if not self.type.is_packed or self.grid is not None:
            return self
        planes = planes_of(self._byte_blocks(), _BLOCKS[self.type.name])
        if planes is None:
            return self
        return PlanarWeight(self.type, self.shape, planes, is_exact=self.is_exact)

    def at(self, index: Tensor | int | slice) -> PackedWeight:
        """Return the part at an index of the first axis, packed: rows, or matrices of a stack."""
        return self._with(self.bytes[index])

    def exactly(self) -> PackedWeight:
        """Return the weight with products that take the other factor's numbers as they are."""
        return PackedWeight(self.type, self.shape, self.bytes, self.grid, is_exact=True)

    def _with(self, part: Tensor) -> PackedWeight:
        """The same weight with other rows of bytes."""
        shape = (*part.shape[:-1], self.shape[-1])
        return PackedWeight(self.type, shape, part, self.grid, is_exact=self.is_exact)

    def raw(self) -> npt.NDArray[np.uint8]:
        """Return the bytes as NumPy's, a copy where they are not in the host's memory."""
        found = self.bytes if self.type.is_packed else self.bytes.flatten()
        raw = np.ascontiguousarray(found.detach()._raw())
        return raw.reshape(-1).view(np.uint8)

    def as_rows(self) -> PackedWeight:
        """Return the weight as one matrix, whatever its leading axes were."""
        return self._with(self.bytes.reshape(-1, self.bytes.shape[-1]))

    def rows(self, index: Tensor) -> Tensor:
        """Return `dense()[index]` for a tensor of integers; only those rows are read."""
        return self.at(index).dense()

    def linear(self, x: Tensor, *, exact: bool = False, wide: bool = False) -> Tensor:
        """Return `x` (..., in) times the transposed matrix: (..., out), in the dtype of `x`.

        wide: in float32, as it is summed, whatever the dtype of `x`.

        Off GPUs the rows of `x` are rounded to bytes with a scale for each block, as llama.cpp
        rounds them, for the types that `CODES` names; on GPUs few rows of 16-bit floats become
        integers of 16 bits before large matrices of the types that `BY_INTEGERS` names. Neither
        where they are to be `exact`, or carry gradients. Of a row so rounded that is not finite
        nothing is. Raises ShapeError for a weight that is no matrix, and rows of another width.
        """
        if len(self.shape) != 2:
            raise ShapeError(
                "a product takes a matrix", found=f"a weight of shape {list(self.shape)}",
                wanted="(out, in)", hint="at(index) gives one matrix of a stack",
            )  # fmt: skip
        if x.shape[-1:] != self.shape[-1:]:
            raise ShapeError(
                "rows are of another width than the matrix", found=list(x.shape),
                wanted=f"(..., {self.shape[-1]})",
            )  # fmt: skip
        if not (exact or self.is_exact or x.requires_grad) and self._has_words():
            rounded = byte_linear(x.cast(dtypes.float32), self._byte_blocks(), self.type.name)
            return rounded if wide else rounded.cast(x.dtype)
        if all(size == 1 for size in x.shape[:-1]):
            # A lone row is as fast with the numbers as they are.
            single = (self.exactly() if exact else self)._times(x)
            return single if wide else single.cast(x.dtype)
        few = None if exact else self._few(x)
        if few is not None:
            return few if wide else few.cast(x.dtype)
        matrix = self.dense(x.dtype).T
        # Matrix units take numbers of 16 bits, and sum in float32.
        if wide:
            x, matrix = x.cast(dtypes.float32), matrix.cast(dtypes.float32)
        result: Tensor = x @ matrix
        return result

    def each(self, x: Tensor) -> Tensor:
        """Return rows `x` (..., in) each times a matrix of its own: (..., out), in their dtype.

        The weight is a stack (..., out, in), whose leading axes are those of `x`, or 1. Rows are
        rounded as `linear` rounds them. Each matrix may have several rows, (..., rows, in), which
        are multiplied as numbers: (..., rows, out).
        """
        if x.ndim == len(self.shape):
            product: Tensor = x @ self.dense(x.dtype).mT
            return product
        if not (self.is_exact or x.requires_grad) and self._has_words():
            return byte_linear(
                x.cast(dtypes.float32), self._byte_blocks(), self.type.name
            ).cast(x.dtype)
        return self._lone(x).cast(x.dtype)

    def _lone(self, x: Tensor) -> Tensor:
        """Rows (..., in), each times a matrix of its own, as numbers: (..., out)."""
        found: Tensor = (x.unsqueeze(-2) @ self.dense(x.dtype).mT).squeeze(-2)
        return found

    def _few(self, x: Tensor) -> Tensor | None:
        """The products (..., out) of few rows (..., in) in float32, where each is as a lone one."""
        return None

    def _times(self, row: Tensor) -> Tensor:
        """The products (1, ..., out) of a lone row (1, ..., in) in float32."""
        found: Tensor = row.cast(dtypes.float32) @ self.dense().T
        return found


class PlanarWeight(PackedWeight):
    """A weight whose blocks are planes: each field of all blocks lies in an array of its own."""

    __slots__ = ("planes",)

    def __init__(
        self,
        type: GgmlType,
        shape: tuple[int | object, ...],
        planes: Planes,
        *,
        is_exact: bool = False,
    ) -> None:
        self.type = type
        self.shape = tuple(shape)
        self.planes = planes
        self.grid = None
        self.is_exact = is_exact

    @property
    def bytes(self) -> Tensor:
        """The bytes as a file has them, lazily."""
        return self.planes.joined().flatten(-2)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that the weight is read from."""
        return self.planes.tensors

    @property
    def device(self) -> str:
        """The name of the device that holds the planes."""
        return self.planes.device

    @property
    def nbytes(self) -> int:
        """Bytes that the weight takes."""
        return self.planes.nbytes

    def _blocks(self) -> Blocks:
        return self.planes

    def _has_words(self) -> bool:
        """What lies in planes is never multiplied by rows of bytes."""
        return False

    def _times(self, row: Tensor) -> Tensor:
        if not self.planes.has_words:
            return super()._times(row)
        if self.nbytes >= LARGE_NBYTES and self._takes_integers(row):
            vector = row.cast(dtypes.float32).flatten()
            found = wide_linear(vector, self.planes, self.type.name)
        else:
            blocks = self.planes.times(row.cast(dtypes.float32).flatten())
            found = _BLOCKS[self.type.name](blocks).flatten(1).sum(-1)
        return found.reshape(*row.shape[:-1], self.shape[0])

    def _few(self, x: Tensor) -> Tensor | None:
        is_large = self.nbytes >= LARGE_NBYTES and self._takes_integers(x)
        if not is_large or index.upper(index.product(x.shape[:-1])) > FEW_ROWS:
            return None
        return wide_linear(x.cast(dtypes.float32), self.planes, self.type.name)

    def _lone(self, x: Tensor) -> Tensor:
        if not self._takes_integers(x):
            return super()._lone(x)
        return wide_linear(x.cast(dtypes.float32), self.planes, self.type.name)

    def _takes_integers(self, x: Tensor) -> bool:
        """Whether rows are rounded so much that integers of 16 bits stand for their numbers."""
        is_one = self.planes.has_words and self.type.name in BY_INTEGERS and not self.is_exact
        return is_one and x.dtype.itemsize == HALF_BYTES and not x.requires_grad

    def in_planes(self) -> PackedWeight:
        """Return the weight itself."""
        return self

    def exactly(self) -> PackedWeight:
        """Return the weight with products that take the other factor's numbers as they are."""
        return PlanarWeight(self.type, self.shape, self.planes, is_exact=True)

    def at(self, index: Tensor | int | slice) -> PackedWeight:
        """Return the part at an index of the first axis, packed: rows, or matrices of a stack."""
        part = self.planes.at(index)
        return self._of(part, (*part.shape[:-2], self.shape[-1]))

    def above(self, *others: PlanarWeight) -> PlanarWeight:
        """Return the rows of this matrix, then those of others of its type, in memory."""
        planes = self.planes.above(*[one.planes for one in others])
        return self._of(planes, (planes.shape[0], self.shape[-1]))

    def as_rows(self) -> PackedWeight:
        """Return the weight as one matrix, whatever its leading axes were."""
        rows = self.planes.as_rows()
        return self._of(rows, (rows.shape[0], self.shape[-1]))

    def _of(self, planes: Planes, shape: tuple[int | object, ...]) -> PlanarWeight:
        """The same weight with other planes."""
        return PlanarWeight(self.type, shape, planes, is_exact=self.is_exact)
