"""Programs share work out to processes; Python keeps one more of its own for those."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Any

import pytest


@pytest.fixture(scope="module", autouse=True)
def _tracker_ends() -> Iterator[None]:
    """End the process that looks after what spawned ones leave; it starts again when needed."""
    yield
    tracker: Any = resource_tracker._resource_tracker
    tracker._stop()
