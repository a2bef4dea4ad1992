"""Programs in processes of their own, sharing a folder of compiled kernels."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A small network's forward and backward pass: a dozen kernels of several kinds.
STEP = textwrap.dedent("""
    import sys
    from baregrad.tensor import Tensor

    x = Tensor([[float(i * j % 7) for j in range(8)] for i in range(16)])
    w = Tensor([[0.1 * ((i + j) % 5) for j in range(4)] for i in range(8)], requires_grad=True)
    loss = ((x @ w).tanh().sum(1).exp() + 1.0).log().mean()
    loss.backward()
    print(f"{loss.item():.6f} {w.grad.sum().item():.6f}")
""")
REPORT = textwrap.dedent("""
    from baregrad.engine.session import current_session

    compiler = current_session().backend("CPU").compiler
    print("compiled", compiler.compiled, "loaded", compiler.loaded)
    print("llvmlite", "llvmlite" in sys.modules)
""")


@functools.cache
def _snapshot() -> tempfile.TemporaryDirectory[str]:
    """A copy of the package: kernels are kept by its text, which may change while tests run."""
    folder = tempfile.TemporaryDirectory(prefix="baregrad-limits-")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "baregrad", Path(folder.name) / "baregrad", ignore=ignored)
    return folder


def environment(cache: Path) -> dict[str, str]:
    """The environment of a program that keeps its kernels in `cache`."""
    found = {name: text for name, text in os.environ.items() if not name.startswith("BAREGRAD")}
    return {
        **found, "PYTHONPATH": _snapshot().name, "BAREGRAD_CACHE_DIR": str(cache),
        "BAREGRAD_DEVICE": "CPU", "BAREGRAD_PROGRESS": "off",
    }


def start(program: str, cache: Path) -> subprocess.Popen[str]:
    """Start a program whose output is read later."""
    return subprocess.Popen(
        [sys.executable, "-c", program], env=environment(cache), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )


def run(program: str, cache: Path) -> tuple[list[str], str]:
    """Run a program, which must succeed: the lines that it printed, and its warnings."""
    return finish(start(program, cache))


def finish(process: subprocess.Popen[str], timeout_s: float = 900.0) -> tuple[list[str], str]:
    """Wait for a program, which must succeed: the lines that it printed, and its warnings."""
    output, errors = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, errors
    return output.splitlines(), errors
