"""Planted faults are found at the operation that has them, by few runs."""

from __future__ import annotations

import json
import math
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baregrad import graph
from baregrad.apps.diff import main as diff
from baregrad.apps.diff.judging import OpDifference, difference, tolerances
from baregrad.apps.diff.main import compare, record
from baregrad.apps.diff.references import DeviceReference
from baregrad.assemble.virtual_cubin import VirtualAssembler
from baregrad.base.errors import ArgumentError, FileFormatError
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.ir.core.attrs import Param
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
    assert found.which == (layer, LAYERS)
    assert f"{LINE}, number {layer} of {LAYERS} such operations\n" in str(found)
    assert counts["runs"] <= 5


def test_a_fault_of_fused_kernels_alone_is_found_at_what_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(monkeypatch, Ops.SIN, lambda node: scaled(node, 1.5), LAYERS, fused=True)
    found, _ = found_in(tmp_path, "h.sin() + h")
    assert found is not None and found.within and found.op.startswith("SIN float32")
    assert found.where.endswith(f"program.py:{LINE}")


def test_a_program_in_order_has_no_difference(tmp_path: Path) -> None:
    for line in {line for line, *_ in FAULTS.values()}:
        found, counts = found_in(tmp_path, line)
        assert found is None and counts["compared"] >= 1


def test_what_mends_a_fused_kernel_is_found_by_halving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(monkeypatch, Ops.SIN, lambda node: scaled(node, 1.5), 7, fused=True)
    found, counts = found_in(tmp_path, "h.sin() + h.cos() * 0.5")
    assert found is not None and found.within and found.op.startswith("SIN float32")
    assert found.which == (7, LAYERS)
    # A layer has a product, a sum, a sine, a cosine, a factor and an addition.
    assert counts["runs"] <= math.log2(6 * LAYERS) + 3


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
    single, short = (
        tolerances(Node(Ops.SIN, dtype, (Node(Ops.PARAM, dtype, (), Param(0, (4,))),)))
        for dtype in (dtypes.float32, dtypes.bfloat16)
    )
    (*_, single_), (*_, short_) = single.values(), short.values()
    assert not difference(dtypes.float32, ones, ones + 1e-6, single_)
    assert "4 of 4 differ" in difference(dtypes.float32, ones, ones + 1e-3, single_)
    assert not difference(dtypes.bfloat16, ones, ones + 1e-2, short_)
    assert "4 of 4 differ" in difference(dtypes.bfloat16, ones, ones + 3e-2, short_)
    assert not difference(dtypes.float32, ones, ones + 1e-3, 0.01)
    numbers = np.arange(4)
    assert "1 of 4 differ" in difference(dtypes.int32, numbers, numbers + (numbers == 2), 1)
    hole = np.array([np.nan, 1, np.inf, 2])
    assert not difference(dtypes.float32, hole, hole.copy(), 0.1)
    assert "most at 0" in difference(dtypes.float32, hole, np.array([1, 1, np.inf, 2]), 0.1)


def test_the_command_says_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "program.py"
    script.write_text(SCRIPT.format(line="h.sin()"))
    assert diff.main([str(script)]) == 0
    assert "nothing differs: 1 computation\n" in capsys.readouterr().out
    planted(monkeypatch, Ops.SIN, lambda node: scaled(node, 1.5), 3)
    assert diff.main(["--no-script", str(script)]) == 1
    out = capsys.readouterr().out
    assert "SIN float32[6, 8]" in out and f"program.py:{LINE}" in out
    with pytest.raises(ArgumentError, match="no such device"):
        diff.main(["--against", "none", str(script)])
    with pytest.raises(ArgumentError, match="with itself"):
        diff.main(["--against", "cpu", str(script)])


def test_a_program_that_ends_itself_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "program.py"
    script.write_text(SCRIPT.format(line="h.sin()") + "raise SystemExit(0)\n")
    assert diff.main([str(script)]) == 0
    assert "nothing differs: 1 computation\n" in capsys.readouterr().out


