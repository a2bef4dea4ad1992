"""Work that a side is ready to do, how it is timed, and what of its results is kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from baregrad.apps.bench_measure import PAUSE_S, Array

# A block of calls takes about so long, and there are so many.
BLOCK_S = 0.02
BLOCKS = 5
MOST_CALLS = 500
# A call as long as this is timed once.
LONG_S = 1.0
WARM_CALLS = 5
# A GPU that was idle for some seconds is slow at first: it works so long before anything is timed.
WARM_S = 0.15
# Of larger results, only so many elements are kept.
KEPT = 1 << 20
_ENDS = 4096


@dataclass(frozen=True, slots=True)
class SideWork:
    """Work that is ready: `run` does it, not waiting for its end; `outputs` gives its results.

    `calls`: how many times a run does the work, over as many sets of inputs. `exact` gives the
    results in wider numbers, where a side can, and `rounded` those of the same work with one more
    rounding in each step, numbered by how they fall. `facts` are told beside the times.
    """

    run: Callable[[], Any]
    outputs: Callable[[], list[Array]]
    calls: int = 1
    exact: Callable[[], list[Array]] | None = None
    rounded: Callable[[int], list[Array]] | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def warm_up(work: SideWork, wait: Callable[[], Any]) -> float:
    """Run until the work is compiled, captured and warm; return what a run took at last."""
    took = 0.0
    for number in range(WARM_CALLS):
        begin = time.perf_counter()
        work.run()
        wait()
        took = time.perf_counter() - begin
        # A second run captures, and may compile anew: a third tells how long one takes.
        if number > 1 and took > LONG_S:
            break
    return max(took, 1e-7)


def time_work(
    work: SideWork, wait: Callable[[], Any], once: float, is_brief: bool = False,
    pause_s: float = 0.0,
) -> list[float]:
    """Return seconds for each call of the work, block by block; a run took about `once`.

    `is_brief`: one run is enough, to see that it works. `pause_s`: seconds of rest before each
    block, in which a GPU's power comes down that limits its clocks.
    """
    # Threads of the other side's pool spin for a while when their work is done.
    time.sleep(0.0 if is_brief else PAUSE_S)
    if is_brief or once > LONG_S:
        return [_block(work, wait, 1)]
    count = max(1, min(MOST_CALLS, round(BLOCK_S / once)))
    blocks = BLOCKS if once < LONG_S / 10 else 3
    begin = time.perf_counter()
    _block(work, wait, max(1, count // 4))
    while time.perf_counter() - begin < WARM_S:
        _block(work, wait, max(1, count // 4))
    times = []
    for _ in range(blocks):
        time.sleep(pause_s)
        times.append(_block(work, wait, count))
    return times


def _block(work: SideWork, wait: Callable[[], Any], count: int) -> float:
    run = work.run
    wait()
    begin = time.perf_counter()
    for _ in range(count):
        run()
    wait()
    return (time.perf_counter() - begin) / (count * work.calls)


def kept(arrays: Sequence[Array]) -> list[Array]:
    """Return results, or of large ones both ends and elements at even distances between."""
    return [_kept(array) for array in arrays]


def _kept(array: Array) -> Array:
    if array.size <= KEPT:
        return array
    flat = array.reshape(-1)
    # An odd step meets every place in a tile sooner or later.
    step = (array.size // KEPT) | 1
    return np.concatenate([flat[:_ENDS], flat[::step], flat[-_ENDS:]])
