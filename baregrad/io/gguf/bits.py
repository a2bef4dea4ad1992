"""Bits of packed blocks as arithmetic of tensors: fields, halves, small codes and small tables.

A block is the last axis of a tensor of bytes. What these functions give is lazy: it becomes part of
whatever reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

from baregrad.dtypes import dtypes
from baregrad.tensor import Tensor


def field(blocks: Tensor, start: int, stop: int, *shape: int) -> Tensor:
    """Bytes `start` to `stop` of each block as int32 from 0 to 255; the last axis gets `shape`."""
    part = blocks[..., start:stop].cast(dtypes.int32)
    return part.reshape(*blocks.shape[:-1], *shape) if shape else part


def signed(codes: Tensor) -> Tensor:
    """Int32 from 0 to 255 as the two's complement of 8 bits: -128 to 127."""
    return (codes ^ 128) - 128


def words(blocks: Tensor, start: int, count: int) -> Tensor:
    """`count` little-endian 16-bit words of each block from byte `start`, as int32 from 0."""
    pairs = field(blocks, start, start + 2 * count, count, 2)
    return pairs[..., 0] | (pairs[..., 1] << 8)


def half(blocks: Tensor, start: int) -> Tensor:
    """The float16 at byte `start` of each block as float32; the last axis has length 1."""
    return half_of(words(blocks, start, 1))


def half_of(codes: Tensor) -> Tensor:
    """Int32 codes of 16 bits as the float16 numbers that they spell, in float32."""
    return codes.cast(dtypes.uint16).bitcast(dtypes.float16).cast(dtypes.float32)


def unpack(codes: Tensor, bits: int, count: int, axis: int = -2) -> Tensor:
    """The `count` fields of `bits` bits that lie in each code, lowest first, along a new axis.

    `axis` is where the new axis stands in the result, counted from its end.
    """
    steps = Tensor.arange(count, dtype=dtypes.int32, device=codes.device) * bits
    wide = codes.unsqueeze(axis) >> steps.reshape(count, *(1,) * (-axis - 1))
    return wide & ((1 << bits) - 1)


def choose(codes: Tensor, table: Sequence[int]) -> Tensor:
    """`table[codes]` for a table of 16 small numbers, without memory: bytes of four words.

    Numbers are from -128 to 127, codes from 0 to 15; the result is int32.
    """
    packed = [
        int.from_bytes(bytes(value & 255 for value in table[at : at + 4]), "little", signed=True)
        for at in range(0, 16, 4)
    ]
    low = (codes < 4).where(packed[0], packed[1])
    high = (codes < 12).where(packed[2], packed[3])
    word = (codes < 8).where(low, high)
    return signed((word >> ((codes & 3) << 3)) & 255)


def odd_parity(codes: Tensor) -> Tensor:
    """1 where the low 8 bits of a code hold an odd number of ones, else 0."""
    folded = codes ^ (codes >> 4)
    folded = folded ^ (folded >> 2)
    return (folded ^ (folded >> 1)) & 1
