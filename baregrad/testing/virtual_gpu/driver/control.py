"""RM_CONTROL of the virtual driver: queries to objects and settings of them."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from baregrad.runtime.nvidia.abi import Release
from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.runtime.nvidia.abi.vendor import load_tables
from baregrad.testing.virtual_gpu.driver.calls import Arguments, Refusal
from baregrad.testing.virtual_gpu.driver.objects import (
    ChannelObject,
    ClientObject,
    DeviceObject,
    DriverObject,
    GroupObject,
    MemoryObject,
    expect,
)
from baregrad.testing.virtual_gpu.driver.status_controls import SHARED, STATUS_COMMANDS
from baregrad.testing.virtual_gpu.driver.user_memory import UserMemory
from baregrad.testing.virtual_gpu.machine.machine import HardwareMachine

_MAX_LISTED = 512


class Controls:
    """Answers controls of one driver release; raises Refusal."""

    def __init__(
        self, machine: HardwareMachine, release: Release, version: str, user: UserMemory
    ) -> None:
        self._machine = machine
        self._release = release
        self._version = version
        self._user = user

    def struct_of(self, command: int) -> str:
        """Return our name of a command's struct; refuse a command that nobody has."""
        row = _COMMANDS.get(command) or STATUS_COMMANDS.get(command)
        if row is None or row[0] not in self._release.structs:
            raise Refusal("NOT_SUPPORTED", f"no command {command:#x}")
        return row[0]

    def answer(self, target: DriverObject, command: int, params: Arguments) -> None:
        """Fill in what is asked."""
        if command in STATUS_COMMANDS:
            STATUS_COMMANDS[command][1](target, params)
        else:
            _COMMANDS[command][1](self, target, params)

    def version(self, target: DriverObject, params: Arguments) -> None:
        """The driver's release."""
        expect(target, ClientObject)
        params["driverVersionBuffer"] = self._version.encode()

    def id_info(self, target: DriverObject, params: Arguments) -> None:
        """The device instance of a GPU id."""
        expect(target, ClientObject)
        for gpu in self._machine.gpus:
            if gpu.gpu_id == params["gpuId"]:
                params["deviceInstance"], params["subDeviceInstance"] = gpu.index, 0
                params["gpuInstance"] = gpu.index
                return
        raise Refusal("INVALID_ARGUMENT", f"no GPU has the id {params['gpuId']:#x}")

    def class_list(self, target: DriverObject, params: Arguments) -> None:
        """The classes of a GPU: their count, or as many as are asked for."""
        classes = expect(target, DeviceObject).gpu.classes
        if params["classList"]:
            if params["numClasses"] < len(classes):
                raise Refusal("INVALID_PARAM_STRUCT", "too little room for the classes")
            self._user.write(params["classList"], struct.pack(f"<{len(classes)}I", *classes))
        params["numClasses"] = len(classes)

    def uuid(self, target: DriverObject, params: Arguments) -> None:
        """The GPU's own number."""
        if params["flags"] & 3 != nv.GID_FORMAT_BINARY:
            raise Refusal("NOT_SUPPORTED", "the uuid is given in bytes only")
        params["data"] = expect(target, DeviceObject).gpu.uuid
        params["length"] = 16

    def facts(self, target: DriverObject, params: Arguments) -> None:
        """Numbers of the graphics engine."""
        self._list(
            params["grInfoListSize"], params["grInfoList"], expect(target, DeviceObject).gpu.facts
        )

    def _list(self, count: int, place: int, facts: Mapping[int, int]) -> None:
        """Fill in a list of pairs, of an index that is asked for and what it is."""
        if not 0 < count <= _MAX_LISTED:
            raise Refusal("INVALID_ARGUMENT", f"a list of {count}")
        asked = struct.unpack(f"<{2 * count}I", self._user.read(place, 8 * count))[::2]
        data = b""
        for index in asked:
            if index not in facts:
                raise Refusal("INVALID_ARGUMENT", f"no fact {index:#x} is known here")
            data += struct.pack("<II", index, facts[index])
        self._user.write(place, data)

    def heap(self, target: DriverObject, params: Arguments) -> None:
        """The GPU's memory in KiB: all of it, and what is free."""
        gpu = expect(target, DeviceObject).gpu
        facts = {
            nv.NV2080_CTRL_FB_INFO_INDEX_TOTAL_RAM_SIZE: gpu.model.memory_nbytes >> 10,
            nv.NV2080_CTRL_FB_INFO_INDEX_HEAP_SIZE: gpu.model.memory_nbytes >> 10,
            nv.NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE: gpu.model.memory_nbytes - gpu.used_nbytes >> 10,
        }
        self._list(params["fbInfoListSize"], params["fbInfoList"], facts)

    def bus(self, target: DriverObject, params: Arguments) -> None:
        """The GPU's link: sixteen lanes of the fifth generation."""
        facts = {
            nv.NV2080_CTRL_BUS_INFO_INDEX_PCIE_GPU_LINK_CAPS: 5 | 16 << 4,
            nv.NV2080_CTRL_BUS_INFO_INDEX_PCIE_GPU_LINK_CTRL_STATUS: 5 << 16 | 16 << 20,
        }
        self._list(params["busInfoListSize"], params["busInfoList"], facts)

    def bios(self, target: DriverObject, params: Arguments) -> None:
        """The revision of the GPU's firmware."""
        facts = {
            nv.NV2080_CTRL_BIOS_INFO_INDEX_REVISION: 0x9600A500,
            nv.NV2080_CTRL_BIOS_INFO_INDEX_OEM_REVISION: 0x1A,
        }
        self._list(params["biosInfoListSize"], params["biosInfoList"], facts)

    def copy_caps(self, target: DriverObject, params: Arguments) -> None:
        """What the copy engines can do, and which there are."""
        engines = expect(target, DeviceObject).gpu.model.copy_engines
        params["capsTbl"] = b"".join(struct.pack("<H", caps) for caps, _ in engines)
        params["present"] = sum(1 << place for place, one in enumerate(engines) if one[1])

    def copy_parts(self, target: DriverObject, params: Arguments) -> None:
        """The physical engines of a copy engine."""
        model = expect(target, DeviceObject).gpu.model
        number = params["ceEngineType"] - nv.NV2080_ENGINE_TYPE_COPY0
        if not model.shows_copy_parts:
            raise Refusal("INSUFFICIENT_PERMISSIONS", "it does not tell")
        if not 0 <= number < len(model.copy_engines) or not model.copy_engines[number][1]:
            raise Refusal("INVALID_ARGUMENT", f"there is no copy engine {number}")
        params["pceMask"] = model.copy_engines[number][1]

    def fault_info(self, target: DriverObject, params: Arguments) -> None:
        """The last bad address of a channel, once; without one, what 580.159 reports."""
        channel = expect(target, ChannelObject).hardware
        fault, channel.fault = channel.fault, None
        if fault is None:
            return
        if fault.address is None:
            params["faultString"] = b"UNRECOGNIZED_FAULT"
            return
        params["addrHi"], params["addrLo"] = fault.address >> 32, fault.address & 0xFFFFFFFF
        params["faultString"] = fault.kind.encode()
        params["shaderProgramVA[6]"] = fault.program

    def shared_data(self, target: DriverObject, params: Arguments) -> None:
        """Fill in the sections of shared memory that are asked for, with this moment's stamp."""
        data = expect(target, MemoryObject).backing.data
        tables = load_tables(self._version)
        for section, (bit, fields) in SHARED.items():
            found = tables.place("NV00DE_SHARED_DATA", section)
            if found is None or not params["polledDataMask"] & bit:
                continue
            stamp = time.monotonic_ns()
            for field, values in {"lastModifiedTimestamp": (stamp,), **fields}.items():
                place = tables.place("NV00DE_SHARED_DATA", f"{section}.{field}")
                assert place is not None
                each = tables.nbytes(place[1])
                for at, value in enumerate(values):
                    begin = place[0] + at * each
                    data[begin : begin + each] = list(value.to_bytes(each, "little"))

    def token(self, target: DriverObject, params: Arguments) -> None:
        """What to write to the doorbell."""
        params["workSubmitToken"] = expect(target, ChannelObject).token

    def schedule(self, target: DriverObject, params: Arguments) -> None:
        """Let a group run, or hold it.

        A channel of the graphics engine whose context UVM has not bound is refused
        (`kernel_channel.c:2086`).
        """
        group = expect(target, GroupObject)
        if group.hardware.dead:
            raise Refusal("INVALID_STATE", "the group was stopped")
        channels = [one for one in group.children.values() if isinstance(one, ChannelObject)]
        if group.engine == nv.NV2080_ENGINE_TYPE_GRAPHICS and not all(
            one.hardware.registered for one in channels
        ):
            raise Refusal("INVALID_STATE", "a channel is not registered with UVM")
        group.hardware.scheduled = bool(params["bEnable"])


