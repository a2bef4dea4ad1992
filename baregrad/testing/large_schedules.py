"""The CPU with schedules that otherwise only large arrays have, for programs on small ones.

Threads share loops of a few iterations, chunks have several, and what is written passes the caches
by.
"""

from __future__ import annotations

from dataclasses import replace

from baregrad.engine.backends import cpu_backend, host_target
from baregrad.engine.session import Session

ALONE_NS = 1.0
CHUNK_NS = 5.0
STREAMED_BYTES = 64


def use_large_schedules(session: Session) -> None:
    """Give a session a device CPU that takes every array for a large one."""
    target = replace(
        host_target(), alone_ns=ALONE_NS, chunk_ns=CHUNK_NS, streamed_bytes=STREAMED_BYTES,
        streamed_row_bytes=STREAMED_BYTES,
    )
    session.adopt(cpu_backend("CPU", target))
