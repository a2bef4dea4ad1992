"""What is skipped where a package is away: that alone, and nothing that is a fault of ours."""

from __future__ import annotations

import importlib

import pytest

from baregrad.base.errors import MissingDependency
from tests.packages import away


def error_of_import(name: str) -> ImportError:
    with pytest.raises(ImportError) as caught:
        importlib.import_module(name)
    return caught.value


def test_a_package_that_is_away_is_named() -> None:
    assert "no_such_package is not installed" in away(error_of_import("no_such_package"))
    assert "no-such-one is not installed" in away(MissingDependency(package="no-such-one"))
    wrapped = RuntimeError("while importing")
    wrapped.__cause__ = error_of_import("no_such_package")
    assert away(wrapped)


@pytest.mark.parametrize("error", [
    None, ValueError("wrong"), ImportError("cannot import name 'x' from 'numpy'", name="numpy"),
    MissingDependency(package="numpy"), MissingDependency("something is missing"),
], ids=["none", "value", "name", "installed", "unnamed"])  # fmt: skip
def test_anything_else_is_a_fault(error: BaseException | None) -> None:
    assert not away(error)


def test_a_module_of_ours_is_never_away() -> None:
    assert not away(error_of_import("baregrad.no_such_module"))
