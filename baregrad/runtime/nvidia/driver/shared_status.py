"""What the driver keeps up to date of a GPU in memory that programs may read: clocks, power, load.

An object of the class RM_USER_SHARED_DATA is that memory. Who asks for a section has the GPU's
firmware fill it in, ten times a second on a data centre's card, until the object is freed. Where a
section lies depends on the release (`NV00DE_SHARED_DATA`, SDK class/cl00de.h).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from baregrad.base.errors import UnsupportedError
from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.runtime.nvidia.abi.vendor import VendorTables, load_tables
from baregrad.runtime.nvidia.driver.card import Card
from baregrad.runtime.nvidia.driver.memory import MemoryManager
from baregrad.runtime.teardown import Teardown

_STRUCT = "NV00DE_SHARED_DATA"
# Until the first section is there, and then until the others are: one round fills all in. The
# driver's slowest round is a second (nvrm_registry.h, RMRusdPollingInterval).
_PATIENCE_S = 1.5
_SETTLE_S = 0.02
_PAUSE_S = 0.002
_TRIES = 10
# A round fills in all sections in a few milliseconds: what is further from the clocks' stamp is no
# stamp, but something else that lies there in a release whose layout is not known.
_ROUND_NS = 10 * 10**9
# A time stamp from here on counts writes instead, of sections that are not asked for; the highest
# means that one is being written. cl00de.h, RUSD_SEQ_START.
_COUNTS = 0xFF << 56
_NOT_KNOWN = 0xFFFFFFFF
# The bits of enum RUSD_CLK_THROTTLE_REASON.
_HELD_BACK = (
    "idle", "application clocks", "power cap", "hardware slowdown", "sync boost",
    "software thermal slowdown", "hardware thermal slowdown", "hardware power brake",
    "display clocks",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CardClocks:
    """The clocks of a GPU's parts in MHz; older releases tell of no multiprocessors."""

    graphics_mhz: int
    memory_mhz: int
    video_mhz: int
    sm_mhz: int | None


@dataclass(frozen=True, slots=True)
class Power:
    """What a GPU draws in watts: lately, now, its memory's part, and at most."""

    average_w: float | None
    now_w: float | None
    memory_w: float | None
    limit_w: float | None


@dataclass(frozen=True, slots=True)
class Load:
    """Which share of the time a GPU computed and its memory was used, in percent."""

    gpu_percent: int
    memory_percent: int


@dataclass(frozen=True, slots=True)
class SharedStatus:
    """What the sections hold; None for one that the driver fills in not at all."""

    clocks: CardClocks | None
    held_back: tuple[str, ...] | None
    power: Power | None
    load: Load | None
    fans_rpm: tuple[int, ...] | None


def shared_status(card: Card) -> SharedStatus:
    """Return what a card's shared memory says. Raises DriverError, UnsupportedError."""
    client = card.client
    if "shared_data" not in client.release.structs:
        raise UnsupportedError(f"driver {client.version} has no call for it")
    tables = load_tables(client.version)
    layout = tables.struct(_STRUCT)
    if layout is None or tables.place(_STRUCT, "clkPublicDomainInfos") is None:
        raise UnsupportedError(f"driver {client.version} has no call for it")
    teardown = Teardown()
    try:
        made = client.make(
            teardown, "the shared data", card.subdevice, nv.RM_USER_SHARED_DATA,
            client.struct("shared_data").record(),
        )  # fmt: skip
        address = MemoryManager(card).map_for_host(
            teardown, made, layout.nbytes, node="/dev/nvidiactl", read_only=True
        )
        sections = _Sections(tables, client.port.view(address, layout.nbytes))
        before = sections.stamps()
        poll = client.struct("shared_data_poll").record(polledDataMask=nv.SHARED_DATA_ASKED)
        client.control(made, nv.NV00DE_CTRL_CMD_REQUEST_DATA_POLL, poll)
        sections.wait(before)
        return sections.read(before)
    finally:
        teardown.close()


