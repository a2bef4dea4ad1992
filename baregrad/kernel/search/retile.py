"""Changing the sizes of one split, and with them everything that a schedule says of its tail.

A tail's length follows from the sizes, and so do the vectors that it is made of, the copies that
are laid out over them and their places among the loops. All of it is made anew, as the first
schedule would have made it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from math import prod
from typing import Any

from baregrad.kernel.language.schedule import (
    Bind,
    Reorder,
    Schedule,
    Split,
    StageInput,
    StageReduce,
    Step,
    StreamTiles,
    Tensorize,
)
from baregrad.kernel.planning.common.tiling import powers_of


def retiled(schedule: Schedule, split: Split, sizes: tuple[int, ...], extent: int) -> Schedule:
    """`schedule` with the inner parts of `split` of other sizes; parts of size 1 go.

    extent: of the axis that is split. What was said of its tail is dropped and said anew.
    """
    units = {s.axis: s.unit for s in schedule.steps if isinstance(s, Bind)}
    old = [name for name, _ in split.parts]
    kept = [(name, size) for (name, _), size in zip(split.parts[1:], sizes, strict=True)]
    kept = [part for part in kept if part[1] > 1]
    gone = set(old[1:]) - {name for name, _ in kept}
    ends = descendants(schedule, split.tail)
    rest = extent % prod([size for _, size in kept])
    masked = split.masked and rest != 0
    outer = old[0]
    tail = "" if not rest or masked else split.tail or f"{outer}t"
    bare = without(schedule, gone, ends, split)
    if not kept:
        return Schedule(tuple([renamed(step, {outer: split.axis}) for step in bare.steps]))
    made: list[Step] = [Split(split.axis, ((outer, 0), *kept), tail, masked)]
    tails: list[tuple[str, ...]] = []
    if tail:
        lanes = max([size for name, size in kept if units.get(name) == "vector"], default=0)
        inner = [units.get(name, "loop") for name, _ in kept]
        more, tails = tail_steps(tail, rest, lanes, inner)
        made += more
    place = schedule.steps.index(split)
    before = sum(step in bare.steps for step in schedule.steps[:place])
    steps = [*bare.steps[:before], *made, *bare.steps[before:]]
    return Schedule(tuple(_with_tails(steps, outer, [name for name, _ in kept], tails)))


def tail_steps(
    name: str, size: int, lanes: int, units: list[str]
) -> tuple[list[Step], list[tuple[str, ...]]]:
    """The steps that make tiles of a tail of `size` elements, and the names of those tiles.

    lanes: of the vectors of the main part, 0 for none. units: what its parts are bound to.
    """
    if not lanes:
        spread = size > 1 and "unroll" in units
        return ([Bind(name, "unroll")], [(name,)]) if spread else ([], [])
    steps: list[Step] = []
    tiles: list[tuple[str, ...]] = []
    if size >= lanes:
        count, size = divmod(size, lanes)
        rest = f"{name}t" if size else ""
        steps.append(Split(name, ((f"{name}u", 0), (f"{name}v", lanes)), rest))
        if count > 1:
            steps.append(Bind(f"{name}u", "unroll"))
        steps.append(Bind(f"{name}v", "vector"))
        tiles.append((f"{name}u", f"{name}v"))
        name = rest
    more, vectors = powers_of(name, size)
    return steps + more, tiles + vectors


def descendants(schedule: Schedule, name: str) -> set[str]:
    """An axis and everything that is split off it."""
    found = {name} if name else set()
    for step in schedule.steps:
        if isinstance(step, Split) and step.axis in found:
            found.update(part for part, _ in step.parts)
            found.update({step.tail} - {""})
    return found


def names_of(step: Step) -> tuple[str, ...]:
    """The axes that a step speaks of."""
    if isinstance(step, Split | Bind | Tensorize):
        return (step.axis,)
    if isinstance(step, StageReduce):
        return (step.axis, *step.axes)
    return () if isinstance(step, StreamTiles) else step.axes


def without(schedule: Schedule, gone: set[str], ends: set[str], split: Split) -> Schedule:
    """`schedule` without a step and without what it says of some axes.

    A copy that was laid out over one of `ends` goes, one over an axis of `gone` loses the axis.
    """
    steps: list[Step] = []
    for step in schedule.steps:
        if step is split:
            continue
        if isinstance(step, Reorder):
            left = tuple(name for name in step.axes if name not in gone and name not in ends)
            if len(left) > 1:
                steps.append(Reorder(left))
        elif gone.isdisjoint(names_of(step)) and ends.isdisjoint(names_of(step)):
            steps.append(step)
        elif isinstance(step, StageInput | StageReduce) and ends.isdisjoint(names_of(step)):
            left = tuple(name for name in step.axes if name not in gone)
            if left and not (isinstance(step, StageReduce) and step.axis in gone):
                steps.append(replace(step, axes=left))
    return Schedule(tuple(steps))


def renamed(step: Step, names: Mapping[str, str]) -> Step:
    """A step with axes called otherwise."""
    changes: dict[str, Any] = {}
    for field in fields(step):
        value = getattr(step, field.name)
        if field.name == "axis":
            changes["axis"] = names.get(value, value)
        elif field.name == "axes":
            changes["axes"] = tuple([names.get(name, name) for name in value])
    return replace(step, **changes)


def _with_tails(
    steps: list[Step], outer: str, main: list[str], tails: list[tuple[str, ...]]
) -> Iterable[Step]:
    """Say of each tile of a tail what is said of the main part's: its place, and its copies."""
    seen: set[Step] = set()
    for step in steps:
        if isinstance(step, Reorder):
            axes = step.axes
            end = max([place + 1 for place, name in enumerate(axes) if name in main], default=0)
            added = [name for tile in tails for name in tile if end and name not in axes]
            yield Reorder((*axes[:end], *added, *axes[end:]))
            continue
        if step in seen:
            continue
        seen.add(step)
        yield step
        if not isinstance(step, StageInput | StageReduce) or not set(names_of(step)) & set(main):
            continue
        for tile in tails:
            copy = _for_tail(step, outer, main, tile)
            if copy not in seen:
                seen.add(copy)
                yield copy


def _for_tail(
    step: StageInput | StageReduce, outer: str, main: list[str], tile: tuple[str, ...]
) -> StageInput | StageReduce:
    """A copy laid out over a tail's tile in place of the main part's."""
    found: list[str] = []
    for name in step.axes:
        if name in main:
            found.extend(each for each in tile if each not in found)
        elif name != outer:
            found.append(name)
    if isinstance(step, StageInput):
        return replace(step, axes=tuple(found))
    if step.axis not in (*main, outer):
        return StageReduce(step.axis, tuple(found))
    return StageReduce(tile[0], step.axes)
