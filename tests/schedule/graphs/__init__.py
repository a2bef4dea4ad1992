"""Tensor-level graphs by hand, and plans run kernel by kernel in the reference evaluator."""

from __future__ import annotations

from tests.schedule.graphs.by_hand import F32, I64, A, iota, iota_along, param, sink, value
from tests.schedule.graphs.runs import check, contractions, largest_buffer, random_inputs, run_plan

__all__ = [
    "F32",
    "I64",
    "A",
    "check",
    "contractions",
    "iota",
    "iota_along",
    "largest_buffer",
    "param",
    "random_inputs",
    "run_plan",
    "sink",
    "value",
]
