"""What a jitted function can reach without its arguments, and whether it changed."""

from __future__ import annotations

import dataclasses

from baregrad import Tensor
from baregrad.tensor.jit.closure import Surroundings


def test_what_cannot_change_is_not_asked_for() -> None:
    """Tuples and frozen dataclasses, but what they hold may itself change."""

    @dataclasses.dataclass(frozen=True)
    class Fixed:
        width: int
        table: dict[str, int]

    fixed, pair = Fixed(3, {"a": 1}), (1, [2.0])

    def function(x: Tensor) -> Tensor:
        return x * fixed.width + fixed.table["a"] + pair[1][0]

    surroundings = Surroundings(function)
    names = {name for _, _, _, name in surroundings.places}
    assert not names & {"fixed.width", "pair[0]"}
    assert not surroundings.changed()
    fixed.table["a"] = 2
    assert surroundings.changed()
    fixed.table["a"] = 1
    assert not surroundings.changed()
    pair[1][0] = 3.0
    assert surroundings.changed()