@pytest.mark.parametrize("tolerance", ["nan", "-1", "inf"])
def test_a_tolerance_that_judges_nothing_is_refused(tolerance: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("")
    with pytest.raises(ArgumentError, match="tolerance"):
        diff.main([f"--tolerance={tolerance}", str(script)])


@pytest.mark.parametrize(
    "words",
    [["--nan", "--against", "torch"], ["--nan", "--tolerance", "0"], ["--record", "r", "--nan"],
     ["--record", "r", "--write", "w.py"], ["--record", "r", "--against", "CPU"]],
)
def test_options_without_effect_are_refused(words: list[str], tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no effect"):
        diff.main([*words, str(tmp_path / "none.py")])


@pytest.mark.parametrize("fault", FAULTS)
def test_pytorch_finds_the_same_faults(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, op, make = FAULTS[fault]
    assert found_in(tmp_path, line, against="torch")[0] is None
    planted(monkeypatch, op, make, 5)
    found, _ = found_in(tmp_path, line, against="torch")
    assert found is not None and found.op.startswith(f"{op.name} float32[6, 8]")


def test_a_recording_finds_what_another_version_does_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script, path = tmp_path / "program.py", tmp_path / "run.npz"
    script.write_text(SCRIPT.format(line="h.sin() + h"))
    assert diff.main(["--record", str(path), str(script)]) == 0
    assert f"1 computation written to {path}" in capsys.readouterr().out
    assert diff.main(["--against", str(path), str(script)]) == 0
    planted(monkeypatch, Ops.SIN, lambda node: scaled(node, 1.25), 7)
    assert diff.main(["--against", str(path), str(script)]) == 1
    out = capsys.readouterr().out
    assert "SIN float32[6, 8]" in out and f"program.py:{LINE}" in out
    script.write_text(SCRIPT.format(line="h.cos() + h"))
    assert diff.main(["--against", str(path), str(script)]) == 1
    assert "something else there than in the recording" in capsys.readouterr().out


def test_large_arrays_are_recorded_in_part(tmp_path: Path) -> None:
    script, path = tmp_path / "program.py", tmp_path / "run.npz"
    script.write_text(
        "import numpy as np\nfrom baregrad import Tensor\n"
        "x = Tensor(np.random.default_rng(0).normal(size=(512, 1024)).astype(np.float32))\n"
        "print((x * 2 + 1).sin().numpy().sum())\n"
    )
    assert record(script, [], path) == 1
    assert path.stat().st_size < 200_000
    assert compare(script, [], str(path), None, False)[0] is None


def test_no_recording_is_refused(tmp_path: Path) -> None:
    script, path = tmp_path / "program.py", tmp_path / "other.npz"
    script.write_text(SCRIPT.format(line="h.sin()"))
    for write in (
        lambda: path.write_text("no"), lambda: path.write_bytes(b""),
        lambda: path.write_bytes(b"PK\3\4 and no more"),
        lambda: np.savez(path, head=np.array("{}")),
    ):  # fmt: skip
        write()
        with pytest.raises(FileFormatError, match="no recording"):
            diff.main(["--against", str(path), str(script)])


def test_a_recording_whose_arrays_are_others_does_not_pass_for_equal(tmp_path: Path) -> None:
    script, path = tmp_path / "program.py", tmp_path / "run.npz"
    script.write_text(SCRIPT.format(line="h.sin()"))
    record(script, [], path)
    with np.load(path) as file:
        arrays = dict(file)

    def written(change: Any) -> str:
        np.savez(path, **{**arrays, "0/0": change})
        return str(path)

    shorter = arrays["0/0"][:5]
    found, _ = compare(script, [], written(shorter), None, False)
    assert found is not None and f"{arrays['0/0'].size} values here, 5 there" in found.told
    with pytest.raises(FileFormatError, match="not of numbers"):
        compare(script, [], written(shorter.astype(str)), None, False)
    del arrays["0/0"]
    np.savez(path, **arrays)
    with pytest.raises(FileFormatError, match="none called 0/0"):
        compare(script, [], str(path), None, False)
    head = json.loads(str(arrays["head"]))
    np.savez(path, head=np.array(json.dumps({**head, "format": 1})))
    with pytest.raises(FileFormatError, match="another format: found 1, wanted 2"):
        compare(script, [], str(path), None, False)


@pytest.mark.parametrize("option", ["--record", "--write"])
def test_the_program_is_not_replaced(option: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(SCRIPT.format(line="h.sin()"))
    before = script.read_text()
    with pytest.raises(ArgumentError, match="would replace the program"):
        diff.main([option, str(tmp_path / "." / "program.py"), str(script)])
    assert script.read_text() == before


# The first operation of its kind, so that the fault is there where it stands alone as well.
@pytest.mark.parametrize("fault", FAULTS)
def test_the_smallest_script_shows_the_fault_and_nothing_else(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, op, make = FAULTS[fault]
    script = tmp_path / "program.py"
    script.write_text(SCRIPT.format(line=line))
    planted(monkeypatch, op, make, 1)
    found, _ = compare(script, [], "REF", None, False, with_script=True)
    assert found is not None
    graph = found.script.split('"""\\\n')[1].split('\n"""')[0]
    kinds = [row.split(" = ")[1].split()[0] for row in graph.splitlines()]
    assert kinds.count(op.name) == 1 and not set(kinds) - {
        op.name, "PARAM", "CONST", "SINK", "EXPAND", "RESHAPE", "PERMUTE"
    }
    place = tmp_path / "shown.py"
    place.write_text(found.script)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(place))
    assert ended.value.code == 1
    monkeypatch.undo()
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(place))
    assert ended.value.code == 0


def test_a_fault_of_kernels_together_is_shown_with_what_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(monkeypatch, Ops.SIN, lambda node: scaled(node, 1.5), 1, fused=True)
    script = tmp_path / "program.py"
    script.write_text(SCRIPT.format(line="h.sin() + h"))
    found, _ = compare(script, [], "REF", None, False, with_script=True)
    assert found is not None and found.within and "SIN" in found.script and "ADD" in found.script


def test_the_command_writes_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "program.py"
    script.write_text(SCRIPT.format(line="h.sin()"))
    planted(monkeypatch, Ops.SIN, lambda node: scaled(node, 1.5), 1)
    assert diff.main([str(script)]) == 1
    assert "shown by program_differs.py" in capsys.readouterr().out
    assert "def" not in (tmp_path / "program_differs.py").read_text().split("GRAPH")[0]
    with pytest.raises(ArgumentError, match="no such folder"):
        diff.main(["--write", str(tmp_path / "none" / "a.py"), str(script)])


RACE = '''
import numpy as np
from baregrad import Tensor
h = Tensor(np.linspace(-1, 1, 2048, dtype=np.float32))
for layer in range(2):
    h = (h * 1.5).sin()
h = h * h.sum()
for layer in range(2):
    h = h.abs() + 0.5
print(h.numpy().sum())
'''


def test_a_race_that_stops_the_virtual_gpu_is_found_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = VirtualAssembler._build

    def without_barriers(self: VirtualAssembler, text: str) -> bytes:
        return build(self, re.sub(r".*bar\.sync.*\n", "", text))

    script = tmp_path / "race.py"
    script.write_text(RACE)
    monkeypatch.setattr(VirtualAssembler, "_build", without_barriers)
    with options.override(
        device="NV", nv_port="virtual", nv_timeout=1, cache_dir=tmp_path / "cache"
    ):
        found, counts = compare(script, [], "REF", None, False)
    assert found is not None and found.where.endswith("race.py:7")
    assert found.op.startswith("REDUCE float32[]")
    assert "the device stopped: NV: the kernel 'reduce" in found.told and not found.within
    assert counts["runs"] <= math.log2(10) + 3


def test_a_program_is_computed_once_by_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    wanted = DeviceReference.wanted

    def counted(self: DeviceReference, program: Any, raw: Any) -> Any:
        asked.append(program)
        return wanted(self, program, raw)

    monkeypatch.setattr(DeviceReference, "wanted", counted)
    found, counts = found_in(tmp_path, "h.sin() + h")
    assert found is None and len(asked) == counts["compared"]
