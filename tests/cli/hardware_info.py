"""`baregrad info` beside `nvidia-smi -q`: every field that both print, of every GPU.

    python tests/cli/hardware_info.py [--rounds N]

Each round asks the one, the other, and the one again. A field agrees where it is what the vendor's
tool said before or after; one that moves by itself (clocks, power, load, temperature), where it
lies between the two, or within `SLACK` of them. Run it idle, and beside a program that keeps the
GPU busy.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from baregrad.runtime.nvidia.driver.card_status import CardStatus, driver_status

# Of a value that moves: the power of a busy card changes as much from sample to sample.
SLACK = 0.05
_REASONS = {
    "gpu_idle": "idle", "applications_clocks_setting": "application clocks",
    "sw_power_cap": "power cap", "hw_slowdown": "hardware slowdown", "sync_boost": "sync boost",
    "sw_thermal_slowdown": "software thermal slowdown",
    "hw_thermal_slowdown": "hardware thermal slowdown",
    "hw_power_brake_slowdown": "hardware power brake",
    "display_clocks_setting": "display clocks",
}  # fmt: skip
Value = str | float | tuple[str, ...]


def of_smi() -> list[dict[str, Value]]:
    """Return what the vendor's tool says of each GPU, by our names."""
    text = subprocess.run(["nvidia-smi", "-q", "-x"], capture_output=True, check=True).stdout
    root = ElementTree.fromstring(text)
    found = []
    for gpu in root.findall("gpu"):
        row: dict[str, Value] = {"driver": root.findtext("driver_version", "")}
        for name, path in _PATHS.items():
            said = gpu.findtext(path)
            if said is None or said in ("N/A", "[N/A]", "Not Supported"):
                continue
            head, _, unit = said.partition(" ")
            number = head.removesuffix("x").replace(".", "", 1).isdigit()
            row[name] = float(head.removesuffix("x")) if number and name not in _TEXTS else said
            if unit == "MiB":
                row[name] = float(head)
        reasons = gpu.find("clocks_event_reasons")
        if reasons is not None:
            row["held back"] = tuple(sorted(
                ours for theirs, ours in _REASONS.items()
                if reasons.findtext(f"clocks_event_reason_{theirs}") == "Active"
            ))  # fmt: skip
        row["processes"] = tuple(sorted(
            f"{one.findtext('pid')} {one.findtext('used_memory')}"
            for one in gpu.iterfind("processes/process_info")
        ))  # fmt: skip
        found.append(row)
    links = subprocess.run(["nvidia-smi", "nvlink", "-s"], capture_output=True, text=True,
                           check=False).stdout  # fmt: skip
    for row, text in zip(found, re.split(r"^GPU \d+:", links, flags=re.M)[1:], strict=False):
        rates = [float(rate) for rate in re.findall(r"Link \d+: ([\d.]+) GB/s", text)]
        row["NVLinks"], row["NVLink GB/s"] = float(len(rates)), max(rates, default=0.0)
    return found


_PATHS = {
    "name": "product_name", "uuid": "uuid", "bus": "pci/pci_bus_id", "VBIOS": "vbios_version",
    "total": "fb_memory_usage/total", "reserved": "fb_memory_usage/reserved",
    "used": "fb_memory_usage/used", "free": "fb_memory_usage/free",
    "state": "performance_state", "temperature": "temperature/gpu_temp",
    "link": "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
    "most link": "pci/pci_gpu_link_info/pcie_gen/max_link_gen",
    "lanes": "pci/pci_gpu_link_info/link_widths/current_link_width",
    "most lanes": "pci/pci_gpu_link_info/link_widths/max_link_width",
    "ECC": "ecc_mode/current_ecc",
    "SRAM corrected": "ecc_errors/volatile/sram_correctable",
    "DRAM corrected": "ecc_errors/volatile/dram_correctable",
    "DRAM uncorrected": "ecc_errors/volatile/dram_uncorrectable",
    "MIG": "mig_mode/current_mig", "compute mode": "compute_mode",
    "recovery": "gpu_recovery_action",
    "graphics MHz": "clocks/graphics_clock", "SM MHz": "clocks/sm_clock",
    "memory MHz": "clocks/mem_clock", "video MHz": "clocks/video_clock",
    "average W": "gpu_power_readings/average_power_draw",
    "W now": "gpu_power_readings/instant_power_draw",
    "memory W": "gpu_memory_power_readings/average_power_draw",
    "limit W": "gpu_power_readings/current_power_limit",
    "GPU %": "utilization/gpu_util", "memory %": "utilization/memory_util",
}  # fmt: skip
_TEXTS = ("uuid", "bus", "VBIOS", "name", "state")
_MOVING = ("temperature", "graphics MHz", "SM MHz", "memory MHz", "video MHz", "average W", "W now",
           "memory W", "GPU %", "memory %")  # fmt: skip


