from __future__ import annotations

import functools
from pathlib import Path

import pytest

from baregrad.base.options import DEVICE_NAMES, options
from baregrad.cli import doctor
from baregrad.runtime.cuda import driver
from tests.runtime.cuda.fake_driver import FakeCuda


def finding(subject: str) -> doctor.Finding:
    return next(one for one in doctor.examine() if one.subject == subject)


def test_every_device_is_examined() -> None:
    subjects = [one.subject for one in doctor.examine()]
    assert set(DEVICE_NAMES) <= set(subjects)
    assert len(subjects) == len(set(subjects))


@pytest.mark.parametrize("name,verdict", [
    ("REF", "ready"), ("NULL", "ready"),
])
def test_what_is_true_everywhere(name: str, verdict: str) -> None:
    assert finding(name).verdict == verdict


def test_nv_is_examined() -> None:
    nodes = sorted(Path("/dev").glob("nvidia[0-9]*"))
    one = finding("NV")
    assert ("no GPU node" in str(one)) == (not nodes)
    assert nodes or one.verdict == "missing"
    with options.override(nv_port="virtual"):
        one = finding("NV")
    assert one.verdict == "ready", one
    assert "driver 580.159.04 (virtual), known" in str(one)
    assert "NV:0: Hopper, sm_90a" in str(one)
    assert "NV:1 to NV:0: straight; they are peers over NVLink" in str(one)


def test_one_gpu_of_several_may_be_the_default() -> None:
    facts = ("channel: NV:0: Hopper, sm_90a, /dev/nvidia0; NV:1: Hopper, sm_90a, /dev/nvidia1",)
    ready = (doctor.Finding("NV", "ready", "a GPU", facts),)
    assert [doctor.verdict_of(one, ready) for one in ("NV", "NV:0", "NV:1", "NV:2")] == [
        "ready", "ready", "ready", "missing",
    ]
    broken = (doctor.Finding("NV", "missing", "a GPU", ()),)
    assert doctor.verdict_of("NV:1", broken) == "missing"


def test_cuda_is_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda(gpus=2)
    monkeypatch.setattr(driver, "load_functions", lambda: fake.functions)
    told = str(finding("CUDA"))
    assert "found: libcuda.so.1 of CUDA 13.0" in told
    assert "CUDA:0: Pretended GPU 0, sm_90a, 132 multiprocessors, 256" in told
    assert "CUDA:1 to CUDA:0: straight" in told
    assert not fake.alive()
    for gpus, version, capability, verdict, told in (
        (0, 13000, (9, 0), "missing", "to do: see nvidia-smi"),
        (1, 11040, (9, 0), "missing", "to do: update NVIDIA's driver to release 525 or newer"),
        (1, 13000, (6, 1), "missing", "sm_61, for which no kernels are made"),
        (1, 13000, (6, 1), "missing", "to do: kernels are made for sm_75, sm_80"),
    ):
        fake = FakeCuda(gpus, version, capability)
        assert finding("CUDA").verdict == verdict
        assert told in str(finding("CUDA"))


def test_without_libcuda(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = functools.partial(driver.load_functions, "libnothing.so.1")
    monkeypatch.setattr(driver, "load_functions", missing)
    one = finding("CUDA")
    assert one.verdict == "missing"
    assert "the CUDA driver was not found" in str(one)
    assert "install NVIDIA's driver" in one.advice


def test_the_cpu_is_ready_with_llvmlite() -> None:
    pytest.importorskip("llvmlite")
    one = finding("CPU")
    assert one.verdict == "ready"
    assert "float32" in str(one)
    assert "LLVM" in str(one)


def test_without_llvmlite_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "package_version", lambda name: None)
    one = finding("CPU")
    assert one.verdict == "missing"
    assert one.advice == 'pip install "baregrad[cpu]"'
    with options.override(device="CPU"):
        assert doctor.main([]) == 1
    assert "The default device is CPU: missing." in capsys.readouterr().out


def test_a_missing_compiler_is_no_fault() -> None:
    with options.override(cc="/no/such/compiler"):
        one = finding("C compiler")
    assert one.verdict == "optional"
    assert "/no/such/compiler" in str(one)


def test_the_cache_is_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernel").write_bytes(b"12345")
    with options.override(cache_dir=tmp_path):
        said = str(finding("disk cache"))
        # Where there is a GPU, its first kernel is kept there as well.
        sizes = [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()]
        assert 5 in sizes
        assert f"{len(sizes)} files, " in said
        assert len(sizes) > 1 or "1 files, 5 B" in said
        monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)
        assert finding("disk cache").verdict == "missing"
    with options.override(cache_dir=tmp_path / "not" / "yet" / "there"):
        monkeypatch.undo()
        assert finding("disk cache").verdict == "ready"
    # As if another process removed it after it was listed.
    monkeypatch.setattr(Path, "is_file", lambda path: True)
    monkeypatch.setattr(Path, "rglob", lambda path, pattern: [tmp_path / "gone"])
    with options.override(cache_dir=tmp_path):
        assert "0 files" in str(finding("disk cache"))
    monkeypatch.undo()
    with options.override(cache=False):
        assert "BAREGRAD_CACHE=0" in str(finding("disk cache"))


def test_the_default_device_decides_the_exit_status() -> None:
    with options.override(device="REF"):
        assert doctor.main([]) == 0
    with options.override(device="NV:99"):
        assert doctor.main([]) == 1
