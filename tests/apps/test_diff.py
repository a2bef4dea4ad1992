"""Planted faults are found at the operation that has them, by few runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baregrad import graph
from baregrad.apps import diff
from baregrad.apps.diff import OpDifference, compare, difference
from baregrad.base.errors import ArgumentError
from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node, const, rebuild
from baregrad.ir.core.op import Ops
from baregrad.tensor.array import nodes

LAYERS = 12
SCRIPT = '''
import numpy as np
from baregrad import Tensor
rng = np.random.default_rng(0)
h = Tensor(rng.normal(size=(6, 8)).astype(np.float32))
ws = [Tensor((rng.normal(size=(8, 8)) / 3).astype(np.float32)) for _ in range(12)]
for w in ws:
    h = h @ w
    h = {line}
print(h.numpy().sum())
'''
LINE = 9


def with_source(node: Node, op: Ops) -> Node:
    return Node(op, node.dtype, node.src, node.arg)


def scaled(node: Node, factor: float) -> Node:
    constant = nodes.broadcast(const(factor, node.dtype), node.shape)
    return Node(Ops.MUL, node.dtype, (node, constant))


def rounded(node: Node) -> Node:
    short = Node(Ops.CAST, dtypes.bfloat16, (node,))
    return Node(Ops.CAST, node.dtype, (short,))


def other_choice(node: Node) -> Node:
    condition, first, second = node.src
    return Node(Ops.WHERE, node.dtype, (condition, second, first))


# What a layer computes, the operation that goes wrong in it, and what it becomes.
FAULTS: dict[str, tuple[str, Ops, Callable[[Node], Node]]] = {
    "a cosine for a sine": ("h.sin()", Ops.SIN, lambda node: scaled(node, 1.25)),
    "a wrong constant": ("h.exp2() * 0.25", Ops.EXP2, lambda node: scaled(node, 1.001)),
    "a rounding": ("h.sin() + h", Ops.SIN, rounded),
    "a dropped mask": ("(h > 0).where(h, h * 0.1)", Ops.WHERE, lambda node: node.src[1]),
    "a mask the wrong way round": ("(h > 0).where(h, h * 0.1)", Ops.WHERE, other_choice),
    "a sum for a maximum": ("h.maximum(h.sin())", Ops.MAX, lambda n: with_source(n, Ops.ADD)),
    "a lost factor": ("h * h.sin()", Ops.MUL, lambda node: node.src[1]),
}  # fmt: skip


def planted(
    monkeypatch: pytest.MonkeyPatch, op: Ops, make: Callable[[Node], Node], layer: int, *,
    fused: bool = False,
) -> None:
    """Have every plan compute the result of an operation, that of a layer, in a wrong way."""
    original = graph.canonicalise

    def wrong(sink: Node, *rest: Any, **named: Any) -> Node:
        count = 0

        def visit(node: Node) -> Node | None:
            nonlocal count
            if node.op is not op or not node.dtype.is_float or node.shape != (6, 8):
                return None
            count += 1
            return make(node) if count == layer and not (fused and node in sink.src) else None

        return original(rebuild(sink, visit), *rest, **named)

    monkeypatch.setattr(graph, "canonicalise", wrong)


def found_in(tmp_path: Path, line: str, **how: Any) -> tuple[OpDifference | None, Any]:
    script = tmp_path / "program.py"
    script.write_text(SCRIPT.format(line=line))
    return compare(
        script, [], how.get("against", "REF"), how.get("tolerance"), how.get("nan", False)
    )


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    "layer", [1, 7, *(pytest.param(layer, marks=pytest.mark.slow) for layer in (4, 12))]
)
def test_a_fault_is_found_where_it_is(
    fault: str, layer: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, op, make = FAULTS[fault]
    planted(monkeypatch, op, make, layer)
    found, counts = found_in(tmp_path, line)
    assert found is not None and found.op.startswith(f"{op.name} float32[6, 8]")
    assert found.where.endswith(f"program.py:{LINE}") and not found.within
    assert counts["runs"] <= 5


def test_a_fault_of_fused_kernels_alone_is_found_at_what_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(monkeypatch, Ops.SIN, lambda node: scaled(node, 1.5), LAYERS, fused=True)
    found, _ = found_in(tmp_path, "h.sin() + h")
    assert found is not None and found.within and found.op.startswith("ADD float32")
    assert found.where.endswith(f"program.py:{LINE}")


def test_a_program_in_order_has_no_difference(tmp_path: Path) -> None:
    for line in {line for line, *_ in FAULTS.values()}:
        found, counts = found_in(tmp_path, line)
        assert found is None and counts["compared"] >= 1


def test_the_birth_of_a_nan_is_found(tmp_path: Path) -> None:
    script = tmp_path / "nan.py"
    script.write_text(
        "import numpy as np\nfrom baregrad import Tensor\n"
        "h = Tensor(np.linspace(0.5, 2, 8).astype(np.float32))\n"
        "for layer in range(12):\n"
        "    if layer == 7:\n"
        "        h = h - h\n"
        "        h = h.log()\n"
        "    h = h * 0.5 + 1\n"
        "print((h - h).sum().item())\n"
    )
    found, _ = compare(script, [], "REF", None, True)
    assert found is not None and found.where.endswith("nan.py:7")
    assert found.op == "LOG float32[8]" or found.op.startswith("LOG2 float32[8]")
    assert "8 infinite of 8" in found.told


def test_jitted_functions_are_compared_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(monkeypatch, Ops.SIN, lambda node: scaled(node, 1.5), 1)
    script = tmp_path / "jitted.py"
    script.write_text(
        "import numpy as np\nfrom baregrad import Tensor, jit\n"
        "@jit\ndef step(x):\n    return x.sin() + 1\n"
        "x = Tensor(np.ones((6, 8), np.float32))\n"
        "for _ in range(4):\n    step(x).numpy()\n"
    )
    found, _ = compare(script, [], "REF", None, False)
    assert found is not None and found.where.endswith("jitted.py:5")


def test_differences_are_judged_by_the_dtype() -> None:
    ones = np.ones(4)
    assert not difference(dtypes.float32, ones, ones + 1e-6, None)
    assert "4 of 4 differ" in difference(dtypes.float32, ones, ones + 1e-3, None)
    assert not difference(dtypes.bfloat16, ones, ones + 1e-3, None)
    assert not difference(dtypes.float32, ones, ones + 1e-3, 0.01)
    numbers = np.arange(4)
    assert "1 of 4 differ" in difference(dtypes.int32, numbers, numbers + (numbers == 2), None)
    hole = np.array([np.nan, 1, np.inf, 2])
    assert not difference(dtypes.float32, hole, hole.copy(), None)
    assert "most at 0" in difference(dtypes.float32, hole, np.array([1, 1, np.inf, 2]), None)


def test_the_command_says_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "program.py"
    script.write_text(SCRIPT.format(line="h.sin()"))
    assert diff.main([str(script)]) == 0
    assert "nothing differs: 1 computations" in capsys.readouterr().out
    planted(monkeypatch, Ops.SIN, lambda node: scaled(node, 1.5), 3)
    assert diff.main([str(script)]) == 1
    out = capsys.readouterr().out
    assert "SIN float32[6, 8]" in out and f"program.py:{LINE}" in out
    with pytest.raises(ArgumentError, match="no such device"):
        diff.main(["--against", "torch", str(script)])
    with pytest.raises(ArgumentError, match="with itself"):
        diff.main(["--against", "cpu", str(script)])


def test_a_program_that_ends_itself_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "program.py"
    script.write_text(SCRIPT.format(line="h.sin()") + "raise SystemExit(0)\n")
    assert diff.main([str(script)]) == 0
    assert "nothing differs: 1 computations" in capsys.readouterr().out


@pytest.mark.parametrize("tolerance", ["nan", "-1", "inf"])
def test_a_tolerance_that_judges_nothing_is_refused(tolerance: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("")
    with pytest.raises(ArgumentError, match="tolerance"):
        diff.main([f"--tolerance={tolerance}", str(script)])
