"""What a step's fields may hold: by the name of the field, whatever the step."""

from __future__ import annotations

from typing import Any

import pytest

from baregrad.kernel.language.fields import has_typed_fields
from baregrad.kernel.language.schedule import Bind, Persist, Roles, Split, Step


@pytest.mark.parametrize("step", [
    Bind("i0", "loop"), Persist(2), Roles((4, 40), (8, 232)), Split("i0", (("o", 0), ("v", 8))),
], ids=str)  # fmt: skip
def test_steps_of_words(step: Step) -> None:
    assert has_typed_fields(step)


WRONG: tuple[tuple[Any, tuple[Any, ...]], ...] = (
    (Bind, (3, "loop")), (Bind, ("i0", "pool", 0)), (Persist, (True,)), (Persist, (2, 1.0)),
    (Roles, ((4, -1), (8, 0))), (Roles, ((0, 40), (8, 232))), (Roles, ((4, 40), [8, 232])),
    (Roles, ((4, 40, 1), (8, 0))), (Roles, (4, 8)), (Roles, ((4, True), (8, 0))),
    (Split, ("i0", (("o", 0), ("two words", 8)))), (Split, ("i0", (("o", 0), ("if", 8)))),
)  # fmt: skip


@pytest.mark.parametrize(("kind", "fields"), WRONG, ids=str)
def test_steps_of_something_else(kind: Any, fields: tuple[Any, ...]) -> None:
    assert not has_typed_fields(kind(*fields))
