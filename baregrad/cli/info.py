"""`baregrad info`: how the GPUs are, versions and places.

Of NVIDIA's GPUs it tells what `nvidia-smi` does, as far as the vendor publishes the calls, by
asking the kernel driver: no program or library of the vendor's need be there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import sys
import time
from datetime import datetime
from importlib import metadata
from pathlib import Path

import baregrad
from baregrad.base.bits import human_bytes, human_text
from baregrad.base.errors import BaregradError
from baregrad.base.options import Options, options
from baregrad.runtime.nvidia.driver.card_status import CardStatus, driver_status

PACKAGES = ("numpy", "llvmlite", "safetensors", "tokenizers", "scikit-learn", "torch")


def package_version(name: str) -> str | None:
    """Return the version of an installed package, None where it is absent."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _changed_options() -> dict[str, str]:
    return {
        row.variable: str(getattr(options, row.name))
        for row in Options.table()
        if getattr(options, row.name) != row.default
    }


def report() -> str:
    """Return what a bug report should begin with."""
    lines = [
        f"baregrad      {baregrad.__version__}  ({Path(baregrad.__file__).parent})",
        f"python        {platform.python_version()}  ({sys.executable})",
        f"system        {platform.platform()}",
    ]
    lines += [f"{name:<13} {package_version(name) or 'not installed'}" for name in PACKAGES]
    changed = [f"{name}={value}" for name, value in _changed_options().items()]
    lines.append(f"options       {' '.join(changed) or 'all at their defaults'}")
    return "\n".join(lines)


def _plain_report() -> dict[str, object]:
    """Return the same for programs."""
    return {
        "baregrad": baregrad.__version__, "place": str(Path(baregrad.__file__).parent),
        "python": platform.python_version(), "system": platform.platform(),
        "packages": {name: package_version(name) for name in PACKAGES},
        "options": _changed_options(),
    }  # fmt: skip


def gpu_lines(version: str, cards: list[CardStatus]) -> list[str]:
    """Return what GPUs say of themselves as text."""
    lines = [f"driver        {version}"]
    for one in cards:
        lines.append(f"GPU {one.index}         {one.name or 'of no known name'}, {one.node}")
        rows = [
            ("identity", f"{one.uuid or 'unknown'} at {one.bus_id or 'unknown'}"),
            ("VBIOS", one.vbios),
            ("memory", _memory_text(one)),
            ("temperature", None if one.temperature_c is None else f"{one.temperature_c} C"),
            ("state", _state_text(one)),
            ("clocks", _clocks_text(one)),
            ("power", _power_text(one)),
            ("load", _load_text(one)),
            ("fans", _fans_text(one)),
            ("link", _link_text(one)),
            ("NVLink", _nvlink_text(one)),
            ("ECC", _ecc_text(one)),
            ("errors", None if one.errors is None else f"{one.errors} in its log"),
            ("MIG", one.mig),
            ("compute mode", one.compute_mode),
            ("recovery", one.recovery),
        ]
        lines += [f"  {name:<13} {text}" for name, text in rows if text is not None]
        for process in one.processes or ():
            used = human_bytes(process.nbytes)
            name = human_text(process.name)
            lines.append(f"  {'process':<13} {process.pid} {used} {name}".rstrip())
        lines += [f"  {_words(name):<13} not known: {why}" for name, why in one.unknown.items()]
    return lines


def _words(field: str) -> str:
    """A field's name as people say it, its unit left out."""
    return field.removesuffix("_rpm").removesuffix("_c").replace("_", " ")


def _memory_text(one: CardStatus) -> str | None:
    if one.total_nbytes is None or one.usable_nbytes is None or one.free_nbytes is None:
        return None
    used = human_bytes(one.usable_nbytes - one.free_nbytes)
    reserved = human_bytes(one.total_nbytes - one.usable_nbytes)
    free = human_bytes(one.free_nbytes)
    return f"{human_bytes(one.total_nbytes)}: {used} used, {reserved} reserved, {free} free"


def _state_text(one: CardStatus) -> str | None:
    held = one.held_back
    if not held or one.performance_state is None:
        return one.performance_state
    return f"{one.performance_state}, held back by: {', '.join(held)}"


