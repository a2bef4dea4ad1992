"""The CPU with schedules that otherwise only large arrays have, for programs on small ones.

Threads share loops of a few iterations, chunks have several, and what is written passes the caches
by. That is so for several machines in turn: with this one's vectors and with those of the older
ones whose code it runs, with its own cores and caches, and with more cores and caches so small that
products are made in panels.
"""

from __future__ import annotations

from dataclasses import replace

from baregrad.engine.backends import cpu_backend, host_target
from baregrad.engine.session import Session
from baregrad.target.cpu import CPU_ROWS, KIB, CpuTarget

ALONE_NS = 1.0
CHUNK_NS = 5.0
STREAMED_BYTES = 64
CORES = 16
L1_BYTES, L2_BYTES, L3_BYTES = 16 * KIB, 32 * KIB, 128 * KIB


def machines() -> tuple[CpuTarget, ...]:
    """The machines, this one first."""
    host = host_target()
    older = [
        row
        for row in CPU_ROWS
        if row.architecture == host.architecture and row.name != host.name
        and set(row.needs) <= set(host.features)
    ]
    large = [
        replace(
            row, alone_ns=ALONE_NS, chunk_ns=CHUNK_NS, streamed_bytes=STREAMED_BYTES,
            streamed_row_bytes=STREAMED_BYTES,
        )
        for row in (host, *older)
    ]
    return (*large, *(
        replace(row, cores=CORES, l1_bytes=L1_BYTES, l2_bytes=L2_BYTES, l3_bytes=L3_BYTES)
        for row in large
    ))


def use_large_schedules(session: Session, machine: int = 0) -> None:
    """Give a session a device CPU that takes every array for a large one.

    machine: which of `machines`, modulo their number.
    """
    found = machines()
    session.adopt(cpu_backend("CPU", found[machine % len(found)]))
