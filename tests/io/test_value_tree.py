"""Trees of values out of files: cycles, depth and doubling are found without walking them."""

from __future__ import annotations

import pytest

from baregrad.base.errors import FileFormatError
from baregrad.io.value_tree import MAX_DEPTH, check_tree, named_leaves


def nested(depth: int) -> list[object]:
    value: list[object] = [1]
    for _ in range(depth - 1):
        value = [value]
    return value


def test_sound_trees_pass():
    shared = [1, 2, {"a": ()}]
    check_tree({"a": shared, "b": (shared, shared), "c": None}, "f")
    check_tree(3, "f")
    check_tree([[0.5] * 100_000] * 2, "f")
    check_tree(nested(MAX_DEPTH), "f")


def test_depth():
    with pytest.raises(FileFormatError, match=f"{MAX_DEPTH + 1} levels of nesting"):
        check_tree(nested(MAX_DEPTH + 1), "f")


def test_cycles():
    outer: list[object] = [1]
    outer.append({"a": (2, outer)})
    with pytest.raises(FileFormatError, match="a container inside of itself"):
        check_tree(outer, "f")


def test_doubling():
    value: list[object] = [1]
    for _ in range(90):
        value = [value, value]
    with pytest.raises(FileFormatError, match=r"181 values that stand at [0-9]+ places"):
        check_tree(value, "f")


def test_named_leaves_in_order():
    tree = {"b": [1, {"x": 2}], "a": (3,), 4: None, "e": []}
    assert list(named_leaves(tree)) == [("b.0", 1), ("b.1.x", 2), ("a.0", 3), ("4", None)]
    assert list(named_leaves(7)) == [("", 7)]
