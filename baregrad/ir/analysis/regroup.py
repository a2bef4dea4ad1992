"""Reshapes by runs of axes: which axes of two shapes hold the same elements."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from baregrad.ir.core import index
from baregrad.ir.core.index import Dim

Run = tuple[int, int]
Groups = tuple[tuple[Run, Run], ...]
_PLAIN = frozenset((int,))
_MOST = 1 << 12  # pairs of shapes that are remembered


class _Known:
    """Answers about pairs of shapes without symbolic extents: the layers of a network share theirs.

    No node is kept alive by them.
    """

    def __init__(self) -> None:
        self.groups: dict[tuple[Any, Any], Groups] = {}
        self.axes: dict[tuple[Any, Any], Mapping[int, int]] = {}


_known = _Known()


def reshape_groups(old: tuple[Any, ...], new: tuple[Any, ...]) -> Groups:
    """The shortest runs of axes with equal products: ((from, to) of old, (from, to) of new).

    A run may be empty, where the other shape has axes of extent 1.
    """
    found = _known.groups.get((old, new))
    if found is None:
        found = _find_groups(old, new)
        _remember(_known.groups, old, new, found)
    return found


def same_axes(old: tuple[Any, ...], new: tuple[Any, ...]) -> Mapping[int, int]:
    """For each axis of `new` that is an unchanged axis of `old`: which; extents of 1 left out."""
    found = _known.axes.get((old, new))
    if found is None:
        found = _find_axes(old, new)
        _remember(_known.axes, old, new, found)
    return found


def _remember(
    known: dict[tuple[Any, Any], Any], old: tuple[Any, ...], new: tuple[Any, ...], found: Any
) -> None:
    """Keep an answer about shapes without symbolic extents: no node is to be kept alive."""
    if _PLAIN.issuperset(map(type, old + new)):
        if len(known) >= _MOST:
            known.clear()
        known[old, new] = found


def _find_groups(old: tuple[Any, ...], new: tuple[Any, ...]) -> Groups:
    groups: list[tuple[Run, Run]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        start = (i, j)
        left: Dim = 1
        right: Dim = 1
        if i < len(old):
            left, i = old[i], i + 1
        if j < len(new):
            right, j = new[j], j + 1
        while left != right and (i < len(old) or j < len(new)):
            if j >= len(new) or (i < len(old) and index.upper(left) < index.upper(right)):
                left, i = index.mul(left, old[i]), i + 1
            else:
                right, j = index.mul(right, new[j]), j + 1
        groups.append(((start[0], i), (start[1], j)))
    return tuple(groups)


def _find_axes(old: tuple[Any, ...], new: tuple[Any, ...]) -> Mapping[int, int]:
    """As `same_axes` says: axes other than 1 that are alone in their runs.

    Axes of extent 1 change no product, so they are passed over. An array without elements may get
    any axes beside the one of extent 0: its axes are the same ones only where all of them are.
    """
    if not _PLAIN.issuperset(map(type, old + new)):
        return _axes_of_groups(old, new)
    found: dict[int, int] = {}
    olds = [axis for axis, extent in enumerate(old) if extent != 1]
    places = [axis for axis, extent in enumerate(new) if extent != 1]
    if 0 in old:
        alike = [old[axis] for axis in olds] == [new[axis] for axis in places]
        return MappingProxyType(dict(zip(places, olds, strict=True)) if alike else found)
    news = iter(places)
    left = right = 1
    for axis in olds:
        if left == right:
            place = next(news)
            left, right = old[axis], new[place]
            if left == right:
                found[place] = axis
                continue
        else:
            left *= old[axis]
        while right < left:
            right *= new[next(news)]
    return MappingProxyType(found)


def _axes_of_groups(old: tuple[Any, ...], new: tuple[Any, ...]) -> Mapping[int, int]:
    found: dict[int, int] = {}
    for (first, last), (begin, end) in reshape_groups(old, new):
        if last - first == end - begin == 1:
            if old[first] != 1 and new[begin] != 1:
                found[begin] = first
            continue
        olds = [axis for axis in range(first, last) if old[axis] != 1]
        news = [axis for axis in range(begin, end) if new[axis] != 1]
        if len(olds) == len(news) == 1:
            found[news[0]] = olds[0]
    return MappingProxyType(found)
