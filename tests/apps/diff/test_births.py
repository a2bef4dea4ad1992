"""The first NaN or infinity is told of where it is born; masks give theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from baregrad.apps.diff.judging import OpDifference
from baregrad.apps.diff.main import compare

HEAD = "import numpy as np\nfrom baregrad import Tensor\nx = Tensor({})\n"
RAMP = "np.linspace(0.5, 2, 8).astype(np.float32)"


def found_in(tmp_path: Path, text: str, array: str = RAMP) -> OpDifference | None:
    script = tmp_path / "nan.py"
    script.write_text(HEAD.format(array) + text)
    found, counts = compare(script, [], "REF", None, True)
    # All values of a computation are looked at, by one run.
    assert counts["runs"] <= counts["compared"]
    return found


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
    found, counts = compare(script, [], "REF", None, True)
    assert found is not None and found.where.endswith("nan.py:7") and counts["runs"] == 1
    assert found.op == "LOG float32[8]" or found.op.startswith("LOG2 float32[8]")
    assert "8 infinite of 8" in found.told


@pytest.mark.parametrize(("line", "op"), [
    ("(x - x).log()", "LOG"),
    ("(x * 200).exp()", "EXP"),
    ("1 / (x - x)", ""),
    ("(x - 1).sqrt()", "SQRT"),
    ("(x * 1e38 * 100)", "MUL"),
])  # fmt: skip
def test_what_arithmetic_makes_of_finite_values_is_born_there(
    line: str, op: str, tmp_path: Path
) -> None:
    found = found_in(tmp_path, f"print(({line}).numpy())\n")
    assert found is not None and found.op.startswith(op) and found.where.endswith("nan.py:4")


@pytest.mark.parametrize("text", [
    "print((x > 1).where(x, -np.inf).exp().sum().item())\n",
    "print((x > 1).where(x, -np.inf).softmax(-1).numpy())\n",
    "print((x > 1).where(x, -np.inf).amax().item())\n",
    "m = Tensor(np.where(np.arange(8) < 4, 0, -np.inf).astype(np.float32))\n"
    "print((x + m).softmax(-1).numpy())\n",
    "m = (x > 1).where(0.0, -np.inf).realize()\nprint((x + m).exp().numpy())\n",
])  # fmt: skip
def test_the_infinity_of_a_mask_is_none_that_was_born(text: str, tmp_path: Path) -> None:
    assert found_in(tmp_path, text) is None


def test_a_nan_made_of_a_mask_is_born_where_it_is_made(tmp_path: Path) -> None:
    found = found_in(
        tmp_path, "m = (x > 9).where(x, -np.inf)\nprint((m - m.amax()).exp().sum().item())\n"
    )
    assert found is not None and found.where.endswith("nan.py:5") and "8 NaN" in found.told
    assert "an infinity that the program gives" in found.told


def test_an_infinity_of_a_mask_in_a_result_is_told_where_it_was_given(tmp_path: Path) -> None:
    found = found_in(tmp_path, "m = (x > 1).where(x, np.inf)\nprint((m * 2).sum().item())\n")
    assert found is not None and found.where.endswith("nan.py:4")
    assert "given by the program, and a result has it" in found.told


def test_a_nan_that_was_given_is_told_where_it_is_read(tmp_path: Path) -> None:
    found = found_in(
        tmp_path, "print((x * 2).sum().item())\n", "np.array([1, np.nan], np.float32)"
    )
    assert found is not None and found.where.endswith("nan.py:4")
    assert "from an array that it was given" in found.told
