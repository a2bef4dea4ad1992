"""Kernel level to loop level to linear level: schedules, lowering, linearisation, search."""

from baregrad.kernel.analysis import Cost, Facts, cost_of, facts_of
from baregrad.kernel.apply import apply_schedule
from baregrad.kernel.codegen import codegen_passes, to_linear
from baregrad.kernel.heuristic import Choice, choose, choose_schedule
from baregrad.kernel.lower import lower
from baregrad.kernel.schedule_value import Schedule, parse_schedule
from baregrad.kernel.threads import grid_size

__all__ = [
    "Choice",
    "Cost",
    "Facts",
    "Schedule",
    "apply_schedule",
    "choose",
    "choose_schedule",
    "codegen_passes",
    "cost_of",
    "facts_of",
    "grid_size",
    "lower",
    "parse_schedule",
    "to_linear",
]
