"""Bytes of two words that are put together: one permutation where each byte is of one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from baregrad import Tensor
from baregrad.testing.ptx_device import ptx_session

EVEN = 0x00FF00FF


@pytest.mark.parametrize(("form", "dtype", "joins"), [
    (lambda a, b: (a & 0xFFFF) | (b << 16), "int32", True),
    (lambda a, b: (a & EVEN) | ((b & EVEN) << 8), "int32", True),
    (lambda a, b: ((a >> 8) & EVEN) | (b & ~EVEN), "int32", True),
    (lambda a, b: (a >> 8) | (b << 24), "uint32", True),
    (lambda a, b: (a >> 8) | (b << 24), "int32", False),
    (lambda a, b: (a & 0x7F) | (b << 8), "int32", False),
    (lambda a, b: (a & EVEN) | (b & 0xFFFF), "int32", False),
    (lambda a, b: (a & 0xFF) | (b << 16), "int32", False),
])  # fmt: skip
def test_bytes_of_two_words(form: Callable[[Any, Any], Any], dtype: str, joins: bool) -> None:
    random = np.random.default_rng(4)
    words = [random.integers(-(1 << 31), 1 << 31, 64).astype(np.int32).view(dtype) for _ in "ab"]
    seen = list[Any]()
    with ptx_session() as session:
        a, b = (Tensor(word).realize() for word in words)
        session.watching.observers.append(seen.append)
        found = form(a, b).realize()
        kernel = seen[-1].executable.plan.steps[-1].kernel
        stages = session.backend("NV").compiler.stages(kernel)
        (text,) = [str(stage.result) for stage in stages if stage.name == "render"]
        assert (found.numpy() == form(*words)).all()
        del a, b, found
    assert ("prmt.b32" in text) == joins
