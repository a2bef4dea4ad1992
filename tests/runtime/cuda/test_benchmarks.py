"""The benchmark scripts do what they say, as far as a pretended driver can show it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from baregrad.runtime.cuda import driver as cuda_driver
from baregrad.runtime.cuda.driver import Driver
from tests.runtime.cuda.fake_driver import FakeCuda, image_of

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks import gpu_copy, gpu_launch, gpu_sides


@pytest.fixture()
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda(gpus=2)
    monkeypatch.setattr(cuda_driver, "load_functions", lambda: fake.functions)
    monkeypatch.setattr(gpu_launch, "cubin", lambda *given: image_of((*given, gpu_launch.PTX)[1]))
    return fake


def test_launches_of_ours(fake: FakeCuda) -> None:
    facts, answer = gpu_launch.ours("CUDA", 6)
    assert facts["architecture"] == "sm_90a"
    for what, count in (("chain", 6), ("single", 1)):
        before = len(fake.launches)
        assert len(answer({"what": what, "times": 3})["times_ns"]) == 3
        assert len(fake.launches) - before == count * (3 + gpu_launch.WARM_UP)


@pytest.mark.parametrize("in_c", [True, False])
def test_launches_of_the_driver(
    fake: FakeCuda, in_c: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = []

    def set_flags(device: int, flag: int) -> int:
        flags.append(flag)
        return 0

    loops = gpu_launch.compiled_loops() if in_c else None
    if in_c and loops is None:
        pytest.skip("no C compiler for the loops")
    monkeypatch.setattr(gpu_launch, "compiled_loops", lambda: loops)
    library = SimpleNamespace(
        cuDevicePrimaryCtxSetFlags_v2=set_flags, cuStreamSynchronize=fake.functions["cuStreamQuery"]
    )
    raw = gpu_launch.Raw(4, Driver(fake.functions), library)
    for scheduling in ("auto", "spin"):
        raw.open(scheduling)
        for wait in gpu_launch.WAITS:
            if wait not in fake.functions:
                continue
            assert len(raw.single(wait, 3)) == 3
            assert len(raw.replay(wait, 2)) == 2
        raw.check()
        raw.done += 1
        with pytest.raises(RuntimeError, match="not 12"):
            raw.check()
    raw.close()
    assert flags == [0, 1]
    assert not fake.complaints


def test_copies_of_ours(fake: FakeCuda) -> None:
    _, answer = gpu_copy.ours("CUDA")
    for what in gpu_copy.OURS:
        found = answer({"what": what, "nbytes": 70_000, "times": 2})
        assert len(found["times_ns"]) == 2, (what, found)
    assert answer({"what": "peer", "nbytes": 4096, "times": 2})["times_ns"]
    assert not fake.complaints


def test_rows_judge_by_the_bar() -> None:
    assert "PASS" in gpu_sides.row("a", [0.8, 0.9, 1.5], "<0.9", "")
    assert "MISS" in gpu_sides.row("a", [0.91], "<0.9", "")
    assert "PASS" in gpu_sides.row("a", [0.98], ">0.98", "")
    assert "MISS" in gpu_sides.row("a", [0.97], ">0.98", "")
    assert gpu_sides.spread([1.0, 2.0, 3.0]) == "-50.0%..+50.0%"
    assert np.isfinite(gpu_sides.timed_ns(lambda: None, 3)).all()


def test_libraries_of_the_vendor_are_found_where_they_are_mapped(tmp_path: Path) -> None:
    """In processes of their own: tests of real devices may have mapped some into this one."""
    library = tmp_path / "libcuda.so.1"
    library.write_bytes(bytes(4096))
    text = """
import mmap, sys
from benchmarks import gpu_sides
print(gpu_sides.vendor_libraries())
with open(sys.argv[1], "rb") as file:
    held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
print(gpu_sides.vendor_libraries())
"""
    found = subprocess.run(
        [sys.executable, "-c", text, str(library)], cwd=Path(gpu_sides.__file__).parents[1],
        capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    assert found.stdout.splitlines() == ["[]", "['libcuda.so.1']"]
