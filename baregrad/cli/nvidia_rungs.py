"""The rungs from a machine to a kernel on its NVIDIA GPU, each with its repair where it breaks.

Each rung stands on those before it, so the first one that breaks is the one to mend.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Protocol

from baregrad.base.errors import BaregradError, UnsupportedDevice
from baregrad.base.options import options
from baregrad.cli.nvidia_repairs import repair_of
from baregrad.runtime.nvidia.abi.releases import NEWEST_BRANCH
from baregrad.runtime.nvidia.copies.peers import peer_access
from baregrad.runtime.nvidia.device import NvDevice
from baregrad.runtime.nvidia.driver.card import Card
from baregrad.runtime.nvidia.driver.card_status import CardStatus, card_status
from baregrad.runtime.nvidia.driver.client import Client
from baregrad.runtime.nvidia.driver.objects import Gpu
from baregrad.runtime.nvidia.driver.port import Port, open_port
from baregrad.runtime.nvidia.queue.pushbuffer import PushBuffer
from baregrad.target import gpu_row
from baregrad.target.nvidia import nvidia_row

_CONTROL, _UVM = "/dev/nvidiactl", "/dev/nvidia-uvm"
_VENDOR = "0x10de"
# Classes of PCI devices that are GPUs: displays, and 3D controllers without one.
_GPU_CLASSES = ("0x0300", "0x0302")
_VERSION = "/proc/driver/nvidia/version"


@dataclass(frozen=True, slots=True)
class Rung:
    """One rung: what was found, and what to do where it is broken."""

    name: str
    fact: str
    repair: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.fact}" if self.name else self.fact


class HostSystem(Protocol):
    """What is looked at of a machine."""

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        ...

    def may_open(self, path: str) -> bool:
        """Whether this user may read and write it."""
        ...

    def text(self, path: str) -> str:
        """Return what a file says, "" where it cannot be read."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return what is in a folder, nothing where it cannot be read."""
        ...

    def port(self) -> Port:
        """Return the way to the driver."""
        ...


class ThisMachine:
    """The machine that this process is on."""

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        return Path(path).exists()

    def may_open(self, path: str) -> bool:
        """Whether this user may read and write it."""
        return os.access(path, os.R_OK | os.W_OK)

    def text(self, path: str) -> str:
        """Return what a file says, "" where it cannot be read."""
        try:
            return Path(path).read_text(errors="replace")
        except OSError:
            return ""

    def names(self, folder: str) -> list[str]:
        """Return what is in a folder, nothing where it cannot be read."""
        try:
            return sorted(one.name for one in Path(folder).iterdir())
        except OSError:
            return []

    def port(self) -> Port:
        """Return the way to the driver that the option names."""
        return open_port()


class BrokenRungError(Exception):
    """A rung broke; those above it cannot be tried."""

    def __init__(self, rung: Rung) -> None:
        super().__init__(rung)
        self.rung = rung


def climb(machine: HostSystem, first_kernel: Callable[[str], str]) -> list[Rung]:
    """Try rung after rung, and return them, at most one of them broken: the last.

    first_kernel: runs a kernel on a device of that name by the compiler; returns what it found.
    """
    found: list[Rung] = []
    try:
        if options.nv_port == "kernel":
            for rung in _system_rungs(machine):
                found.append(rung)
        for rung in _driver_rungs(machine.port()):
            found.append(rung)
        found.append(_stand("first kernel", "find out which step gives a wrong result: run the "
                            "tests, and report it", lambda: first_kernel("NV")))  # fmt: skip
        found += _peer_rungs(machine.port())
    except BrokenRungError as error:
        found.append(error.rung)
    return found


def _stand(name: str, otherwise: str, action: Callable[[], str], node: str = "") -> Rung:
    """Return the rung of an action that gives a fact; raise BrokenRungError where it fails."""
    try:
        return Rung(name, action())
    except BaregradError as error:
        told = f"{error.message}: {error.found}" if error.found else error.message
        repair = repair_of(error, otherwise, node or "the device node")
        raise BrokenRungError(Rung(name, told, repair)) from error


