"""The element types of GGUF files: how many elements a block holds, and in how many bytes.

Sources: `enum ggml_type` in ggml/include/ggml.h for the numbers, the block structures of
ggml/src/ggml-common.h for the sizes, both of github.com/ggml-org/llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from baregrad.base.errors import ShapeError, UnsupportedError
from baregrad.dtypes import DType, dtypes
from baregrad.io.excerpt import excerpt


@dataclass(frozen=True, slots=True)
class GgmlType:
    """One element type: `id` is its number in files.

    A block is `block` consecutive elements of a row in `nbytes` bytes. `dtype` is that of the
    elements where they are stored as such, None where they are packed.
    """

    id: int
    name: str
    block: int
    nbytes: int
    dtype: DType | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def is_packed(self) -> bool:
        """Whether a block holds quantised elements and what scales them."""
        return self.dtype is None

    @property
    def bits(self) -> float:
        """Bits that an element takes on average, scales included."""
        return self.nbytes * 8 / self.block

    def row_nbytes(self, width: int) -> int:
        """Bytes of a row of `width` elements. Raises ShapeError where blocks do not divide it."""
        if width % self.block:
            raise ShapeError(
                f"rows of {self.name} are made of whole blocks",
                found=f"{width} elements a row",
                wanted=f"a multiple of {self.block}",
            )
        return width // self.block * self.nbytes


TYPES: tuple[GgmlType, ...] = (
    GgmlType(0, "F32", 1, 4, dtypes.float32),
    GgmlType(1, "F16", 1, 2, dtypes.float16),
    GgmlType(2, "Q4_0", 32, 18),
    GgmlType(3, "Q4_1", 32, 20),
    GgmlType(6, "Q5_0", 32, 22),
    GgmlType(7, "Q5_1", 32, 24),
    GgmlType(8, "Q8_0", 32, 34),
    GgmlType(9, "Q8_1", 32, 36),
    GgmlType(10, "Q2_K", 256, 84),
    GgmlType(11, "Q3_K", 256, 110),
    GgmlType(12, "Q4_K", 256, 144),
    GgmlType(13, "Q5_K", 256, 176),
    GgmlType(14, "Q6_K", 256, 210),
    GgmlType(15, "Q8_K", 256, 292),
    GgmlType(16, "IQ2_XXS", 256, 66),
    GgmlType(17, "IQ2_XS", 256, 74),
    GgmlType(18, "IQ3_XXS", 256, 98),
    GgmlType(19, "IQ1_S", 256, 50),
    GgmlType(20, "IQ4_NL", 32, 18),
    GgmlType(21, "IQ3_S", 256, 110),
    GgmlType(22, "IQ2_S", 256, 82),
    GgmlType(23, "IQ4_XS", 256, 136),
    GgmlType(24, "I8", 1, 1, dtypes.int8),
    GgmlType(25, "I16", 1, 2, dtypes.int16),
    GgmlType(26, "I32", 1, 4, dtypes.int32),
    GgmlType(27, "I64", 1, 8, dtypes.int64),
    GgmlType(28, "F64", 1, 8, dtypes.float64),
    GgmlType(29, "IQ1_M", 256, 56),
    GgmlType(30, "BF16", 1, 2, dtypes.bfloat16),
    GgmlType(34, "TQ1_0", 256, 54),
    GgmlType(35, "TQ2_0", 256, 66),
    GgmlType(39, "MXFP4", 32, 17),
    GgmlType(40, "NVFP4", 64, 36),
    GgmlType(41, "Q1_0", 128, 18),
    GgmlType(42, "Q2_0", 64, 18),
)

# Numbers that files of earlier years may hold and that ggml reads no more.
REMOVED: Mapping[int, str] = MappingProxyType({
    4: "Q4_2", 5: "Q4_3",
    31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8",
    36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8",
})  # fmt: skip

_BY_ID = MappingProxyType({row.id: row for row in TYPES})
_BY_NAME = MappingProxyType({row.name: row for row in TYPES})


def by_id(number: int, what: str = "a tensor") -> GgmlType:
    """Return the type of this number in files. Raises UnsupportedError for any other number.

    `what` names in the error what is of this type.
    """
    found = _BY_ID.get(number)
    if found is not None:
        return found
    if number in REMOVED:
        raise UnsupportedError(
            f"{what} is of a type that was removed from GGUF",
            found=f"type {number}, {REMOVED[number]}",
            hint="convert the model again with a current converter",
        )
    raise UnsupportedError(
        f"{what} is of a type that is not of ggml",
        found=f"type {number}",
        wanted=f"a number of the table, at most {TYPES[-1].id}",
        hint="types of forks are not read: convert the model to one of ggml's",
    )


def by_name(name: str) -> GgmlType:
    """Return the type of this name, in any case. Raises UnsupportedError for an unknown one."""
    found = _BY_NAME.get(name.upper())
    if found is None:
        raise UnsupportedError(
            "an unknown element type", found=excerpt(name), wanted=f"one of {', '.join(_BY_NAME)}"
        )
    return found
