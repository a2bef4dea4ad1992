"""Opens damaged GGUF files: each is read, or refused by an error of the tree.

    python -m baregrad.testing.fuzz_gguf --files 20000 --seed 0

A file is made by a few changes of a sound one: bytes, numbers set to their extremes, stretches cut
out, doubled or moved, the end cut off. What it is follows from the seed and its number alone, and
`--only N` opens one again. A finding is any other error, a warning, or a file that takes long;
memory beyond a gigabyte more than at the start is an error that shows as one.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import numpy as np

from baregrad.base.errors import BaregradError, CompilerBug
from baregrad.io.gguf import (
    TYPES,
    GgufFile,
    Kind,
    TensorToWrite,
    TypedValue,
    Value,
    write_gguf,
)

LONGEST_S = 2.0
MEMORY_NBYTES = 1 << 30
_MOST_CHANGES = 4
_EXTREMES = (0, 1, 2, 3, 9, 31, 32, 255, 1 << 15, (1 << 31) - 1, 1 << 31, (1 << 32) - 1,
             1 << 40, (1 << 62) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip


class _TooLong(BaseException):
    """A file that takes longer than files may."""


def sound_file(path: Path) -> bytes:
    """Write a file of all types and all kinds of metadata at `path` and return its bytes."""
    metadata: dict[str, Value | TypedValue] = {
        "general.architecture": "llama", "general.alignment": 64, "big": 1 << 40, "few": -3,
        "ratio": 0.5, "flag": True, "tokens": ["a", "", "häß", "<s>"], "flags": [True, False],
        "scores": [0.5, -1.0], "kinds": [1, 2, 3], "precise": TypedValue(0.1, Kind.FLOAT64),
        "bytes": TypedValue([1, 255], Kind.ARRAY, Kind.UINT8),
    }  # fmt: skip
    tensors = {
        f"blk.{row.id}.weight": TensorToWrite(
            row, (2, row.block), np.full(2 * row.nbytes, row.id, np.uint8)
        )
        for row in TYPES
    }
    write_gguf(path, metadata, tensors)
    return path.read_bytes()


def damaged(sound: bytes, seed: int, number: int) -> bytes:
    """Return what some changes, drawn from the seed and the number, make of a file."""
    rng = np.random.default_rng((seed, number))
    data = bytearray(sound)
    # The header is where damage tells: the rest is numbers of weights.
    for _ in range(int(rng.integers(1, _MOST_CHANGES + 1))):
        end = min(len(data), 4096) if rng.random() < 0.9 else len(data)
        place = int(rng.integers(0, max(end, 1)))
        _change(data, place, int(rng.integers(6)), rng)
    return bytes(data)


def _change(data: bytearray, place: int, how: int, rng: np.random.Generator) -> None:
    length = int(rng.integers(1, 64))
    if how == 0:
        data[place : place + 1] = bytes([int(rng.integers(256))])
    elif how == 1:
        size = int(rng.choice((1, 2, 4, 8)))
        value = int(_EXTREMES[int(rng.integers(len(_EXTREMES)))]) & ((1 << 8 * size) - 1)
        data[place : place + size] = value.to_bytes(size, "little")
    elif how == 2:
        del data[place : place + length]
    elif how == 3:
        data[place:place] = data[place : place + length]
    elif how == 4:
        other = int(rng.integers(0, len(data) + 1))
        data[place : place + length] = data[other : other + length]
    else:
        del data[int(rng.integers(0, len(data) + 1)) :]


def problem_of(path: Path) -> str | None:
    """Open a file and look at all that it holds; return what is wrong with how that fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with GgufFile.open(path) as file:
                for tensor in file.tensors.values():
                    tensor.raw().max(initial=0)
                for value in file.metadata.values():
                    hash(str(value))
    except _TooLong:
        return f"takes longer than {LONGEST_S} s"
    except CompilerBug as error:
        return f"CompilerBug: {error}"
    except (BaregradError, OSError):
        return None
    except Exception:  # noqa: BLE001 - whatever it is, it is the finding
        return traceback.format_exc().strip().splitlines()[-1]
    return None


@contextlib.contextmanager
def _limits() -> Iterator[None]:
    """Give this process a gigabyte more memory and each file some seconds."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _TooLong

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_NBYTES, before[1]))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def run(files: int, seed: int, first: int = 0) -> Iterator[tuple[int, str]]:
    """Open `files` damaged files; yield the number of each that fails badly, and how."""
    with tempfile.TemporaryDirectory() as folder, _limits():
        path = Path(folder) / "model.gguf"
        sound = sound_file(path)
        for number in range(first, first + files):
            path.write_bytes(damaged(sound, seed, number))
            signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
            problem = problem_of(path)
            signal.setitimer(signal.ITIMER_REAL, 0)
            if problem is not None:
                yield number, problem


def main() -> int:
    """Run the program and return its exit status: 1 where something was found."""
    parser = argparse.ArgumentParser(description="open damaged GGUF files")
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of the one file to open")
    wanted = parser.parse_args()
    first, files = (0, wanted.files) if wanted.only is None else (wanted.only, 1)
    found = 0
    for number, problem in run(files, wanted.seed, first):
        found += 1
        print(f"{problem}\n    python -m baregrad.testing.fuzz_gguf --only {number} "
              f"--seed {wanted.seed}")  # fmt: skip
    print(f"{files} files, {found} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