def of_ours(version: str, one: CardStatus) -> dict[str, Value]:
    """Return what we say of a GPU, by the same names and in the same units."""
    link, ecc, clocks, power, load = one.link, one.ecc_counts, one.clocks, one.power, one.load
    total, usable, free = (value or 0 for value in
                           (one.total_nbytes, one.usable_nbytes, one.free_nbytes))  # fmt: skip
    told: dict[str, Any] = {
        "driver": version, "name": one.name, "uuid": one.uuid, "bus": one.bus_id,
        "VBIOS": one.vbios, "total": total >> 20, "reserved": total - usable >> 20,
        "used": usable - free >> 20, "free": free >> 20, "state": one.performance_state,
        "temperature": one.temperature_c,
        "link": link and link.generation, "most link": link and link.most_generation,
        "lanes": link and link.lanes, "most lanes": link and link.most_lanes,
        "NVLinks": one.nvlinks and one.nvlinks.active,
        "NVLink GB/s": one.nvlinks and one.nvlinks.nbytes_per_s / 1e9,
        "ECC": None if one.ecc is None else "Enabled" if one.ecc else "Disabled",
        "SRAM corrected": ecc and ecc.sram_corrected, "DRAM corrected": ecc and ecc.dram_corrected,
        "DRAM uncorrected": ecc and ecc.dram_uncorrected,
        "MIG": {"on": "Enabled", "off": "Disabled"}.get(one.mig or ""),
        "compute mode": one.compute_mode, "recovery": one.recovery,
        "graphics MHz": clocks and clocks.graphics_mhz, "SM MHz": clocks and clocks.sm_mhz,
        "memory MHz": clocks and clocks.memory_mhz, "video MHz": clocks and clocks.video_mhz,
        "average W": power and power.average_w, "W now": power and power.now_w,
        "memory W": power and power.memory_w, "limit W": power and power.limit_w,
        "GPU %": load and load.gpu_percent, "memory %": load and load.memory_percent,
        "held back": None if one.held_back is None else tuple(sorted(one.held_back)),
        "processes": None if one.processes is None else tuple(sorted(
            f"{row.pid} {row.nbytes >> 20} MiB" for row in one.processes)),
    }  # fmt: skip
    return {name: float(value) if isinstance(value, int) else value
            for name, value in told.items() if value is not None}  # fmt: skip


def agrees(name: str, ours: Value, before: Value, after: Value) -> bool:
    """Return whether a field is what the vendor's tool says."""
    if ours in (before, after):
        return True
    if not isinstance(ours, float) or not isinstance(before, float) or not isinstance(after, float):
        return False
    low, high = min(before, after), max(before, after)
    if name in _MOVING:
        slack = max(SLACK * high, 1.0)
        return low - slack <= ours <= high + slack
    if name == "NVLink GB/s":
        return abs(ours - low) <= 0.01 * low
    # Sizes in MiB are rounded, each tool in its own way.
    return name in ("total", "reserved", "used", "free") and low - 1 <= ours <= high + 1


def rounds(count: int) -> Iterator[tuple[int, str, Value, Value, Value]]:
    """Yield (GPU, field, ours, theirs before, theirs after) of every field that both have."""
    for _ in range(count):
        before = of_smi()
        version, cards = driver_status()
        after = of_smi()
        for at, (one, first, second) in enumerate(zip(cards, before, after, strict=True)):
            for name, ours in of_ours(version, one).items():
                if name in first and name in second:
                    yield at, name, ours, first[name], second[name]


def main(arguments: list[str] | None = None, say: Callable[[str], None] = print) -> int:
    """Compare, and say for each field in how many rounds it agreed, and where it did not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args(arguments)
    asked: Counter[tuple[int, str]] = Counter()
    right: Counter[tuple[int, str]] = Counter()
    last: dict[tuple[int, str], str] = {}
    for at, name, ours, before, after in rounds(chosen.rounds):
        asked[at, name] += 1
        good = agrees(name, ours, before, after)
        right[at, name] += good
        if not good or (at, name) not in last:
            last[at, name] = f"ours {ours!r}, theirs {before!r} and {after!r}"
    for key, count in asked.items():
        mark = "" if right[key] == count else "  DIFFERS"
        say(f"GPU {key[0]} {key[1]:<16} {right[key]} of {count}: {last[key]}{mark}")
    wrong = sum(right[key] != count for key, count in asked.items())
    say(f"{len(asked)} fields, {wrong} differ")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
