"""Tests of the demonstrations run on the CPU device, unless APP_TESTS_DEVICE names another."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from baregrad.base.options import options


@pytest.fixture(autouse=True, scope="module")
def _device() -> Iterator[None]:
    with options.override(device=os.environ.get("APP_TESTS_DEVICE", "CPU")):
        yield
