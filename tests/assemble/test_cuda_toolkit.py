"""Finding the vendor's compilers, and assembling with them: PTX by ptxas, CUDA C by NVRTC."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from baregrad.assemble import cuda_toolkit
from baregrad.assemble.cache import DiskCache
from baregrad.assemble.cuda_toolkit import find_library, find_program
from baregrad.assemble.nvrtc import CudaAssembler
from baregrad.assemble.ptxas import PtxAssembler
from baregrad.base.errors import CompileError, MissingDependency
from baregrad.base.options import options
from baregrad.runtime.nvidia.code.cubin import read_cubin
from tests.assemble.cuda_files import build_nvrtc, write_ptxas

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
PTX = """.version 7.0
.target sm_75
.address_size 64
.visible .entry scale(.param .u64 out, .param .f32 factor) {
  .reg .b64 %rd<2>;
  .reg .f32 %f<4>;
  ld.param.u64 %rd1, [out];
  ld.param.f32 %f1, [factor];
  ld.global.f32 %f2, [%rd1];
  mul.f32 %f3, %f1, %f2;
  add.f32 %f3, %f3, %f1;
  st.global.f32 [%rd1], %f3;
  ret;
}
"""
CUDA = """extern "C" __global__ void scale(float *out, float factor) {
  out[threadIdx.x] = out[threadIdx.x] * factor + factor;
}
"""


def found(find: object, *arguments: str) -> bool:
    try:
        find(*arguments)  # type: ignore[operator]
    except MissingDependency:
        return False
    return True


HAS_PTXAS = found(find_program, "ptxas", "")
HAS_NVRTC = found(find_library, "libnvrtc", "")
needs_ptxas = pytest.mark.skipif(not HAS_PTXAS, reason="ptxas is not installed")
needs_nvrtc = pytest.mark.skipif(not HAS_NVRTC, reason="NVRTC is not installed")
COMPILER = shutil.which("cc") or ""
needs_compiler = pytest.mark.skipif(not COMPILER, reason="no C compiler is installed")


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine without the toolkit, but for what a test puts into the folder returned."""
    root = tmp_path / "machine"
    for name in ("bin", "system", "site"):
        (root / name).mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{root / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(cuda_toolkit, "_SYSTEM", root / "system")
    # Namespace packages are gathered from the whole path; ours has to be the only `nvidia`.
    monkeypatch.setattr(sys, "path", [str(root / "site"), *_without_wheels(sys.path)])
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    importlib.invalidate_caches()
    if shutil.which("ptxas") or shutil.which("nvcc"):
        pytest.skip("the toolkit lies in the system's own folders")
    with options.override(cuda_home=""):
        yield root


def _without_wheels(paths: list[str]) -> list[str]:
    return [path for path in paths if not (Path(path) / "nvidia").is_dir()]


def test_places_are_searched_in_order(bare: Path) -> None:
    places = [
        bare / "system/cuda-12.4/bin/ptxas",
        bare / "system/cuda-12.10/bin/ptxas",
        bare / "system/cuda/bin/ptxas",
        bare / "bin/ptxas",
        bare / "site/nvidia/cuda_nvcc/bin/ptxas",
        bare / "site/nvidia/cu13/bin/ptxas",
        bare / "home/bin/ptxas",
    ]
    with options.override(cuda_home=str(bare / "home")):
        for place in places:
            write_ptxas(place, "release 1.0")
            importlib.invalidate_caches()
            assert find_program("ptxas", "p") == place


def test_what_cannot_be_run_is_passed_over(bare: Path) -> None:
    place = write_ptxas(bare / "site/nvidia/cu13/bin/ptxas", "release 13.0")
    other = write_ptxas(bare / "bin/ptxas", "release 12.0")
    place.chmod(0o644)
    if not os.access(place, os.X_OK):
        assert find_program("ptxas", "p") == other


def test_what_is_missing_is_said_and_where_it_was_looked_for(bare: Path) -> None:
    (bare / "site/nvidia/cu13").mkdir(parents=True)
    importlib.invalidate_caches()
    with pytest.raises(MissingDependency, match="pip install nvidia-cuda-nvcc") as caught:
        PtxAssembler("sm_90a").assemble(PTX)
    assert str(bare / "site/nvidia/cu13") in str(caught.value)
    assert "/cuda*" in str(caught.value)
    with pytest.raises(MissingDependency, match="pip install nvidia-cuda-nvrtc"):
        CudaAssembler("sm_90a").assemble(CUDA)
    with pytest.raises(MissingDependency, match="'ptxas-9000' was not found"):
        PtxAssembler("sm_90a", command="ptxas-9000").assemble(PTX)


def test_libraries_are_found_by_their_highest_version(bare: Path) -> None:
    folder = bare / "system/cuda-12.9/lib64"
    folder.mkdir(parents=True)
    for name in (
        "libnvrtc.so", "libnvrtc.so.9", "libnvrtc.so.12", "libnvrtc-builtins.so.13",
        "libnvrtc.alt.so.14",
    ):  # fmt: skip
        (folder / name).touch()
    assert find_library("libnvrtc", "p") == folder / "libnvrtc.so.12"
    wheel = bare / "site/nvidia/cu13/lib/libnvrtc.so.13"
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    importlib.invalidate_caches()
    assert find_library("libnvrtc", "p") == wheel


def test_the_release_is_part_of_the_key(bare: Path) -> None:
    one = write_ptxas(bare / "one/ptxas", "release 12.9, V12.9.86")
    two = write_ptxas(bare / "two/ptxas", "release 13.0, V13.0.88")
    same = write_ptxas(bare / "same/ptxas", "release 13.0, V13.0.88")
    keys = [PtxAssembler("sm_90a", command=str(path)).key(PTX) for path in (one, two, same)]
    assert keys[0] != keys[1] == keys[2]
    others = (
        PtxAssembler("sm_90", command=str(two)),
        PtxAssembler("sm_90a", command=str(two), flags=("-O1",)),
    )
    assert len({keys[1], *(other.key(PTX) for other in others)}) == 3
    assert PtxAssembler("sm_90a", command=str(two)).key(PTX + " ") != keys[1]


def test_several_texts_are_assembled_beside_each_other(bare: Path) -> None:
    assembler = PtxAssembler("sm_90a", command=str(write_ptxas(bare / "bin/ptxas", "release 13.0")))
    texts = [PTX + f"// {number}" for number in range(9)]
    found = list(assembler.assemble_all(texts))
    assert len(set(found)) == 9
    assert found == [assembler.assemble(text) for text in texts]
    some = assembler.assemble_all([*texts[:3], "bad", *texts[3:]])
    assert [next(some), next(some), next(some)] == found[:3]
    with pytest.raises(CompileError, match="refused a kernel"):
        next(some)


def test_a_cubin_is_made_once(bare: Path, tmp_path: Path) -> None:
    path = write_ptxas(bare / "bin/ptxas", "release 13.0")
    cache = DiskCache(tmp_path / "cache")
    made = PtxAssembler("sm_80", cache).assemble(PTX)
    assert made == f"CUBIN -arch=sm_80\n{PTX}".encode()
    path.write_text(path.read_text().replace("CUBIN", "OTHER"))
    assert PtxAssembler("sm_80", cache).assemble(PTX) == made
    assert (cache.hits, cache.misses) == (1, 1)


def test_what_ptxas_refuses_keeps_the_source_and_its_words(bare: Path) -> None:
    write_ptxas(bare / "bin/ptxas", "release 13.0")
    with pytest.raises(CompileError, match="ptxas refused a kernel") as caught:
        PtxAssembler("sm_80").assemble("bad text")
    assert caught.value.source == "bad text"
    assert "syntax error near bad" in caught.value.log


@needs_compiler
def test_nvrtc_is_driven_as_its_header_says(bare: Path, tmp_path: Path) -> None:
    build_nvrtc(bare / "site/nvidia/cu13/lib/libnvrtc.so.13", COMPILER)
    importlib.invalidate_caches()
    cache = DiskCache(tmp_path / "cache")
    made = CudaAssembler("sm_90a", cache)
    assert made.assemble(CUDA) == b"--gpu-architecture=sm_90a"
    assert made.to_ptx(CUDA) == CUDA
    assert made.version.startswith("nvrtc 13.7 of ")
    assert CudaAssembler("sm_90a", cache).assemble(CUDA) == b"--gpu-architecture=sm_90a"
    assert (cache.hits, cache.misses) == (1, 1)
    with pytest.raises(CompileError, match="NVRTC_ERROR_COMPILATION") as caught:
        made.assemble("bad text")
    assert (caught.value.source, caught.value.log) == ("bad text", "error: bad is bad")


def test_a_library_that_is_no_nvrtc_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "libnvrtc.so.13"
    path.write_bytes(b"no library")
    with pytest.raises(MissingDependency, match="could not be loaded"):
        CudaAssembler("sm_90a", library=str(path)).assemble(CUDA)


@needs_ptxas
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_ptxas_makes_cubins_that_we_read(architecture: str) -> None:
    pytest.importorskip("elftools")
    made = read_cubin(PtxAssembler(architecture).assemble(PTX))
    assert f"sm_{made.capability}" == architecture.rstrip("a")
    kernel = made.kernel("scale")
    assert [(one.offset, one.nbytes) for one in kernel.parameters] == [(0, 8), (8, 4)]


@needs_ptxas
def test_ptxas_says_what_is_wrong() -> None:
    with pytest.raises(CompileError, match="ptxas refused a kernel") as caught:
        PtxAssembler("sm_80").assemble(PTX.replace("mul.f32", "mul.f31"))
    assert ".f31" in caught.value.log


@needs_ptxas
@pytest.mark.skipif(not found(find_program, "nvdisasm", ""), reason="nvdisasm is not installed")
def test_multiplication_and_addition_are_not_fused() -> None:
    told = PtxAssembler("sm_90a").disassemble(PTX)
    assert "FMUL" in told
    assert "FFMA" not in told


@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nvrtc_makes_cubins_that_we_read(architecture: str) -> None:
    pytest.importorskip("elftools")
    made = read_cubin(CudaAssembler(architecture).assemble(CUDA))
    assert f"sm_{made.capability}" == architecture.rstrip("a")
    assert len(made.kernel("scale").parameters) == 2


@needs_nvrtc
def test_nvrtc_says_what_is_wrong_and_writes_ptx() -> None:
    made = CudaAssembler("sm_90a")
    with pytest.raises(CompileError, match="NVRTC refused a kernel") as caught:
        made.assemble(CUDA.replace("factor;", "facto;"))
    assert "facto" in caught.value.log
    told = made.to_ptx(CUDA)
    assert ".target sm_90a" in told
    assert ".entry scale" in told
    assert "fma" not in told
