"""The virtual kernel driver: descriptors, ioctls of the resource manager, mappings for the host.

Two layers of errors, as the real one has: OSError where the call itself is wrong (a struct of the
wrong size, a descriptor of the wrong kind), and a status in the struct for everything else. Source
of both: open-gpu-kernel-modules 595.45.04, `kernel-open/nvidia/nv.c` and
`src/nvidia/arch/nvalloc/unix/src/escape.c`.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.runtime.nvidia.abi import release_for
from baregrad.testing.virtual_gpu.driver.alloc import AllocationRequest, Allocator
from baregrad.testing.virtual_gpu.driver.calls import STATUS, Arguments, Refusal
from baregrad.testing.virtual_gpu.driver.control import Controls
from baregrad.testing.virtual_gpu.driver.objects import (
    ChannelObject,
    ClientObject,
    DeviceObject,
    DriverObject,
    GroupObject,
    MemoryObject,
    expect,
)
from baregrad.testing.virtual_gpu.driver.user_memory import BadAddress, UserMemory
from baregrad.testing.virtual_gpu.driver.uvm import Uvm
from baregrad.testing.virtual_gpu.machine.machine import HardwareGpu, HardwareMachine
from baregrad.testing.virtual_gpu.machine.memory import Backing, Bytes

CONTROL_NODE, UVM_NODE = "/dev/nvidiactl", "/dev/nvidia-uvm"
_FIRST_CLIENT = 0xC1D0_0001
_FIRST_LINEAR = 0x7F00_0000_0000
_PAGE = 4 << 10
_NO_MAP = 1 << 30
_ROOT_CLASSES = frozenset({0x0, 0x1, nv.NV01_ROOT_CLIENT})


@dataclass(eq=False)
class OpenFile:
    """One descriptor: its node, its GPU if it is a GPU's, what it is registered with or maps."""

    node: str
    gpu: HardwareGpu | None = None
    control: int | None = None
    uvm: Uvm | None = None
    attached: tuple[MemoryObject, int, int, int] | None = None


def os_error(number: int) -> OSError:
    """Return an error of the operating system."""
    return OSError(number, os.strerror(number))


