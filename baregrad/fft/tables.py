"""The constants of discrete Fourier transforms, made in float64.

Angles are reduced exactly, as integers, before a sine is taken. `sign` is -1 for transforms and
1 for inverse ones. A complex table has its parts along a last axis of 2; a matrix that multiplies
rows of pairs has two rows and two columns for each complex element.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

Table = np.ndarray[Any, Any]


def roots(numerators: Table, n: int, sign: int) -> Table:
    """exp(sign * 2*pi*i * numerators / n), for integers."""
    angle = (numerators % n) * (2 * np.pi / n)
    made = np.cos(angle) + 1j * sign * np.sin(angle)
    # Quarters of a turn are exact.
    for quarter, value in enumerate((1, 1j * sign, -1, -1j * sign)):
        made[(numerators % n) * 4 == quarter * n] = value
    return made


def _pairs(numbers: Table) -> Table:
    return np.stack((numbers.real, numbers.imag), axis=-1)


def real_form(matrix: Table) -> Table:
    """The real matrix (2K, 2N) that multiplies rows of pairs as a complex (K, N) does."""
    rows, columns = matrix.shape
    both = np.stack((_pairs(matrix), _pairs(1j * matrix)), axis=1)
    return both.reshape(2 * rows, 2 * columns)


@lru_cache(1 << 6)
def whole(n: int, sign: int) -> Table:
    """The matrix of a transform of `n`, for rows of pairs: (2n, 2n)."""
    places = np.arange(n)
    return real_form(roots(np.outer(places, places), n, sign))


@lru_cache(1 << 6)
def twiddles(rows: int, columns: int, sign: int) -> Table:
    """The factors between two stages, and i times them: (2, rows, 1, columns, 2)."""
    places = np.multiply.outer(np.arange(rows)[:, None], np.arange(columns))
    found = roots(places, rows * columns, sign)
    return np.stack((_pairs(found), _pairs(1j * found)))


@lru_cache(1 << 6)
def turning(rows: int, columns: int, sign: int) -> Table:
    """`whole(columns)` with a row's factors to the next stage: (rows, 2*columns, 2*columns)."""
    places = np.arange(columns)
    n = rows * columns
    each = np.outer(places, places) * rows
    return np.stack(
        [real_form(roots(each + row * places[None, :], n, sign)) for row in range(rows)]
    )


@lru_cache(1 << 6)
def real_rows(n: int) -> Table:
    """The matrix of the first half of a transform of `n` real numbers: (n, 2*(n//2 + 1))."""
    found = roots(np.outer(np.arange(n), np.arange(n // 2 + 1)), n, -1)
    return _pairs(found).reshape(n, -1)


@lru_cache(1 << 6)
def real_columns(n: int) -> Table:
    """The matrix of n real numbers from the first half of their transform: (2*(n//2 + 1), n).

    It does not scale. The imaginary parts of what real numbers have none of are not read.
    """
    half = n // 2 + 1
    found = roots(np.outer(np.arange(half), np.arange(n)), n, 1)
    twice = np.full((half, 1), 2.0)
    twice[0] = 1.0
    if n % 2 == 0:
        twice[-1] = 1.0
    parts = np.stack((found.real * twice, -found.imag * twice), axis=1)
    parts[0, 1] = 0.0
    if n % 2 == 0:
        parts[-1, 1] = 0.0
    return parts.reshape(2 * half, n)


@lru_cache(1 << 6)
def halves(n: int, sign: int) -> Table:
    """exp(sign * 2*pi*i*k/n) for k of 0 to n/2, and i times them: (2, n//2 + 1, 2)."""
    found = roots(np.arange(n // 2 + 1), n, sign)
    return np.stack((_pairs(found), _pairs(1j * found)))


def smooth(least: int) -> int:
    """The least number of at least `least` with no prime factor above 5."""
    best = 1 << (least - 1).bit_length()
    fives = 1
    while fives < best:
        threes = fives
        while threes < best:
            twos = max(-(-least // threes) - 1, 0).bit_length()
            best = min(best, threes << twos)
            threes *= 3
        fives *= 5
    return best


@lru_cache(1 << 4)
def chirp(n: int, sign: int) -> tuple[Table, Table, int]:
    """Bluestein's factors: exp(sign*pi*i*k*k/n), the transform of their conjugates, its length.

    Both with i times them in front: (2, n, 2) and (2, length, 2). Source: L. Bluestein, "A linear
    filtering approach to the computation of discrete Fourier transform" (1970).
    """
    length = smooth(2 * n - 1)
    factors = roots(np.arange(n) ** 2, 2 * n, sign)
    filter_ = np.zeros(length, np.complex128)
    filter_[:n] = factors.conj()
    filter_[length - n + 1 :] = factors.conj()[:0:-1]
    spectrum = np.fft.fft(filter_)
    made = [np.stack((_pairs(each), _pairs(1j * each))) for each in (factors, spectrum)]
    return made[0], made[1], length


# What pairs are multiplied by: for the real part alone, the conjugate, and i times what is flipped.
REAL = (1.0, 0.0)
CONJUGATE = (1.0, -1.0)
TURN = (-1.0, 1.0)
