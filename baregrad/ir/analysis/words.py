"""Words of 32 bits that hold narrow numbers, the first in the lowest bits, and their products.

A `WORDS` adds up the products of two words' numbers; matrix units of CPUs do so for tiles of words,
by the instructions that are listed here. A `DOT2` does so for lanes. Source: Intel 64 and IA-32
Architectures Software Developer's Manual, volume 2, "TDPBF16PS", "TDPBSSD/TDPBSUD/TDPBUSD/TDPBUUD"
and "VDPBF16PS".

And what a GPU's unit of four warps makes of sums of 8-bit floats, as it was measured on Hopper.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import ELEMENTWISE, MOVEMENT, WORD_PRODUCTS, Ops, mask_of

Array = npt.NDArray[Any]
WORD_NBYTES = 4
# Words in a row of a tile of factors, which are one instruction, and rows in a tile.
TILE = 16
_SMALLEST = np.float32(2.0**-126)
# Bits below the first one of the largest term that Hopper's sums of 8-bit floats keep, and what
# stands for the exponent of 0.
OCTET_SUM_BITS = 13
_NOWHERE = -1000


class Factors(NamedTuple):
    """The dtypes of the numbers in the words of either factor, and that of their sum."""

    left: DType
    right: DType
    total: DType


# By the instruction that does so for tiles.
PRODUCTS: MappingProxyType[str, Factors] = MappingProxyType({
    "tdpbf16ps": Factors(dtypes.bfloat16, dtypes.bfloat16, dtypes.float32),
    "tdpbssd": Factors(dtypes.int8, dtypes.int8, dtypes.int32),
    "tdpbsud": Factors(dtypes.int8, dtypes.uint8, dtypes.int32),
    "tdpbusd": Factors(dtypes.uint8, dtypes.int8, dtypes.int32),
    "tdpbuud": Factors(dtypes.uint8, dtypes.uint8, dtypes.int32),
})  # fmt: skip
NAMES: MappingProxyType[Factors, str] = MappingProxyType(
    {factors: name for name, factors in PRODUCTS.items()}
)


_PRODUCTS = mask_of(WORD_PRODUCTS)
_THROUGH = mask_of((*ELEMENTWISE, *MOVEMENT, Ops.DETACH, Ops.GUARD))


def byte_products(value: Node) -> list[Node]:
    """The products of words that arithmetic and views make a value of, but for those of sums."""
    if not value.mask & _PRODUCTS:
        return []
    found: dict[Node, None] = {}
    seen, waiting = {value}, [value]
    while waiting:
        node = waiting.pop()
        if node.op in WORD_PRODUCTS:
            found[node] = None
        if node.op.bit & _THROUGH:
            below = [child for child in node.src if child.mask & _PRODUCTS and child not in seen]
            seen.update(below)
            waiting += below
    return list(found)


def in_word(dtype: DType) -> int:
    """How many numbers of a dtype a word holds."""
    return WORD_NBYTES // dtype.itemsize


def numbers_of(words: Array, dtype: DType) -> Array:
    """The numbers in words, along one more axis, the last: float32 or int64."""
    whole = np.ascontiguousarray(words).astype(np.int32, copy=False)
    count = in_word(dtype)
    if dtype.kind == "float":
        halves = whole.view(np.uint16).reshape(*words.shape, count)
        return (halves.astype(np.uint32) << 16).view(np.float32)
    numbers = whole.view(np.int8 if dtype is dtypes.int8 else np.uint8)
    return numbers.reshape(*words.shape, count).astype(np.int64)


def words_value(name: str, left: Array, right: Array) -> Array:
    """What a WORDS of two words gives, exact but for one rounding of a float's."""
    factors = PRODUCTS[name]
    wide = np.float64 if factors.total is dtypes.float32 else np.int64
    a, b = (
        numbers_of(words, dtype).astype(wide)
        for words, dtype in zip((left, right), factors[:2], strict=True)
    )
    with np.errstate(all="ignore"):
        total: Array = (a * b).sum(axis=-1)
        return total.astype(np.float32 if wide is np.float64 else np.int32)


def tiles_value(name: str, total: Array, left: Array, right: Array) -> Array:
    """total[m, n] plus the sum over w of the products of left[m, w] and right[w, n], as tiles do.

    Integers wrap. Floats are added up as the instruction does: first and second halves of words
    separately, each product fused with its addition, a sum for every 16 words; subnormals are 0.
    """
    factors = PRODUCTS[name]
    a, b = (
        numbers_of(words, dtype) for words, dtype in zip((left, right), factors[:2], strict=True)
    )
    if factors.total is dtypes.int32:
        exact: Array = np.einsum("mwi,wni->mn", a, b) + total
        return exact.astype(np.uint64).astype(np.uint32).view(np.int32)
    a, b = flushed(a), flushed(b)
    found = total.astype(np.float32)
    with np.errstate(all="ignore"):
        for first in range(0, left.shape[1], TILE):
            sums = np.zeros((2, *found.shape), np.float32)
            for w in range(first, min(first + TILE, left.shape[1])):
                products = a[None, :, w, :].T.astype(np.float64) * b[w].T[:, None, :]
                sums = flushed((sums + products).astype(np.float32))
            found = flushed(found + flushed(sums[0] + sums[1]))
    return found


def octet_sums(left: Array, right: Array, before: Array, kinds: tuple[DType, DType]) -> Array:
    """What one instruction of Hopper's unit adds up of 8-bit floats, and what was there before.

    left, right: values (..., M, K) and (..., N, K) of two dtypes; before: (..., M, N). Products are
    exact. Of them and of what was there all bits are cut off that lie too far below the largest
    term, whatever the sum comes to, which is cut off as well. How large a product is say the
    exponents of its factors: one of 1.5 by 1.5 is no larger than one of 1 by 1. So an H200 does.
    """
    rows, columns = (
        np.where(side == 0, _NOWHERE, np.maximum(_exponents(side), 1 - _bias(kind)))
        for side, kind in zip((left, right), kinds, strict=True)
    )
    sizes = rows[..., :, None, :] + columns[..., None, :, :]
    with np.errstate(invalid="ignore"):
        products = left[..., :, None, :] * right[..., None, :, :]
        terms = np.concatenate([products, before[..., None]], -1, dtype=np.float64)
        sizes = np.concatenate([sizes, _exponents(before)[..., None]], -1)
        found = _cut(terms, sizes.max(-1, keepdims=True)).sum(-1)
        cut = _cut(found, _exponents(found))
    return np.where(np.isfinite(terms).all(-1), cut, terms.sum(-1))


def _cut(values: Array, size: Array) -> Array:
    """Values without the bits that lie too far below a power of two."""
    unit = np.ldexp(1.0, np.maximum(size, -500) - OCTET_SUM_BITS)
    cut: Array = np.trunc(values / unit) * unit
    return cut


def _exponents(values: Array) -> Array:
    """Exponents of values' first bits, far below all others for 0."""
    found: Array = np.where(values == 0, _NOWHERE, np.frexp(values)[1] - 1)
    return found


def _bias(kind: DType) -> int:
    assert kind.format is not None
    return kind.format.bias


def flushed(values: Array) -> Array:
    """Values with 0 of their sign in place of subnormal ones."""
    small = np.abs(values) < _SMALLEST
    return np.where(small, np.copysign(np.float32(0), values), values).astype(np.float32)
