"""Kernel level to loop level to linear level: schedules, lowering, linearisation, search."""

from baregrad.kernel.applying.apply import apply_schedule
from baregrad.kernel.codegen import codegen_passes, to_linear
from baregrad.kernel.facts.analysis import Cost, Facts, cost_of, facts_of
from baregrad.kernel.gpu.threads import grid_size
from baregrad.kernel.language.schedule import Schedule, parse_schedule
from baregrad.kernel.lowering import Lowering, lower, prepare_pass
from baregrad.kernel.planning.first_schedule import Choice, choose, choose_schedule

__all__ = [
    "Choice",
    "Cost",
    "Facts",
    "Lowering",
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
    "prepare_pass",
    "to_linear",
]
