"""The half of the pretended libcuda below kernels: contexts, streams, events and memory."""

from __future__ import annotations

import ctypes
import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from baregrad.runtime.cuda import abi
from baregrad.testing.virtual_gpu.ptx.memory import PtxMemory, Region
from baregrad.testing.virtual_gpu.ptx.program import PtxKernel

MIB = 1 << 20
NAMES = {
    0: "CUDA_SUCCESS", 1: "CUDA_ERROR_INVALID_VALUE", 2: "CUDA_ERROR_OUT_OF_MEMORY",
    100: "CUDA_ERROR_NO_DEVICE", 200: "CUDA_ERROR_INVALID_IMAGE", 400: "CUDA_ERROR_INVALID_HANDLE",
    500: "CUDA_ERROR_NOT_FOUND", 600: "CUDA_ERROR_NOT_READY", 700: "CUDA_ERROR_ILLEGAL_ADDRESS",
    715: "CUDA_ERROR_ILLEGAL_INSTRUCTION", 716: "CUDA_ERROR_MISALIGNED_ADDRESS",
    719: "CUDA_ERROR_LAUNCH_FAILED", 801: "CUDA_ERROR_NOT_SUPPORTED", 999: "CUDA_ERROR_UNKNOWN",
}
INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE = 1, 201, 400
# Functions that need no context, and never answer with an older fault.
FREE = {
    "cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString", "cuDeviceGetCount",
    "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute", "cuDeviceTotalMem_v2",
    "cuDeviceCanAccessPeer", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2",
    "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2",
}


