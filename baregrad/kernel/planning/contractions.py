"""What the rules for contractions share, whatever unit does the products."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from baregrad.kernel.facts.analysis import ArrayAccess, itemsize
from baregrad.kernel.language.schedule import Bind, Split
from baregrad.kernel.planning.cpu.sum_plan import SumPlan
from baregrad.kernel.planning.tiling import PlannedAxis
from baregrad.target.cpu import PAGE_NBYTES

# Sums of up to this for each core are shared out evenly at once; longer ones in smaller chunks, as
# a core may be slower than another.
SHORT_NS = 400_000.0
# Ways of the first cache that are left for what streams past.
STREAMED_WAYS = 2


@dataclass(frozen=True, slots=True)
class Contraction:
    """A sum of products of two operands: `rows` moves A alone, `lane` B alone, `steps` both.

    together: the steps that one instruction does; their elements are one word.
    """

    plan: SumPlan
    a: ArrayAccess
    b: ArrayAccess
    rows: PlannedAxis
    lane: PlannedAxis
    steps: PlannedAxis
    outside: list[PlannedAxis]
    inside: list[PlannedAxis]
    together: int = 1

    @property
    def count(self) -> int:
        """Instructions one after the other that add up one element of the result."""
        return -(-self.steps.size // self.together)

    @property
    def nbytes(self) -> int:
        """Bytes of what one of them takes of an operand, for one element of the result."""
        return itemsize(self.b.array.dtype) * self.together


def rows_fit(found: Contraction, rows: int) -> bool:
    """Whether this many rows of A stay in the first cache where they lie, beside what streams past.

    Lines at a distance of whole pages meet in one set of it, which has as many ways as it pages.
    """
    nbytes = (found.rows.stride(found.a) or 0) * itemsize(found.a.array.dtype)
    apart = PAGE_NBYTES // gcd(nbytes, PAGE_NBYTES)
    return -(-rows // apart) <= found.plan.target.l1_bytes // PAGE_NBYTES - STREAMED_WAYS


def split(plan: SumPlan, axis: PlannedAxis, parts: dict[str, int]) -> None:
    """Split an axis into parts, the first of which, of size 0, takes what is left."""
    size = prod([max(count, 1) for count in parts.values()])
    plan.steps.append(Split(axis.name, tuple(parts.items()), masked=axis.size % size != 0))


def shared_loop(found: Contraction, chunks: int, block: str) -> Bind | None:
    """The loop that threads share, in `chunks` chunks: an outer one, or that over `block`s."""
    if chunks < 2:
        return None
    for axis in found.outside:
        if axis.size >= chunks:
            name, trips = axis.loops[0]
            return Bind(name, "pool", max(trips // (8 * chunks), 1))
    return Bind(block, "pool")
