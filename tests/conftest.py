"""Shared settings of the tests: the IR is verified, and nothing is written to the user's cache."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import hypothesis
import pytest

# Before anything reads the options: they are parsed once. A run may still choose its own.
_CACHE = tempfile.TemporaryDirectory(prefix="baregrad-tests-")
os.environ.setdefault("BAREGRAD_VERIFY", "1")
os.environ.setdefault("BAREGRAD_CACHE_DIR", _CACHE.name)
os.environ.setdefault("BAREGRAD_PROGRESS", "off")

# The same examples in every run, so that the verdict on a change does not depend on luck; no
# deadline, since the machine may be busy. `--hypothesis-profile=explore` looks for new ones.
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("steady")


@pytest.fixture(scope="session", autouse=True)
def _cache_folder() -> Iterator[None]:
    """Remove the folder of compiled kernels when the run ends."""
    yield
    _CACHE.cleanup()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse names that differ from process to process, with which tests cannot be shared out."""
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"give the parameters of {item.nodeid} names (ids=...)")
