"""Products of lone rows with packed weights on GPUs: whole numbers of 16 bits, by words of bytes.

Sixteen numbers of a row become integers with one scale. That rounds each by 2**-16 of the largest
of them at most, far less than numbers of 16 bits are rounded by themselves. High and low bytes lie
in words of their own, so that a word of four codes is multiplied by one instruction for each.
A group's products are whole numbers, exactly.
"""

from __future__ import annotations

from functools import reduce
from itertools import accumulate

from baregrad.dtypes import dtypes
from baregrad.io.gguf.byte_products import CODES, WORD, WORDS
from baregrad.io.gguf.planes import Planes
from baregrad.tensor import Tensor

# Numbers of the row that share a scale.
RUN = WORD * WORDS
# The largest integer: its high byte is 127 when its low byte is rounded off.
_LARGEST = 32512.0
# Types with minima, of which a word has many codes. Codes of others are floats sooner than integers
# are made of a row.
BY_INTEGERS = ("Q4_1", "Q2_K", "Q4_K", "Q5_K")
# What is 0 in a row: float32 has no such number's inverse, times the largest integer.
_NOTHING = 2.0**-111
# Words of a run in memory: a multiple of the widest load's.
_STRIDE = 12


def split_row(x: Tensor, offset: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """High and low bytes, int32 words (..., runs, 4), of rows (..., width) of float32, and more.

    That is what an integer stands for, float32 (..., runs), and the sum of the numbers that a run's
    integers stand for, likewise; with an `offset`, less that times it. All lie in one array, made
    at once.
    """
    parts = x.reshape(*x.shape[:-1], x.shape[-1] // RUN, WORDS, WORD)
    each = [parts[..., word, place] for word in range(WORDS) for place in range(WORD)]
    largest = reduce(Tensor.maximum, [one.abs() for one in each])
    is_nothing = largest < _NOTHING
    inverse = is_nothing.where(0.0, _LARGEST / largest)
    step = is_nothing.where(0.0, largest / _LARGEST)
    total = reduce(Tensor.add, [_whole(one, inverse) for one in each])
    share = total.cast(dtypes.float32) * (step * -offset if offset else step)
    places = [_whole(parts[..., place], inverse.unsqueeze(-1)) for place in range(WORD)]
    high = [(one + 128) >> 8 for one in places]
    low = [one - (above << 8) for one, above in zip(places, high, strict=True)]
    fields = [_joined(high), _joined(low)]
    fields += [one.bitcast(dtypes.int32).unsqueeze(-1) for one in (step, share)]
    ends = list(accumulate([one.shape[-1] for one in fields]))
    spans = list(zip([0, *ends], ends, strict=False))
    padded = [
        one.pad((start, _STRIDE - stop)) for one, (start, stop) in zip(fields, spans, strict=True)
    ]
    found = reduce(Tensor.bitwise_or, padded).contiguous()
    above, below = (found[..., start:stop] for start, stop in spans[:2])
    step, share = (found[..., start].bitcast(dtypes.float32) for start, _ in spans[2:])
    return above, below, step, share


def _whole(numbers: Tensor, inverse: Tensor) -> Tensor:
    return (numbers * inverse).round().cast(dtypes.int32)


def _joined(octets: list[Tensor]) -> Tensor:
    """Words of four bytes, lowest first."""
    found = octets[0] & 255
    for place, one in enumerate(octets[1:], 1):
        found = found | ((one & 255) << 8 * place)
    return found


def wide_linear(x: Tensor, blocks: Planes, name: str) -> Tensor:
    """Rows (..., width) of float32 times matrices of blocks (..., out, blocks, nbytes): (..., out).

    There is a matrix for each row, or one for all; axes may be 1 in either, as in any product.
    """
    held = CODES[name](blocks)
    lead = len(blocks.shape) - 3
    count, *groups, chain, _ = held.words.shape[lead + 1 :]
    each = (*x.shape[:-1], 1, count, *groups, chain)
    above, below, step, sums = split_row(x, held.offset)
    above, below = above.reshape(*each, WORDS), below.reshape(*each, WORDS)
    step, sums = step.reshape(each), sums.reshape(each)
    codes = [held.words[..., place] for place in range(WORDS)]
    high, low = (_dots(codes, row) for row in (above, below))
    found = ((high << 8) + low).cast(dtypes.float32) * step
    if held.offset:
        found = found + sums
    found = held.scale.unsqueeze(-1) * found
    if held.minimum is not None:
        found = found + held.minimum.unsqueeze(-1) * sums
    return found.sum(tuple(range(-2 - len(groups), 0)))


def _dots(codes: list[Tensor], row: Tensor) -> Tensor:
    """The sums of the products of codes with bytes of the row, word by word (..., 4)."""
    found = codes[0].dot_bytes(row[..., 0])
    for place, word in enumerate(codes[1:], 1):
        found = word.dot_bytes(row[..., place], found)
    return found
