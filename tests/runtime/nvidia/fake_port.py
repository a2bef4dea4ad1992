"""A port with a small pretended driver behind it: objects, memory, and channels that run at once.

It keeps a list of calls, fails those that it is told to, and knows host semaphores and linear
copies, no more.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.runtime.nvidia.abi import release_for
from baregrad.runtime.nvidia.abi.layout import Record
from baregrad.runtime.nvidia.code.descriptor_fields import descriptor_layout
from baregrad.runtime.nvidia.code.launch_descriptor import GridLaunch, decode
from baregrad.runtime.nvidia.driver.doorbell import ByStores
from baregrad.target.nvidia import nvidia_row

HOPPER_CLASSES = (0xC461, 0xC661, 0xC86F, 0xC46F, 0xCBC0, 0xC8B5, 0xC7B5)
CLASSES = {
    nv.NV01_ROOT_CLIENT, nv.NV01_MEMORY_SYSTEM, nv.NV01_MEMORY_LOCAL_USER, nv.NV01_DEVICE_0,
    nv.NV20_SUBDEVICE_0, nv.FERMI_VASPACE_A, nv.FERMI_CONTEXT_SHARE_A, nv.KEPLER_CHANNEL_GROUP_A,
}  # fmt: skip
TOTAL_NBYTES = 1 << 34
# What it says of itself, by index: version, warps, GPCs, TPCs of a GPC, multiprocessors of a TPC.
FACTS = {0xC: 0x900, 0xD: 64, 0x14: 8, 0x17: 9, 0x20: 2}


class FaultError(Exception):
    """A kernel failed."""


@dataclass
class FakeLaunch:
    """A descriptor that was run, the bytes of its bank 0, and where they lay."""

    launch: GridLaunch
    bank: bytes
    address: int
    first: bool


@dataclass
class Memory:
    nbytes: int
    address: int
    pages: mmap.mmap | None = None


@dataclass
class FakeChannel:
    ring_va: int
    entries: int
    userd: int
    notifier: int
    get: int = 0
    word: int = 0
    semaphore: dict[int, int] = field(default_factory=dict)
    engine: dict[int, int] = field(default_factory=dict)


class FakePort(ByStores):
    """One GPU of the given classes behind a driver of the given release."""

    def __init__(self, version: str = "580.159.04", classes: tuple[int, ...] = HOPPER_CLASSES):
        self.version = version
        self.release = release_for(version)
        self.classes = classes
        self.calls: list[str] = []
        self.fail: dict[str, int] = {}
        self.stalled = False
        self.launches: list[FakeLaunch] = []
        self.launch_fault = 0
        self.mmu_fault = (0, "", 0)
        self.on_launch: Callable[[FakeLaunch], None] | None = None
        self.facts = dict(FACTS)
        self.compute: list[tuple[int, int]] = []
        self.fds: dict[int, str] = {}
        self.attached: dict[int, int] = {}
        self.objects: dict[int, tuple[int, int]] = {}
        self.memory: dict[int, Memory] = {}
        self.ranges: dict[int, tuple[int, int]] = {}
        self.channels: dict[int, FakeChannel] = {}
        self.maps: dict[int, int] = {}
        self._pages: dict[int, mmap.mmap] = {}
        self._next_fd = 100
        self._next_handle = 0xCAF00001
        self._doorbell = 0
        self._used = 0

    # The protocol.

    def open(self, path: str) -> int:
        if path in self.fail:
            raise OSError(self.fail[path], "no")
        self._next_fd += 1
        self.fds[self._next_fd] = path
        self.calls.append(f"open {path}")
        return self._next_fd

    def exists(self, path: str) -> bool:
        return path == "/dev/nvidia3"

    def close(self, fd: int) -> None:
        self.calls.append(f"close {self.fds.pop(fd)}")

    def map_device(self, fd: int, nbytes: int) -> int:
        memory = self.memory[self.attached[fd]]
        if memory.nbytes != nbytes:
            raise OSError(errno.ENXIO, "wrong length")
        self.maps[memory.address] = nbytes
        return memory.address

    def map_memory(self, nbytes: int) -> int:
        address = self._map(nbytes)
        self.maps[address] = nbytes
        return address

    def _map(self, nbytes: int) -> int:
        pages = mmap.mmap(-1, nbytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        self._pages[address] = pages
        return address

    def unmap(self, address: int, nbytes: int) -> None:
        assert self.maps.pop(address) == nbytes
        self.calls.append("unmap")

    def view(self, address: int, nbytes: int) -> memoryview:
        if address == self._doorbell:
            struct.pack_into("<Q", self._pages[address], 0x80, time.perf_counter_ns())
        return memoryview((ctypes.c_ubyte * nbytes).from_address(address)).cast("B")

    def store(self, address: int, value: int) -> None:
        ctypes.c_uint32.from_address(address).value = value
        if self._doorbell and address == self._doorbell + nv.NVC361_NOTIFY_CHANNEL_PENDING:
            assert value in self.channels
            while not self.stalled and any(self._run(c) for c in self.channels.values()):
                pass

    def pause(self) -> None:
        time.sleep(50e-6)

    def ioctl(self, fd: int, request: int, argument: Record, inner: Record | None = None) -> None:
        name = argument.struct.name
        if inner is not None:
            name += f"({inner.struct.name})"
            assert inner.address in (
                argument[key] for key in ("pAllocParms", "params") if key in argument.struct.fields
            )
        self.calls.append(name)
        assert fd in self.fds
        if request & 0xFF000000 != 0x30000000 and request > 0xFFFF:
            assert request >> 16 & 0x3FFF == argument.nbytes and request >> 8 & 0xFF == 0x46
        for key, status in self.fail.items():
            if key in name or (key.startswith("class ") and self._class_of(argument) == key):
                if status < 0:
                    raise OSError(-status, "no")
                self._answer(argument, status)
                return
        answer = getattr(self, f"_do_{argument.struct.name}", self._do_nothing)
        answer(fd, argument, inner)

    @staticmethod
    def _class_of(argument: Record) -> str:
        return f"class {argument['hClass']:#x}" if "hClass" in argument.struct.fields else ""

    @staticmethod
    def _answer(argument: Record, status: int) -> None:
        for key in ("status", "rmStatus", "params.status"):
            if key in argument.struct.fields:
                argument[key] = status

    # The resource manager.

    def _do_NVOS21_PARAMETERS(self, fd: int, call: Record, params: Record | None) -> None:
        kind = call["hClass"]
        handle = call["hObjectNew"] or self._next_handle
        self._next_handle += 1
        if kind != nv.NV01_ROOT_CLIENT and call["hObjectParent"] not in self.objects:
            call["status"] = 0x57
            return
        if kind not in CLASSES and kind not in self.classes:
            call["status"] = 0x22
            return
        if kind in (nv.NV01_MEMORY_LOCAL_USER, nv.NV01_MEMORY_SYSTEM):
            assert params is not None
            nbytes = params["size"]
            if kind == nv.NV01_MEMORY_LOCAL_USER and self._used + nbytes > TOTAL_NBYTES:
                call["status"] = 0x51
                return
            self._used += nbytes
            self.memory[handle] = Memory(nbytes, self._map(nbytes))
        if kind & 0xFF == 0x61:
            self._doorbell = self._map(65536)
            self.memory[handle] = Memory(65536, self._doorbell)
        if kind & 0xFF == 0x6F:
            assert params is not None
            userd = self.memory[params["hUserdMemory[0]"]].address + params["userdOffset[0]"]
            notifier = self.memory[params["hObjectError"]].address
            self.channels[handle & 0xFFFF] = FakeChannel(
                params["gpFifoOffset"], params["gpFifoEntries"], userd, notifier
            )
        self.objects[handle] = (kind, call["hObjectParent"])
        call["hObjectNew"] = handle

    def _do_NVOS00_PARAMETERS(self, fd: int, call: Record, params: Record | None) -> None:
        handle = call["hObjectOld"]
        children = [h for h, (_, parent) in self.objects.items() if parent == handle]
        mapped = [va for va, (_, owner) in self.ranges.items() if owner == handle]
        if not self.fail:
            assert not children, "an object is freed before its children"
            assert not mapped, "memory is freed while the GPU maps it"
        self.objects.pop(handle)
        memory = self.memory.pop(handle, None)
        if memory is not None:
            self._used -= memory.nbytes
        self.channels.pop(handle & 0xFFFF, None)

    def _do_NVOS54_PARAMETERS(self, fd: int, call: Record, params: Record | None) -> None:
        assert call["hObject"] in self.objects
        assert params is not None and call["paramsSize"] == params.nbytes
        command = call["cmd"]
        if command == nv.NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION_V2:
            if params.nbytes != self.release["build_version"].nbytes:
                call["status"] = 0x3A
                return
            params["driverVersionBuffer"] = self.version.encode().ljust(256, b"\0")
        elif command == nv.NV0080_CTRL_CMD_GPU_GET_CLASSLIST:
            if params["classList"]:
                data = struct.pack(f"<{len(self.classes)}I", *self.classes)
                ctypes.memmove(params["classList"], data, len(data))
            params["numClasses"] = len(self.classes)
        elif command == nv.NV2080_CTRL_CMD_GPU_GET_GID_INFO and params.nbytes != 268:
            call["status"] = 0x3A
        elif command == nv.NV2080_CTRL_CMD_GPU_GET_GID_INFO:
            params["data"] = b"a GPU's own uuid".ljust(256, b"\0")
        elif command == nv.NV2080_CTRL_CMD_GR_GET_INFO:
            for i in range(params["grInfoListSize"]):
                where = params["grInfoList"] + 8 * i
                index = ctypes.c_uint32.from_address(where).value
                ctypes.c_uint32.from_address(where + 4).value = self.facts[index]
        elif command == nv.NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN:
            params["workSubmitToken"] = call["hObject"] & 0xFFFF
        elif command == nv.NV906F_CTRL_CMD_GET_MMU_FAULT_INFO:
            address, kind, params["shaderProgramVA[6]"] = self.mmu_fault
            params["addrHi"], params["addrLo"] = address >> 32, address & 0xFFFFFFFF
            params["faultString"] = kind.encode().ljust(32, b"\0")
        elif command == nv.NVA06C_CTRL_CMD_GPFIFO_SCHEDULE:
            assert params["bEnable"] == 1

    def _do_nv_ioctl_card_info_t(self, fd: int, call: Record, params: Record | None) -> None:
        call["valid"] = 1
        call["gpu_id"] = 0x700
        call["minor_number"] = 3

    def _do_nv_ioctl_register_fd_t(self, fd: int, call: Record, params: Record | None) -> None:
        if self.fds[fd] != "/dev/nvidia3":
            raise OSError(errno.EINVAL, "Invalid argument")
        assert self.fds[call["ctl_fd"]] == "/dev/nvidiactl"

    def _do_nv_ioctl_nvos02_parameters_with_fd(
        self, fd: int, call: Record, params: Record | None
    ) -> None:
        assert self.fds[fd] == "/dev/nvidia3"
        handle = call["params.hObjectNew"]
        assert handle not in self.objects
        self.objects[handle] = (call["params.hClass"], call["params.hObjectParent"])
        self.memory[handle] = Memory(0, call["params.pMemory"])

    def _do_nv_ioctl_nvos33_parameters_with_fd(
        self, fd: int, call: Record, params: Record | None
    ) -> None:
        assert call["fd"] not in self.attached
        self.attached[call["fd"]] = call["params.hMemory"]
        call["params.pLinearAddress"] = 0xABC000

    def _do_NVOS34_PARAMETERS(self, fd: int, call: Record, params: Record | None) -> None:
        assert call["pLinearAddress"] == 0xABC000

    # The unified memory driver.

    def _do_nothing(self, fd: int, call: Record, params: Record | None) -> None:
        assert self.fds[fd] == "/dev/nvidia-uvm" and call.struct.name.startswith("UVM_")

    def _do_UVM_MM_INITIALIZE_PARAMS(self, fd: int, call: Record, params: Record | None) -> None:
        call["rmStatus"] = 0x10006

    def _do_UVM_CREATE_EXTERNAL_RANGE_PARAMS(
        self, fd: int, call: Record, params: Record | None
    ) -> None:
        for base, (nbytes, _) in self.ranges.items():
            assert call["base"] + call["length"] <= base or base + nbytes <= call["base"]
        self.ranges[call["base"]] = (call["length"], 0)

    def _do_UVM_MAP_EXTERNAL_ALLOCATION_PARAMS(
        self, fd: int, call: Record, params: Record | None
    ) -> None:
        assert call["hMemory"] in self.memory
        assert call.data("perGpuAttributes[0].gpuUuid") == b"a GPU's own uuid"
        self.ranges[call["base"]] = (call["length"], call["hMemory"])

    def _do_UVM_FREE_PARAMS(self, fd: int, call: Record, params: Record | None) -> None:
        self.ranges.pop(call["base"])

    # The GPU.

    def host_address(self, gpu_va: int) -> int:
        """Return where the memory at a GPU address lies in this process."""
        for base, (nbytes, handle) in self.ranges.items():
            if base <= gpu_va < base + nbytes:
                return self.memory[handle].address + gpu_va - base
        raise LookupError(hex(gpu_va))

    def _run(self, channel: FakeChannel) -> bool:
        """Run a channel until it has no work, or waits, or faults; return whether it did any."""
        before = channel.get, channel.word
        put = ctypes.c_uint32.from_address(channel.userd + 0x8C).value
        while channel.get != put:
            where = self.host_address(channel.ring_va) + 8 * channel.get
            entry = ctypes.c_uint64.from_address(where).value
            count = entry >> 42 & 0x1FFFFF
            data = ctypes.string_at(self.host_address(entry & 0xFFFFFFFFFC), 4 * count)
            try:
                self._execute(channel, struct.unpack(f"<{count}I", data))
                channel.word = 0
            except BlockingIOError:
                break
            except FaultError as error:
                self._report(channel, self.launch_fault or error.args[0])
                channel.get = put
                break
            except LookupError:
                self._report(channel, 31)
                break
            channel.get = (channel.get + 1) % channel.entries
            ctypes.c_uint32.from_address(channel.userd + 0x88).value = channel.get
        return (channel.get, channel.word) != before

    def _execute(self, channel: FakeChannel, words: tuple[int, ...]) -> None:
        while channel.word < len(words):
            place = channel.word
            header = words[place]
            assert header >> 29 == 1
            count, subchannel = header >> 16 & 0x1FFF, header >> 13 & 7
            for i in range(count):
                self._method(
                    channel, subchannel, (header & 0xFFF) * 4 + 4 * i, words[place + 1 + i]
                )
            # A channel that waits goes on with the words that had it wait.
            channel.word = place + 1 + count

    def _method(self, channel: FakeChannel, subchannel: int, method: int, data: int) -> None:
        if subchannel == 0:
            state = channel.semaphore
            state[method] = data
            if method == 0x6C and data & 7 == 3:
                where = self.host_address(state[0x60] << 32 | state[0x5C])
                if ctypes.c_uint64.from_address(where).value < state[0x68] << 32 | state[0x64]:
                    raise BlockingIOError
            elif method == 0x6C and data & 7 == 1:
                where = self.host_address(state[0x60] << 32 | state[0x5C])
                value = state[0x68] << 32 | state[0x64]
                struct.pack_into("<QQ", self.view(where, 16), 0, value, time.perf_counter_ns())
        elif subchannel == 1:
            self.compute.append((method, data))
            channel.engine[method] = data
            if method in (0x2BC, 0x2C0):
                self._run_kernels(channel.engine[0x2B4] << 8)
        elif subchannel == 4:
            state = channel.engine
            state[method] = data
            if method == 0x300:
                self._launch(state, data)

    def _report(self, channel: FakeChannel, code: int) -> None:
        struct.pack_into("<QIHH", self.view(channel.notifier, 16), 0, 1, code, 0, 0xFFFF)

    def _run_kernels(self, address: int) -> None:
        """Note a launch and those chained to it; nothing is computed, but semaphores are."""
        layout = descriptor_layout(nvidia_row(self.classes).launch_descriptor[0])
        first = True
        while address:
            view = self.view(self.host_address(address), layout.nbytes)
            launch = decode(view, layout)
            bank = launch.banks[0]
            data = ctypes.string_at(self.host_address(bank.address), bank.nbytes)
            self.launches.append(FakeLaunch(launch, data, address, first))
            if self.launch_fault:
                raise FaultError
            if self.on_launch is not None:
                self.on_launch(self.launches[-1])
            for release in launch.releases:
                where = self.view(self.host_address(release.address), 16)
                struct.pack_into("<QQ", where, 0, release.value, time.perf_counter_ns())
            address, first = launch.next_address, False

    def _launch(self, state: dict[int, int], launch: int) -> None:
        target = state.get(0x408, 0) << 32 | state.get(0x40C, 0)
        if launch & 3 and launch >> 10 & 1:
            nbytes = (state[0x708] >> 16 & 3) + 1
            pattern = struct.pack("<I", state[0x700])[:nbytes] * state[0x418]
            ctypes.memmove(self.host_address(target), pattern, len(pattern))
        elif launch & 3:
            source = self.host_address(state[0x400] << 32 | state[0x404])
            ctypes.memmove(self.host_address(target), source, state[0x418])
        if launch >> 3 & 3 == 2:
            where = self.host_address(state[0x240] << 32 | state[0x244])
            high = state[0x24C] if launch >> 27 & 1 else 0
            value = high << 32 | state[0x248]
            struct.pack_into("<QQ", self.view(where, 16), 0, value, time.perf_counter_ns())