def _broken(name: str, fact: str, repair: str) -> BrokenRungError:
    return BrokenRungError(Rung(name, fact, repair))


# --- the system
# -----------------------------------------------------------------------------------------


def _system_rungs(machine: HostSystem) -> Iterator[Rung]:
    """Node, permissions, module."""
    nodes = sorted(
        f"/dev/{name}" for name in machine.names("/dev") if re.fullmatch(r"nvidia\d+", name)
    )
    wanted = (*nodes, _CONTROL, _UVM)
    missing = [node for node in wanted if not machine.exists(node)]
    if not nodes or missing:
        fact = f"{missing[0]} is not there" if nodes else "no GPU node in /dev"
        raise _broken("node", fact, _why_no_node(machine, nodes))
    yield Rung("node", f"{', '.join(nodes)}, {_CONTROL}, {_UVM}")
    closed = [node for node in wanted if not machine.may_open(node)]
    if closed:
        raise _broken(
            "permissions", f"{closed[0]} may not be opened",
            f"let this user read and write {closed[0]}: `chmod 666 {closed[0]}`, as root, or its "
            "group in /etc/udev",
        )
    yield Rung("permissions", "this user may open them")
    yield Rung("module", _module_text(machine.text(_VERSION)))


def _why_no_node(machine: HostSystem, nodes: list[str]) -> str:
    """Say what to do where nodes are missing."""
    cards = [
        name for name in machine.names("/sys/bus/pci/devices")
        if machine.text(f"/sys/bus/pci/devices/{name}/vendor").strip() == _VENDOR
        and machine.text(f"/sys/bus/pci/devices/{name}/class").startswith(_GPU_CLASSES)
    ]  # fmt: skip
    if machine.text(_VERSION):
        if machine.exists("/.dockerenv") or machine.exists("/run/.containerenv"):
            return "give the container its GPUs: `--gpus all`, or the device nodes by `--device`"
        missing = _UVM if nodes and machine.exists(_CONTROL) else _CONTROL
        return f"make {missing}: `nvidia-modprobe -u -c=0`, as root"
    if machine.exists("/sys/module/nouveau"):
        return "the module nouveau has the GPU: blacklist it, install NVIDIA's driver and restart"
    if cards and machine.exists("/usr/bin/nvidia-modprobe"):
        return "load the driver: `modprobe nvidia nvidia-uvm`, as root"
    if cards:
        return f"install NVIDIA's driver for the GPU at {cards[0]}, then `modprobe nvidia`, as root"
    return "use BAREGRAD_DEVICE=CPU, or install NVIDIA's driver if there is a GPU"


def _module_text(version: str) -> str:
    """Say which of the two modules is loaded, open or proprietary."""
    match = re.search(r"(\d{3}\.\d+(?:\.\d+)?)", version)
    if not match:
        return "not told by /proc"
    kind = "open" if "Open Kernel Module" in version else "proprietary"
    return f"{kind}, {match[1]}"


# --- the driver
# -----------------------------------------------------------------------------------------


