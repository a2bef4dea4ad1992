"""`memory_of`: what a program will take of a device, told without running it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from baregrad.base.options import options
from baregrad.engine.session import Session, current_session, use_session
from baregrad.func.stand_ins import check_callable
from baregrad.runtime.buffers import MemoryStats


def memory_of(program: Callable[[], Any]) -> MemoryStats:
    """Return the bytes in use at the end of a program, and at most, on a device of its own.

    The program is called on the device NULL, which compiles for the host and holds no memory: it is
    to make its tensors itself, on the default device, and what it reads of them are zeros. Sizes
    are rounded up as the host's memory is. Raises ArgumentError for what is no function.
    """
    check_callable(program, "memory_of")
    with use_session(Session()), options.override(device="NULL"):
        # What it returns is in use at the end.
        kept = program()
        stats = current_session().backend("NULL").device.memory_stats()
        del kept
        return stats
