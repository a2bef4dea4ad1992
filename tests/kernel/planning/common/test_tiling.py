"""One axis split for a tile: vectors, registers, loops and tails, which cover it once."""

from __future__ import annotations

from baregrad.kernel.planning.common.tiling import merged


def test_only_powers_of_two_of_vectors_are_one_value() -> None:
    # Compilers take others apart lane by lane.
    assert [merged(count, 16) for count in range(1, 9)] == [
        (1, 16), (1, 32), (3, 16), (1, 64), (5, 16), (3, 32), (7, 16), (2, 64),
    ]  # fmt: skip
