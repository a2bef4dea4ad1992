"""A machine whose caches hold little, and runs of kernels as they are compiled for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from baregrad.ir.core.node import Node
from baregrad.kernel import lower
from baregrad.kernel.language.schedule import (
    Bind,
    Schedule,
)
from baregrad.render import get
from tests.render.harness import compiled, host
from tests.render.harness import lower as linearised

HUGE = 1 << 40
SMALL_CACHE = replace(host(), l2_bytes=1024, l3_bytes=4096)


def placed(array: Any, offset: int) -> Any:
    """An array of the same values that begins `offset` elements after a line of the cache."""
    room = np.zeros(array.size + 32, array.dtype)
    begin = (-room.ctypes.data % 64) // array.itemsize + offset
    found = room[begin : begin + array.size].reshape(array.shape)
    found[...] = array
    return found


def run(kernel: Node, schedule: Schedule, arrays: list[Any], chunks: int) -> str:
    """Compile and run; the text of the module."""
    program = linearised(lower(kernel, SMALL_CACHE, schedule))
    compiled(program)(arrays, chunks=(0, chunks))
    return get("llvm").render(program, host())


def chunks_of(schedule: Schedule, trips: int) -> int:
    """Into how many chunks the threads' axis of so many iterations falls; 1 without one."""
    found = [step for step in schedule.steps if isinstance(step, Bind) and step.unit == "pool"]
    return -(-trips // found[0].grain) if found else 1
