"""Compiling has figures in the repository; this fails when they grow by a tenth."""

from __future__ import annotations

from typing import Any

import pytest

from baregrad.apps.compile_time import measure_in_processes

# For a feature that costs a little, and for the order of sets: a hundredth of a percent.
GROWTH = 1.1


@pytest.mark.parametrize("stage", ["build", "plan", "lower_render", "median_kernel"])
def test_a_stage_takes_no_more_instructions(
    stage: str, figures: dict[str, Any], recorded: dict[str, Any]
) -> None:
    assert figures["compile"][stage] <= GROWTH * recorded["compile"][stage]


def test_no_more_kernels_and_no_longer_texts(
    figures: dict[str, Any], recorded: dict[str, Any]
) -> None:
    assert figures["compile"]["kernels"] <= recorded["compile"]["kernels"]
    assert figures["compile"]["text_nbytes"] <= GROWTH * recorded["compile"]["text_nbytes"]


def test_nothing_was_imported_while_instructions_were_counted(figures: dict[str, Any]) -> None:
    assert figures["compile"]["imports"] == 0


def test_a_second_process_compiles_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    found = measure_in_processes(tmp_path_factory.mktemp("cache"))
    assert found["cold"]["compiled"] > 50
    assert found["warm"]["compiled"] == 0
    assert found["warm"]["kernels"] == found["cold"]["kernels"]
