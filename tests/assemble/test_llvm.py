"""LLVM IR to objects: what comes out, what is refused, and what the cache spares."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from baregrad.assemble.cache import DiskCache
from baregrad.assemble.llvm import LlvmAssembler, LlvmOptions, host_fingerprint, native_triple
from baregrad.base.errors import CompileError, MissingDependency
from baregrad.runtime.cpu.elf import read_object

pytest.importorskip("llvmlite")

TEXT = """
define float @f(float %a, float %b, float %c) nounwind {
  %slot = alloca float
  %m = fmul float %a, %b
  store float %m, ptr %slot
  %l = load float, ptr %slot
  %s = fadd float %l, %c
  ret float %s
}
"""
ARM = LlvmOptions(cpu="generic", features="", triple="aarch64-unknown-linux-gnu")


def test_an_object_is_made_and_is_the_same_each_time() -> None:
    assembler = LlvmAssembler()
    made = assembler.assemble(TEXT)
    assert made[:5] == b"\x7fELF\x02"
    assert LlvmAssembler().assemble(TEXT) == made


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("define void @f( {", "expected"),
        ("define void @f() {\n  ret i32 0\n}", "value doesn't match function result type"),
        (
            "define i32 @f(i1 %c) {\n  br i1 %c, label %a, label %b\na:\n  %x = add i32 1, 2\n"
            "  br label %b\nb:\n  ret i32 %x\n}",
            "does not dominate",
        ),
    ],
)
def test_what_llvm_refuses_keeps_the_source_and_llvm_s_words(bad: str, words: str) -> None:
    with pytest.raises(CompileError) as caught:
        LlvmAssembler().assemble(bad)
    assert caught.value.source == bad
    assert words in caught.value.log
    assert words in str(caught.value)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="processors of x86-64 have the fault")
def test_jumps_neither_cross_nor_end_blocks_of_32_bytes() -> None:
    """Loops of more and more instructions; the pair of a test and a jump is decoded as one."""
    found = set()
    for count in range(1, 16):
        body = "".join(f"  %r{i} = call i64 @g(i64 %r{i - 1})\n" for i in range(1, count + 1))
        text = (
            "declare i64 @g(i64)\ndefine i64 @f(i64 %n) nounwind {\nentry:\n  br label %again\n"
            f"again:\n  %r0 = phi i64 [ %n, %entry ], [ %r{count}, %again ]\n{body}"
            f"  %more = icmp ne i64 %r{count}, 0\n  br i1 %more, label %again, label %done\n"
            f"done:\n  ret i64 %r{count}\n}}\n"
        )
        parts = read_object(LlvmAssembler().assemble(text)).sections.values()
        (section,) = [part for part in parts if part.name == ".text"]
        code = bytes(section.data)
        # test %rax, %rax; jne, near or far.
        at = next(
            at for at in range(len(code) - 4)
            if code[at : at + 3] == b"\x48\x85\xc0" and code[at + 3] in (0x75, 0x0F)
        )
        size = 5 if code[at + 3] == 0x75 else 9
        found.add(at % 32)
        assert section.alignment >= 32
        assert at // 32 == (at + size) // 32
    assert len(found) > 3


def test_unknown_passes_and_targets_are_refused() -> None:
    with pytest.raises(CompileError, match="no pass 'magic'"):
        LlvmAssembler().assemble(TEXT, LlvmOptions(passes=("magic",)))
    with pytest.raises(CompileError, match="no such target"):
        LlvmAssembler().assemble(TEXT, LlvmOptions(triple="pdp11-unknown-none"))


def test_multiplication_and_addition_are_not_fused_behind_our_back() -> None:
    options = LlvmOptions(cpu="x86-64-v3", features="+fma", triple="x86_64-unknown-linux-gnu")
    assert "vfmadd" not in LlvmAssembler().disassemble(TEXT, options)
    free = TEXT.replace("fmul", "fmul contract").replace("fadd", "fadd contract")
    assert "vfmadd" in LlvmAssembler().disassemble(free, options)


def test_promotion_of_allocas_is_what_the_default_passes_do() -> None:
    stored = LlvmAssembler().disassemble(TEXT, LlvmOptions(passes=()))
    kept = LlvmAssembler().disassemble(TEXT)
    assert "rsp" in stored
    assert "rsp" not in kept


PASSES = [(), ("sroa",), ("sroa", "instruction_combine"), ("O1",), ("O2",)]


@pytest.mark.parametrize("passes", PASSES)
def test_every_pass_list_makes_an_object(passes: tuple[str, ...]) -> None:
    assert LlvmAssembler().assemble(TEXT, LlvmOptions(passes=passes))[:4] == b"\x7fELF"


def test_foreign_targets_are_assembled() -> None:
    assert LlvmAssembler().assemble(TEXT, ARM)[18] == 183
    assert "fmadd" not in LlvmAssembler().disassemble(TEXT, ARM)


def test_keys_change_with_all_that_matters() -> None:
    assembler = LlvmAssembler()
    choices = (
        LlvmOptions(),
        LlvmOptions(cpu="x86-64"),
        LlvmOptions(cpu="x86-64", features="+avx2"),
        LlvmOptions(passes=()),
        LlvmOptions(codegen_level=1),
        ARM,
    )
    keys = {assembler.key(TEXT, options) for options in choices}
    assert len(keys) == len(choices)
    assert assembler.key(TEXT + " ") not in keys
    assert assembler.key(TEXT) == LlvmAssembler().key(TEXT)
    assert host_fingerprint() in assembler.version
    assert host_fingerprint() not in LlvmAssembler(options=ARM).version
    assert "llvmlite" in assembler.version
    assert native_triple() in assembler.version


WARM = """
import sys
from pathlib import Path
from baregrad.assemble.cache import DiskCache
from baregrad.assemble.llvm import LlvmAssembler
cache = DiskCache(Path(sys.argv[1]))
made = LlvmAssembler(cache).assemble(sys.argv[2])
assert cache.hits == 1
assert "llvmlite" not in sys.modules
sys.stdout.write(made.hex())
"""


def test_a_warm_cache_needs_no_llvmlite(tmp_path: Path) -> None:
    made = LlvmAssembler(DiskCache(tmp_path)).assemble(TEXT)
    command = [sys.executable, "-c", WARM, str(tmp_path), TEXT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert bytes.fromhex(done.stdout) == made


def test_without_llvmlite_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    with pytest.raises(MissingDependency, match="pip install"):
        LlvmAssembler().assemble(TEXT)
