"""`baregrad info`: versions and places, for a bug report."""

from __future__ import annotations

import argparse
import platform
import sys
from importlib import metadata
from pathlib import Path

import baregrad
from baregrad.base.options import Options, options

PACKAGES = ("numpy", "llvmlite", "safetensors", "tokenizers", "scikit-learn", "torch")


def package_version(name: str) -> str | None:
    """Return the version of an installed package, None where it is absent."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def report() -> str:
    """Return what a bug report should begin with."""
    lines = [
        f"baregrad      {baregrad.__version__}  ({Path(baregrad.__file__).parent})",
        f"python        {platform.python_version()}  ({sys.executable})",
        f"system        {platform.platform()}",
    ]
    lines += [f"{name:<13} {package_version(name) or 'not installed'}" for name in PACKAGES]
    changed = [
        f"{row.variable}={getattr(options, row.name)}"
        for row in Options.table()
        if getattr(options, row.name) != row.default
    ]
    lines.append(f"options       {' '.join(changed) or 'all at their defaults'}")
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """Print versions, places and changed options."""
    parser = argparse.ArgumentParser(
        prog="baregrad info",
        description="Print what a bug report should begin with: versions, places, changed options.",
    )
    parser.parse_args(argv)
    print(report())
    return 0
