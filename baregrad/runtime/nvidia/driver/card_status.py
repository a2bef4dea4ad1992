"""How a GPU is: what `nvidia-smi` shows and the vendor has published calls for.

A card is opened, asked and closed again, so that whoever looks stands in the way of no reset. What
a driver does not answer stays unknown, with its reason. Clocks, power and the load are answered by
no call: they lie in memory that the driver shares (`shared_status.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from baregrad.base.errors import BaregradError, UnsupportedError
from baregrad.runtime.nvidia.abi import Record
from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.runtime.nvidia.abi.status_structs import NVLINK_ROOM
from baregrad.runtime.nvidia.driver.card import Card
from baregrad.runtime.nvidia.driver.client import Client
from baregrad.runtime.nvidia.driver.port import Port, open_port
from baregrad.runtime.nvidia.driver.shared_status import (
    CardClocks,
    Load,
    Power,
    SharedStatus,
    shared_status,
)
from baregrad.target.nvidia import nvidia_row

T = TypeVar("T")
_MAX_PROCESSES = 200
# Of a struct for one thermal instruction.
_INSTRUCTION_NBYTES = 44
_MIG_MODES = ("not offered", "on", "off", "on after a reset", "off after a reset")
_COMPUTE_MODES = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")
_RECOVERY = ("None", "Reset", "Reboot", "Drain P2P", "Drain and Reset")
_WIDE_MASK = "enabledLinks.masks[0]"
_LINK_NBYTES = 40
# A link without traffic falls asleep, and wakes by itself when there is some. What is at its other
# end plays no part: a machine may not see the switch there.
_WORKING = (
    nv.NV2080_CTRL_NVLINK_STATUS_LINK_STATE_ACTIVE, nv.NV2080_CTRL_NVLINK_STATUS_LINK_STATE_SLEEP,
)  # fmt: skip
_SHARED = ("clocks", "held_back", "power", "load", "fans_rpm")


@dataclass(frozen=True, slots=True)
class Process:
    """A process that uses a GPU, and its memory there."""

    pid: int
    name: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Link:
    """A GPU's link to the bus: generation and lanes, now and at most."""

    generation: int
    lanes: int
    most_generation: int
    most_lanes: int


@dataclass(frozen=True, slots=True)
class NvLinks:
    """A GPU's links to others: those switched on, those that work, one's line rate in bytes/s."""

    enabled: int
    active: int
    nbytes_per_s: int


@dataclass(frozen=True, slots=True)
class EccCounts:
    """Errors of memory since the driver was loaded, that were corrected and that were not."""

    sram_corrected: int
    sram_uncorrected: int
    dram_corrected: int
    dram_uncorrected: int


@dataclass(frozen=True, slots=True)
class CardStatus:
    """What one GPU says of itself; None for what it does not say, for the reason in `unknown`.

    `errors` counts what its log of errors holds (Xids).
    """

    index: int
    node: str
    name: str | None
    uuid: str | None
    bus_id: str | None
    vbios: str | None
    total_nbytes: int | None
    usable_nbytes: int | None
    free_nbytes: int | None
    performance_state: str | None
    temperature_c: int | None
    link: Link | None
    nvlinks: NvLinks | None
    ecc: bool | None
    ecc_counts: EccCounts | None
    errors: int | None
    mig: str | None
    compute_mode: str | None
    recovery: str | None
    processes: tuple[Process, ...] | None
    clocks: CardClocks | None
    held_back: tuple[str, ...] | None
    power: Power | None
    load: Load | None
    fans_rpm: tuple[int, ...] | None
    unknown: Mapping[str, str] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return it as what JSON holds."""
        return asdict(self)


def driver_status(port: Port | None = None) -> tuple[str, list[CardStatus]]:
    """Return the driver's release and how each GPU of this machine is. Raises DriverError."""
    with Client(port or open_port(), memory=False) as client:
        found = [card_status(client, index) for index in range(len(client.cards()))]
        return client.version, found


