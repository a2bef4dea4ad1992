"""The unified memory driver: who may see what memory at which GPU address.

The checks and their order are those of open-gpu-kernel-modules 595.45.04, `kernel-open/nvidia-uvm`:
`uvm.c`, `uvm_va_space.c`, `uvm_map_external.c`, `uvm_user_channel.c`.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType

from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.testing.virtual_gpu.driver.calls import Arguments, Refusal
from baregrad.testing.virtual_gpu.driver.objects import (
    ChannelObject,
    ClientObject,
    MemoryObject,
    VaSpaceObject,
)
from baregrad.testing.virtual_gpu.machine.machine import HardwareGpu, HardwareMachine
from baregrad.testing.virtual_gpu.machine.memory import Backing, MappedRegion

_PAGE = 4 << 10
_MAX_MAPPING_TYPE, _READ_ONLY = 3, 3
_MAX_CACHING_TYPE = 2
_MAX_ATTRIBUTES = MappingProxyType({1200: 32, 9264: 256})
# What a channel of the graphics engine needs of its range; a copy engine's needs nothing.
_CONTEXT_NBYTES = 32 << 20

FindClient = Callable[[int, int], ClientObject]
DropBacking = Callable[[Backing], None]


@dataclass(eq=False)
class ExternalRange:
    """A range of addresses; `mappings` are (GPU, region) in it. A channel's range has no others."""

    base: int
    nbytes: int
    channel: tuple[int, int] | None = None
    mappings: list[tuple[HardwareGpu, MappedRegion]] = field(default_factory=list)


@dataclass(eq=False)
class UvmSpace:
    """What one descriptor of the driver holds: GPUs, their address spaces, ranges, channels."""

    flags: int
    gpus: dict[bytes, HardwareGpu] = field(default_factory=dict)
    spaces: dict[bytes, VaSpaceObject] = field(default_factory=dict)
    ranges: dict[int, ExternalRange] = field(default_factory=dict)
    bases: list[int] = field(default_factory=list)
    channels: dict[tuple[int, int], ChannelObject] = field(default_factory=dict)
    peers: set[frozenset[bytes]] = field(default_factory=set)

    def held(self) -> list[str]:
        """Say what is held, for a check of leaks."""
        found = [f"UVM range {base:#x} of {one.nbytes} bytes" for base, one in self.ranges.items()]
        found += [f"UVM channel {handle:#x}" for _, handle in self.channels]
        found += [f"UVM address space of {gpu.hex()}" for gpu in self.spaces]
        return found + [f"UVM registration of {gpu.hex()}" for gpu in self.gpus]

    def add(self, made: ExternalRange) -> None:
        """Enter a range, or refuse it where another lies."""
        place = bisect.bisect_right(self.bases, made.base)
        for at in (place - 1, place):
            if 0 <= at < len(self.bases):
                other = self.ranges[self.bases[at]]
                if made.base < other.base + other.nbytes and other.base < made.base + made.nbytes:
                    raise Refusal("UVM_ADDRESS_IN_USE", f"{made.base:#x} meets {other.base:#x}")
        self.bases.insert(place, made.base)
        self.ranges[made.base] = made

    def remove(self, base: int) -> None:
        """Forget a range."""
        self.bases.remove(base)
        del self.ranges[base]

    def around(self, address: int) -> ExternalRange | None:
        """Return the range that holds an address."""
        place = bisect.bisect_right(self.bases, address) - 1
        found = self.ranges[self.bases[place]] if place >= 0 else None
        return found if found is not None and address < found.base + found.nbytes else None


