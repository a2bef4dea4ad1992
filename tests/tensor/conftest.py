"""Tests of tensors run on the reference device, unless TENSOR_TESTS_DEVICE names another."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from baregrad.base.options import options
from baregrad.tensor import Tensor


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with options.override(device=os.environ.get("TENSOR_TESTS_DEVICE", "REF")):
        Tensor.manual_seed(0)
        yield
