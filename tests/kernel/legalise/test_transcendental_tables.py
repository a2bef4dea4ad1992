"""Coefficients are those of the fits that are said to have made them."""

from __future__ import annotations

from pathlib import Path

import pytest

from baregrad.kernel.legalise import transcendental_tables as tables
from tests.kernel import fit_functions
from tests.kernel.legalise.accuracy import (
    SLOW,
)

pytestmark = pytest.mark.differential
NAMES = [
    name if name == "SIN_F32" else pytest.param(name, marks=SLOW) for name in fit_functions.NAMES
]


@pytest.mark.parametrize("name", NAMES)
def test_tables_are_what_the_fit_prints(name: str) -> None:
    text = Path(tables.__file__).read_text()
    assert fit_functions.table_text(name) in text