class _Sections:
    """The sections of the shared memory by name; each begins with the time of its last change."""

    def __init__(self, tables: VendorTables, view: memoryview) -> None:
        self._tables = tables
        self._view = view
        self._places: dict[str, int] = {}
        for name in _NAMES:
            found = tables.place(_STRUCT, name)
            if found is not None:
                self._places[name] = found[0]

    def stamps(self) -> Mapping[str, int]:
        """Return when each section changed last."""
        return {name: self._integer(place, 8) for name, place in self._places.items()}

    def wait(self, before: Mapping[str, int]) -> None:
        """Wait until sections have changed."""
        end = time.monotonic() + _PATIENCE_S
        settled = False
        while time.monotonic() < end:
            changed = sum(_fresh(stamp, before[name]) for name, stamp in self.stamps().items())
            if changed == len(before):
                return
            if changed and not settled:
                settled, end = True, time.monotonic() + _SETTLE_S
            time.sleep(_PAUSE_S)

    def read(self, before: Mapping[str, int]) -> SharedStatus:
        """Return what the sections hold that have changed."""
        clocks = self._section("clkPublicDomainInfos", before)
        reasons = self._section("clkThrottleInfo", before)
        if reasons is None:
            reasons = self._section("clkThrottleReason", before)
        load = self._section("perfDevUtil", before)
        fans = self._section("fanCoolerStatus", before)
        return SharedStatus(
            clocks=None if clocks is None else _clocks(clocks),
            held_back=None if reasons is None else tuple(
                word for bit, word in enumerate(_HELD_BACK) if reasons("reasonMask") >> bit & 1
            ),
            power=self._power(before),
            load=None if load is None else Load(
                load("info.gpuPercentBusy"), load("info.memoryPercentBusy")
            ),
            fans_rpm=None if fans is None else tuple(
                rpm for at in range(16) if (rpm := fans(f"info.rpmCurr[{at}]"))
            ),
        )  # fmt: skip

    def _power(self, before: Mapping[str, int]) -> Power | None:
        average = self._section("avgPowerUsage", before)
        now = self._section("instPowerUsage", before)
        limit = self._section("powerLimitGpu", before)
        if average is None and now is None and limit is None:
            return None
        return Power(
            _watts(average, "info.averageGpuPower"), _watts(now, "info.instGpuPower"),
            _watts(average, "info.averageMemoryPower"), _watts(limit, "info.enforcedmW"),
        )  # fmt: skip

    def _section(self, name: str, before: Mapping[str, int]) -> Callable[[str], int] | None:
        """Return what reads the fields of a section as they were at one time, None for a stale one.

        The firmware may write meanwhile: a copy counts where the stamp was the same before and
        after it.
        """
        place = self._places.get(name)
        if place is None:
            return None
        kind = self._kind(name)
        for _ in range(_TRIES):
            stamp = self._integer(place, 8)
            copy = bytes(self._view[place : place + self._tables.nbytes(kind)])
            clocks = self._integer(self._places[_NAMES[0]], 8)
            fresh = _fresh(stamp, before[name]) and abs(stamp - clocks) < _ROUND_NS
            if self._integer(place, 8) == stamp and fresh:
                return lambda field: self._field(kind, copy, field)
            time.sleep(_PAUSE_S)
        return None

    def _kind(self, name: str) -> str:
        found = self._tables.place(_STRUCT, name)
        assert found is not None
        return found[1]

    def _field(self, kind: str, data: bytes, field: str) -> int:
        """Return a field such as `info[2].targetClkMHz`, one index in it at most."""
        outer, bracket, rest = field.partition("[")
        found = self._tables.place(kind, outer)
        if found is None:
            raise UnsupportedError(f"the shared memory has no {field}")
        offset, word = found
        if bracket:
            index, _, inner = rest.partition("]")
            offset += int(index) * self._tables.nbytes(word)
            if inner:
                deeper = self._tables.place(word, inner.removeprefix("."))
                if deeper is None:
                    raise UnsupportedError(f"the shared memory has no {field}")
                offset, word = offset + deeper[0], deeper[1]
        return int.from_bytes(data[offset : offset + self._tables.nbytes(word)], "little")

    def _integer(self, place: int, nbytes: int) -> int:
        return int.from_bytes(self._view[place : place + nbytes], "little")


_NAMES = (
    "clkPublicDomainInfos", "clkThrottleInfo", "clkThrottleReason", "perfDevUtil",
    "powerLimitGpu", "avgPowerUsage", "instPowerUsage", "fanCoolerStatus",
)  # fmt: skip


def _fresh(stamp: int, before: int) -> bool:
    return stamp != before and 0 < stamp < _COUNTS


def _clocks(section: Callable[[str], int]) -> CardClocks:
    """Read the clocks, which are in the order of enum RUSD_CLK_PUBLIC_DOMAIN."""
    graphics, memory, video, sm = (section(f"info[{at}].targetClkMHz") for at in range(4))
    return CardClocks(graphics, memory, video, sm or None)


def _watts(section: Callable[[str], int] | None, field: str) -> float | None:
    if section is None:
        return None
    milliwatts = section(field)
    return None if milliwatts in (0, _NOT_KNOWN) else milliwatts / 1000
