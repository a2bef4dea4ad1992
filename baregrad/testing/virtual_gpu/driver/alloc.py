"""RM_ALLOC of the virtual driver: what each class wants of its parent and of its parameters.

The statuses are those of open-gpu-kernel-modules 595.45.04: `libraries/resserv/src/rs_client.c`,
`kernel/rmapi/alloc_free.c` and the constructors of the classes (`src/nvidia/src/kernel`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from baregrad.base.bits import is_power_of_two, round_up
from baregrad.runtime.nvidia.abi import Release
from baregrad.runtime.nvidia.abi import methods as m
from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.testing.virtual_gpu.driver.calls import Arguments, Refusal
from baregrad.testing.virtual_gpu.driver.objects import (
    ChannelObject,
    ClientObject,
    DeviceObject,
    DriverObject,
    GroupObject,
    MemoryObject,
    ShareObject,
    VaSpaceObject,
    expect,
)
from baregrad.testing.virtual_gpu.machine.host import ChannelPlace, HardwareChannel, HardwareGroup
from baregrad.testing.virtual_gpu.machine.machine import HardwareMachine
from baregrad.testing.virtual_gpu.machine.memory import AddressSpace, Backing, fresh_pages

_PAGES = MappingProxyType({0: 4 << 10, 1: 4 << 10, 2: 64 << 10, 3: 2 << 20})
_EXTERNALLY_OWNED, _PAGE_FAULTING = 0x8, 0x40
_COPY_ENGINES = 10
_USERD_ALIGN = 512


@dataclass(frozen=True, slots=True)
class AllocationRequest:
    """What one allocation is given; `params` is None where the caller gave none."""

    client: ClientObject
    parent: DriverObject
    handle: int
    kind: int
    params: Arguments | None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that every object has."""
        return {"handle": self.handle, "kind": self.kind, "parent": self.parent}


