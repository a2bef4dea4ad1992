"""What a benchmark ran on and with: the machine, and versions."""

from __future__ import annotations

import platform
from dataclasses import replace
from importlib import metadata
from typing import Any

import baregrad
from baregrad.apps.bench_measure import CopyProbe, Effort, measure, warm_up
from baregrad.runtime.cpu.host import HostProcessor

PACKAGES = ("numpy", "torch", "llvmlite")


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
    warm_up(runs)
    return probe.moved / measure(runs, replace(effort, row_s=0.0))["copy"].median