class VirtualDriver:
    """One driver release over a machine's GPUs.

    `pages_of` returns the process's memory at an address, and keeps it for as long as it is used.
    """

    def __init__(
        self,
        machine: HardwareMachine,
        version: str,
        pages_of: Callable[[int, int], Bytes],
        *,
        nvlink: bool,
    ) -> None:
        self._pages_of = pages_of
        self.machine = machine
        self.release = release_for(version)
        self.files: dict[int, OpenFile] = {}
        self.clients: dict[int, ClientObject] = {}
        self.why = ""
        self._nvlink = nvlink
        self._user = UserMemory()
        self._allocator = Allocator(machine, self.release)
        self._controls = Controls(machine, self.release, version, self._user)
        self._client_handles = itertools.count(_FIRST_CLIENT)
        self._linear = itertools.count(_FIRST_LINEAR, 1 << 32)

    # Descriptors.

    def nodes(self) -> tuple[str, ...]:
        """Return the paths of all device nodes."""
        return (CONTROL_NODE, UVM_NODE, *(gpu.node for gpu in self.machine.gpus))

    def open(self, fd: int, path: str) -> None:
        """Take in a descriptor of a node."""
        if path not in self.nodes():
            raise os_error(errno.ENOENT)
        made = OpenFile(path, next((one for one in self.machine.gpus if one.node == path), None))
        if path == UVM_NODE:
            made.uvm = Uvm(self.machine, self._client_of, self.drop, self._nvlink)
        self.files[fd] = made

    def close(self, fd: int) -> None:
        """Close a descriptor, and all that hangs on it."""
        found = self.files.pop(fd)
        if found.uvm is not None:
            found.uvm.close()
        for client in [one for one in self.clients.values() if one.fd == fd]:
            self._free_tree(client, client)

    # Ioctls.

    def ioctl(self, fd: int, request: int, memory: memoryview) -> None:
        """Answer a call; `memory` is what the caller's pointer leads to."""
        self.why = ""
        found = self.files.get(fd)
        if found is None:
            raise os_error(errno.EBADF)
        if found.uvm is not None:
            self._uvm_call(found.uvm, request, memory)
            return
        number, nbytes = request & 0xFF, request >> 16 & 0x3FFF
        row = _ESCAPES.get(number)
        if request >> 30 != 3 or request >> 8 & 0xFF != nv.NV_IOCTL_MAGIC or row is None:
            raise os_error(errno.EINVAL)
        name, status, of_gpu, action = row
        layout = self.release[name]
        if number == nv.NV_ESC_CARD_INFO:
            if nbytes % layout.nbytes or nbytes // layout.nbytes < len(self.machine.gpus):
                raise os_error(errno.EINVAL)
        elif nbytes != layout.nbytes:
            raise os_error(errno.EINVAL)
        if of_gpu is not None and of_gpu != (found.gpu is not None):
            raise os_error(errno.EINVAL)
        call = Arguments(layout, memory[:nbytes])
        try:
            action(self, fd, call)
            answer = STATUS["NV_OK"]
        except Refusal as refusal:
            if not status:
                raise os_error(errno.EINVAL) from refusal
            answer, self.why = refusal.status, str(refusal)
        except BadAddress as error:
            answer, self.why = STATUS["INVALID_ADDRESS"], str(error)
        if status:
            call[status] = answer

    def _uvm_call(self, uvm: Uvm, request: int, memory: memoryview) -> None:
        if request == nv.UVM_MM_INITIALIZE:
            call = Arguments(self.release["uvm_mm_initialize"], memory)
            other = self.files.get(call["uvmFd"])
            known = other is not None and other.uvm is not None and other.uvm.space is not None
            # Drivers whose kernel notifies them of a process's memory need no second descriptor.
            call["rmStatus"] = STATUS["NV_WARN_NOTHING_TO_DO" if known else "INVALID_ARGUMENT"]
            return
        name = uvm.struct_of(request)
        if name is None:
            raise os_error(errno.EINVAL)
        call = Arguments(self.release[name], memory)
        answer = STATUS["NV_OK"]
        try:
            uvm.answer(request, call)
        except Refusal as refusal:
            answer, self.why = refusal.status, str(refusal)
        call["rmStatus"] = answer

    def _client_of(self, control: int, handle: int) -> ClientObject:
        """Return the client that a descriptor may speak for."""
        if control not in self.files or self.files[control].node != CONTROL_NODE:
            raise Refusal("INVALID_ARGUMENT", f"no control descriptor {control}")
        return self._client(handle)

    def _client(self, handle: int) -> ClientObject:
        found = self.clients.get(handle)
        if found is None:
            raise Refusal("INVALID_CLIENT", f"no client {handle:#x}")
        return found

    # Calls of the resource manager.

    def cards(self, fd: int, call: Arguments) -> None:
        """NV_ESC_CARD_INFO."""
        each = call.struct.nbytes
        call.bytes[:] = bytes(len(call.bytes))
        for place, gpu in enumerate(self.machine.gpus):
            card = Arguments(call.struct, memoryview(call.bytes)[place * each : (place + 1) * each])
            card["valid"], card["gpu_id"], card["minor_number"] = 1, gpu.gpu_id, gpu.minor
            card["pci_info.bus"] = gpu.gpu_id >> 8 & 0xFF
            card["pci_info.vendor_id"] = 0x10DE
            card["fb_size"] = gpu.model.memory_nbytes

    def register(self, fd: int, call: Arguments) -> None:
        """NV_ESC_REGISTER_FD: once for each descriptor."""
        found = self.files[fd]
        control = self.files.get(call["ctl_fd"])
        if found.control is not None:
            raise Refusal("INVALID_STATE", "the descriptor is registered already")
        if control is None or control is found or control.node != CONTROL_NODE:
            raise Refusal("INVALID_ARGUMENT", "no control descriptor")
        if control.control is not None:
            raise Refusal("INVALID_ARGUMENT", "the control descriptor is registered itself")
        found.control = call["ctl_fd"]

    def allocate(self, fd: int, call: Arguments) -> None:
        """NV_ESC_RM_ALLOC."""
        kind = call["hClass"]
        if kind in _ROOT_CLASSES:
            wanted = call["hObjectNew"]
            if wanted in self.clients:
                raise Refusal("INSERT_DUPLICATE_NAME", "the client is there already")
            handle = wanted or next(self._client_handles)
            client = ClientObject(handle, nv.NV01_ROOT_CLIENT, None, fd=fd)
            client.objects[handle] = client
            self.clients[handle] = client
            call["hObjectNew"] = handle
            return
        client = self._client(call["hRoot"])
        parent = client.find(call["hObjectParent"], "INVALID_OBJECT_PARENT")
        handle = client.new_handle(call["hObjectNew"])
        params = self._params(kind, call["pAllocParms"])
        made = self._allocator.make(AllocationRequest(client, parent, handle, kind, params))
        client.add(made)
        if params is not None:
            self._user.write(call["pAllocParms"], bytes(params.bytes))
        call["hObjectNew"] = handle

    def _params(self, kind: int, address: int) -> Arguments | None:
        """Return a copy of a class's struct, of the driver's size whatever the caller said."""
        name = self._allocator.struct_of(kind)
        if name is None:
            return None
        if not address:
            if self._allocator.optional(kind):
                return None
            raise Refusal("INVALID_ARGUMENT", "the class takes parameters")
        layout = self.release[name]
        return Arguments(layout, bytearray(self._user.read(address, layout.nbytes)))

    def control(self, fd: int, call: Arguments) -> None:
        """NV_ESC_RM_CONTROL: the caller's size must be the driver's."""
        client = self._client(call["hClient"])
        target = client.find(call["hObject"])
        command = call["cmd"]
        layout = self.release[self._controls.struct_of(command)]
        if call["paramsSize"] != layout.nbytes:
            raise Refusal("INVALID_PARAM_STRUCT", f"{call['paramsSize']} of {layout.nbytes} bytes")
        data = bytearray(self._user.read(call["params"], layout.nbytes))
        params = Arguments(layout, data)
        self._controls.answer(target, command, params)
        self._user.write(call["params"], bytes(data))

    def free(self, fd: int, call: Arguments) -> None:
        """NV_ESC_RM_FREE: an object and all below it."""
        client = self._client(call["hRoot"])
        self._free_tree(client, client.find(call["hObjectOld"]))

    def _free_tree(self, client: ClientObject, top: DriverObject) -> None:
        for one in list(top.below()):
            self._release(one)
            client.objects.pop(one.handle, None)
            if one.parent is not None:
                one.parent.children.pop(one.handle, None)
        if top is client:
            del self.clients[client.handle]

    def _release(self, one: DriverObject) -> None:
        if isinstance(one, MemoryObject):
            self.drop(one.backing)
        elif isinstance(one, ChannelObject):
            one.hardware.forget()
            one.gpu.channels.pop(one.token, None)
            one.group.hardware.channels.remove(one.hardware)
        elif isinstance(one, GroupObject):
            one.hardware.scheduled = False

    def drop(self, backing: Backing) -> None:
        """Let go of memory, which is free when nobody holds it any more."""
        backing.holders -= 1
        if not backing.holders and backing.owner is not None:
            self.machine.gpus[backing.owner].used_nbytes -= backing.nbytes

    def pin(self, fd: int, call: Arguments) -> None:
        """NV_ESC_RM_ALLOC_MEMORY: pages of the process stay in place."""
        client = self._client(call["params.hRoot"])
        parent = client.find(call["params.hObjectParent"], "INVALID_OBJECT_PARENT")
        device = expect(parent, DeviceObject, "INVALID_OBJECT_PARENT")
        if call["params.hClass"] != nv.NV01_MEMORY_SYSTEM_OS_DESCRIPTOR:
            raise Refusal("INVALID_CLASS", "the virtual driver pins pages this way, no more")
        if not call["params.flags"] & _NO_MAP:
            raise Refusal("INVALID_FLAGS", "the driver maps no pages of a process")
        handle = call["params.hObjectNew"]
        if not handle:
            raise Refusal("INVALID_OBJECT_NEW", "the caller chooses the handle")
        client.new_handle(handle)
        address, nbytes = call["params.pMemory"], call["params.limit"] + 1
        if address % _PAGE or nbytes % _PAGE or not nbytes:
            raise Refusal("INVALID_ADDRESS", f"{nbytes} bytes at {address:#x} are not whole pages")
        if not self._user.readable(address, nbytes, max(_PAGE, nbytes // 64 & -_PAGE)):
            raise Refusal("INVALID_ADDRESS", f"{address:#x} is not mapped")
        backing = Backing(
            self._pages_of(address, nbytes), _PAGE, None, tracked=False, label="pinned memory"
        )
        client.add(MemoryObject(
            handle, call["params.hClass"], parent, backing=backing, gpu=device.gpu,
            is_system=True, is_pinned=True,
        ))  # fmt: skip

    # Mappings into the process.

    def map_memory(self, fd: int, call: Arguments) -> None:
        """NV_ESC_RM_MAP_MEMORY: attaches memory to a descriptor, which mmap maps then."""
        client = self._client(call["params.hClient"])
        device = expect(client.find(call["params.hDevice"]), DeviceObject, "INVALID_OBJECT_PARENT")
        memory = expect(client.find(call["params.hMemory"]), MemoryObject)
        offset, nbytes = call["params.offset"], call["params.length"]
        if memory.is_pinned or device.gpu is not memory.gpu:
            raise Refusal("INVALID_ARGUMENT", "memory that the driver does not map")
        if memory.is_read_only and call["params.flags"] & 3 != nv.MAP_READ_ONLY:
            raise Refusal("INVALID_ARGUMENT", "memory that programs may read alone")
        if not nbytes or offset % _PAGE or offset + nbytes > memory.backing.nbytes:
            raise Refusal("INVALID_LIMIT", f"{nbytes} bytes at {offset} of the memory")
        target = self.files.get(call["fd"])
        if target is None or target.uvm is not None:
            raise Refusal("INVALID_ARGUMENT", f"no descriptor {call['fd']} to map by")
        wanted = None if memory.is_system else memory.gpu
        if target.gpu is not wanted or (wanted is not None and target.control is None):
            raise Refusal("INVALID_ARGUMENT", "a descriptor of another node, or not registered")
        if target.attached is not None:
            raise Refusal("STATE_IN_USE", "the descriptor maps something already")
        linear = next(self._linear)
        memory.mappings[linear] = call["fd"]
        target.attached = (memory, offset, nbytes, linear)
        call["params.pLinearAddress"] = linear

    def unmap_memory(self, fd: int, call: Arguments) -> None:
        """NV_ESC_RM_UNMAP_MEMORY."""
        client = self._client(call["hClient"])
        memory = expect(client.find(call["hMemory"]), MemoryObject)
        by = memory.mappings.pop(call["pLinearAddress"], None)
        if by is None:
            raise Refusal("OBJECT_NOT_FOUND", f"no mapping at {call['pLinearAddress']:#x}")
        found = self.files.get(by)
        if found is not None and found.attached is not None:
            if found.attached[3] == call["pLinearAddress"]:
                found.attached = None

    def attached(self, fd: int, nbytes: int) -> tuple[MemoryObject, int]:
        """Return what mmap of a descriptor maps: memory, and where in it."""
        found = self.files.get(fd)
        if found is None:
            raise os_error(errno.EBADF)
        if found.attached is None:
            raise os_error(errno.EINVAL)
        memory, offset, wanted, _ = found.attached
        if nbytes != wanted:
            raise os_error(errno.ENXIO)
        return memory, offset

    def held(self) -> list[str]:
        """Say which objects, ranges and descriptors there are, for a check of leaks."""
        found = [f"descriptor {fd} of {one.node}" for fd, one in self.files.items()]
        for client in self.clients.values():
            found += [f"object {h:#x} of class {o.kind:#x}" for h, o in client.objects.items()]
        for one in self.files.values():
            if one.uvm is not None and one.uvm.space is not None:
                found += one.uvm.space.held()
        return found + [
            f"{gpu.used_nbytes} bytes of {gpu.node}" for gpu in self.machine.gpus if gpu.used_nbytes
        ]


# By number: the struct, where its status is, whether it is a GPU's call (None: any), what it does.
_ESCAPES: MappingProxyType[
    int, tuple[str, str, bool | None, Callable[[VirtualDriver, int, Arguments], None]]
] = MappingProxyType({
    nv.NV_ESC_CARD_INFO: ("card_info", "", False, VirtualDriver.cards),
    nv.NV_ESC_REGISTER_FD: ("register_fd", "", None, VirtualDriver.register),
    nv.NV_ESC_RM_ALLOC: ("alloc", "status", False, VirtualDriver.allocate),
    nv.NV_ESC_RM_CONTROL: ("control", "status", False, VirtualDriver.control),
    nv.NV_ESC_RM_FREE: ("free", "status", False, VirtualDriver.free),
    nv.NV_ESC_RM_ALLOC_MEMORY: ("alloc_memory", "params.status", True, VirtualDriver.pin),
    nv.NV_ESC_RM_MAP_MEMORY: ("map_memory", "params.status", False, VirtualDriver.map_memory),
    nv.NV_ESC_RM_UNMAP_MEMORY: ("unmap_memory", "status", False, VirtualDriver.unmap_memory),
})