class Allocator:
    """Makes objects below a client; raises Refusal."""

    def __init__(self, machine: HardwareMachine, release: Release) -> None:
        self._machine = machine
        self._release = release

    def struct_of(self, kind: int) -> str | None:
        """Return our name of the struct that a class takes, None for a class that takes none."""
        name = _STRUCTS.get(kind)
        if name is None and kind & 0xFF == 0x6F:
            name = "channel"
        if name is None and kind & 0xFF == 0xB5:
            name = "copy_engine"
        return name

    def optional(self, kind: int) -> bool:
        """Return whether a class does without its struct."""
        return kind in (nv.NV20_SUBDEVICE_0, nv.NV01_DEVICE_0) or kind & 0xFF == 0xB5

    def make(self, request: AllocationRequest) -> DriverObject:
        """Return a new object of a class."""
        kind = request.kind
        action = _MAKERS.get(kind)
        if action is None:
            action = self._by_generation(kind)
        return action(self, request)

    def _by_generation(self, kind: int) -> Maker:
        action = _FAMILIES.get(kind & 0xFF)
        known = any(kind in gpu.classes for gpu in self._machine.gpus)
        if action is None or not known:
            raise Refusal("INVALID_CLASS", f"no GPU here has the class {kind:#x}")
        return action

    # Devices.

    def device(self, request: AllocationRequest) -> DriverObject:
        """NV01_DEVICE_0."""
        expect(request.parent, ClientObject, "INVALID_OBJECT_PARENT")
        number = request.params["deviceId"] if request.params is not None else 0
        if number >= len(self._machine.gpus):
            raise Refusal("INVALID_DEVICE", f"there is no device {number}")
        return DeviceObject(**request.fields, gpu=self._machine.gpus[number])

    def subdevice(self, request: AllocationRequest) -> DriverObject:
        """NV20_SUBDEVICE_0."""
        device = self._device(request)
        if request.params is not None and request.params["subDeviceId"]:
            raise Refusal("INVALID_DEVICE", "a device has one subdevice")
        if any(one.kind == request.kind for one in device.children.values()):
            raise Refusal("STATE_IN_USE", "the subdevice is there already")
        return DeviceObject(**request.fields, gpu=device.gpu)

    def _device(self, request: AllocationRequest) -> DeviceObject:
        found = expect(request.parent, DeviceObject, "INVALID_OBJECT_PARENT")
        if found.kind != nv.NV01_DEVICE_0:
            raise Refusal("INVALID_OBJECT_PARENT", "the parent is no device")
        return found

    def usermode(self, request: AllocationRequest) -> DriverObject:
        """The page with the doorbell, below a subdevice."""
        found = expect(request.parent, DeviceObject, "INVALID_OBJECT_PARENT")
        if found.kind != nv.NV20_SUBDEVICE_0:
            raise Refusal("INVALID_OBJECT_PARENT", "the parent is no subdevice")
        self._listed(request, found)
        nbytes = nv.NVC361_NV_USERMODE__SIZE
        backing = Backing(fresh_pages(nbytes), 4096, None, tracked=False, label="doorbell")
        return MemoryObject(
            **request.fields, backing=backing, gpu=found.gpu, is_system=False, is_registers=True
        )

    def shared_data(self, request: AllocationRequest) -> DriverObject:
        """RM_USER_SHARED_DATA, below a subdevice: memory that the host may read."""
        found = expect(request.parent, DeviceObject, "INVALID_OBJECT_PARENT")
        if found.kind != nv.NV20_SUBDEVICE_0:
            raise Refusal("INVALID_OBJECT_PARENT", "the parent is no subdevice")
        backing = Backing(fresh_pages(4096), 4096, None, tracked=False, label="shared data")
        return MemoryObject(
            **request.fields, backing=backing, gpu=found.gpu, is_system=True, is_read_only=True
        )

    def _listed(self, request: AllocationRequest, device: DeviceObject) -> None:
        if request.kind not in device.gpu.classes:
            raise Refusal("INVALID_CLASS", f"this GPU has no class {request.kind:#x}")

    # Memory.

    def memory(self, request: AllocationRequest) -> DriverObject:
        """NV01_MEMORY_LOCAL_USER and NV01_MEMORY_SYSTEM."""
        device, params = self._device(request), request.params
        assert params is not None
        nbytes, alignment = params["size"], params["alignment"]
        page = _PAGES[params["attr"] >> 23 & 3]
        is_system = request.kind == nv.NV01_MEMORY_SYSTEM
        in_host = bool(params["attr"] >> 25 & 3)
        if in_host != is_system or not nbytes:
            raise Refusal("INVALID_ARGUMENT", "a place that the class does not have, or no size")
        if alignment and not is_power_of_two(alignment):
            raise Refusal("INVALID_ARGUMENT", f"an alignment of {alignment}")
        nbytes = round_up(nbytes, page)
        if not is_system:
            gpu = device.gpu
            if gpu.used_nbytes + nbytes > gpu.model.memory_nbytes:
                raise Refusal("NO_MEMORY", f"{nbytes} bytes on top of {gpu.used_nbytes}")
            gpu.used_nbytes += nbytes
        contiguous = params["attr"] >> 27 & 3 == 2
        backing = Backing(
            fresh_pages(nbytes), page, None if is_system else device.gpu.index,
            # Memory in one piece is what the host maps: its stores are not seen from here.
            tracked=self._machine.check_unwritten and not is_system and not contiguous,
            label="host memory" if is_system else "device memory",
        )  # fmt: skip
        params["size"], params["limit"] = nbytes, nbytes - 1
        return MemoryObject(
            **request.fields, backing=backing, gpu=device.gpu, is_system=is_system
        )

    # Address spaces and channels.

    def va_space(self, request: AllocationRequest) -> DriverObject:
        """FERMI_VASPACE_A."""
        device, params = self._device(request), request.params
        assert params is not None
        flags = params["flags"]
        if flags & _PAGE_FAULTING and not flags & _EXTERNALLY_OWNED:
            raise Refusal("INVALID_ARGUMENT", "page faults need an owner outside")
        bits = device.gpu.row.address_bits
        if params["vaBase"] + params["vaSize"] > 1 << bits:
            raise Refusal("INVALID_ARGUMENT", f"more addresses than {bits} bits have")
        return VaSpaceObject(
            **request.fields, gpu=device.gpu, space=AddressSpace(),
            is_external=bool(flags & _EXTERNALLY_OWNED),
        )  # fmt: skip

    def group(self, request: AllocationRequest) -> DriverObject:
        """KEPLER_CHANNEL_GROUP_A."""
        device, params = self._device(request), request.params
        assert params is not None
        engine, handle = params["engineType"], params["hVASpace"]
        copies = range(nv.NV2080_ENGINE_TYPE_COPY0, nv.NV2080_ENGINE_TYPE_COPY0 + _COPY_ENGINES)
        if engine != nv.NV2080_ENGINE_TYPE_GRAPHICS and engine not in copies:
            raise Refusal("INVALID_ARGUMENT", f"there is no engine {engine}")
        space = self._va_space(request.client, handle) if handle else None
        return GroupObject(
            **request.fields, gpu=device.gpu, engine=engine, va_space=space,
            hardware=HardwareGroup([]),
        )  # fmt: skip

    def _va_space(self, client: ClientObject, handle: int) -> VaSpaceObject:
        return expect(client.find(handle), VaSpaceObject, "INVALID_ARGUMENT")

    def share(self, request: AllocationRequest) -> DriverObject:
        """FERMI_CONTEXT_SHARE_A."""
        expect(request.parent, GroupObject, "INVALID_OBJECT_PARENT")
        assert request.params is not None
        space = self._va_space(request.client, request.params["hVASpace"])
        return ShareObject(**request.fields, va_space=space)

    def channel(self, request: AllocationRequest) -> DriverObject:
        """The channel classes, below a group."""
        group, params = expect(request.parent, GroupObject, "INVALID_OBJECT_PARENT"), request.params
        assert params is not None
        if request.kind != group.gpu.row.channel_class:
            raise Refusal("INVALID_CLASS", f"this GPU has no class {request.kind:#x}")
        client, entries = request.client, params["gpFifoEntries"]
        if not is_power_of_two(entries) or entries < 2:
            raise Refusal("INVALID_ARGUMENT", f"a ring of {entries} entries")
        if params["engineType"] not in (0, group.engine):
            raise Refusal("INVALID_ARGUMENT", "an engine that is not the group's")
        shares = [one for one in group.children.values() if isinstance(one, ShareObject)]
        if bool(shares) != bool(params["hContextShare"]):
            raise Refusal("INVALID_ARGUMENT", "all channels of a group have a share, or none")
        if shares:
            if params["hVASpace"]:
                raise Refusal("INVALID_ARGUMENT", "an address space beside a context share")
            share = expect(client.find(params["hContextShare"]), ShareObject, "INVALID_ARGUMENT")
            space = share.va_space
        else:
            handle = params["hVASpace"]
            found = self._va_space(client, handle) if handle else group.va_space
            if found is None:
                raise Refusal("INVALID_ARGUMENT", "a channel without an address space")
            space = found
        if params["gpFifoOffset"] >> group.gpu.row.host_address_bits:
            raise Refusal("INVALID_ARGUMENT", "a ring where the host unit does not reach")
        place = self._place(client, params)
        hardware = HardwareChannel(group.gpu, group.hardware, space.space, place)
        return ChannelObject(
            **request.fields, gpu=group.gpu, group=group, va_space=space, hardware=hardware,
            token=group.gpu.add(hardware),
        )  # fmt: skip

    def _place(self, client: ClientObject, params: Arguments) -> ChannelPlace:
        offset = params["userdOffset[0]"]
        userd = expect(client.find(params["hUserdMemory[0]"]), MemoryObject, "INVALID_ARGUMENT")
        if offset % _USERD_ALIGN or offset + m.USERD_NBYTES > userd.backing.nbytes:
            raise Refusal("INVALID_ARGUMENT", f"USERD at {offset:#x}")
        notifier = None
        if params["hObjectError"]:
            found = expect(client.find(params["hObjectError"]), MemoryObject, "INVALID_ARGUMENT")
            notifier = found.backing
        return ChannelPlace(
            params["gpFifoOffset"], params["gpFifoEntries"], userd.backing, offset, notifier
        )

    # Engine objects.

    def compute(self, request: AllocationRequest) -> DriverObject:
        """The compute classes, below a channel of the graphics engine."""
        channel = expect(request.parent, ChannelObject, "INVALID_OBJECT_PARENT")
        if request.kind != channel.gpu.row.compute_class:
            raise Refusal("INVALID_CLASS", f"this GPU has no class {request.kind:#x}")
        if channel.group.engine != nv.NV2080_ENGINE_TYPE_GRAPHICS:
            raise Refusal("INVALID_CLASS", "a copy engine does not compute")
        channel.hardware.objects.add(request.kind)
        return DriverObject(**request.fields)

    def copies(self, request: AllocationRequest) -> DriverObject:
        """The copy classes, below a channel."""
        channel = expect(request.parent, ChannelObject, "INVALID_OBJECT_PARENT")
        if request.kind not in channel.gpu.classes:
            raise Refusal("INVALID_CLASS", f"this GPU has no class {request.kind:#x}")
        if channel.group.engine != nv.NV2080_ENGINE_TYPE_GRAPHICS:
            params = request.params
            if params is None or params["engineType"] != channel.group.engine:
                raise Refusal("INVALID_ARGUMENT", "a copy engine that is not the group's")
        channel.hardware.objects.add(request.kind)
        return DriverObject(**request.fields)

    def debugger(self, request: AllocationRequest) -> DriverObject:
        """GT200_DEBUGGER."""
        self._device(request)
        return DriverObject(**request.fields)


