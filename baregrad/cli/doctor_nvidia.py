"""What `baregrad doctor` says of the device NV: nodes, driver, GPUs, peers, assembler."""

from __future__ import annotations

import os
from itertools import permutations
from pathlib import Path

from baregrad.base.errors import BaregradError
from baregrad.base.options import options
from baregrad.cli.finding import Finding, find_ptxas

_NEEDS = "an NVIDIA GPU of Turing or later and its kernel driver (535 or later), and ptxas"
_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")


def examine_nvidia() -> Finding:
    """Look at the GPUs of this machine, opening each of them."""
    facts: list[str] = []
    advice = ""
    if options.nv_port == "kernel":
        facts, advice = _nodes()
    if not advice:
        found, advice = _driver()
        facts += found
    fact, missing = _assembler()
    facts.append(fact)
    advice = advice or missing
    return Finding("NV", "missing" if advice else "ready", _NEEDS, tuple(facts), advice)


def _nodes() -> tuple[list[str], str]:
    gpus = sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*"))
    facts = [f"GPU nodes {', '.join(gpus)}" if gpus else "no GPU node in /dev"]
    if not gpus:
        return facts, "use BAREGRAD_DEVICE=CPU, or install NVIDIA's driver if there is a GPU"
    for node in (*_NODES, *gpus):
        if not Path(node).exists():
            advice = f"make {node}: `nvidia-modprobe -u -c=0`, as root"
            return [*facts, f"{node} is not there"], advice
        if not os.access(node, os.R_OK | os.W_OK):
            return [*facts, f"{node} may not be opened"], f"let this user read and write {node}"
    return facts, ""


def _driver() -> tuple[list[str], str]:
    """Return what the driver and each GPU say, and what to do if one does not answer."""
    from baregrad.runtime.nvidia.abi.releases import NEWEST_BRANCH
    from baregrad.runtime.nvidia.copies.peers import peer_access
    from baregrad.runtime.nvidia.device import NvDevice

    facts: list[str] = []
    devices: list[NvDevice] = []
    try:
        first = NvDevice("NV:0")
        devices.append(first)
        client = first.client
        known = "known" if client.release.version[0] <= NEWEST_BRANCH else "newer than is known"
        where = " (virtual)" if options.nv_port == "virtual" else ""
        facts.append(f"driver {client.version}{where}, {known}")
        for index in range(1, len(client.cards())):
            devices.append(NvDevice(f"NV:{index}", index=index))
        facts += [
            f"{one.name}: {one.gpu.generation.name}, {one.architecture}, {one.gpu.node}"
            for one in devices
        ]
        for one, other in permutations(devices, 2):
            found = peer_access(one, other)
            way = "straight" if found.direct else "by the host"
            facts.append(f"{one.name} to {other.name}: {way}; {found.why}")
    except BaregradError as error:
        return [*facts, str(error)], "see what the driver says; the kernel log may tell more"
    finally:
        for device in devices:
            device.close()
    return facts, ""


def _assembler() -> tuple[str, str]:
    if options.nv_port == "virtual":
        return "the virtual GPU needs no ptxas", ""
    return find_ptxas()
