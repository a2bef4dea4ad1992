"""A session of each test's own, in which nothing is known yet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from baregrad.base.options import options
from baregrad.engine.session import Session, use_session


@pytest.fixture(autouse=True)
def session() -> Iterator[Session]:
    with options.override(device="CPU"), use_session(Session()) as opened:
        yield opened
        opened.close()