def card_status(client: Client, index: int) -> CardStatus:
    """Return how one GPU is."""
    card = Card(client, index)
    try:
        unknown: dict[str, str] = {}

        def told(name: str, ask: Callable[[Card], T]) -> T | None:
            try:
                return ask(card)
            except BaregradError as error:
                status = getattr(error, "status", None)
                unknown[name] = f"{error.message}: {status}" if status else error.message
                return None

        memory = told("memory", _memory) or (None, None, None)
        shared = told("clocks", shared_status) or SharedStatus(None, None, None, None, None)
        reason = unknown.get("clocks", "the driver gave no reading of it")
        unknown |= {name: reason for name in _SHARED if getattr(shared, name) is None}
        return CardStatus(
            index, card.node,
            name=told("name", _name),
            uuid=told("uuid", lambda one: uuid_text(one.uuid)),
            bus_id=told("bus_id", _bus_id),
            vbios=told("vbios", _vbios),
            total_nbytes=memory[0], usable_nbytes=memory[1], free_nbytes=memory[2],
            performance_state=told("performance_state", _performance_state),
            temperature_c=told("temperature_c", _temperature),
            link=told("link", _link), nvlinks=told("nvlinks", _nvlinks),
            ecc=told("ecc", _ecc),
            ecc_counts=told("ecc_counts", _ecc_counts),
            errors=told("errors", _errors),
            mig=told("mig", _mig),
            compute_mode=told("compute_mode", _compute_mode),
            recovery=told("recovery", _recovery),
            processes=told("processes", _processes),
            clocks=shared.clocks, held_back=shared.held_back, power=shared.power,
            load=shared.load, fans_rpm=shared.fans_rpm,
            unknown=unknown,
        )  # fmt: skip
    finally:
        card.teardown.close()


def uuid_text(uuid: bytes) -> str:
    """Return a GPU's identity as the vendor's tools write it."""
    digits = uuid.hex()
    ends = (8, 12, 16, 20, 32)
    begins = (0, *ends[:-1])
    return "GPU-" + "-".join(digits[a:b] for a, b in zip(begins, ends, strict=True))


def _record(card: Card, name: str, **values: int) -> Record:
    """A struct of this release; raises UnsupportedError where it has none."""
    if name not in card.client.release.structs:
        raise UnsupportedError(f"driver {card.client.version} has no call for it")
    return card.client.struct(name).record(**values)


def _ask(card: Card, command: int, name: str, **values: int) -> Record:
    record = _record(card, name, **values)
    card.client.control(card.subdevice, command, record)
    return record


def _name(card: Card) -> str:
    record = _ask(card, nv.NV2080_CTRL_CMD_GPU_GET_NAME_STRING, "name_string")
    return record.data("gpuNameString").split(b"\0")[0].decode("ascii", "replace")


def _bus_id(card: Card) -> str:
    listed = Record(card.client.struct("card_info"), nv.NV_MAX_DEVICES)
    card.client.resource_manager(nv.NV_ESC_CARD_INFO, listed, "to list the GPUs", status="")
    for place in range(nv.NV_MAX_DEVICES):
        if listed["valid", place] and listed["gpu_id", place] == card.gpu_id:
            domain, bus, slot, function = (
                listed[f"pci_info.{part}", place] for part in ("domain", "bus", "slot", "function")
            )
            return f"{domain:08X}:{bus:02X}:{slot:02X}.{function:X}"
    raise UnsupportedError("the driver lists no such card")


def _vbios(card: Card) -> str:
    revision, oem = card.ask_each(nv.NV2080_CTRL_CMD_BIOS_GET_INFO, "bios", (
        nv.NV2080_CTRL_BIOS_INFO_INDEX_REVISION, nv.NV2080_CTRL_BIOS_INFO_INDEX_OEM_REVISION,
    ))  # fmt: skip
    parts = (*revision.to_bytes(4, "big"), oem & 0xFF)
    return ".".join(f"{part:02X}" for part in parts)


def _memory(card: Card) -> tuple[int, int, int]:
    """Bytes in all, those that programs may use, and those that nobody uses."""
    whole, heap, free = card.ask_each(nv.NV2080_CTRL_CMD_FB_GET_INFO, "fb", (
        nv.NV2080_CTRL_FB_INFO_INDEX_TOTAL_RAM_SIZE,
        nv.NV2080_CTRL_FB_INFO_INDEX_HEAP_SIZE,
        nv.NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE,
    ))  # fmt: skip
    return whole << 10, heap << 10, free << 10


def _performance_state(card: Card) -> str:
    command = nv.NV2080_CTRL_CMD_PERF_GET_CURRENT_PSTATE
    return f"P{_ask(card, command, 'performance_state')['currPstate'].bit_length() - 1}"


def _temperature(card: Card) -> int:
    operands = "instructionList[0].operands.getStatusSensorReading"
    record = _record(
        card, "thermal", clientAPIVersion=1, clientInstructionSizeOf=_INSTRUCTION_NBYTES,
        instructionListSize=1,
    )  # fmt: skip
    opcode = nv.NV2080_CTRL_THERMAL_SYSTEM_GET_STATUS_SENSOR_READING_OPCODE
    record["instructionList[0].opcode"] = opcode
    card.client.control(card.subdevice, nv.NV2080_CTRL_CMD_THERMAL_SYSTEM_EXECUTE_V2, record)
    if not record["successfulInstructions"] or record["instructionList[0].result"]:
        raise UnsupportedError("its sensor gave no reading")
    return record[f"{operands}.value"]


