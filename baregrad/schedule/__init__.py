"""Tensor level to kernel level: what to fuse, stage, partition, order and place in memory."""

from __future__ import annotations

from baregrad.schedule.pipeline import DECISIONS, make_plan, passes, stages
from baregrad.schedule.plan import Decision, Launch, Plan, PlannedBuffer

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
