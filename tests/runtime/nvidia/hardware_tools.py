"""What the steps of the hardware check share."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from typing import Any

from baregrad.runtime.nvidia.abi import names
from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.runtime.nvidia.driver.objects import Gpu
from baregrad.runtime.nvidia.driver.port import Port
from baregrad.runtime.nvidia.queue.channel import Channel
from baregrad.runtime.nvidia.queue.channel_group import ChannelGroup

MIB = 1 << 20


def expect(condition: bool, message: str) -> None:
    """Stop the step if something is not as it must be."""
    if not condition:
        raise AssertionError(message)


def timed(what: str, action: Callable[[], object], times: int = 1) -> float:
    """Run an action, print how long it took on average and return that, in seconds."""
    begin = time.perf_counter()
    for _ in range(times):
        action()
    seconds = (time.perf_counter() - begin) / times
    print(f"  {what}: {seconds * 1e6:.1f} us")
    return seconds


def noise(nbytes: int, seed: int = 1) -> bytes:
    """Return bytes that repeat only after a prime number of them."""
    block = bytes((i * i * 31 + i * 7 + seed) & 0xFF for i in range(65521))
    return (block * (nbytes // len(block) + 1))[:nbytes]


class TimedPort:
    """A port that keeps the times of the calls of another one."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._spent: dict[str, list[float]] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if name not in ("open", "close", "ioctl", "map_device", "map_memory", "unmap"):
            return found

        def timed_call(*arguments: Any) -> Any:
            begin = time.perf_counter()
            try:
                return found(*arguments)
            finally:
                what = _call_name(name, arguments)
                self._spent.setdefault(what, []).append(time.perf_counter() - begin)

        return timed_call

    def take(self) -> list[tuple[str, float, int]]:
        """Calls since the last time: name, seconds of all, how many; the longest first."""
        found, self._spent = self._spent, {}
        rows = [(name, sum(spent), len(spent)) for name, spent in found.items()]
        return sorted(rows, key=lambda row: -row[1])


def _call_name(name: str, arguments: tuple[Any, ...]) -> str:
    """What a call asks for: the class, the command, the ioctl, the size."""
    if name in ("map_device", "map_memory", "unmap"):
        return f"{name} of {arguments[-1]} bytes"
    if name != "ioctl":
        return f"{name} {arguments[0] if name == 'open' else ''}"
    request, record = arguments[1], arguments[2]
    number = request & 0xFF
    if number == nv.NV_ESC_RM_ALLOC and request >> 30:
        return f"{names.class_name(record['hClass'])}"
    if number == nv.NV_ESC_RM_CONTROL and request >> 30:
        return f"{names.command_name(record['cmd'])}"
    return names.escape_name(number) if request >> 30 == 3 else names.uvm_name(request)


def two_channels(gpu: Gpu, **options: int) -> tuple[Channel, Channel]:
    """Return a channel that computes and one that copies, of one group, both scheduled."""
    group = ChannelGroup(gpu)
    compute, copies = Channel(group, **options), Channel(group, copies=True, **options)
    group.schedule()
    return compute, copies


def main(steps: Mapping[str, Callable[[], None]], file: str, about: str, *,
         hidden: Collection[str] = (), limit_s: int = 90) -> int:  # fmt: skip
    """Run the chosen steps of a script, each in a process of its own; return how many failed.

    Steps that are `hidden` run only where they are named.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=" ".join(steps))
    parser.add_argument("--here", action="store_true", help="run them in this process")
    chosen = parser.parse_args()
    names = chosen.steps or [name for name in steps if name not in hidden]
    if chosen.here:
        return sum(not _run_here(steps[name]) for name in names)
    failed = []
    for name in names:
        print(f"--- {name}: {(steps[name].__doc__ or '').splitlines()[0]}", flush=True)
        begin = time.perf_counter()
        try:
            child = subprocess.run(
                [sys.executable, file, "--here", name], timeout=limit_s, check=False
            )
            passed = child.returncode == 0
        except subprocess.TimeoutExpired:
            print(f"  no end after {limit_s} s")
            passed = False
        print(f"{'PASS' if passed else 'FAIL'} {name} ({time.perf_counter() - begin:.2f} s)",
              flush=True)
        if not passed:
            failed.append(name)
    print(f"{len(names) - len(failed)} of {len(names)} passed" + "".join(f", {n}" for n in failed))
    return len(failed)


def _run_here(step: Callable[[], None]) -> bool:
    """Run one step in this process and return whether it passed."""
    try:
        step()
    except Exception:  # noqa: BLE001  the report is the point
        traceback.print_exc(file=sys.stdout)
        return False
    return True
