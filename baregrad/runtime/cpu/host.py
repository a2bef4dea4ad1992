"""What processor we run on: cores we may use, features, cache sizes.

Everything comes from the system's own tables (/proc, /sys), so nothing needs to be installed;
where one is missing, the field says so by being empty or 0.
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
from dataclasses import dataclass
from pathlib import Path

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_CPUINFO = Path("/proc/cpuinfo")
_CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
# What the system calls instructions on tiles, which may be used with its leave alone.
TILE_FEATURES = frozenset(("amx_tile", "amx_bf16", "amx_int8", "amx_fp16", "amx_complex"))
# Of x86-64: the number of the system call, what is asked of it, and the state that tiles are.
_ARCH_PRCTL = 158
_REQUEST_PERMISSION = 0x1023
_TILE_DATA = 18


@dataclass(frozen=True, slots=True)
class HostProcessor:
    """The processor of this machine.

    `machine` is "x86_64" or "aarch64" (or another). `cores` is how many this process may use at
    once: its affinity, and its share where a container limits it. `features` are the system's
    names ("avx2", "fma", "avx512f", "asimd") of what we may use; `refused` are those of what
    is there but the system does not let us use. Cache sizes are in bytes, 0 where not known:
    `l1_nbytes` and `l2_nbytes` of one core, `l3_nbytes` shared. `vector_nbytes` is the width of
    the widest vector registers. `vendor` is the system's name of who made it ("GenuineIntel"),
    empty where not known.
    """

    machine: str
    name: str
    cores: int
    features: frozenset[str]
    l1_nbytes: int
    l2_nbytes: int
    l3_nbytes: int
    line_nbytes: int
    vector_nbytes: int
    refused: frozenset[str] = frozenset()
    vendor: str = ""


def detect_host() -> HostProcessor:
    """Return the processor that we run on."""
    machine = platform.machine().lower()
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    facts = _cpuinfo()
    features = frozenset(facts.get("flags", facts.get("Features", "")).split())
    tiles = features & TILE_FEATURES
    refused = frozenset[str]() if not tiles or may_use_tiles() else tiles
    features -= refused
    caches = _caches()
    return HostProcessor(
        machine=machine,
        name=facts.get("model name", "") or platform.processor() or machine,
        cores=usable_cores(),
        features=features,
        l1_nbytes=caches.get(1, 0),
        l2_nbytes=caches.get(2, 0),
        l3_nbytes=caches.get(3, 0),
        line_nbytes=_number(_CACHES / "index0" / "coherency_line_size") or 64,
        vector_nbytes=_vector_nbytes(machine, features),
        refused=refused,
        vendor=facts.get("vendor_id", ""),
    )


def may_use_tiles() -> bool:
    """Ask the system for tile registers, for all threads of this process; whether they are ours.

    They make a thread's saved state 8 KiB larger, so Linux wants to be asked (since 5.16). Source:
    Linux, Documentation/arch/x86/xstate.rst, and arch/x86/include/uapi/asm/prctl.h.
    """
    if platform.system() != "Linux":
        return False
    try:
        return _arch_prctl(_REQUEST_PERMISSION, _TILE_DATA) == 0
    except (OSError, AttributeError):
        return False


def _arch_prctl(code: int, argument: int) -> int:
    """The system call of that name; -1 where it fails."""
    call = ctypes.CDLL(None).syscall
    call.restype = ctypes.c_long
    found: int = call(ctypes.c_long(_ARCH_PRCTL), ctypes.c_long(code), ctypes.c_ulong(argument))
    return found


def usable_cores() -> int:
    """Return how many cores this process may keep busy at once."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:
        cores = os.cpu_count() or 1
    try:
        quota, period = _CGROUP_QUOTA.read_text().split()
        if quota != "max":
            # More threads than the share are stopped in turn, mid-kernel: round up, no further.
            cores = min(cores, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError, ZeroDivisionError):
        return max(1, cores)
    return max(1, cores)


def _vector_nbytes(machine: str, features: frozenset[str]) -> int:
    if machine != "x86_64":
        return 16
    if "avx512f" in features:
        return 64
    return 32 if "avx" in features else 16


def _cpuinfo() -> dict[str, str]:
    """Return the fields of the first processor."""
    try:
        text = _CPUINFO.read_text()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _caches() -> dict[int, int]:
    """Return bytes by level, of data and unified caches."""
    found: dict[int, int] = {}
    try:
        folders = sorted(_CACHES.glob("index*"))
    except OSError:
        return found
    for folder in folders:
        try:
            kind = (folder / "type").read_text().strip()
            level = int((folder / "level").read_text())
            size = (folder / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1:], 0)
        if kind != "Instruction" and unit and size[:-1].isdigit():
            found[level] = int(size[:-1]) * unit
    return found


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
