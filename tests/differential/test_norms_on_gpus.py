"""Sums, norms and softmaxes of rows on a GPU, as near to float64 as docs/precision.md promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.tensor import Tensor
from baregrad.testing.ptx_device import ptx_session

pytestmark = pytest.mark.differential
EPSILON = 1e-5
UNITS = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
# Lengths that a warp has, a block, a block in several turns, and what is summed in stored parts.
LENGTHS = (1, 7, 100, 1024, 4099, 1 << 17)


def sums(x: Any, length: int) -> tuple[Any, Any]:
    return x.sum(-1), length * np.abs(x).sum(-1)


def means(x: Any, length: int) -> tuple[Any, Any]:
    return x.mean(-1), (length + 1) * np.abs(x).mean(-1)


def variances(x: Any, length: int) -> tuple[Any, Any]:
    """Of differences, each of which is off by what the mean is."""
    off, wanted = np.abs(x - x.mean(-1, keepdims=True)), x.var(-1)
    shift = (length + 2) * np.abs(x).mean(-1)
    return wanted, (length + 6) * wanted + 2 * shift * off.mean(-1) + shift**2 * 2.0**-24


def _powers(x: Any, length: int) -> tuple[Any, Any]:
    """Powers of what is left of a row's maximum, and how far their logarithms are off, in units."""
    left = x - x.max(-1, keepdims=True)
    return np.exp(left), length + 6 - left


def softmaxes(x: Any, length: int) -> tuple[Any, Any]:
    powers, units = _powers(x, length)
    wanted = powers / powers.sum(-1, keepdims=True)
    # Another's share of the sum may be off, too.
    return wanted, wanted * (units + (wanted * units).sum(-1, keepdims=True))


def logarithms(x: Any, length: int) -> tuple[Any, Any]:
    powers, units = _powers(x, length)
    total = powers.sum(-1, keepdims=True)
    wanted = x - x.max(-1, keepdims=True) - np.log(total)
    off = (powers * units).sum(-1, keepdims=True) / total
    return wanted, off + 3 * (np.abs(wanted) + np.log(total)) + 1


def rms_norms(x: Any, length: int) -> tuple[Any, Any]:
    wanted = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON)
    return wanted, (length + 8) * np.abs(wanted)


def layer_norms(x: Any, length: int) -> tuple[Any, Any]:
    scale = 1 / np.sqrt(x.var(-1, keepdims=True) + EPSILON)
    wanted = (x - x.mean(-1, keepdims=True)) * scale
    mean = np.abs(x).mean(-1, keepdims=True)
    shift = (length + 2) * mean * scale
    return wanted, (length + 8) * np.abs(wanted) + shift * (2 + np.abs(wanted))


CASES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Any, int], tuple[Any, Any]]]] = {
    "sum": (lambda x: x.sum(-1), sums),
    "mean": (lambda x: x.mean(-1), means),
    "var": (lambda x: x.var(-1, correction=0), variances),
    "softmax": (lambda x: x.softmax(-1), softmaxes),
    "log_softmax": (lambda x: x.log_softmax(-1), logarithms),
    "rms_norm": (lambda x: x.rms_norm(x.shape[-1], None, EPSILON), rms_norms),
    "layer_norm": (lambda x: x.layer_norm(x.shape[-1], None, None, EPSILON), layer_norms),
}


@pytest.mark.few(60)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize("name", CASES)
def test_rows_are_as_near_as_promised(name: str, dtype: str, length: int) -> None:
    run, exact = CASES[name]
    random = np.random.default_rng(length)
    # The sum of a long row would be more than float16 has.
    given = 3 * random.standard_normal((2, length)) + (1.0 if length < 5000 else 0.1)
    with ptx_session():
        x = Tensor(given.astype(np.float32)).cast(dtype).realize()
        found = run(x).cast(dtypes.float32).numpy().astype(np.float64)
        read = x.cast(dtypes.float32).numpy().astype(np.float64)
        del x
    wanted, units = exact(read, min(length, 64 + length // 32))
    rounding = 0.0 if dtype == "float32" else UNITS[dtype]
    # Of float16, what is smaller than its normal numbers, too.
    least = 2.0**-25 if dtype == "float16" else 0.0
    bound = 2.0**-24 * units + rounding * np.abs(wanted) + least + 2.0**-149
    assert found.shape == wanted.shape
    assert (np.abs(found - wanted) <= bound * (1 + rounding)).all()
