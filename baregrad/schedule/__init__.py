"""Tensor level to kernel level: what to fuse, stage, partition, order and place in memory.

What makes plans is imported once one is made: a process that finds its plans on disk needs none of
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from baregrad.schedule.plan import Decision, Launch, Plan, PlannedBuffer

if TYPE_CHECKING:
    from baregrad.schedule.pipeline import DECISIONS, make_plan, passes, stages

__all__ = [
    "DECISIONS",
    "Decision",
    "Launch",
    "Plan",
    "PlannedBuffer",
    "make_plan",
    "passes",
    "stages",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from baregrad.schedule import pipeline

    # Kept, so that this function runs once a name.
    found = globals()[name] = getattr(pipeline, name)
    return found
