"""Packages that tests need and that may be away: such a test is skipped, and says which it is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec


def away(error: BaseException | None) -> str:
    """Why a test cannot run, if that is a package that is not installed; empty for any other error.

    An error that names a package which is there is a fault as any other, and so is one of ours.
    """
    while error is not None and not isinstance(error, ImportError):
        error = error.__cause__
    # That of our own errors is the name under which it is installed.
    name = getattr(error, "package", "") or getattr(error, "name", "") or ""
    root = name.split(".")[0]
    if not root or root in ("baregrad", "tests") or find_spec(root.replace("-", "_")) is not None:
        return ""
    try:
        distribution(root)
    except PackageNotFoundError:
        return f"the package {name} is not installed"
    return ""