class Uvm:
    """Answers the calls of one descriptor; raises Refusal.

    `nvlink` says whether GPUs are peers from the moment that they are registered; otherwise they
    are to be made so.
    """

    def __init__(
        self, machine: HardwareMachine, find_client: FindClient, drop: DropBacking, nvlink: bool
    ) -> None:
        self._machine = machine
        self._find_client = find_client
        self._drop = drop
        self._nvlink = nvlink
        self.space: UvmSpace | None = None

    def struct_of(self, number: int) -> str | None:
        """Return our name of a call's struct, None for a call that there is not."""
        row = _CALLS.get(number)
        return None if row is None else row[0]

    def answer(self, number: int, call: Arguments) -> None:
        """Do a call."""
        if number == nv.UVM_INITIALIZE:
            self._initialize(call)
            return
        if self.space is None:
            raise Refusal("ILLEGAL_ACTION", "the descriptor is not initialised")
        _CALLS[number][1](self, self.space, call)

    def _initialize(self, call: Arguments) -> None:
        if self.space is None:
            self.space = UvmSpace(call["flags"])
        elif self.space.flags != call["flags"]:
            raise Refusal("INVALID_ARGUMENT", "initialised already, with other flags")

    # GPUs.

    def register_gpu(self, space: UvmSpace, call: Arguments) -> None:
        """UVM_REGISTER_GPU."""
        uuid = call.data("gpu_uuid")
        gpu = next((one for one in self._machine.gpus if one.uuid == uuid), None)
        if gpu is None:
            raise Refusal("GPU_UUID_NOT_FOUND", uuid.hex())
        if uuid in space.gpus:
            raise Refusal("INVALID_DEVICE", "the GPU is registered already")
        if self._nvlink:
            space.peers |= {frozenset((uuid, other)) for other in space.gpus}
        space.gpus[uuid] = gpu

    def unregister_gpu(self, space: UvmSpace, call: Arguments) -> None:
        """UVM_UNREGISTER_GPU: its mappings and channels go with it."""
        uuid = call.data("gpu_uuid")
        gpu = self._registered(space, uuid)
        self._drop_space(space, uuid, gpu)
        for one in space.ranges.values():
            for pair in [pair for pair in one.mappings if pair[1].backing.owner == gpu.index]:
                self._unmap(space, one, pair)
        space.peers = {pair for pair in space.peers if uuid not in pair}
        del space.gpus[uuid]

    def _registered(self, space: UvmSpace, uuid: bytes) -> HardwareGpu:
        gpu = space.gpus.get(uuid)
        if gpu is None:
            raise Refusal("INVALID_DEVICE", "the GPU is not registered")
        return gpu

    def register_space(self, space: UvmSpace, call: Arguments) -> None:
        """UVM_REGISTER_GPU_VASPACE."""
        uuid = call.data("gpuUuid")
        gpu = self._registered(space, uuid)
        client = self._find_client(call["rmCtrlFd"], call["hClient"])
        found = client.find(call["hVaSpace"])
        if not isinstance(found, VaSpaceObject):
            raise Refusal("INVALID_ARGUMENT", "the object is no address space")
        if found.gpu is not gpu or uuid in space.spaces or found.is_registered:
            raise Refusal("INVALID_DEVICE", "the GPU has an address space here already")
        if not found.is_external:
            raise Refusal("INVALID_FLAGS", "the address space has its owner inside")
        found.is_registered = True
        space.spaces[uuid] = found

    def unregister_space(self, space: UvmSpace, call: Arguments) -> None:
        """UVM_UNREGISTER_GPU_VASPACE: what the GPU saw there is unmapped."""
        uuid = call.data("gpuUuid")
        if uuid not in space.spaces:
            raise Refusal("INVALID_DEVICE", "the GPU has no address space here")
        self._drop_space(space, uuid, space.gpus[uuid])

    def _drop_space(self, space: UvmSpace, uuid: bytes, gpu: HardwareGpu) -> None:
        for key in [key for key, one in space.channels.items() if one.gpu is gpu]:
            self._drop_channel(space, key)
        for one in space.ranges.values():
            for pair in [pair for pair in one.mappings if pair[0] is gpu]:
                self._unmap(space, one, pair)
        found = space.spaces.pop(uuid, None)
        if found is not None:
            found.is_registered = False

    def enable_peers(self, space: UvmSpace, call: Arguments) -> None:
        """UVM_ENABLE_PEER_ACCESS: for pairs that no NVLink joins, once."""
        pair = frozenset((call.data("gpuUuidA"), call.data("gpuUuidB")))
        if any(uuid not in space.gpus for uuid in pair) or len(pair) != 2:
            raise Refusal("INVALID_DEVICE", "not two registered GPUs")
        if self._nvlink or pair in space.peers:
            raise Refusal("INVALID_DEVICE", "the GPUs are peers already")
        space.peers.add(pair)

    # Channels.

    def register_channel(self, space: UvmSpace, call: Arguments) -> None:
        """UVM_REGISTER_CHANNEL: its context gets addresses."""
        uuid = call.data("gpuUuid")
        owner = space.spaces.get(uuid)
        if owner is None:
            raise Refusal("INVALID_DEVICE", "the GPU has no address space here")
        client = self._find_client(call["rmCtrlFd"], call["hClient"])
        found = client.find(call["hChannel"])
        if not isinstance(found, ChannelObject) or found.va_space is not owner:
            raise Refusal("INVALID_CHANNEL", "the object is no channel of the address space")
        key = (call["hClient"], call["hChannel"])
        if key in space.channels:
            raise Refusal("INVALID_CHANNEL", "the channel is registered already")
        base, nbytes = call["base"], call["length"]
        if found.group.engine == nv.NV2080_ENGINE_TYPE_GRAPHICS:
            if (base + nbytes - 1) >> found.gpu.row.host_address_bits:
                raise Refusal("OUT_OF_RANGE", f"a context at {base:#x}")
            if base % _PAGE or nbytes < _CONTEXT_NBYTES or not base:
                raise Refusal("INVALID_ADDRESS", f"{nbytes} bytes at {base:#x} for a context")
            space.add(ExternalRange(base, _CONTEXT_NBYTES, key))
        found.hardware.registered = True
        space.channels[key] = found

    def unregister_channel(self, space: UvmSpace, call: Arguments) -> None:
        """UVM_UNREGISTER_CHANNEL: the channel is stopped and its context unmapped."""
        key = (call["hClient"], call["hChannel"])
        if key not in space.channels:
            raise Refusal("INVALID_CHANNEL", "the channel is not registered")
        self._drop_channel(space, key)

    def _drop_channel(self, space: UvmSpace, key: tuple[int, int]) -> None:
        channel = space.channels.pop(key)
        channel.hardware.registered = False
        channel.hardware.forget()
        for base in [base for base, one in space.ranges.items() if one.channel == key]:
            space.remove(base)

    # Ranges.

    def create_range(self, space: UvmSpace, call: Arguments) -> None:
        """UVM_CREATE_EXTERNAL_RANGE."""
        base, nbytes = self._bounds(call)
        space.add(ExternalRange(base, nbytes))

    def _bounds(self, call: Arguments) -> tuple[int, int]:
        base, nbytes = call["base"], call["length"]
        if base % _PAGE or nbytes % _PAGE or not nbytes or not base or base + nbytes > 1 << 63:
            raise Refusal("INVALID_ADDRESS", f"{nbytes} bytes at {base:#x}")
        return base, nbytes

    def map_memory(self, space: UvmSpace, call: Arguments) -> None:
        """UVM_MAP_EXTERNAL_ALLOCATION, for one GPU."""
        base, nbytes = self._bounds(call)
        count = call["gpuAttributesCount"]
        if not 0 < count <= _MAX_ATTRIBUTES[call.struct.nbytes]:
            raise Refusal("INVALID_ARGUMENT", f"attributes of {count} GPUs")
        if count > 1:
            raise Refusal("NOT_SUPPORTED", "the virtual driver maps for one GPU at a time")
        held = self._external(space, base, nbytes)
        kind = call["perGpuAttributes[0].gpuMappingType"]
        if kind > _MAX_MAPPING_TYPE or (
            call["perGpuAttributes[0].gpuCachingType"] > _MAX_CACHING_TYPE
        ):
            raise Refusal("INVALID_ARGUMENT", f"a mapping of type {kind}")
        uuid = call.data("perGpuAttributes[0].gpuUuid")
        target = space.spaces.get(uuid)
        if target is None:
            raise Refusal("INVALID_DEVICE", "the GPU has no address space here")
        gpu = space.gpus[uuid]
        if (base + nbytes) >> gpu.row.address_bits:
            raise Refusal("OUT_OF_RANGE", f"{base:#x} is past the GPU's addresses")
        self._clear(space, held, gpu, base, nbytes)
        client = self._find_client(call["rmCtrlFd"], call["hClient"])
        memory = client.find(call["hMemory"])
        if not isinstance(memory, MemoryObject) or memory.is_registers:
            raise Refusal("INVALID_OBJECT_HANDLE", "the object is no memory")
        self._check_owner(space, uuid, memory)
        offset, backing = call["offset"], memory.backing
        if offset + nbytes > backing.nbytes:
            raise Refusal("INVALID_OFFSET", f"{nbytes} bytes at {offset} of {backing.nbytes}")
        # The page size divides all four, so at least 4 KiB must.
        if (backing.page_nbytes | base | nbytes | offset) % _PAGE:
            raise Refusal("INVALID_ADDRESS", "not even whole small pages")
        region = MappedRegion(base, nbytes, backing, offset, kind == _READ_ONLY)
        target.space.map(region)
        backing.holders += 1
        held.mappings.append((gpu, region))

    def _external(self, space: UvmSpace, base: int, nbytes: int) -> ExternalRange:
        held = space.around(base)
        if held is None or held.channel is not None or base + nbytes > held.base + held.nbytes:
            raise Refusal("INVALID_ADDRESS", f"no external range holds {nbytes} at {base:#x}")
        return held

    def _check_owner(self, space: UvmSpace, uuid: bytes, memory: MemoryObject) -> None:
        owner = memory.gpu.uuid
        if owner not in space.gpus:
            raise Refusal("INVALID_DEVICE", "the memory's GPU is not registered")
        if owner != uuid and not memory.is_system and frozenset((owner, uuid)) not in space.peers:
            raise Refusal("INVALID_DEVICE", "the memory is that of a GPU that is no peer")

    def _clear(
        self, space: UvmSpace, held: ExternalRange, gpu: HardwareGpu, base: int, nbytes: int
    ) -> None:
        """Unmap what a GPU sees in a part of a range."""
        for pair in list(held.mappings):
            region = pair[1]
            end = region.base + region.nbytes
            if pair[0] is gpu and region.base < base + nbytes and base < end:
                if region.base < base or end > base + nbytes:
                    raise Refusal("NOT_SUPPORTED", "the virtual driver splits no mappings")
                self._unmap(space, held, pair)

    def _unmap(
        self, space: UvmSpace, held: ExternalRange, pair: tuple[HardwareGpu, MappedRegion]
    ) -> None:
        gpu, region = pair
        held.mappings.remove(pair)
        space.spaces[gpu.uuid].space.unmap(region.base)
        self._drop(region.backing)

    def unmap_memory(self, space: UvmSpace, call: Arguments) -> None:
        """UVM_UNMAP_EXTERNAL, of one GPU."""
        base, nbytes = self._bounds(call)
        held = self._external(space, base, nbytes)
        gpu = self._registered(space, call.data("gpuUuid"))
        self._clear(space, held, gpu, base, nbytes)

    def free(self, space: UvmSpace, call: Arguments) -> None:
        """UVM_FREE: a whole range, and what is mapped in it."""
        base = call["base"]
        held = space.ranges.get(base)
        if held is None or held.channel is not None:
            raise Refusal("INVALID_ADDRESS", f"no range begins at {base:#x}")
        if call.has("length") and call["length"] != held.nbytes:
            raise Refusal("INVALID_ADDRESS", f"the range has {held.nbytes} bytes")
        self._free(space, held)

    def _free(self, space: UvmSpace, held: ExternalRange) -> None:
        for pair in list(held.mappings):
            self._unmap(space, held, pair)
        space.remove(held.base)

    def close(self) -> None:
        """Let go of everything, as the kernel does when the descriptor is closed."""
        space, self.space = self.space, None
        if space is None:
            return
        for key in list(space.channels):
            self._drop_channel(space, key)
        for held in list(space.ranges.values()):
            self._free(space, held)
        for owner in space.spaces.values():
            owner.is_registered = False


