"""Sides of a comparison on one GPU: each a process of its own, which answer in turn.

The device NV must share no process with libcuda, and two libraries of CUDA none with each other's
settings, so a benchmark starts one worker a side and asks them one after the other, round by
round. A worker reads questions from its input, one a line as JSON, and writes answers likewise.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
Answer = dict[str, Any]


class Side:
    """A worker. `command` starts it; it says {"ready": facts} or {"skip": why} first."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        # Behind ours is what the caller has: packages may lie in a folder of their own.
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environ = {**os.environ, "PYTHONPATH": path, "BAREGRAD_PROGRESS": "off"}
        self._process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
        )
        first = self._read()
        self.facts: Answer = first.get("ready", {})
        self.skipped: str = first.get("skip", "")

    def ask(self, **question: Any) -> Answer:
        """Return the answer to a question; raise RuntimeError where the worker failed."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        if "error" in answer:
            raise RuntimeError(f"{self.name}: {answer['error']}")
        return answer

    def _read(self) -> Answer:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith("{"):
                found: Answer = json.loads(line)
                return found
            print(f"  {self.name}: {line.rstrip()}", file=sys.stderr)
        return {"skip": f"it ended with status {self._process.wait()}"}

    def close(self) -> None:
        """End the worker."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            print(f"{self.name} did not end by itself", file=sys.stderr)


def serve(make: Callable[[], tuple[Mapping[str, Any], Callable[[Answer], Answer]]]) -> None:
    """Be a worker: `make` returns facts of the side and what answers a question."""
    try:
        facts, answer = make()
    except Exception as error:  # noqa: BLE001  whatever it is, the benchmark goes on without it
        print(json.dumps({"skip": f"{type(error).__name__}: {error}"}), flush=True)
        return
    print(json.dumps({"ready": dict(facts)}), flush=True)
    for line in sys.stdin:
        try:
            found = answer(json.loads(line))
        except Exception as error:  # noqa: BLE001  told to whoever asked
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), flush=True)


def start(sides: Mapping[str, Sequence[str]]) -> dict[str, Side]:
    """Start workers and return those that are ready, saying why the others are not."""
    ready = {}
    for name, command in sides.items():
        side = Side(name, command)
        if side.skipped:
            print(f"skipped {name}: {side.skipped}", flush=True)
            side.close()
        else:
            ready[name] = side
    return ready


def vendor_libraries() -> list[str]:
    """Return which of the vendor's libraries are mapped into this process."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = {line.split()[-1] for line in lines if "/" in line}
    names = {Path(path).name for path in paths}
    stems = ("libcuda", "libcudart", "libnvidia-")
    return sorted(name for name in names if name.startswith(stems))


def timed_ns(action: Callable[[], Any], times: int) -> list[int]:
    """Return how long each of so many calls took."""
    found = []
    clock = time.perf_counter_ns
    for _ in range(times):
        begin = clock()
        action()
        found.append(clock() - begin)
    return found


def spread(values: Sequence[float]) -> str:
    """Return how far values lie from their median, lowest and highest, in parts of it."""
    middle = statistics.median(values)
    return f"{min(values) / middle - 1:+.1%}..{max(values) / middle - 1:+.1%}"


def row(name: str, ratios: Sequence[float], bar: str, times: str) -> str:
    """Return one line: name, the median ratio over rounds, its bar, times, spread, a verdict.

    `bar` is "<0.9", ">0.98" or "" for a figure that has none.
    """
    ratio = statistics.median(ratios)
    verdict = ""
    if bar:
        good = ratio <= float(bar[1:]) if bar[0] == "<" else ratio >= float(bar[1:])
        verdict = "PASS" if good else "MISS"
    return f"{name:34} {ratio:7.3f} {bar or '-':>6}  {times:34} {spread(ratios):16} {verdict}"


def machine() -> Answer:
    """Return what the figures were taken on; asks no library of the vendor's."""
    facts: Answer = {
        "python": platform.python_version(), "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)), "when": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    for key, path, marks in (
        ("processor", "/proc/cpuinfo", ("model name",)),
        ("driver", "/proc/driver/nvidia/version", ("NVRM",)),
    ):
        try:
            lines = Path(path).read_text().splitlines()
        except OSError:
            continue
        facts[key] = next((line.partition(":")[2].strip() for line in lines
                           if line.startswith(marks)), "")
    return facts


def write_report(path: str, report: Answer) -> None:
    """Write what was found as JSON, if a path was given."""
    if path:
        Path(path).write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")
        print(f"wrote {path}")
