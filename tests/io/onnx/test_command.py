from __future__ import annotations

import numpy as np
import onnx
import pytest

from baregrad.cli import main
from baregrad.io.onnx.command import apart
from tests.io.onnx.models import made, node, value


@pytest.fixture
def file(tmp_path):
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Sigmoid", ["h"], ["y"])]
    weights = {"w": np.arange(12, dtype=np.float32).reshape(3, 4) / 10}
    model = made(nodes, [value("x", ["rows", 3])], [value("y", ["rows", 4])], weights)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    return path


def test_it_lists_runs_and_compares(file, capsys) -> None:
    assert main(["onnx", str(file), "--size", "rows=5"]) == 0
    out = capsys.readouterr().out
    for line in ("input    x: float32 [rows, 3]", "output   y: float32 [rows, 4]",
                 "uses     MatMul 1, Sigmoid 1", "given    x: float32 [5, 3]",
                 "result   y: float32 [5, 4]", "way      captured",
                 "compared with onnxruntime"):  # fmt: skip
        assert line in out
    assert "DIFFER" not in out


def test_inputs_come_from_files(file, tmp_path, capsys) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 3), np.float32))
    assert main(["onnx", str(file), "--input", f"x={tmp_path / 'x.npy'}"]) == 0
    assert "float32 [2, 4], 0.5 to 0.5" in capsys.readouterr().out
    assert main(["onnx", str(file), "--input", "x"]) == 2
    assert "NAME=FILE.npy" in capsys.readouterr().err


def test_listing_runs_nothing(file, capsys) -> None:
    assert main(["onnx", str(file), "--list"]) == 0
    assert "result" not in capsys.readouterr().out


def test_differences_are_of_the_largest_element() -> None:
    a = np.array([1.0, 10.0])
    assert apart(a, a) == 0
    assert apart(a + 0.1, a) == pytest.approx(0.01)
    assert apart(np.array([np.nan, 1]), np.array([np.nan, 1])) == 0
    assert apart(np.array([np.nan, 1]), np.array([1.0, 1])) == float("inf")
    assert apart(np.zeros(2), np.zeros(3)) == float("inf")
