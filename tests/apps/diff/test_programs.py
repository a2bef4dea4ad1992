"""Programs that are hard to compare: narrow floats, threads, no seeds, no results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from baregrad import graph
from baregrad.apps.diff import main as diff
from baregrad.apps.diff.main import compare
from baregrad.base.errors import ArgumentError, IndexOutOfRange
from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node, const, rebuild, toposort
from baregrad.ir.core.op import Ops
from baregrad.tensor.array import nodes

# Twelve layers whose roundings add up: floats of two widths, decisions, integers made of floats.
MIXED = """
import numpy as np
from baregrad import Tensor, dtypes
rng = np.random.default_rng(0)
h = Tensor(rng.normal(size=(32, 64)).astype(np.float32)).cast(dtypes.{dtype})
for _ in range(12):
    w = Tensor((rng.normal(size=(64, 64)) / 8).astype(np.float32)).cast(dtypes.{dtype})
    h = h + (h @ w).relu()
    h = (h - h.mean(-1, keepdim=True)) / (h.var(-1, keepdim=True) + 1e-5).sqrt()
print(h.softmax(-1).argmax(-1).sum().item(), (h * 100).cast(dtypes.int32).sum().item())
"""


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "program.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "dtype",
    ["bfloat16", *(pytest.param(one, marks=pytest.mark.slow) for one in ("float16", "float32"))],
)
def test_roundings_that_add_up_are_no_fault(dtype: str, tmp_path: Path) -> None:
    found, counts = compare(script(tmp_path, MIXED.format(dtype=dtype)), [], "REF", None, False)
    assert found is None and counts["compared"] == 2


def test_a_fault_of_a_narrow_float_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A twentieth too much, which is six units in the last place of a bfloat16."""
    original = graph.canonicalise

    def wrong(sink: Node, *rest: Any, **named: Any) -> Node:
        made = [one for one in toposort(sink) if one.op is Ops.WHERE and one.shape == (32, 64)]
        place = made[7] if len(made) > 7 else None

        def visit(node: Node) -> Node | None:
            if node is not place:
                return None
            factor = nodes.broadcast(const(1.05, node.dtype), node.shape)
            return Node(Ops.MUL, node.dtype, (node, factor))

        return original(rebuild(sink, visit), *rest, **named)

    monkeypatch.setattr(graph, "canonicalise", wrong)
    text = MIXED.format(dtype="bfloat16")
    found, counts = compare(script(tmp_path, text), [], "REF", None, False)
    assert found is not None and found.op == f"WHERE {dtypes.bfloat16.name}[32, 64]"
    assert found.where.endswith("program.py:8") and counts["runs"] <= 5


def test_a_recording_of_other_random_numbers_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = script(tmp_path, (
        "import numpy as np\nfrom baregrad import Tensor\n"
        "print((Tensor(np.random.rand(64).astype(np.float32)) * 2).sum().item())\n"
    ))  # fmt: skip
    path = tmp_path / "run.npz"
    assert diff.main(["--record", str(path), str(program)]) == 0
    assert diff.main(["--against", str(path), str(program)]) == 1
    assert "it is given other values than there (is a seed missing?): " in capsys.readouterr().out


@pytest.mark.parametrize("text", [
    "print('no tensors')",
    "from baregrad import Tensor\nTensor([1.0, 2.0]) + 1",
], ids=["no tensors", "no values"])  # fmt: skip
def test_a_program_of_which_nothing_is_compared_does_not_pass(text: str, tmp_path: Path) -> None:
    program = script(tmp_path, text)
    (older := tmp_path / "run.npz").write_text("an older one")
    for words in ([], ["--nan"], ["--record", str(older)]):
        with pytest.raises(ArgumentError, match="computes nothing that is looked at"):
            diff.main([*words, str(program)])
    assert older.read_text() == "an older one"


