"""Kernels whose pipelines ptxas changes are refused, with its own words."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from baregrad.assemble.cache import DiskCache
from baregrad.assemble.ptxas import PtxAssembler
from baregrad.base.errors import ChangedPipeline
from tests.testing.virtual_gpu.test_ptx_hopper import WAIT, descriptor, wgmma_kernel

pytestmark = pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not installed")

COMMIT = "wgmma.commit_group.sync.aligned;"


def kernel(wait: str = WAIT) -> str:
    layout = descriptor(16, 256, 32)
    return wgmma_kernel(64, wait, 0, layout, layout)


def refused(text: str) -> ChangedPipeline:
    with pytest.raises(ChangedPipeline) as info:
        PtxAssembler("sm_90a").assemble(text)
    return info.value


def test_a_pipeline_as_written_is_taken() -> None:
    assert PtxAssembler("sm_90a").assemble(kernel())[:4] == b"\x7fELF"


@pytest.mark.parametrize("wait", ["", WAIT.replace("0;", "1;")], ids=["no wait", "a wait of one"])
def test_results_that_are_read_before_the_wait(wait: str) -> None:
    """ptxas adds a wait of its own, perhaps after every product."""
    error = refused(kernel(wait))
    assert "C7517" in str(error)
    assert "pipeline of f" in error.message


def test_products_that_wait_for_each_other() -> None:
    first, rest = kernel().split("p, 1, 1, 0, 0;\n", 1)
    error = refused(f"{first}p, 1, 1, 0, 0;\nmov.f32 f0, 0f00000000;\n{rest}")
    assert "C75" in str(error.found)
    assert "wgmma" in error.log
    assert error.source.startswith(".version")


def test_a_group_under_a_condition() -> None:
    guarded = f"setp.gt.u32 p, t, 64; @!p bra NO; {COMMIT}\nNO:"
    assert "serialized" in refused(kernel().replace(COMMIT, guarded)).log


def test_register_counts_that_are_not_obeyed() -> None:
    """No count at the entry is stated, so a change of it cannot be judged."""
    text = kernel().replace(".reg .f32 f<", "setmaxnreg.dec.sync.aligned.u32 40; .reg .f32 f<")
    error = refused(text)
    assert "C7508" in str(error.found)
    assert "pipeline of f:" in str(error)
    stated = text.replace(") {", ") .reqntid 128 .minnctapersm 2 {").replace("u32 40", "u32 96")
    PtxAssembler("sm_90a").assemble(stated)


def test_a_refusal_is_not_kept(tmp_path: Path) -> None:
    assembler = PtxAssembler("sm_90a", DiskCache(tmp_path))
    for _ in range(2):
        with pytest.raises(ChangedPipeline, match="C7517"):
            assembler.assemble(kernel(""))
