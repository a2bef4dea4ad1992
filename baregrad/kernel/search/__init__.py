"""Search over schedules: changes of a schedule, an estimate that ranks them, and a beam search.

What a schedule really takes is for others to measure: the search is given a function for that.
"""

from baregrad.kernel.planning.gpu.memory_model import roofline_ns
from baregrad.kernel.search.beam import Trial, beam_search
from baregrad.kernel.search.candidates import (
    FIRST,
    Candidate,
    candidates,
    check_schedule,
    first_ns,
)
from baregrad.kernel.search.estimate import estimated_ns
from baregrad.kernel.search.mutate import Move, is_legal, neighbours, normal

__all__ = [
    "FIRST",
    "Candidate",
    "Move",
    "Trial",
    "beam_search",
    "candidates",
    "check_schedule",
    "estimated_ns",
    "first_ns",
    "is_legal",
    "neighbours",
    "normal",
    "roofline_ns",
]