_STRUCTS = MappingProxyType({
    nv.NV01_DEVICE_0: "device",
    nv.NV20_SUBDEVICE_0: "subdevice",
    nv.NV01_MEMORY_LOCAL_USER: "memory",
    nv.NV01_MEMORY_SYSTEM: "memory",
    nv.FERMI_VASPACE_A: "va_space",
    nv.KEPLER_CHANNEL_GROUP_A: "channel_group",
    nv.FERMI_CONTEXT_SHARE_A: "context_share",
    nv.GT200_DEBUGGER: "debugger",
    nv.RM_USER_SHARED_DATA: "shared_data",
})
Maker = Callable[[Allocator, AllocationRequest], DriverObject]
_MAKERS: MappingProxyType[int, Maker] = MappingProxyType({
    nv.NV01_DEVICE_0: Allocator.device,
    nv.NV20_SUBDEVICE_0: Allocator.subdevice,
    nv.NV01_MEMORY_LOCAL_USER: Allocator.memory,
    nv.NV01_MEMORY_SYSTEM: Allocator.memory,
    nv.FERMI_VASPACE_A: Allocator.va_space,
    nv.KEPLER_CHANNEL_GROUP_A: Allocator.group,
    nv.FERMI_CONTEXT_SHARE_A: Allocator.share,
    nv.GT200_DEBUGGER: Allocator.debugger,
    nv.RM_USER_SHARED_DATA: Allocator.shared_data,
})
_FAMILIES: MappingProxyType[int, Maker] = MappingProxyType({
    0x61: Allocator.usermode,
    0x6F: Allocator.channel,
    0xC0: Allocator.compute,
    0xB5: Allocator.copies,
})
