"""Virtual cubins: what is packed is what the runtime reads, and what ptxas says of a text."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from baregrad.assemble.cache import DiskCache
from baregrad.assemble.ptxas import PtxAssembler
from baregrad.assemble.virtual_cubin import (
    HEAD_NBYTES,
    VirtualAssembler,
    kernel_code,
    read_code,
    read_head,
)
from baregrad.base.errors import CompileError, FileFormatError
from baregrad.runtime.nvidia.code.cubin import Cubin, read_cubin

KERNELS = Path(__file__).parents[1] / "testing" / "virtual_gpu" / "kernels"
TEXTS = {path.name: path.read_text() for path in sorted(KERNELS.glob("*.ptx"))}
TEXT = """
.version 8.0
.target {target}
.address_size 64
.extern .shared .align 16 .b8 open[];  // no size of its own
.visible .entry many(
    .param .u32 a,                     /* .param .u64 not_one, */
    .param .align 8 .b8 b[24],
    .param .u64 c
)
.maxntid 128, 2, 1
{{
    .shared .align 16 .b8 small[3];
    .shared .align 8 .f64 wide[4];
    .local .align 4 .b8 kept[20];
    .reg .b64 %d<5>;
    bar.sync 0;
    bar.sync 3, 64;
    ret;
}}
.visible .entry plain() .reqntid 32 {{ ret; }}
"""


def read(text: str) -> Cubin:
    return read_cubin(VirtualAssembler().assemble(text))


@pytest.mark.parametrize("target,capability,base,reserved", [
    ("sm_75", 75, 0x160, 0), ("sm_89", 89, 0x160, 0), ("sm_90a", 90, 0x210, 1024),
    ("sm_100a", 100, 0x380, 1024), ("sm_120", 120, 0x380, 1024),
])
def test_facts_of_a_kernel(target: str, capability: int, base: int, reserved: int) -> None:
    cubin = read(TEXT.format(target=target))
    assert cubin.capability == capability
    many, plain = cubin.kernel("many"), cubin.kernel("plain")
    assert [(one.offset, one.nbytes) for one in many.parameters] == [(0, 4), (8, 24), (32, 8)]
    assert many.parameter_base == base and many.bank_nbytes == base + 40
    assert many.shared_nbytes == 8 + 32 + reserved
    assert many.stack_nbytes == 24 and plain.stack_nbytes == 0
    assert many.barrier_count == 4
    assert many.max_threads == 256 and plain.exact_threads == (32, 1, 1)
    assert plain.parameters == () and plain.shared_nbytes == reserved


def test_the_machine_code_that_is_shown_is_the_text_that_runs() -> None:
    text = TEXT.format(target="sm_90a")
    assert VirtualAssembler().disassemble(text) == text


def test_the_code_is_the_text() -> None:
    cubin = read(TEXT.format(target="sm_90"))
    code = bytes(cubin.sections[cubin.kernel("plain").code].data)
    assert read_head(code[:HEAD_NBYTES]) <= len(code)
    assert read_code(code) == ("plain", TEXT.format(target="sm_90"))
    with pytest.raises(FileFormatError, match="damaged"):
        read_code(code[:50] + b"\1" + code[51:])
    with pytest.raises(FileFormatError, match="no kernel"):
        read_head(bytes(HEAD_NBYTES))
    assert read_code(kernel_code("x", "ä") + b"more") == ("x", "ä")


@pytest.mark.parametrize("text,message", [
    ("", "no target"), (".target sm_90\n", "no kernel"), (".target sm_90\n.entry x()", "no body"),
])
def test_texts_that_are_none(text: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        VirtualAssembler().assemble(text)


def test_the_cache_keeps_it(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    text = TEXT.format(target="sm_90")
    made = VirtualAssembler(cache).assemble(text)
    assert VirtualAssembler(cache).assemble(text) == made
    assert (cache.misses, cache.hits) == (1, 1)


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize("name", TEXTS)
def test_ptxas_says_the_same_of_a_text(name: str) -> None:
    """All but registers, stacks and constants, which follow from machine code."""
    mine, theirs = read(TEXTS[name]), read_cubin(PtxAssembler("sm_80").assemble(TEXTS[name]))
    assert mine.kernels.keys() == theirs.kernels.keys()
    for key, kernel in mine.kernels.items():
        other = theirs.kernels[key]
        same = ("parameters", "parameter_base", "parameter_nbytes", "shared_nbytes",
                "max_threads", "exact_threads", "cluster", "barrier_count")  # fmt: skip
        for field in dataclasses.fields(kernel):
            if field.name in same:
                assert getattr(kernel, field.name) == getattr(other, field.name), (key, field.name)
