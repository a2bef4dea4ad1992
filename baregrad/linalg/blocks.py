"""Steps of an algorithm that are captured once each and replayed for every block."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from baregrad.func.stand_ins import reads_stand_ins, tensors_of
from baregrad.tensor import Tensor
from baregrad.tensor.array.link import session
from baregrad.tensor.jit.jit import jit
from baregrad.tensor.ops.shapes import stored

P = ParamSpec("P")
R = TypeVar("R")


def is_captured(*values: Tensor) -> bool:
    """Whether nobody can look at the numbers of values.

    So it is in a function that is being captured, and where what they are made of is not there yet,
    as in one under `vmap`.
    """
    watching = session().watching
    if watching.downloads or not watching.transforming:
        return bool(watching.downloads)
    return reads_stand_ins([x.node for x in tensors_of(values)])


def block(function: Callable[P, R]) -> Callable[P, R]:
    """A function of tensors, without gradients, as one program that is replayed.

    In a captured function, or of what stands for other values, it is part of a larger one, with
    arguments and results in memory as they are between replays, so that both compute the same bits.
    """
    replayed = jit(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        watching = session().watching
        if not watching.downloads and not watching.transforming:
            return replayed(*args, **kwargs)
        if not is_captured(*[each for each in args if isinstance(each, Tensor)]):
            # A function is transformed, but what it takes here is there.
            with watching.standing_for_itself():
                return replayed(*args, **kwargs)
        given: Any = tuple(_in_memory(each) for each in args)
        found = function(*given, **kwargs)
        if isinstance(found, tuple):
            return cast(R, tuple(_in_memory(each) for each in found))
        return cast(R, _in_memory(found))

    return call


def repeated(
    step: Callable[..., tuple[Tensor, ...]], count: int, state: tuple[Tensor, ...],
    facts: tuple[Any, ...] = (),
) -> tuple[Tensor, ...]:
    """What a state is after so many calls of a block, step(*state, *facts).

    In a captured function they are a loop of the graph, planned and compiled once. facts: tensors
    that stay what they are, and numbers.
    """
    if not is_captured(*state):
        for _ in range(count):
            state = step(*state, *facts)
        return state
    from baregrad.func.loops import scan

    found: tuple[Tensor, ...] = scan(
        lambda carried, _: (tuple(step(*carried, *facts)), None), tuple(state), length=count
    )[0]
    return found


def runs(wide: int, size: int, width: int) -> list[tuple[int, int, int]]:
    """Steps of `width` columns of `size` in runs: the first column, how many steps, of what extent.

    What is left of `wide` columns moves to the upper left corner of one array, until half of it is
    left, and then to that of a smaller one.
    """
    found: list[tuple[int, int, int]] = []
    extent = wide
    for first in range(0, size, width):
        extent = wide - first if 2 * (wide - first) <= extent else extent
        if found and found[-1][2] == extent:
            start, count, _ = found.pop()
            found.append((start, count + 1, extent))
        else:
            found.append((first, 1, extent))
    return found


def stepped(
    step: Callable[..., tuple[Tensor, ...]], count: int, state: tuple[Tensor, ...],
    facts: tuple[Any, ...] = (),
) -> tuple[list[tuple[Tensor, ...]], tuple[Tensor, ...]]:
    """What each of so many calls of a block made, and the state after them.

    (*made, *state) = step(*state, *facts); in a captured function as in `repeated`.
    """
    kept = len(state)
    if count == 1 or not is_captured(*state):
        made = []
        for _ in range(count):
            found = step(*state, *facts)
            made.append(tuple(found[:-kept]))
            state = tuple(found[-kept:])
        return made, state
    from baregrad.func.loops import scan

    def turn(carried: tuple[Tensor, ...], _: None) -> tuple[Any, Any]:
        found = step(*carried, *facts)
        return tuple(found[-kept:]), tuple(found[:-kept])

    end, parts = scan(turn, tuple(state), length=count)
    return [tuple([part[place] for part in parts]) for place in range(count)], end


def _in_memory(value: Any) -> Any:
    return stored(value) if isinstance(value, Tensor) else value
