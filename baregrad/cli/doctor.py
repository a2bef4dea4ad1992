"""`baregrad doctor`: what each device needs, what was found here, and what to do."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from baregrad.base.bits import human_bytes
from baregrad.base.errors import BaregradError
from baregrad.base.options import options
from baregrad.cli.doctor_cuda import examine_cuda
from baregrad.cli.doctor_nvidia import examine_nvidia
from baregrad.cli.finding import Finding
from baregrad.cli.info import package_version
from baregrad.runtime.cpu.host import HostProcessor, detect_host
from baregrad.target.cpu import cpu_row


def examine() -> tuple[Finding, ...]:
    """Look at this machine, and return what was found for each device in turn."""
    host = detect_host()
    return (
        _host(host),
        _cpu(host),
        _c_compiler(),
        Finding("REF", "ready", "NumPy alone", (f"NumPy {np.__version__}",)),
        Finding("NULL", "ready", "nothing: it runs nothing", ("always there",)),
        # NV first: where it is open, no library of the vendor's should be loaded.
        examine_nvidia(),
        examine_cuda(),
        _cache(options.cache_dir),
    )


def main(argv: list[str]) -> int:
    """Print the findings; return 1 if the default device is not ready."""
    parser = argparse.ArgumentParser(
        prog="baregrad doctor",
        description="Say what each device needs, what was found, and what to do. "
        "The exit status is 1 if the default device is not ready.",
    )
    parser.parse_args(argv)
    findings = examine()
    print("\n".join(map(str, findings)))
    verdict = verdict_of(options.device, findings)
    print(f"\nThe default device is {options.device}: {verdict}.")
    return 0 if verdict == "ready" else 1


def verdict_of(device: str, findings: Sequence[Finding]) -> str:
    """Return what was found of a device, which may be one GPU of several (`NV:1`)."""
    kind, _, number = device.partition(":")
    found = next(one for one in findings if one.subject == kind)
    if number and found.verdict == "ready" and f"{device}: " not in str(found):
        return "missing"
    return found.verdict


def _host(host: HostProcessor) -> Finding:
    memory = "unknown"
    if hasattr(os, "sysconf"):
        memory = human_bytes(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    version = platform.python_version()
    facts = (
        f"Python {version} on {platform.system()} {platform.machine()}",
        f"{host.name}, {host.cores} cores for us, {memory} of memory",
    )
    return Finding("machine", "ready", "Python 3.11 or newer, NumPy", facts)


def _cpu(host: HostProcessor) -> Finding:
    needs = "llvmlite (the LLVM compiler as a Python package), x86-64 or arm64"
    facts = []
    advice = ""
    try:
        row = cpu_row(host.features)
        facts.append(
            f"{row.name}: vectors of {row.vector_bytes} bytes "
            f"({row.lanes(4)} float32), {row.vector_registers} vector registers"
        )
        if row.tile_instructions:
            facts.append(f"tiles (AMX): {', '.join(row.tile_instructions)}")
        elif host.refused:
            facts.append("tiles (AMX): the system does not let us use them")
    except BaregradError as error:
        facts.append(str(error))
        advice = "use BAREGRAD_DEVICE=REF"
    facts.append(f"{host.cores} cores; {_caches(host)}")
    version = package_version("llvmlite")
    if version is None:
        facts.append("llvmlite is not installed")
        advice = advice or 'pip install "baregrad[cpu]"'
    else:
        try:
            facts.append(f"llvmlite {version} with LLVM {_llvm_version()}")
        except (ImportError, OSError) as error:
            facts.append(f"llvmlite {version}, which does not load: {error}")
            advice = advice or "reinstall it: pip install --force-reinstall llvmlite"
    return Finding("CPU", "missing" if advice else "ready", needs, tuple(facts), advice)


def _llvm_version() -> str:
    from llvmlite import binding

    return ".".join(map(str, binding.llvm_version_info))


def _caches(host: HostProcessor) -> str:
    sizes = (("L1", host.l1_nbytes), ("L2", host.l2_nbytes), ("L3", host.l3_nbytes))
    return ", ".join(f"{name} {human_bytes(size)}" for name, size in sizes if size) or "no caches"


def _c_compiler() -> Finding:
    needs = "gcc or clang; only for BAREGRAD_CPU_RENDERER=c"
    names = (options.cc,) if options.cc else ("cc", "gcc", "clang")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        fact = f"none of {', '.join(names)} on PATH"
        advice = "nothing, unless you want that renderer"
        return Finding("C compiler", "optional", needs, (fact,), advice)
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=30, check=False
        )
        version = (done.stdout or done.stderr).partition("\n")[0]
    except (OSError, subprocess.TimeoutExpired) as error:
        version = str(error)
    return Finding("C compiler", "ready", needs, (f"{path}: {version}",))


def _cache(folder: Path) -> Finding:
    needs = "a folder that we may write to; without one kernels are compiled anew in each process"
    if not options.cache:
        return Finding("disk cache", "optional", needs, ("switched off by BAREGRAD_CACHE=0",))
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not os.access(nearest, os.W_OK):
        fact = f"{nearest} is not writable"
        return Finding("disk cache", "missing", needs, (fact,), "set BAREGRAD_CACHE_DIR")
    sizes = []
    for path in folder.rglob("*"):
        # Another process may take it away meanwhile.
        with contextlib.suppress(OSError):
            if path.is_file():
                sizes.append(path.stat().st_size)
    fact = f"{folder}: {len(sizes)} files, {human_bytes(sum(sizes))}"
    return Finding("disk cache", "ready", needs, (fact,))