def _driver_rungs(port: Port) -> Iterator[Rung]:
    """Release, cards, their health, classes, memory, channel."""
    statuses: list[CardStatus] = []
    where = " (virtual)" if options.nv_port == "virtual" else ""

    def release() -> str:
        with Client(port, memory=False) as client:
            known = client.release.version[0] <= NEWEST_BRANCH
            return f"driver {client.version}{where}, {'known' if known else 'newer than is known'}"

    yield _stand("release", "see the kernel log (dmesg) for what the driver says", release)

    def cards() -> str:
        with Client(port, memory=False) as client:
            count = len(client.cards())
            if not count:
                raise UnsupportedDevice(
                    "the driver lists no GPU that has a node here",
                    hint="see dmesg for why it did not start one; in a container, give it a GPU",
                )
            statuses.extend(card_status(client, index) for index in range(count))
        return f"{count} of this machine may be used"

    yield _stand("GPUs", "see the kernel log (dmesg): a GPU did not start", cards)
    for one in statuses:
        yield _health(one)

    yield _stand(
        "classes", "this generation is not known: use BAREGRAD_DEVICE=CUDA",
        lambda: _classes(port, len(statuses)),
    )
    yield _stand(
        "memory", "load the driver of memory: `modprobe nvidia-uvm`, as root",
        lambda: _memory(port, len(statuses)),
    )
    yield _stand(
        "channel", "see the kernel log (dmesg) for a line with Xid",
        lambda: _channel(port, statuses),
    )


def _classes(port: Port, count: int) -> str:
    """The generation of each GPU, by the classes of objects that the driver makes on it."""
    told = []
    with Client(port, memory=False) as client:
        for index in range(count):
            card = Card(client, index)
            try:
                told.append(nvidia_row(card.classes()).name)
            finally:
                card.teardown.close()
    return ", ".join(told)


def _memory(port: Port, count: int) -> str:
    with Client(port) as client:
        for index in range(count):
            Gpu(client, index).close()
    return "address spaces can be made"


def _channel(port: Port, statuses: list[CardStatus]) -> str:
    """Have each GPU raise its timeline once."""
    told = []
    for index, status in enumerate(statuses):
        device = NvDevice(f"NV:{index}", index=index, port=port)
        try:
            compute = device.channels[0]
            compute.submit(PushBuffer())
            device.synchronize()
            gpu_row(device.architecture)
            told.append(
                f"{device.name}: {device.gpu.generation.name}, {device.architecture}, {status.node}"
            )
        finally:
            device.close()
    return "; ".join(told)


def _health(one: CardStatus) -> Rung:
    """What a card says of itself that forbids work; raises BrokenRungError."""
    name = f"GPU {one.index}"
    if one.recovery not in (None, "None"):
        action = {
            "Reset": "reset it: `nvidia-smi -r`, as root, with nobody using it",
            "Reboot": "restart the machine",
        }.get(one.recovery or "", "end all work on it, then reset it: `nvidia-smi -r`, as root")
        raise _broken(name, f"it asks for: {one.recovery}", action)
    if one.mig == "on":
        raise _broken(
            name, "it is divided (MIG), which is not offered",
            "switch it off: `nvidia-smi -mig 0`, as root, or use BAREGRAD_DEVICE=CUDA",
        )
    if one.compute_mode == "Prohibited":
        raise _broken(name, "its compute mode forbids work", "`nvidia-smi -c 0`, as root")
    counts = one.ecc_counts
    if counts is not None and counts.dram_uncorrected + counts.sram_uncorrected:
        failed = counts.dram_uncorrected + counts.sram_uncorrected
        raise _broken(
            name, f"{failed} errors of its memory could not be corrected",
            "reset it: `nvidia-smi -r`, as root; if they come again, have it replaced",
        )
    return Rung(name, one.name or "of no known name")


def _peer_rungs(port: Port) -> list[Rung]:
    """How GPUs reach each other's memory."""
    devices: list[NvDevice] = []
    found: list[Rung] = []
    try:
        with Client(port, memory=False) as client:
            count = len(client.cards())
        for index in range(count if count > 1 else 0):
            devices.append(NvDevice(f"NV:{index}", index=index, port=port))
        for one, other in permutations(devices, 2):
            access = peer_access(one, other)
            way = "straight" if access.direct else "by the host"
            found.append(Rung("", f"{one.name} to {other.name}: {way}; {access.why}"))
    except BaregradError as error:
        repair = repair_of(error, "use one GPU, and see the kernel log (dmesg)")
        raise BrokenRungError(Rung("peers", error.message, repair)) from error
    finally:
        for device in devices:
            device.close()
    return found
