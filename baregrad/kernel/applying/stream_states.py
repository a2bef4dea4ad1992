"""What a stream keeps of each row while keys pass: a maximum, a sum of powers, and their scale.

Powers are relative to the largest exponent so far, or to one not much smaller: when that rises,
what was summed is scaled, which most tiles of keys then do not. Of whole powers of two a scale
rounds nothing, so that it does not matter how often there is one. An exponent that is a multiple of
a score is not computed: one instruction multiplies a score and subtracts, rounding once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from baregrad.dtypes import DType, dtypes
from baregrad.ir.analysis.stream import rounded
from baregrad.ir.core.node import Node, alu, const, make_node
from baregrad.ir.core.op import Ops
from baregrad.kernel.applying.stream_panels import folded
from baregrad.kernel.facts.stream_facts import StreamFacts
from baregrad.kernel.gpu.barriers import sequence
from baregrad.kernel.loops.loop_pieces import load, store

F32 = dtypes.float32
# Whole powers of two by which an exponent may be larger than what it is relative to: 16-bit floats
# have numbers up to 2 ** 16, almost, and powers up to 2 ** 8 stay far below.
ROOM = 8.0
# Powers that are float16s where bfloat16s have smaller numbers are so many doublings larger, which
# leaves all digits down to 2 ** -21 of the largest. With less room they stay below 2 ** 16, even
# where large exponents less this are rounded.
HALF_LIFT, HALF_ROOM = 7.0, 7.0
LOWEST, ZERO, ONE = const(float("-inf"), F32), const(0.0, F32), const(1.0, F32)


class RowArrays(NamedTuple):
    """Numbers of each row: what powers are relative to, that with a tile's, a scale, a maximum."""

    top: Node
    next: Node
    scale: Node
    highest: Node


