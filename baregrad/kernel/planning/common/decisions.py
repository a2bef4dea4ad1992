"""What a planner decides: by names, each with its options, of which it takes the first.

A planner puts its options in the order in which it believes in them, and says what each one takes
where it has a model of that. A search asks for others, by the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeVar

T = TypeVar("T")
Wanted = Mapping[str, str]
NOTHING: Wanted = MappingProxyType({})
# Options of one decision that are worth a trial; those after them are worse by the planner's model.
MOST_OPTIONS = 32


class Decided(NamedTuple):
    """One decision: options in words, the one that was taken, and cycles of each, if known."""

    options: tuple[str, ...]
    taken: str
    cycles: tuple[float, ...] = ()

    @property
    def predicted(self) -> float | None:
        """Cycles of what was taken, None where there is no model of them."""
        return self.cycles[self.options.index(self.taken)] if self.cycles else None


class Decisions:
    """The decisions of one plan.

    wanted: the option to take of each decision that is not to be the planner's own; where it is not
    among the options, as another decision left others, it is the first one. noted: whether to keep
    what there was to decide in `made`, by name.
    """

    def __init__(self, wanted: Wanted = NOTHING, noted: bool = False) -> None:
        self.wanted = wanted
        self.noted = noted
        self.made: dict[str, Decided] = {}

    def pick(
        self, name: str, options: Iterable[T], words: Callable[[T], str] = str,
        cycles: Callable[[T], float] | None = None,
    ) -> T:
        """The option that is wanted, or the first one. There has to be one."""
        if not self.noted and name not in self.wanted:
            return next(iter(options))
        found = list(options)[:MOST_OPTIONS]
        named = {words(option): option for option in reversed(found)}
        taken = self.wanted.get(name, "")
        if taken not in named:
            taken = words(found[0])
        if self.noted:
            spelled = tuple(dict.fromkeys([words(option) for option in found]))
            known = () if cycles is None else tuple([cycles(named[each]) for each in spelled])
            self.made[name] = Decided(spelled, taken, known)
        return named[taken]


def powers_from(first: int, least: int, most: int) -> Iterator[int]:
    """A number, then the powers of two from `least` to `most`, those nearest to it first."""
    yield first
    powers = [1 << place for place in range(least.bit_length() - 1, most.bit_length())]
    rest = [power for power in powers if least <= power <= most and power != first]
    yield from sorted(rest, key=lambda power: (max(power, first) / min(power, first), -power))
