"""The program that measures what a CPU does at most."""

from __future__ import annotations

import pytest

from baregrad.engine.rates import multiply_adds
from baregrad.target.cpu import CPU_ROWS


@pytest.mark.parametrize("row", CPU_ROWS, ids=lambda row: row.name)
def test_the_multiply_adds_of_every_row_are_llvm_ir(row: object) -> None:
    from llvmlite import binding

    module = binding.parse_assembly(multiply_adds(row, 8))  # type: ignore[arg-type]
    module.verify()
    assert [one.name for one in module.functions if not one.is_declaration] == ["multiply_adds"]
