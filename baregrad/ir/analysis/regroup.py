"""Reshapes by runs of axes: which axes of two shapes hold the same elements."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from baregrad.ir.core import index
from baregrad.ir.core.index import Dim

Run = tuple[int, int]
Groups = tuple[tuple[Run, Run], ...]
_PLAIN = frozenset((int,))
_MOST = 1 << 12  # pairs of shapes that are remembered


def reshape_groups(old: tuple[Any, ...], new: tuple[Any, ...]) -> Groups:
    """The shortest runs of axes with equal products: ((from, to) of old, (from, to) of new).

    A run may be empty, where the other shape has axes of extent 1.
    """
    return (_known_groups if _are_plain(old, new) else _find_groups)(old, new)


def same_axes(old: tuple[Any, ...], new: tuple[Any, ...]) -> Mapping[int, int]:
    """For each axis of `new` that is an unchanged axis of `old`: which; extents of 1 left out."""
    return (_known_axes if _are_plain(old, new) else _axes_of_groups)(old, new)


def _are_plain(old: tuple[Any, ...], new: tuple[Any, ...]) -> bool:
    """Whether no extent is symbolic."""
    return _PLAIN.issuperset(map(type, old + new))


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


# Of shapes without symbolic extents, which keep no node alive: layers of a network share theirs.
_known_groups = lru_cache(_MOST)(_find_groups)
_known_axes = lru_cache(_MOST)(_find_axes)


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