_COMMANDS: MappingProxyType[
    int, tuple[str, Callable[[Controls, DriverObject, Arguments], None]]
] = MappingProxyType({
    nv.NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION_V2: ("build_version", Controls.version),
    nv.NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2: ("id_info", Controls.id_info),
    nv.NV0080_CTRL_CMD_GPU_GET_CLASSLIST: ("class_list", Controls.class_list),
    nv.NV00DE_CTRL_CMD_REQUEST_DATA_POLL: ("shared_data_poll", Controls.shared_data),
    nv.NV2080_CTRL_CMD_GPU_GET_GID_INFO: ("gid_info", Controls.uuid),
    nv.NV2080_CTRL_CMD_GR_GET_INFO: ("gr_info_list", Controls.facts),
    nv.NV2080_CTRL_CMD_FB_GET_INFO: ("fb_info_list", Controls.heap),
    nv.NV2080_CTRL_CMD_BIOS_GET_INFO: ("bios_info_list", Controls.bios),
    nv.NV2080_CTRL_CMD_BUS_GET_INFO: ("bus_info_list", Controls.bus),
    nv.NV2080_CTRL_CMD_CE_GET_ALL_CAPS: ("all_copy_caps", Controls.copy_caps),
    nv.NV2080_CTRL_CMD_CE_GET_CE_PCE_MASK: ("parts_of_copy_engine", Controls.copy_parts),
    nv.NV906F_CTRL_CMD_GET_MMU_FAULT_INFO: ("mmu_fault", Controls.fault_info),
    nv.NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN: ("work_submit_token", Controls.token),
    nv.NVA06C_CTRL_CMD_GPFIFO_SCHEDULE: ("schedule", Controls.schedule),
})
