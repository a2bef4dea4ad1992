"""Products of few rows with packed weights on GPUs: whole numbers of 16 bits, by words of bytes.

Sixteen numbers of a row become integers with one scale, a power of two: no division makes them, and
what bfloat16 holds is as it was, if it is no less than a 64th of the largest of them. Others are
rounded by 2**-14 of that at most, less than numbers of 16 bits are rounded by themselves.
They lie two in a word, so that a word of four codes is multiplied by two instructions. A group's
products are whole numbers, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from baregrad.dtypes import dtypes
from baregrad.io.gguf.byte_products import CODES, EACH, WORD, WORDS
from baregrad.io.gguf.planes import Planes
from baregrad.tensor import Tensor
from baregrad.tensor.ops.products import dot_halves

# Numbers of the row that share a scale.
RUN = WORD * WORDS
# Where the exponent of a float32 lies, and what it is too large by.
_EXPONENT, _PLACE, _BIAS = 0x7F800000, 23, 127
# Whatever that is multiplied by: a machine's integers of infinity and of NaN may be any.
_NO_NUMBER = 0x7FC00000
# The largest number is from 2**13 on and below 2**14, which half of a word has room for, rounded.
_SCALE = 13
# Types with minima, of which a word has many codes, and of six bits: a step of a model of a billion
# weights took 735 us by floats and 683 by integers on an H200. Codes of others are floats sooner
# than integers are made of a row.
BY_INTEGERS = ("Q4_1", "Q2_K", "Q4_K", "Q5_K", "Q6_K")
# The exponent, as it lies there, below which all of a run is 0: what a step stands for is a number.
_NOTHING = _SCALE + 1
# What a float32 is added to, to be rounded to an integer: 1.5 * 2**23, which has room for a sign.
_ROUNDING = 12582912.0


def whole_row(
    runs: Tensor, offset: int = 0, units: Tensor | float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Integers, int32 words of two (..., runs, 4, 2), of float32 (..., runs, 16), and more.

    That is what an integer stands for times its run's `units` (runs,), float32 (..., runs), and
    the sum of the numbers that a run's integers stand for, likewise; with an `offset`, less that
    times it. All are lazy: on a GPU the threads of a product make them for all of their rows.
    """
    *lead, count, _ = runs.shape
    parts = runs.reshape(*lead, count, WORDS, WORD)
    each = [parts[..., word, place] for word in range(WORDS) for place in range(WORD)]
    inverse, step = _scales(reduce(Tensor.maximum, [one.abs() for one in each]))
    scale = inverse.unsqueeze(-1)
    codes = [_rounded(parts[..., place], scale) for place in range(WORD)]
    pairs = [(codes[at] & 0xFFFF) | (codes[at + 1] << 16) for at in (0, 2)]
    ones = [Tensor.full_like(pairs[0][..., 0], EACH)] * WORDS
    words = Tensor.stack(pairs, dim=-1)
    share = _dots(ones, words).cast(dtypes.float32) * step
    return words, step * units, share * -offset if offset else share


def _scales(largest: Tensor) -> tuple[Tensor, Tensor]:
    """What numbers up to a positive one are multiplied by to become integers, and its inverse.

    Of what is no number the inverse is none, and so is nothing that it is multiplied by.
    """
    exponent = largest.bitcast(dtypes.int32) & _EXPONENT
    is_nothing = exponent < (_NOTHING << _PLACE)
    inverse = is_nothing.where(0, (2 * _BIAS + _SCALE << _PLACE) - exponent)
    step = is_nothing.where(0, exponent - (_SCALE << _PLACE))
    step = (exponent == _EXPONENT).where(_NO_NUMBER, step)
    return inverse.bitcast(dtypes.float32), step.bitcast(dtypes.float32)


def _rounded(values: Tensor, inverse: Tensor) -> Tensor:
    """Integers, as int32, in the low 16 bits; those above say nothing."""
    found = values.fma(inverse, Tensor.full_like(inverse, _ROUNDING))
    return found.bitcast(dtypes.int32)


def wide_linear(x: Tensor, blocks: Planes, name: str) -> Tensor:
    """Rows (..., width) of float32 times matrices of blocks (..., out, blocks, nbytes): (..., out).

    There is a matrix for each row, or one for all; axes may be 1 in either, as in any product.
    """
    held = CODES[name](blocks)
    lead = len(blocks.shape) - 3
    axes = held.words.shape[lead + 1 : -1]
    # What a thread has in one word lies far apart, what neighbours have side by side.
    first, within = x.ndim - 1, len(axes) + held.within
    order = (within, *[axis for axis in range(len(axes)) if axis != within])
    runs = _permuted(x.reshape(*x.shape[:-1], *axes, RUN), first, order).flatten(first, -2)
    back = sorted(range(len(axes)), key=order.__getitem__)
    sizes = tuple([axes[axis] for axis in order])
    units: Tensor | float = 1.0
    if held.units is not None:
        alike = held.units.unsqueeze(-1).expand(sizes[0], runs.shape[first] // sizes[0])
        units = alike.flatten()
    row, step, sums = (
        _permuted(one.unflatten(first, sizes), first, back).unsqueeze(first)
        for one in whole_row(runs, held.offset, units)
    )
    codes = [held.words[..., place] for place in range(WORDS)]
    found = _dots(codes, row).cast(dtypes.float32) * step
    if held.offset:
        found = found + sums
    found = held.scale.unsqueeze(-1) * found
    if held.minimum is not None:
        found = found + held.minimum.unsqueeze(-1) * sums
    return found.sum(tuple(range(-len(axes), 0)))


def _permuted(values: Tensor, first: int, order: Sequence[int]) -> Tensor:
    """Values whose axes from `first` on, as many as there are in an order, are in that."""
    last = first + len(order)
    places = (*range(first), *[first + axis for axis in order], *range(last, values.ndim))
    return values.permute(*places)


def _dots(codes: list[Tensor], row: Tensor) -> Tensor:
    """The sums of the products of codes with integers of the row, word by word (..., 4, 2)."""
    found: Tensor | int = 0
    for place, word in enumerate(codes):
        found = dot_halves(word, row[..., place, 0], row[..., place, 1], found)
    assert isinstance(found, Tensor)
    return found
