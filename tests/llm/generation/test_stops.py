"""Stops are found wherever the pieces of a text end."""

from __future__ import annotations

import random

from baregrad.llm.generation.stops import StopFinder


def test_a_beginning_is_held_until_it_is_decided() -> None:
    finder = StopFinder(["<end>", "\n\n"])
    assert finder.add("a<e") == "a"
    assert finder.add("n") == ""
    assert finder.add("t>b\n") == "<ent>b"
    assert finder.finish() == "\n"
    finder = StopFinder(["<end>", "\n\n"])
    assert finder.add("a\n") + finder.add("\nb") == "a"
    assert finder.found == "\n\n"
    assert finder.add("more") == finder.finish() == ""


def test_any_cut_gives_the_same_text() -> None:
    """The text before the first stop, by `str.find` over the whole text."""
    rng = random.Random(1)
    for _ in range(2000):
        stops = ["".join(rng.choices("ab", k=rng.randrange(1, 5))) for _ in range(rng.randrange(3))]
        text = "".join(rng.choices("abc", k=rng.randrange(12)))
        finder, given, rest = StopFinder(stops), "", text
        while rest:
            cut = rng.randrange(1, len(rest) + 1)
            given, rest = given + finder.add(rest[:cut]), rest[cut:]
        given += finder.finish()
        # A stop that is complete earlier ends the text before one that begins earlier is complete.
        ends = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
        assert (finder.found is None) == (not ends)
        if not ends:
            assert given == text
        else:
            assert given in {text[:at] for _, at in ends}