@dataclass(frozen=True, slots=True)
class RowStates:
    """Arrays of a block's registers, and the axes of its rows and of a tile's keys.

    own: the axes of rows. part, n: those of tiles of keys, and of keys in one. scores: exponents,
    or what they are multiples of; powers: where powers lie. sums: of powers, over rows and n.
    has_octets: whether values are 8-bit floats, which lanes widen. has_one: whether all keys are
    one tile.
    """

    facts: StreamFacts
    own: tuple[Node, ...]
    part: Node
    n: Node
    scores: Node
    powers: Node
    row: RowArrays
    sums: Node
    has_octets: bool
    has_one: bool

    @property
    def is_lone(self) -> bool:
        """Whether the maxima of one tile are those of all: nothing is ever relative to less."""
        return self.has_one and not self.is_half

    @property
    def is_loose(self) -> bool:
        """Whether powers may be relative to less than the largest exponent: to whole numbers."""
        return self.facts.near.op is Ops.EXP2_NEAR

    @property
    def room(self) -> float:
        """By how much exponents may be larger than what they are relative to.

        Weights that may be more than powers may fill float16 themselves.
        """
        if self.is_half:
            return HALF_ROOM
        is_narrow = self.facts.products[0].left.dtype is dtypes.float16
        return 0.0 if is_narrow and not _are_powers(self.facts) else ROOM

    @property
    def narrow(self) -> DType:
        """What weights are rounded to before they are multiplied.

        Two 8-bit floats become float16s by one instruction; powers fit there, with more digits.
        """
        dtype: DType = self.facts.products[0].left.dtype
        return dtypes.float16 if self.is_half else dtype

    @property
    def is_half(self) -> bool:
        """Whether weights are float16s for the sake of values that lanes widen."""
        return self.has_octets and self.facts.states > 0 and _are_powers(self.facts)

    @property
    def kept(self) -> list[Node]:
        """What has a value for each row throughout, beside the sums."""
        has_highest = self.is_loose and self.facts.keeps_maxima and not self.is_lone
        return [self.row.top, self.row.highest][: 1 + has_highest]

    def begun(self) -> list[Node]:
        """Maxima of nothing."""
        return [store(one, LOWEST, self.own) for one in self.kept] if self.facts.states else []

    def raised(self) -> list[Node]:
        """Scores of a tile raise the maxima of their rows and become powers, which are summed."""
        own, sums = (*self.own, self.part, self.n), (*self.own, self.n)
        scores, top = load(self.scores, own), load(self.row.top, self.own)
        following, scale = load(self.row.next, self.own), load(self.row.scale, self.own)
        following = top if self.is_lone else following
        none = alu(Ops.CMPEQ, following, LOWEST)
        shift = alu(Ops.WHERE, none, ZERO, following)
        kind = self.facts.near.op
        # Powers of two are relative to whole ones, of which a factor is one itself.
        high = self.exponents(folded(Ops.MAX, scores, self.part, self.n))
        high = Node(Ops.CEIL, F32, (high,)) if self.is_loose else high
        power = Node(kind, F32, (less(self.facts, scores, shift),))
        summed = folded(Ops.ADD, self._summed(load(self.powers, own)), self.part)
        if self.is_lone:
            return [
                store(self.row.top, high, self.own),
                store(self.powers, power, own),
                store(self.sums, summed, sums),
            ]
        rises = alu(Ops.CMPNE, following, top)
        low = alu(Ops.SUB, high, const(HALF_LIFT, F32)) if self.is_loose and self.is_half else high
        higher = alu(Ops.MAX, top, low)
        if self.is_loose:
            # Infinity and what is no number rise as well. A difference of what is near is exact.
            near = alu(Ops.CMPLE, alu(Ops.SUB, low, top), const(self.room, F32))
            higher = alu(Ops.WHERE, near, top, higher)
        factor = self.factor(top, shift)
        highest = [store(one, alu(Ops.MAX, load(one, self.own), high), self.own)
                   for one in self.kept[1:]]  # fmt: skip
        return [
            store(self.row.next, higher, self.own),
            *highest,
            store(self.row.scale, ONE, self.own),
            make_node(Ops.IF, dtypes.token, (rises, store(self.row.scale, factor, self.own))),
            store(self.row.top, following, self.own),
            store(self.powers, power, own),
            store(self.sums, Node(Ops.FMA, F32, (load(self.sums, sums), scale, summed)), sums),
        ]

    def _summed(self, power: Node) -> Node:
        """What is summed of a power: a number that may be rounded first."""
        near, term = self.facts.near, self.facts.fold.src[1]
        return power if term is near else rounded(power, self.narrow)

    def scaled(self, sums: Iterable[Node], places: tuple[Node, ...]) -> list[Node]:
        """Sums at some places of each row, relative to the new maxima."""
        if self.is_lone:
            return []
        scale = load(self.row.scale, self.own)
        rises = alu(Ops.CMPNE, scale, ONE)
        own = (*self.own, *places)
        made = [store(one, alu(Ops.MUL, load(one, own), scale), own) for one in sums]
        return [make_node(Ops.IF, dtypes.token, (rises, sequence(made)))] if made else []

    def ended(self, sums: Iterable[Node], places: tuple[Node, ...]) -> list[Node]:
        """All sums relative to the maxima, where these are asked for."""
        if not self.facts.states or self.row.highest not in self.kept:
            return []
        top, highest = load(self.row.top, self.own), load(self.row.highest, self.own)
        none = alu(Ops.CMPEQ, highest, LOWEST)
        factor = self.factor(top, alu(Ops.WHERE, none, ZERO, highest))
        return [
            store(self.row.scale, factor, self.own),
            store(self.row.top, highest, self.own),
            *self.scaled([self.sums], (self.n,)),
            *self.scaled(sums, places),
        ]

    def factor(self, top: Node, shift: Node) -> Node:
        """What is relative to `top` times this is relative to a shift."""
        kind = Ops.EXP2 if self.is_loose else self.facts.near.op
        return Node(kind, F32, (alu(Ops.SUB, top, shift),))

    def exponents(self, scores: Node) -> Node:
        """Exponents of what lies in the place of scores."""
        found = self.facts.scaled
        return scores if found is None else alu(Ops.MUL, scores, found.factor)


def _are_powers(facts: StreamFacts) -> bool:
    """Whether all weights are the power, or 0."""
    weights = [
        one.src[1] if one.op is Ops.WHERE and one.src[2] is ZERO else one for one in facts.weights
    ]
    return all(one is facts.near for one in weights)


def less(facts: StreamFacts, scores: Node, shift: Node) -> Node:
    """Exponents of what lies in the place of scores less something."""
    found = facts.scaled
    if found is None:
        return alu(Ops.SUB, scores, shift)
    return Node(Ops.FMA, F32, (scores, found.factor, alu(Ops.NEG, shift)))