def test_it_is_said_that_threads_are_not_looked_at(tmp_path: Path) -> None:
    program = script(tmp_path, (
        "from baregrad import Tensor\nimport threading\n"
        "work = lambda: print((Tensor([1.0, 2.0]) * 3).sum().item())\n"
        "one = threading.Thread(target=work)\none.start()\none.join()\nwork()\n"
    ))  # fmt: skip
    words = [sys.executable, "-m", "baregrad", "diff", str(program)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "nothing differs: 1 computation\n" in done.stdout
    assert "# what threads of the program computed was not looked at" in done.stderr


def test_what_a_program_raises_is_raised(tmp_path: Path) -> None:
    text = "from baregrad import Tensor\n(Tensor([1.0]) * 2).item()\nraise LookupError('mine')"
    with pytest.raises(LookupError, match="mine"):
        diff.main([str(script(tmp_path, text))])
    with pytest.raises(SyntaxError):
        diff.main([str(script(tmp_path, "def f(:"))])


def test_an_index_of_the_program_that_is_out_of_range_is_its_own_error(tmp_path: Path) -> None:
    program = script(tmp_path, (
        "import numpy as np\nfrom baregrad import Tensor\n"
        "index = Tensor(np.array([[3, 9]])) + 1\n"
        "print(Tensor(np.ones((1, 9), np.float32)).gather(1, index).sum().item())\n"
    ))  # fmt: skip
    with pytest.raises(IndexOutOfRange, match="GATHER leaves axis 1"):
        compare(program, [], "REF", None, False)


def test_what_cancels_or_is_divided_by_little_is_no_fault(tmp_path: Path) -> None:
    """A bias before a normalisation has no gradient but roundings, of which Adam makes steps."""
    program = script(tmp_path, (
        "import numpy as np\nfrom baregrad import Tensor, nn, optim\n"
        "r = np.random.default_rng(0)\n"
        "m = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))\n"
        "o = optim.AdamW(m.parameters(), lr=0.01)\n"
        "x = Tensor(r.normal(size=(16, 8)).astype(np.float32))\n"
        "y = Tensor(r.integers(0, 3, (16,)))\n"
        "for _ in range(2):\n"
        "    o.zero_grad()\n    loss = m(x).cross_entropy(y)\n    loss.backward()\n    o.step()\n"
        "    print(loss.item(), m(x).argmax(-1).sum().item())\n"
    ))  # fmt: skip
    found, counts = compare(program, [], "REF", None, False)
    assert found is None and counts["compared"] >= 2


LOOPS = """
import numpy as np
from baregrad import Tensor, func
a = Tensor(np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32))
w = Tensor(np.eye(4, dtype=np.float32) * 0.5, requires_grad=True)
def step(c, x): return (c @ w + x).{op}(), c
loss = func.scan(step, Tensor(np.zeros((1, 4), np.float32)), a)[0].sum()
loss.backward()
print(loss.item(), w.grad.sum().item())
print(func.cond(a.sum() > 0, lambda x: x * 2, lambda x: x - 1, (a,)).sum().item())
"""


def test_loops_and_choices_are_compared_as_a_whole(tmp_path: Path) -> None:
    program = script(tmp_path, LOOPS.format(op="tanh"))
    for against, nan in (("REF", False), ("torch", False), ("REF", True)):
        found, counts = compare(program, [], against, None, nan)
        assert found is None and counts["compared"] >= 3
    found, _ = compare(script(tmp_path, LOOPS.format(op="log")), [], "REF", None, True)
    assert found is not None and found.op.startswith("REPEAT float32")


def test_options_behind_the_program_are_not_the_programs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = script(tmp_path, (
        "import sys\nimport numpy as np\nfrom baregrad import Tensor\n"
        "print(sys.argv[1:], flush=True)\nx = Tensor(np.arange(8, dtype=np.float32))\n"
        "print((x - x).log().sum().item())\n"
    ))  # fmt: skip
    assert diff.main([str(program), "10", "--lr", "3", "--nan", "--no-script"]) == 1
    assert "LOG float32[8]" in (told := capfd.readouterr().out) and "['10', '--lr', '3']" in told
    assert diff.main(["--no-script", str(program), "10", "--", "--nan"]) == 0
    assert "['10', '--nan']" in capfd.readouterr().out
    with pytest.raises(SystemExit):
        diff.main(["--lr", str(program)])
