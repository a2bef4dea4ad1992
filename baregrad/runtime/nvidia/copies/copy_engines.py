"""Which copy engine to use: what the driver reports of each, and which is best by that.

A logical engine moves data with the physical ones that the driver gave it: of an H200's three that
work beside the graphics engine, one has most of them and copies to a peer at 393 GB/s, the others
at 46 and 67. The driver says how many each has; where that is refused (a sandbox may let only some
questions through), what it says of their abilities has to do: of the engines of a GPU on a switch
it names the one with most physical engines for NVLink (open-gpu-kernel-modules 580.95.05,
`kernel_ce_gh100.c:1040`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from baregrad.base.errors import DriverError
from baregrad.runtime.nvidia.abi import numbers as nv

if TYPE_CHECKING:
    from baregrad.runtime.nvidia.driver.objects import Gpu

_log = logging.getLogger(__name__)

# Engine types of more than ten copy engines do not follow each other.
MOST_ENGINES = 10
_CAPS_NBYTES = 2


class CopyEngine(NamedTuple):
    """A copy engine: its number, its abilities, how many physical engines (None: unknown)."""

    number: int
    caps: int
    parts: int | None

    @property
    def rank(self) -> tuple[int, ...]:
        """What is larger for the better engine."""
        fast = self.caps & (nv.COPY_CAPS_HOST_READ | nv.COPY_CAPS_HOST_WRITE)
        return (
            self.parts or 0, fast.bit_count(), self.caps & nv.COPY_CAPS_NVLINK,
            -(self.caps & nv.COPY_CAPS_SHARED), self.number,
        )  # fmt: skip


class Engines(NamedTuple):
    """The numbers of copy engines that work beside the graphics engine, best first, and why."""

    numbers: tuple[int, ...]
    why: str


def copy_engines(gpu: Gpu) -> Engines:
    """Return what copy engines there are, by what the driver reports of them."""
    try:
        found = _reported(gpu)
    except DriverError as error:
        _log.warning("the last copy engine is taken, since the driver reports none: %s", error)
        numbers = tuple(range(MOST_ENGINES - 1, -1, -1))
        return Engines(numbers, f"the last that works, since none is reported: {error}")
    best = sorted(found, key=lambda one: one.rank, reverse=True)
    if not best:
        return Engines((), "the driver has none beside the graphics engine's")
    numbers = tuple(one.number for one in best)
    if best[0].parts is not None:
        shares = ", ".join(f"{one.number} with {one.parts}" for one in best)
        return Engines(numbers, f"by physical engines: {shares}")
    abilities = ", ".join(f"{one.number} with {one.caps:#x}" for one in best)
    return Engines(numbers, f"by abilities, since physical engines are not reported: {abilities}")


def _reported(gpu: Gpu) -> list[CopyEngine]:
    """Return the engines with a runlist of their own; raise DriverError if none is reported."""
    client = gpu.client
    record = client.struct("all_copy_caps").record()
    client.control(gpu.subdevice, nv.NV2080_CTRL_CMD_CE_GET_ALL_CAPS, record)
    table, present = record.data("capsTbl"), record["present"]
    found = []
    answers = True
    for number in range(MOST_ENGINES):
        caps = table[_CAPS_NBYTES * number]
        if not present >> number & 1 or caps & nv.COPY_CAPS_GRAPHICS:
            continue
        parts = _parts(gpu, number) if answers else None
        answers = parts is not None
        found.append(CopyEngine(number, caps, parts))
    if not answers:
        found = [one._replace(parts=None) for one in found]
    return found


def _parts(gpu: Gpu, number: int) -> int | None:
    """Return how many physical engines a copy engine has, None if the driver does not say."""
    client = gpu.client
    record = client.struct("parts_of_copy_engine").record(
        ceEngineType=nv.NV2080_ENGINE_TYPE_COPY0 + number
    )
    try:
        client.control(gpu.subdevice, nv.NV2080_CTRL_CMD_CE_GET_CE_PCE_MASK, record)
    except DriverError as error:
        _log.info("physical engines of copy engine %d: %s", number, error)
        return None
    return int(record["pceMask"]).bit_count()