_CALLS: MappingProxyType[
    int, tuple[str, Callable[[Uvm, UvmSpace, Arguments], None]]
] = MappingProxyType({
    nv.UVM_INITIALIZE: ("uvm_initialize", Uvm.register_gpu),
    nv.UVM_REGISTER_GPU: ("uvm_register_gpu", Uvm.register_gpu),
    nv.UVM_UNREGISTER_GPU: ("uvm_unregister_gpu", Uvm.unregister_gpu),
    nv.UVM_REGISTER_GPU_VASPACE: ("uvm_register_gpu_vaspace", Uvm.register_space),
    nv.UVM_UNREGISTER_GPU_VASPACE: ("uvm_unregister_gpu_vaspace", Uvm.unregister_space),
    nv.UVM_REGISTER_CHANNEL: ("uvm_register_channel", Uvm.register_channel),
    nv.UVM_UNREGISTER_CHANNEL: ("uvm_unregister_channel", Uvm.unregister_channel),
    nv.UVM_ENABLE_PEER_ACCESS: ("uvm_enable_peer_access", Uvm.enable_peers),
    nv.UVM_CREATE_EXTERNAL_RANGE: ("uvm_create_external_range", Uvm.create_range),
    nv.UVM_MAP_EXTERNAL_ALLOCATION: ("uvm_map_external", Uvm.map_memory),
    nv.UVM_UNMAP_EXTERNAL: ("uvm_unmap_external", Uvm.unmap_memory),
    nv.UVM_FREE: ("uvm_free", Uvm.free),
})
