"""Integers of every width and what Python makes of dividing them, for the tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.op import Ops

INT = tuple(getattr(dtypes, f"{s}int{b}") for b in (8, 16, 32, 64) for s in ("", "u"))


def floor(x: int, y: int) -> int:
    return x // y if y else 0


def modulo(x: int, y: int) -> int:
    return x % y if y else 0


def truncate(x: int, y: int) -> int:
    size = abs(x) // abs(y) if y else 0
    return size if (x < 0) == (y < 0) else -size


RULES = ((Ops.FLOORDIV, floor), (Ops.MOD, modulo), (Ops.TRUNCDIV, truncate))


def wrap(values: Any, dtype: DType) -> Any:
    mask = (1 << dtype.bits) - 1
    codes = np.array([v & mask for v in values], dtype=object).astype(dtype.storage)
    return codes.view(dtype.numpy)


def edges(dtype: DType) -> list[int]:
    """Values around which quotients change: powers of two, the ends, small numbers."""
    least, most = int(dtype.min), int(dtype.max)
    near = {0, 1, 2, 3, 5, 7, 10, 100, least, least + 1, most, most - 1}
    for shift in range(1, dtype.bits):
        near |= {(1 << shift) - 1, 1 << shift, (1 << shift) + 1}
    near |= {-v for v in near}
    return sorted(v for v in near if least <= v <= most)