def _clocks_text(one: CardStatus) -> str | None:
    clocks = one.clocks
    if clocks is None:
        return None
    rows = (("graphics", clocks.graphics_mhz), ("SM", clocks.sm_mhz),
            ("memory", clocks.memory_mhz), ("video", clocks.video_mhz))  # fmt: skip
    return ", ".join(f"{clock} MHz {word}" for word, clock in rows if clock is not None)


def _power_text(one: CardStatus) -> str | None:
    power = one.power
    if power is None:
        return None
    rows = (("on average", power.average_w), ("now", power.now_w), ("memory", power.memory_w),
            ("at most", power.limit_w))  # fmt: skip
    return ", ".join(f"{watts:.2f} W {word}" for word, watts in rows if watts is not None)


def _load_text(one: CardStatus) -> str | None:
    if one.load is None:
        return None
    return f"{one.load.gpu_percent}% GPU, {one.load.memory_percent}% memory"


def _fans_text(one: CardStatus) -> str | None:
    if one.fans_rpm is None:
        return None
    return ", ".join(f"{rpm} rpm" for rpm in one.fans_rpm) or "none turns"


def _link_text(one: CardStatus) -> str | None:
    link = one.link
    if link is None:
        return None
    return f"PCIe {link.generation} x{link.lanes} of {link.most_generation} x{link.most_lanes}"


def _nvlink_text(one: CardStatus) -> str | None:
    links = one.nvlinks
    if links is None:
        return None
    if not links.enabled:
        return "none switched on"
    rate = f", {links.nbytes_per_s / 1e9:.1f} GB/s each" if links.nbytes_per_s else ""
    return f"{links.active} of {links.enabled} links work{rate}"


def _ecc_text(one: CardStatus) -> str | None:
    if one.ecc is None:
        return None
    counts = one.ecc_counts
    text = "on" if one.ecc else "off"
    if counts is None:
        return text
    return (
        f"{text}; since the driver was loaded {counts.sram_corrected} corrected and "
        f"{counts.sram_uncorrected} uncorrected in SRAM, {counts.dram_corrected} and "
        f"{counts.dram_uncorrected} in DRAM"
    )


def _gpus() -> tuple[str, list[CardStatus]] | str:
    """What the driver tells of its GPUs, or why it tells nothing."""
    try:
        return driver_status()
    except BaregradError as error:
        return f"{error.message}: {error.found}" if error.found else error.message


def show(as_json: bool, versions: bool, watched: bool = False) -> str:
    """Return all that is told, once; where it is one of many, with the time, JSON on one line."""
    found, now = _gpus(), datetime.now().astimezone()
    if as_json:
        told = _plain_report() if versions else {}
        if watched:
            told["time"] = now.isoformat(timespec="milliseconds")
        if isinstance(found, str):
            told["nvidia"] = {"error": found}
        else:
            told["nvidia"] = {"driver": found[0], "gpus": [one.plain() for one in found[1]]}
        return json.dumps(told, indent=None if watched else 2)
    lines = [f"NVIDIA        {found}"] if isinstance(found, str) else gpu_lines(*found)
    if watched:
        lines.insert(0, f"time          {now:%Y-%m-%d %H:%M:%S}")
    return "\n".join([report(), *lines] if versions else lines)


def main(argv: list[str]) -> int:
    """Print versions, places, changed options and how the GPUs are."""
    parser = argparse.ArgumentParser(
        prog="baregrad info",
        description="Print what a bug report should begin with, and how the GPUs are, asked of the "
        "kernel driver alone. GPUs are opened for a moment each time, so that they can be reset.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument(
        "--watch", type=float, nargs="?", const=1.0, metavar="SECONDS",
        help="print again and again how the GPUs are, until interrupted",
    )
    arguments = parser.parse_args(argv)
    if arguments.watch is not None and not 0.05 <= arguments.watch <= 86400:
        parser.error("--watch takes seconds from 0.05 to 86400")
    watched = arguments.watch is not None
    print(show(arguments.json, True, watched), flush=True)
    # Whoever watches ends it so: that is no failure.
    with contextlib.suppress(KeyboardInterrupt):
        while watched:
            time.sleep(arguments.watch)
            print(show(arguments.json, False, watched), flush=True)
    return 0
