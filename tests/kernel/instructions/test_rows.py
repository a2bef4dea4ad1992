"""The instructions that schedules may ask for, by name."""

from __future__ import annotations

import pytest

from baregrad.kernel.instructions.rows import ROWS
from baregrad.kernel.language.schedule import INSTRUCTIONS
from baregrad.target.cpu import cpu_row_named


def test_every_instruction_of_the_language_has_a_row() -> None:
    assert set(ROWS) == set(INSTRUCTIONS)


def test_rows_are_found_by_their_own_names_and_cannot_be_changed() -> None:
    assert [row.name for row in ROWS.values()] == list(ROWS)
    with pytest.raises(TypeError):
        ROWS["other"] = ROWS["dot4"]  # type: ignore[index]


def test_machines_name_instructions_that_have_rows() -> None:
    """What a CPU says it has among the sums of words is one that a schedule can ask for."""
    words = cpu_row_named("x86-64-avx512")
    assert set(words.dot_instructions) <= set(ROWS)
