"""What a thread is doing, as numbers: whether it runs, and what it waits for if not."""

from __future__ import annotations

from typing import Final

RUNS: Final = 0
AT_WARP: Final = 1
AT_BARRIER: Final = 2
AT_PHASE: Final = 3
AT_CLUSTER: Final = 4
AT_REGISTERS: Final = 5
DONE: Final = 6
STATES: Final = (
    "runs", "waits for its warp", "waits at a barrier", "waits for a phase",
    "waits for its cluster", "waits for registers", "done",
)  # fmt: skip
