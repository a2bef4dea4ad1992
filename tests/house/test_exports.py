"""The package's face: every name that it promises is there, explained and typed."""

from __future__ import annotations

import ast
import inspect
import pickle
import subprocess
import sys

import pytest

import baregrad
from tests.house.source import PACKAGE, ROOT

PUBLIC = [name for name in baregrad.__all__ if not name.startswith("__")]


@pytest.mark.parametrize("name", baregrad.__all__)
def test_every_public_name_resolves(name: str) -> None:
    value = getattr(baregrad, name)
    assert getattr(baregrad, name) is value


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_explained(name: str) -> None:
    assert inspect.getdoc(getattr(baregrad, name))


def test_all_is_sorted_and_without_doubles() -> None:
    assert list(baregrad.__all__) == sorted(set(baregrad.__all__))
    assert set(baregrad.__all__) <= set(dir(baregrad))


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.asname
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom | ast.Import)
        for alias in node.names
    }
    assert seen == set(PUBLIC)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no 'tensr'"):
        _ = baregrad.tensr


@pytest.mark.parametrize(("owner", "name", "near"), [
    ("nn", "NLLLoss2d", "NLLLoss"), ("nn.init", "xavier_uniform", "xavier_uniform_"),
    ("nn.utils", "clip_grad_norm", "clip_grad_norm_"),
    ("special", "bessel_j0", "modified_bessel_i0"),
    ("fft", "dct", "fft"), ("func", "linearize", "jacrev"), ("autograd", "gradchek", "gradcheck"),
    ("optim", "SparseAdam", "RAdam"), ("optim.lr_scheduler", "StepsLR", "StepLR"),
    ("linalg", "expm", "matrix_exp"), ("Tensor([1.0])", "symeig", "svd"),
])  # fmt: skip
def test_a_missing_name_is_told_with_the_nearest(owner: str, name: str, near: str) -> None:
    room = baregrad.Tensor([1.0]) if "(" in owner else baregrad
    for part in [] if "(" in owner else owner.split("."):
        room = getattr(room, part)
    with pytest.raises(AttributeError, match=f"has no '{name}'; the nearest .* is '{near}'"):
        getattr(room, name)


def test_names_load_their_rooms_only_when_asked_for() -> None:
    code = (
        "import sys, baregrad\n"
        "assert not [m for m in sys.modules if m.startswith('baregrad.')], 'a room was loaded'\n"
        "assert 'numpy' not in sys.modules\n"
        "baregrad.dtypes\n"
        "assert 'baregrad.dtypes' in sys.modules\n"
        "assert not {'llvmlite', 'torch', 'sklearn'} & set(sys.modules)\n"
        "from baregrad import *\n"
        "assert not {'llvmlite', 'torch', 'sklearn'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_version_is_the_projects() -> None:
    assert f'version = "{baregrad.__version__}"' in (ROOT / "pyproject.toml").read_text()


def test_a_property_that_fails_raises_its_own_error() -> None:
    class Named(baregrad.Tensor):
        @property
        def title(self) -> str:
            return str(self.label.missing)

        @property
        def label(self) -> str:
            return "x"

    with pytest.raises(AttributeError, match="'str' object has no attribute 'missing'"):
        _ = Named([1.0]).title


def test_the_nearest_name_is_looked_for_when_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def searched(*_: object) -> list[str]:
        raise AssertionError("nobody wants to know")

    with monkeypatch.context() as patch:
        patch.setattr("difflib.get_close_matches", searched)
        assert not hasattr(baregrad.Tensor([1.0]), "values")
        assert not hasattr(baregrad.nn, "Linera")
        with pytest.raises(AttributeError) as raised:
            _ = baregrad.nn.Linera  # type: ignore[attr-defined]
    copied = pickle.loads(pickle.dumps(raised.value))
    assert "the nearest that it has is 'Linear'" in str(raised.value)
    assert copied.args == raised.value.args
