"""C to objects through an installed compiler."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from baregrad.assemble.cache import DiskCache
from baregrad.assemble.cc import COMPILERS, CAssembler
from baregrad.base.errors import CompileError, MissingDependency

TEXT = "float f(float a, float b, float c) { return a * b + c; }\n"
needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in COMPILERS), reason="no C compiler is installed"
)


@needs_compiler
def test_an_object_is_made_once(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    made = CAssembler(cache).assemble(TEXT)
    assert made[:5] == b"\x7fELF\x02"
    assert CAssembler(cache).assemble(TEXT) == made
    assert (cache.hits, cache.misses) == (1, 1)


@needs_compiler
def test_what_the_compiler_refuses_keeps_the_source_and_its_words() -> None:
    with pytest.raises(CompileError, match="refused a kernel") as caught:
        CAssembler().assemble("int f( {")
    assert caught.value.source == "int f( {"
    assert "error" in caught.value.log


@needs_compiler
def test_multiplication_and_addition_are_not_fused() -> None:
    assert "fmadd" not in CAssembler().disassemble(TEXT)


@needs_compiler
def test_keys_change_with_flags_and_text() -> None:
    first = CAssembler()
    other = CAssembler(flags=(*first.flags, "-O3"))
    assert len({first.key(TEXT), other.key(TEXT), first.key(TEXT + " ")}) == 3
    assert first.key(TEXT) == CAssembler().key(TEXT)


def test_without_a_compiler_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency, match="install gcc or clang"):
        CAssembler().assemble(TEXT)
    with pytest.raises(MissingDependency, match="none of icc-9000"):
        CAssembler(command="icc-9000").assemble(TEXT)
