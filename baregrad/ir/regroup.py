"""Reshapes by runs of axes: which axes of two shapes hold the same elements."""

from __future__ import annotations

from typing import Any

from baregrad.ir import index
from baregrad.ir.index import Dim

Run = tuple[int, int]


def reshape_groups(old: tuple[Any, ...], new: tuple[Any, ...]) -> list[tuple[Run, Run]]:
    """The shortest runs of axes with equal products: ((from, to) of old, (from, to) of new).

    A run may be empty, where the other shape has axes of extent 1.
    """
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
    return groups


def same_axes(old: tuple[Any, ...], new: tuple[Any, ...]) -> dict[int, int]:
    """For each axis of `new` that is an unchanged axis of `old`: which; extents of 1 left out."""
    found: dict[int, int] = {}
    for (first, last), (begin, end) in reshape_groups(old, new):
        olds = [axis for axis in range(first, last) if old[axis] != 1]
        news = [axis for axis in range(begin, end) if new[axis] != 1]
        if len(olds) == len(news) == 1:
            found[news[0]] = olds[0]
    return found