class Refusal(Exception):
    """An answer that is not success."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(eq=False)
class Gpu:
    number: int
    memory: PtxMemory
    used: int = 0
    context: Context | None = None
    peers: set[int] = field(default_factory=set)


@dataclass(eq=False)
class Context:
    gpu: Gpu
    handle: int
    retained: int = 0
    sticky: int = 0
    things: dict[int, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Stream:
    context: Context
    work: deque[Callable[[], bool]] = field(default_factory=deque)


@dataclass(eq=False)
class Event:
    context: Context
    timing: bool
    stream: Stream | None = None
    pending: int = 0
    time: int = 0


@dataclass(eq=False)
class Function:
    kernel: PtxKernel
    shared_limit: int = abi.SHARED_DEFAULT_NBYTES
    big_clusters: bool = False


@dataclass(eq=False)
class Node:
    kind: str
    params: Any
    cluster: int = 1


@dataclass(eq=False)
class Graph:
    nodes: dict[int, Node] = field(default_factory=dict)


class FakeCore:
    """Devices, contexts, streams, events and memory."""

    def __init__(self, gpus: int = 1, version: int = 13000, capability: tuple[int, int] = (9, 0)):
        self.version = version
        self.capability = capability
        self.total_nbytes = 256 * MIB
        self.lock = threading.RLock()
        self.calls: list[str] = []
        self.launches: list[tuple[str, tuple[int, ...], tuple[int, ...], int, int]] = []
        self.complaints: list[str] = []
        self.left_behind: list[str] = []
        self.fail_at: dict[int, int] = {}
        self.fail_name: dict[str, int] = {}
        self.stalled = False
        # Commands that are run when somebody asks.
        self.pace = 8
        self.memory_operations = True
        self.ticks = 0
        self.pinned: dict[int, tuple[int, Any, Context]] = {}
        self.stacks: dict[int, list[Context]] = {}
        self.next_handle = 0x1000
        self.gpus = []
        for number in range(gpus):
            memory = PtxMemory()
            memory._next += number << 40
            self.gpus.append(Gpu(number, memory))
        self.functions: dict[str, Callable[..., int]] = {}
        for name, arguments in abi.FUNCTIONS.items():
            prototype = ctypes.CFUNCTYPE(ctypes.c_int, *arguments)
            self.functions[name] = prototype(self._guarded(name))

    def _guarded(self, name: str) -> Callable[..., int]:
        method = getattr(self, name.partition("_")[0])

        def call(*arguments: Any) -> int:
            with self.lock:
                try:
                    return self._answer(name, method, arguments)
                except Refusal as refusal:
                    return refusal.code
                except Exception:  # noqa: BLE001  a caller in C sees no exception
                    self.complaints.append(traceback.format_exc())
                    return abi.UNKNOWN

        return call

    def _answer(self, name: str, method: Callable[..., Any], arguments: Any) -> int:
        if name.startswith("cuGetError"):
            return method(*arguments) or 0
        self.calls.append(name)
        code = self.fail_at.get(len(self.calls) - 1, 0) or self.fail_name.get(name, 0)
        if code:
            return code
        if name not in FREE:
            context = self.current()
            if context.sticky:
                return context.sticky
        return method(*arguments) or 0

    # What is there.

    def current(self) -> Context:
        stack = self.stacks.get(threading.get_ident())
        if not stack:
            raise Refusal(INVALID_CONTEXT)
        return stack[-1]

    def put(self, thing: Any) -> int:
        self.next_handle += 0x10
        self.current().things[self.next_handle] = thing
        return self.next_handle

    def get(self, handle: int | None, kind: type) -> Any:
        for gpu in self.gpus:
            found = gpu.context.things.get(handle or 0) if gpu.context else None
            if found is not None:
                if not isinstance(found, kind):
                    break
                return found
        self.complaints.append(f"{self.calls[-1]}: {handle} is no {kind.__name__}")
        raise Refusal(INVALID_HANDLE)

    def drop(self, handle: int, kind: type) -> Any:
        found = self.get(handle, kind)
        for gpu in self.gpus:
            if gpu.context is not None:
                gpu.context.things.pop(handle, None)
        return found

    def alive(self) -> list[str]:
        """What exists: contexts, their objects, memory, and contexts on the threads' stacks."""
        found = [f"pinned {address:#x}" for address in self.pinned]
        for gpu in self.gpus:
            found += [f"memory {base:#x}" for base in gpu.memory.allocations]
            if gpu.context is not None:
                found.append(f"context retained {gpu.context.retained} times")
                found += [type(thing).__name__ for thing in gpu.context.things.values()]
        return found + ["a current context" for stack in self.stacks.values() for _ in stack]

    # Start.

    def cuInit(self, flags: int) -> None:
        assert flags == 0

    def cuDriverGetVersion(self, out: Any) -> None:
        out[0] = self.version

    def cuGetErrorName(self, code: int, out: Any) -> int:
        if code not in NAMES:
            return INVALID_VALUE
        out[0] = NAMES[code].encode()
        return 0

    def cuGetErrorString(self, code: int, out: Any) -> None:
        out[0] = f"words for {code}".encode()

    def cuDeviceGetCount(self, out: Any) -> None:
        out[0] = len(self.gpus)

    def cuDeviceGet(self, out: Any, ordinal: int) -> None:
        out[0] = self.gpus[ordinal].number

    def cuDeviceGetName(self, place: int, size: int, device: int) -> None:
        text = f"Pretended GPU {self.gpus[device].number}".encode() + b"\0"
        assert len(text) <= size
        ctypes.memmove(place, text, len(text))

    def cuDeviceGetAttribute(self, out: Any, number: int, device: int) -> None:
        out[0] = {
            abi.COMPUTE_CAPABILITY_MAJOR: self.capability[0],
            abi.COMPUTE_CAPABILITY_MINOR: self.capability[1],
            abi.CLUSTER_LAUNCH: int(self.capability[0] >= 9),
            abi.MAX_SHARED_PER_BLOCK_OPTIN: 227 << 10, abi.MULTIPROCESSOR_COUNT: 132,
        }[number]

    def cuDeviceTotalMem(self, out: Any, device: int) -> None:
        out[0] = self.total_nbytes

    def cuDeviceCanAccessPeer(self, out: Any, device: int, other: int) -> None:
        out[0] = int(device != other)

    def cuDevicePrimaryCtxRetain(self, out: Any, device: int) -> None:
        gpu = self.gpus[device]
        if gpu.context is None:
            self.next_handle += 0x10
            gpu.context = Context(gpu, self.next_handle)
        gpu.context.retained += 1
        out[0] = gpu.context.handle

    def cuDevicePrimaryCtxRelease(self, device: int) -> None:
        gpu = self.gpus[device]
        assert gpu.context is not None
        gpu.context.retained -= 1
        if gpu.context.retained:
            return
        # A context takes all that is its own with it; one with a fault can be left no other way.
        pinned = [at for at, (_, _, owner) in self.pinned.items() if owner is gpu.context]
        if not gpu.context.sticky:
            self.left_behind += [type(one).__name__ for one in gpu.context.things.values()]
            self.left_behind += [f"{len(one)} bytes" for one in gpu.memory.allocations.values()]
            self.left_behind += [f"pinned {at:#x}" for at in pinned]
        for base in list(gpu.memory.allocations):
            gpu.memory.free(base)
        for at in pinned:
            del self.pinned[at]
        gpu.used, gpu.context = 0, None

    def cuCtxPushCurrent(self, handle: int) -> None:
        for gpu in self.gpus:
            if gpu.context is not None and gpu.context.handle == handle:
                self.stacks.setdefault(threading.get_ident(), []).append(gpu.context)
                return
        raise Refusal(INVALID_CONTEXT)

    def cuCtxPopCurrent(self, out: Any) -> None:
        context = self.current()
        self.stacks[threading.get_ident()].pop()
        out[0] = context.handle

    def cuCtxEnablePeerAccess(self, handle: int, flags: int) -> None:
        other = next(gpu for gpu in self.gpus if gpu.context and gpu.context.handle == handle)
        if other.number in self.current().gpu.peers:
            raise Refusal(abi.PEER_ACCESS_ALREADY_ENABLED)
        self.current().gpu.peers.add(other.number)

    # Streams and events.

    def cuStreamCreate(self, out: Any, flags: int) -> None:
        assert flags == abi.STREAM_NON_BLOCKING
        out[0] = self.put(Stream(self.current()))

    def cuStreamDestroy(self, handle: int) -> None:
        self.drop(handle, Stream)

    def step(self, stream: Stream) -> None:
        """Run one command of a stream, if it can."""
        if self.stalled or not stream.work or stream.context.sticky:
            return
        work = stream.work.popleft()
        if not work():
            stream.work.appendleft(work)

    def drain(self, stream: Stream) -> None:
        while stream.work and not stream.context.sticky:
            self.step(stream)

    def cuStreamQuery(self, handle: int) -> int:
        stream = self.get(handle, Stream)
        if not stream.work:
            return stream.context.sticky
        for _ in range(self.pace):
            self.step(stream)
        return stream.context.sticky or abi.NOT_READY

    def cuStreamWaitEvent(self, handle: int, event: int, flags: int) -> None:
        found: Event = self.get(event, Event)
        target = self.get(handle, Stream)

        def work(number: int = found.pending) -> bool:
            if found.pending == number and number and found.stream is not None:
                self.step(found.stream)
            return found.pending != number or not number

        target.work.append(work)

    def cuStreamWriteValue32(self, handle: int, address: int, value: int, flags: int) -> None:
        if not self.memory_operations:
            raise Refusal(abi.NOT_SUPPORTED)
        assert any(base <= address < base + size for base, (size, *_) in self.pinned.items())

        def work() -> bool:
            ctypes.c_uint32.from_address(address).value = value
            return True

        self.get(handle, Stream).work.append(work)

    def cuEventCreate(self, out: Any, flags: int) -> None:
        out[0] = self.put(Event(self.current(), flags == abi.EVENT_DEFAULT))

    def cuEventDestroy(self, handle: int) -> None:
        self.drop(handle, Event)

    def cuEventRecord(self, handle: int, stream: int) -> None:
        event: Event = self.get(handle, Event)
        event.stream = self.get(stream, Stream)
        self.ticks += 1
        number = event.pending = self.ticks
        assert event.stream is not None

        def work() -> bool:
            if event.pending == number:
                event.pending = 0
                self.ticks += 1
                event.time = self.ticks
            return True

        event.stream.work.append(work)

    def cuEventQuery(self, handle: int) -> int:
        event: Event = self.get(handle, Event)
        if event.pending and event.stream is not None:
            self.step(event.stream)
            return event.context.sticky or (abi.NOT_READY if event.pending else 0)
        return event.context.sticky

    def cuEventElapsedTime(self, out: Any, first: int, second: int) -> None:
        one, two = self.get(first, Event), self.get(second, Event)
        assert one.timing and two.timing and not one.pending and not two.pending
        out[0] = (two.time - one.time) * 1e-3

    # Memory.

    def cuMemGetInfo(self, free: Any, total: Any) -> None:
        free[0], total[0] = self.total_nbytes - self.current().gpu.used, self.total_nbytes

    def cuMemAlloc(self, out: Any, nbytes: int) -> None:
        gpu = self.current().gpu
        if not nbytes:
            raise Refusal(INVALID_VALUE)
        if gpu.used + nbytes > self.total_nbytes:
            raise Refusal(abi.OUT_OF_MEMORY)
        gpu.used += nbytes
        out[0] = gpu.memory.allocate(nbytes)

    def cuMemFree(self, address: int) -> None:
        gpu = self.current().gpu
        context = gpu.context
        assert context is not None
        for thing in context.things.values():
            if isinstance(thing, Stream):
                self.drain(thing)
        gpu.used -= len(gpu.memory.allocations[address])
        gpu.memory.free(address)

    def cuMemHostAlloc(self, out: Any, nbytes: int, flags: int) -> None:
        pages = (ctypes.c_ubyte * nbytes)()
        address = ctypes.addressof(pages)
        self.pinned[address] = (nbytes, pages, self.current())
        out[0] = address

    def cuMemFreeHost(self, address: int) -> None:
        del self.pinned[address]

    def cuMemHostGetDevicePointer(self, out: Any, address: int, flags: int) -> None:
        assert address in self.pinned
        out[0] = address

    def region(self, address: int, nbytes: int) -> tuple[Region, int]:
        for gpu in self.gpus:
            found = gpu.memory.find(address)
            if found is not None and address + nbytes <= found.base + found.nbytes:
                return found, address - found.base
        raise Refusal(INVALID_VALUE)

    def write(self, address: int, data: Any) -> None:
        region, at = self.region(address, len(data))
        region.data[at : at + len(data)] = data
        if region.written is not None:
            region.written[at : at + len(data)] = 1

    def read(self, address: int, nbytes: int) -> Any:
        region, at = self.region(address, nbytes)
        return region.data[at : at + nbytes]

    def _is_pinned(self, address: int, nbytes: int) -> bool:
        return any(
            base <= address and address + nbytes <= base + size
            for base, (size, *_) in self.pinned.items()
        )

    def _host(self, address: int, nbytes: int) -> Any:
        return np.frombuffer((ctypes.c_ubyte * nbytes).from_address(address), np.uint8)

    def _soon(self, stream: int, host: int, nbytes: int, work: Callable[[], bool]) -> None:
        """A copy of pinned memory is done later, one of other memory at once."""
        found = self.get(stream, Stream)
        found.work.append(work)
        if not self._is_pinned(host, nbytes):
            self.drain(found)

    def cuMemcpyHtoDAsync(self, target: int, host: int, nbytes: int, stream: int) -> None:
        self.region(target, nbytes)

        def work() -> bool:
            self.write(target, self._host(host, nbytes))
            return True

        self._soon(stream, host, nbytes, work)

    def cuMemcpyDtoHAsync(self, host: int, source: int, nbytes: int, stream: int) -> None:
        self.region(source, nbytes)

        def work() -> bool:
            ctypes.memmove(host, self.read(source, nbytes).ctypes.data, nbytes)
            return True

        self._soon(stream, host, nbytes, work)

    def _copy(self, target: int, source: int, nbytes: int) -> Callable[[], bool]:
        self.region(target, nbytes), self.region(source, nbytes)

        def work() -> bool:
            self.write(target, self.read(source, nbytes).copy())
            return True

        return work

    def cuMemcpyDtoDAsync(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self.get(stream, Stream).work.append(self._copy(target, source, nbytes))

    def cuMemcpyPeerAsync(
        self, target: int, to: int, source: int, come: int, nbytes: int, stream: int
    ) -> None:
        assert {to, come} <= {gpu.context.handle for gpu in self.gpus if gpu.context}
        self.get(stream, Stream).work.append(self._copy(target, source, nbytes))

    def _fill(self, target: int, byte: int, nbytes: int) -> Callable[[], bool]:
        self.region(target, nbytes)

        def work() -> bool:
            self.write(target, np.full(nbytes, byte, np.uint8))
            return True

        return work

    def cuMemsetD8Async(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        self.get(stream, Stream).work.append(self._fill(target, byte, nbytes))
