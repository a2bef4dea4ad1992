"""Where the vendor's compilers for NVIDIA GPUs lie: wheels from PyPI, or an installed toolkit.

They are looked for in this order: the folder that the option `cuda_home` names (CUDA_HOME), the
wheels nvidia-cuda-nvcc and nvidia-cuda-nvrtc (their names end in -cu12 for CUDA 12), PATH, and
/usr/local/cuda*. Nothing here is needed to run kernels that were compiled before.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from baregrad.base.errors import MissingDependency
from baregrad.base.options import options

_SYSTEM = Path("/usr/local")
# Where toolkits keep libraries; wheels keep them in `lib`.
_LIBRARY_FOLDERS = ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")


def find_program(name: str, package: str, command: str = "") -> Path:
    """Return the path of a program of the toolkit, `command` itself where it is given.

    Raises MissingDependency, which names the `package` that brings it and where it was looked for.
    """
    if command:
        found = shutil.which(command)
        if found is None:
            raise MissingDependency(
                f"the program {command!r} was not found", package=package, found="not on PATH"
            )
        return Path(found)
    homes = list(_homes())
    on_path = shutil.which(name)
    candidates = [*(home / "bin" / name for home in homes), *([Path(on_path)] if on_path else [])]
    candidates += [home / "bin" / name for home in _system_homes()]
    for path in candidates:
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise _missing(name, package, homes)


def find_library(stem: str, package: str) -> Path:
    """Return the path of a shared library of the toolkit: `libnvrtc` for libnvrtc.so.13.

    Raises MissingDependency as `find_program` does.
    """
    homes = list(_homes())
    on_path = shutil.which("nvcc") or shutil.which("ptxas")
    if on_path:
        homes.append(Path(on_path).resolve().parent.parent)
    for home in (*homes, *_system_homes()):
        for folder in _LIBRARY_FOLDERS:
            # Not libnvrtc-builtins.so or libnvrtc.alt.so; the highest version is last.
            found = sorted((home / folder).glob(f"{stem}.so*"), key=_version_of)
            if found:
                return found[-1]
    raise _missing(stem, package, homes)


def _homes() -> Iterator[Path]:
    """Yield the folder that the user names, then those of the wheels, newest first."""
    if options.cuda_home:
        yield Path(options.cuda_home).expanduser()
    spec = importlib.util.find_spec("nvidia")
    # The wheels share the package `nvidia`, which has no file of its own.
    places = [] if spec is None else spec.submodule_search_locations or []
    for place in map(Path, places):
        yield from sorted(place.glob("cu[0-9]*"), key=_version_of, reverse=True)
        yield place / "cuda_nvcc"
        yield place / "cuda_nvrtc"


def _system_homes() -> list[Path]:
    """Return installed toolkits; /usr/local/cuda is the one that the system prefers."""
    versioned = sorted(_SYSTEM.glob("cuda-*"), key=_version_of, reverse=True)
    return [_SYSTEM / "cuda", *versioned]


def _version_of(path: Path) -> tuple[int, ...]:
    """Return the numbers in a name, so that 12.10 is above 12.9."""
    return tuple(int(digits) for digits in re.findall(r"\d+", path.name))


def _missing(name: str, package: str, homes: list[Path]) -> MissingDependency:
    places = [*map(str, homes), "PATH", f"{_SYSTEM}/cuda*"]
    return MissingDependency(
        f"{name} of NVIDIA's CUDA toolkit is needed and was not found",
        package=package,
        found=f"nothing in {', '.join(places)}",
        hint=f"install it with: pip install {package}, or set CUDA_HOME to a toolkit",
    )
