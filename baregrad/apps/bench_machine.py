"""What a benchmark ran on and with: the machine, and versions."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import baregrad
from baregrad.apps.bench_measure import Effort, measure, warm_up
from baregrad.runtime.copy_probe import CopyProbe
from baregrad.runtime.cpu.host import HostProcessor

PACKAGES = ("numpy", "torch", "llvmlite")
_STAT = Path("/proc/stat")


def machine_record(host: HostProcessor, threads: int) -> dict[str, Any]:
    """Return the processor's model, cores and caches in bytes."""
    return {
        "cpu": host.name,
        "machine": host.machine,
        "cores": host.cores,
        "threads": threads,
        "vector_nbytes": host.vector_nbytes,
        "l1_nbytes": host.l1_nbytes,
        "l2_nbytes": host.l2_nbytes,
        "l3_nbytes": host.l3_nbytes,
        "system": f"{platform.system()} {platform.release()}",
    }


def version_record() -> dict[str, str]:
    """Return the versions of Python, baregrad and what it is compared with."""
    found = {"python": platform.python_version(), "baregrad": baregrad.__version__}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def copy_rate(nbytes: int, threads: int, effort: Effort) -> float:
    """Measure the machine's rate of copying `nbytes`: bytes read and written in a second."""
    probe = CopyProbe(nbytes, threads)
    runs = {"copy": probe.run}
    times = measure(runs, warm_up(runs), replace(effort, row_s=0.0))
    return probe.moved / times["copy"].median


class CoreUse:
    """How much of the cores other processes took between two moments: what spoils a timing.

    Read from /proc/stat (proc(5)): the first line's ticks that were not idle, less our own.
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._begin = self._look()

    def share(self) -> float | None:
        """Return others' share of the cores since this was made, 0 to 1; None where unknown."""
        begin, end = self._begin, self._look()
        if begin is None or end is None or end[0] <= begin[0]:
            return None
        wall, busy, own = (after - before for before, after in zip(begin, end, strict=True))
        return min(1.0, max(0.0, (busy - own) / (wall * self._cores)))

    def _look(self) -> tuple[float, float, float] | None:
        """Return seconds: of the clock, of all cores at work, of this process."""
        try:
            fields = [int(text) for text in _STAT.read_text().split(maxsplit=9)[1:9]]
        except (OSError, ValueError):
            return None
        if len(fields) < 8:
            return None
        user, nice, system, _, _, irq, softirq, steal = fields
        ticks = user + nice + system + irq + softirq + steal
        own = os.times()
        return time.perf_counter(), ticks / os.sysconf("SC_CLK_TCK"), own.user + own.system
