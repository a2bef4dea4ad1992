"""`baregrad info` says how GPUs are, as text and as JSON, and why where there are none."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from baregrad.base.options import options
from baregrad.cli import info


def test_gpus_are_told_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    with options.override(nv_port="virtual"):
        assert info.main([]) == 0
    out = capsys.readouterr().out
    assert "baregrad " in out and "\ndriver        580.159.04\n" in out
    assert "NVIDIA Virtual GPU, /dev/nvidia0" in out
    assert "  temperature   34 C\n" in out
    assert "  memory        16.0 GiB: 0 B used" in out
    assert "  state         P0, held back by: power cap\n" in out
    assert "  clocks        1980 MHz graphics, 1965 MHz SM, 3201 MHz memory, 1545 MHz" in out
    assert "  power         121.33 W on average, 81.57 W now, 37.80 W memory, 650.00 W" in out
    assert "  load          97% GPU, 41% memory\n" in out
    assert "  NVLink        3 of 4 links work, 26.6 GB/s each\n" in out
    assert "  fans          not known: the driver gave no reading" in out


def test_gpus_are_told_to_programs(capsys: pytest.CaptureFixture[str]) -> None:
    with options.override(nv_port="virtual"):
        assert info.main(["--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    first = told["nvidia"]["gpus"][0]
    assert first["uuid"].startswith("GPU-") and first["link"]["lanes"] == 16
    assert told["packages"]["numpy"] == np.__version__
    assert told["options"]["BAREGRAD_NV_PORT"] == "virtual"


def test_it_is_said_why_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from baregrad.runtime.nvidia.driver.port import KernelPort

    def refused(self: KernelPort, path: str) -> int:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(KernelPort, "open", refused)
    assert "cannot open /dev/nvidiactl: No such file" in info.show(False, versions=True)
    assert "cannot open" in json.loads(info.show(True, versions=True))["nvidia"]["error"]


def test_watching_goes_on_until_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(info, "time", SimpleNamespace(sleep=sleep))
    with options.override(nv_port="virtual"):
        assert info.main(["--watch", "0.5"]) == 0
        out = capsys.readouterr().out
        assert slept == [0.5] * 3 and out.count("GPU 0 ") == out.count("time      ") == 3
        slept.clear()
        # For programs one line is one look.
        assert info.main(["--watch", "0.5", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(row["nvidia"]["gpus"]) for row in rows] == [2] * 3
    assert "python" in rows[0] and rows[0]["time"] <= rows[1]["time"]
    with pytest.raises(SystemExit):
        info.main(["--watch", "0"])
