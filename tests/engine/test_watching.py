"""Watchers: each thread has its own, and none where it asks for that."""

from __future__ import annotations

import threading

import pytest

from baregrad.engine.realised import Realised
from baregrad.engine.watching import Watching

KINDS = ("observers", "uploads", "downloads", "writes")


def watch(watching: Watching) -> dict[str, list[object]]:
    """Put a watcher of every kind in place: what the lists then hold."""
    held = {kind: [object()] for kind in KINDS}
    for kind, watchers in held.items():
        getattr(watching, kind).extend(watchers)
    return held


def seen(watching: Watching) -> dict[str, list[object]]:
    return {kind: list(getattr(watching, kind)) for kind in KINDS}


def test_a_thread_does_not_see_the_watchers_of_another() -> None:
    watching = Watching()
    held = watch(watching)
    watching.isolated = Realised()
    found: list[object] = []

    def look() -> None:
        found.extend([seen(watching), watching.isolated])
        watch(watching)

    other = threading.Thread(target=look)
    other.start()
    other.join()
    assert found == [{kind: [] for kind in KINDS}, None]
    assert seen(watching) == held


def test_nobody_watches_inside_the_block_alone() -> None:
    watching = Watching()
    held = watch(watching)
    with watching.nobody():
        assert not any(seen(watching).values())
        # Who comes inside leaves with the block.
        watch(watching)
        with watching.nobody():
            assert not any(seen(watching).values())
        assert all(seen(watching).values())
    assert seen(watching) == held


def test_watchers_are_back_after_an_error() -> None:
    watching = Watching()
    held = watch(watching)
    watching.isolated = kept = Realised()
    with pytest.raises(ZeroDivisionError), watching.nobody():
        assert watching.isolated is kept
        raise ZeroDivisionError
    assert seen(watching) == held