def _link(card: Card) -> Link:
    most, now = card.ask_each(nv.NV2080_CTRL_CMD_BUS_GET_INFO, "bus", (
        nv.NV2080_CTRL_BUS_INFO_INDEX_PCIE_GPU_LINK_CAPS,
        nv.NV2080_CTRL_BUS_INFO_INDEX_PCIE_GPU_LINK_CTRL_STATUS,
    ))  # fmt: skip
    # MAX_SPEED 3:0 and MAX_WIDTH 9:4; LINK_SPEED 19:16 and LINK_WIDTH 25:20.
    return Link(now >> 16 & 15, now >> 20 & 63, most & 15, most >> 4 & 63)


def _nvlinks(card: Card) -> NvLinks:
    record = _ask(card, nv.NV2080_CTRL_CMD_NVLINK_GET_NVLINK_STATUS, "nvlinks")
    told = record.data("linkInfo")
    room = NVLINK_ROOM[len(told)]
    enabled = record["enabledLinkMask"]
    if _WIDE_MASK in record.struct.fields:
        enabled |= record[_WIDE_MASK]
    rates = []
    for number in range(room):
        # subLinkWidth, linkState and nvlinkLineRateMbps lie there in every release.
        one = told[number * (len(told) // room) :][:_LINK_NBYTES]
        lanes, state, mbits = one[5], *struct.unpack_from("<8xI24xI", one)
        if enabled >> number & 1 and state in _WORKING:
            rates.append(mbits * lanes * 1_000_000 // 8)
    return NvLinks(enabled.bit_count(), len(rates), max(rates, default=0))


def _ecc(card: Card) -> bool:
    command = nv.NV2080_CTRL_CMD_GPU_QUERY_ECC_CONFIGURATION
    return bool(_ask(card, command, "ecc_configuration")["currentConfiguration"])


def _ecc_counts(card: Card) -> EccCounts:
    record = _ask(card, nv.ECC_GET_VOLATILE_COUNTS, "ecc_counts")
    return EccCounts(
        record["sramCorUni"], record["sramUncParityUni"] + record["sramUncSecDedUni"],
        record["dramCorTot"], record["dramUncTot"],
    )


def _errors(card: Card) -> int:
    return _ask(card, nv.NV2080_CTRL_CMD_RC_GET_ERROR_COUNT, "error_count")["errorCount"]


def _mig(card: Card) -> str:
    record = _record(card, "gpu_info", gpuInfoListSize=1)
    record["gpuInfoList[0].index"] = nv.NV2080_CTRL_GPU_INFO_INDEX_GPU_SMC_MODE
    card.client.control(card.subdevice, nv.NV2080_CTRL_CMD_GPU_GET_INFO_V2, record)
    return _spelled(record["gpuInfoList[0].data"], _MIG_MODES)


def _compute_mode(card: Card) -> str:
    command = nv.NV2080_CTRL_CMD_GPU_QUERY_COMPUTE_MODE_RULES
    return _spelled(_ask(card, command, "compute_mode")["rules"], _COMPUTE_MODES)


def _recovery(card: Card) -> str:
    command = nv.NV2080_CTRL_CMD_GPU_GET_RECOVERY_ACTION
    return _spelled(_ask(card, command, "recovery_action")["action"], _RECOVERY)


def _spelled(value: int, words: tuple[str, ...]) -> str:
    return words[value] if value < len(words) else f"unknown ({value})"


def _processes(card: Card) -> tuple[Process, ...]:
    """Processes with a context on the GPU; ourselves are not among them."""
    client = card.client
    record = _record(card, "processes", id=nvidia_row(card.classes()).compute_class)
    client.control(card.subdevice, nv.NV2080_CTRL_CMD_GPU_GET_PIDS, record)
    count = min(record["pidTblCount"], _MAX_PROCESSES)
    found = []
    for pid in struct.unpack_from(f"<{count}I", record.data("pidTbl")):
        usage = _record(card, "process", pidInfoListCount=1)
        usage["pidInfoList[0].pid"] = pid
        client.control(card.subdevice, nv.NV2080_CTRL_CMD_GPU_GET_PID_INFO, usage)
        used = "pidInfoList[0].data.vidMemUsage"
        nbytes = usage[f"{used}.memPrivate"] + usage[f"{used}.memSharedOwned"]
        found.append(Process(pid, _command(pid), nbytes))
    return tuple(found)


def _command(pid: int) -> str:
    """A process's program, "" where the system does not tell."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    except OSError:
        return ""
