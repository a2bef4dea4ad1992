"""Rings of the runtime itself on the virtual GPU, read as another process's would be."""

from __future__ import annotations

import ctypes
import random
import struct
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from baregrad.assemble.virtual_cubin import VirtualAssembler
from baregrad.runtime.nvidia.abi.vendor import VendorTables, load_tables
from baregrad.runtime.nvidia.code.cubin import read_cubin
from baregrad.runtime.nvidia.code.cubin_elf import read_elf
from baregrad.runtime.nvidia.code.descriptor_fields import descriptor_layout
from baregrad.runtime.nvidia.driver.client import Client
from baregrad.runtime.nvidia.driver.objects import Gpu
from baregrad.runtime.nvidia.lists.launch import GpuModule
from baregrad.runtime.nvidia.queue.channel import Channel
from baregrad.runtime.nvidia.queue.channel_group import ChannelGroup
from baregrad.runtime.nvidia.queue.push_decoder import PushDecoder, PushedWork
from baregrad.runtime.nvidia.queue.pushbuffer import PushBuffer
from baregrad.testing.virtual_gpu.saxpy_traced import COUNT, SAXPY
from baregrad.testing.virtual_gpu.virtual_port import VirtualPort
from baregrad.trace.calls import RawCall
from baregrad.trace.decode import decode
from baregrad.trace.modules import KernelNames, _beyond, kernels_of
from baregrad.trace.submissions import Submission, SubmissionReader
from tests.trace.observed import ObservingPort, own_memory

DATA = Path(__file__).parents[1] / "runtime" / "nvidia" / "data"


@pytest.fixture(scope="module")
def tables() -> VendorTables:
    return load_tables("580.95.05")


class WatchedPort(ObservingPort):
    """Tells a reader of rings of each call, as the tracer does; mappings among them.

    Before each call the rings are read; what they hold is decoded then, or when it is asked for.
    """

    reader: SubmissionReader
    decodes: bool = True

    def _look(self, begin: int = 0, end: int = 0) -> None:
        if self.decodes:
            self.reader.read_all()
        else:
            self.reader.before_taking(1, begin, end)

    def _tell(self) -> None:
        self.reader.learn(decode(self.tables, self.calls[-1]))

    def open(self, path: str) -> int:
        fd = super().open(path)
        self._tell()
        return fd

    def ioctl(self, fd: int, *rest: object) -> None:
        self._look()
        super().ioctl(fd, *rest)  # type: ignore[arg-type]
        self._tell()

    def map_device(self, fd: int, nbytes: int) -> int:
        address = int(self.port.map_device(fd, nbytes))
        arguments = (0, nbytes, 3, 1, fd, 0)
        self.calls.append(RawCall(0.0, 0.0, 1, 1, "mmap", self.nodes[fd], fd, arguments, address))
        self._tell()
        return address

    def unmap(self, address: int, nbytes: int) -> None:
        self._look(address, address + nbytes)
        self.calls.append(RawCall(0.0, 0.0, 1, 1, "munmap", "memory", -1, (address, nbytes)))
        self._tell()
        self.port.unmap(address, nbytes)


@pytest.mark.parametrize("decodes", [True, False])
def test_launches_copies_and_semaphores_are_found(tables: VendorTables, decodes: bool) -> None:
    found: list[Submission] = []
    reader = SubmissionReader(tables, found.append)
    reader.process(1, own_memory)
    port = WatchedPort(VirtualPort(lag=False), tables)
    port.reader, port.decodes = reader, decodes
    with Client(port) as client, Gpu(client) as gpu:
        group = ChannelGroup(gpu)
        compute, copies = Channel(group), Channel(group, copies=True)
        group.schedule()
        host, device = gpu.memory.pinned(4 * COUNT), gpu.memory.device(4 * COUNT)
        host.view[: 4 * COUNT] = np.arange(COUNT, dtype=np.float32).tobytes()
        push = PushBuffer()
        push.copy(device.gpu_va, host.gpu_va, 4 * COUNT)
        copies.wait(copies.submit(push), timeout_s=5)
        kernel = GpuModule(gpu, VirtualAssembler().assemble(SAXPY)).kernel("saxpy")
        done = kernel.launch(compute, (3, 2, 1), (COUNT, 1, 1), (host, device, 2.5))
        compute.wait(done, timeout_s=5)
        source, target = host.gpu_va, device.gpu_va
    assert bool(reader.waiting) is not decodes
    reader.gone(1)
    reader.read_all()
    while reader.find_names():
        pass
    assert not reader.left
    works = [one.work for one in found]
    copied = [one for one in works if one.kind == "copy" and one.value("source") == source]
    assert [(one.value("target"), one.value("nbytes")) for one in copied] == [(target, 4 * COUNT)]
    (launch,) = (one for one in works if one.kind == "launch")
    assert launch.value("grid") == (3, 2, 1)
    assert launch.value("block") == (COUNT, 1, 1)
    assert int(str(launch.value("registers"))) > 0
    kinds = {one.kind for one in works}
    assert {"bind", "semaphore", "launch", "copy"} <= kinds
    assert {one.channel for one in found} == {
        call.handles[2] for call in (decode(tables, raw) for raw in port.calls)
        if "GPFIFO" in call.subject and call.verb == "NV_ESC_RM_ALLOC"
    }  # fmt: skip
    assert not reader.unknown and not reader.unreadable
    assert reader.methods > 20


def method(address: int, *words: int, kind: int = 1) -> list[int]:
    """A header of the compute unit's, and its words."""
    return [kind << 29 | len(words) << 16 | 1 << 13 | address >> 2, *words]


def launched(reader: SubmissionReader, tables: VendorTables, cubin: bytes, times: int = 1) -> int:
    """Launch a module's kernel on the virtual GPU; return where its code lies."""
    port = WatchedPort(VirtualPort(lag=False), tables)
    port.reader = reader
    with Client(port) as client, Gpu(client) as gpu:
        group = ChannelGroup(gpu)
        compute = Channel(group)
        group.schedule()
        host, more = gpu.memory.pinned(4 * COUNT), gpu.memory.pinned(4 * COUNT)
        host.view[: 4 * COUNT] = more.view[: 4 * COUNT] = bytes(4 * COUNT)
        kernel = GpuModule(gpu, cubin).kernel("saxpy")
        for _ in range(times):
            done = kernel.launch(compute, (3, 2, 1), (COUNT, 1, 1), (host, more, 2.5))
            compute.wait(done, timeout_s=5)
            reader.read_all()
            while reader.find_names():
                pass
        reader.before_end(1)
        return kernel.address


def test_kernels_have_the_names_that_modules_in_memory_give_them(tables: VendorTables) -> None:
    cubin = VirtualAssembler().assemble(SAXPY)
    # A module that begins at no particular place, behind what looks like one.
    held = ctypes.create_string_buffer(b"\x7fELF\x02\x01\x01" + bytes(70) + cubin)
    begin = ctypes.addressof(held)
    found: list[Submission] = []
    reader = SubmissionReader(tables, found.append)
    reader.process(1, own_memory, stretches=lambda: [(begin, begin + len(held))])
    address = launched(reader, tables, cubin)
    (launch,) = (one.work for one in found if one.work.kind == "launch")
    assert launch.value("kernel") == "saxpy"
    assert launch.text.startswith(f"launch of saxpy at {address:#x}: grid (3, 2, 1)")
    assert reader.kernels[0].modules == 1 and not reader.kernels[0].late()


def test_a_name_that_comes_late_is_told_and_other_code_has_none(tables: VendorTables) -> None:
    cubin = VirtualAssembler().assemble(SAXPY)
    other = bytearray(cubin)
    section = next(one for one in read_elf(cubin).sections.values() if one.is_code)
    other[cubin.find(bytes(section.data)) + section.nbytes - 1] ^= 1
    for module, name in ((cubin, "saxpy"), (bytes(other), "")):
        held = ctypes.create_string_buffer(module)
        begin = ctypes.addressof(held)
        looks = iter([[], [(begin, begin + len(held))]])
        found: list[Submission] = []
        reader = SubmissionReader(tables, found.append)
        reader.process(1, own_memory, stretches=lambda looks=looks: next(looks))
        address = launched(reader, tables, cubin, times=2)
        launches = [one.work for one in found if one.work.kind == "launch"]
        assert len(launches) == 2 and "kernel" not in dict(launches[0].values)
        assert reader.kernels[0].late() == ({address: (name, 2)} if name else {})
        assert reader.kernels[0].modules == 1


@pytest.mark.parametrize("file", ["parts.sm_90a.cuda13.cubin", "calls.sm_75.cuda13.cubin"])
def test_code_is_known_by_all_but_the_addresses_in_it(file: str) -> None:
    cubin = (DATA / file).read_bytes()
    kernels = list(kernels_of(cubin))
    assert kernels and {one.name for one in kernels} == set(read_cubin(cubin).kernels)
    for one in kernels:
        loaded = bytearray(one.data)
        for hole in one.holes:
            loaded[hole : hole + 16] = bytes(16)
        assert one.is_in(bytes(loaded)) and not one.is_in(bytes(loaded[:-1]))
        loaded[next(at for at in range(0, len(loaded), 16) if at not in one.holes)] ^= 1
        assert not one.is_in(bytes(loaded))


@pytest.mark.parametrize("count", [200, pytest.param(20_000, marks=pytest.mark.slow)])
def test_modules_that_nobody_meant(tables: VendorTables, count: int) -> None:
    chance = random.Random(5)
    cubin = (DATA / "parts.sm_90a.cuda13.cubin").read_bytes()
    kernel = max(kernels_of(cubin), key=lambda one: len(one.data))
    code, begin = kernel.data, cubin.find(kernel.data)
    holes = {begin + hole + at for hole in kernel.holes for at in range(16)}
    decoder = PushDecoder(tables, lambda at, nbytes: b"")
    named = 0
    for _ in range(count):
        module = bytearray(cubin)
        for _ in range(chance.randrange(1, 8)):
            # Its tables, mostly, and its code.
            at = chance.choice((chance.randrange(64), chance.randrange(len(module))))
            module[at] = chance.randrange(256)
        memory = {0x10000: bytes(module), 0x900000: code}

        def read(
            address: int, nbytes: int, memory: dict[int, bytes] = memory
        ) -> bytes:
            return next((data[address - at : address - at + nbytes] for at, data in memory.items()
                         if at <= address < at + len(data)), b"")  # fmt: skip

        names = KernelNames(read, read, lambda: [(0x10000, 0x10000 + len(cubin))])
        names.told(PushedWork("launch", "launch of it", (("program", 0x900000),)), decoder)
        names.finish()
        if names.names:
            named += 1
            # Whatever its tables say, all of the code that it names is there.
            changed = {at for at in range(begin, begin + len(code)) if module[at] != cubin[at]}
            assert changed <= holes
    assert 0 < named < count


def test_a_module_that_was_seen_names_what_is_launched_when_it_is_gone(
    tables: VendorTables,
) -> None:
    cubin = (DATA / "parts.sm_90a.cuda13.cubin").read_bytes()
    first, *_, last = kernels_of(cubin)
    files = {0x10000: cubin, 0x20000: b"\x7fELF\x02\x01\x01" * 99}
    code = {0x900000: first.data, 0xA00000: last.data}

    def reading(memory: dict[int, bytes], address: int, nbytes: int) -> bytes:
        return next((data[address - at : address - at + nbytes] for at, data in memory.items()
                     if at <= address < at + len(data)), b"")  # fmt: skip

    def launched(names: KernelNames, program: int) -> str:
        work = PushedWork("launch", "launch of it", (("program", program),))
        return str(dict(names.told(work, decoder).values).get("kernel", ""))

    decoder = PushDecoder(tables, lambda at, nbytes: b"")
    for seeks in (True, False):
        memory = dict(files)
        names = KernelNames(
            partial(reading, memory), partial(reading, code),
            lambda: [(at, at + len(data)) for at, data in files.items()], seeks=seeks,
        )  # fmt: skip
        assert launched(names, 0x900000) == ""
        names.finish()
        assert names.modules == seeks and names.names.get(0x900000, "") == first.name * seeks
        memory.clear()
        assert launched(names, 0xA00000) == last.name * seeks


def test_parts_of_memory_that_were_not_looked_through() -> None:
    chance = random.Random(3)
    for _ in range(300):
        there, known = ([(at, at + chance.randrange(1, 5)) for at in range(0, 60, 5)
                         if chance.random() < 0.6] for _ in range(2))  # fmt: skip
        inside = {at for begin, end in known for at in range(begin, end)}
        wanted = [at for begin, end in there for at in range(begin, end) if at not in inside]
        parts = list(_beyond(there, known))
        assert [at for begin, end in parts for at in range(begin, end)] == wanted
    assert list(_beyond([(0, 10), (20, 30)], [(2, 4), (6, 25)])) == [(0, 2), (4, 6), (25, 30)]


def test_a_search_begins_with_what_came_since_the_last(tables: VendorTables) -> None:
    cubin = (DATA / "parts.sm_90a.cuda13.cubin").read_bytes()
    kernel = next(kernels_of(cubin))
    memory = {0x10000: bytes(1 << 16), 0x900000: kernel.data}
    looked: list[int] = []

    def read(address: int, nbytes: int) -> bytes:
        looked.append(address)
        return next((data[address - at : address - at + nbytes] for at, data in memory.items()
                     if at <= address < at + len(data)), b"")  # fmt: skip

    names = KernelNames(
        read, read, lambda: [(at, at + len(data)) for at, data in memory.items() if at < 0x100000]
    )
    work = PushedWork("launch", "launch of it", (("program", 0x900000),))
    decoder = PushDecoder(tables, read)
    names.told(work, decoder)
    names.finish()
    assert not names.names and 0x10000 in looked
    memory[0x30000] = cubin
    looked.clear()
    names.finish()
    assert names.names == {0x900000: kernel.name} and 0x10000 not in looked


def test_code_is_read_from_the_copies_that_brought_it(tables: VendorTables) -> None:
    cubin = VirtualAssembler().assemble(SAXPY)
    (kernel,) = kernels_of(cubin)
    memory = {0x1000: cubin, 0x100000: bytes(64) + kernel.data}

    def read(address: int, nbytes: int) -> bytes:
        return next((data[address - at : address - at + nbytes] for at, data in memory.items()
                     if at <= address < at + len(data)), b"")  # fmt: skip

    names = KernelNames(read, read, lambda: [(0x1000, 0x1000 + len(cubin))])
    decoder = PushDecoder(tables, read, {1: 0xCBC0})

    def copied(source: int, target: int, nbytes: int) -> None:
        names.told(PushedWork("copy", "copy", (
            ("source", source), ("target", target), ("nbytes", nbytes), ("lines", 1),
        )), decoder)  # fmt: skip

    # In two pieces to where another copy takes it from.
    half = len(kernel.data) // 2
    copied(0x100000, 0x900000, 64 + half)
    copied(0x100040 + half, 0x900040 + half, len(kernel.data) - half)
    copied(0x900040, 0xA00000, len(kernel.data))

    def name(program: int) -> str:
        names.told(PushedWork("launch", "launch of it", (("program", program),)), decoder)
        names.finish()
        return names.names.get(program, "")

    assert name(0xA00000) == "saxpy"
    # What is written over it is something else.
    copied(0x100000, 0xA00000, 64)
    assert name(0xA00000) == ""
    # The pushbuffer itself may bring it.
    push = [
        *method(0x180, len(kernel.data), 1, 0, 0xB00000), *method(0x1B0, 0x41),
        *method(0x1B4, *struct.unpack(f"<{len(kernel.data) // 4}I", kernel.data), kind=3),
    ]  # fmt: skip
    for work in decoder.feed(struct.pack(f"<{len(push)}I", *push)):
        names.told(work, decoder)
    assert name(0xB00000) == "saxpy"
    # Addresses that nothing is behind may be read, as zeros.
    memory[0xC00000] = bytes(1 << 12)
    assert name(0xC00000) == "" and names.unreadable == {0xC00000}
    # A search that has no time leaves it at that.
    other = KernelNames(read, read, lambda: [(0x1000, 0x1000 + len(cubin))] * 100)
    other.told(PushedWork("launch", "launch of it", (("program", 0x100040),)), decoder)
    other.finish(0.0)
    assert not other.names and other.is_searching
    other.finish()
    assert other.names == {0x100040: "saxpy"}


def test_a_fork_goes_on_with_the_rings_of_a_process_that_ended(tables: VendorTables) -> None:
    found: list[Submission] = []
    reader = SubmissionReader(tables, found.append)
    reader.process(1, own_memory)
    port = WatchedPort(VirtualPort(lag=False), tables)
    port.reader = reader
    with Client(port) as client, Gpu(client) as gpu:
        group = ChannelGroup(gpu)
        _, copies = Channel(group), Channel(group, copies=True)
        group.schedule()
        host, device = gpu.memory.pinned(4 * COUNT), gpu.memory.device(4 * COUNT)

        def copy(nbytes: int) -> None:
            push = PushBuffer()
            push.copy(device.gpu_va, host.gpu_va, nbytes)
            copies.wait(copies.submit(push), timeout_s=5)

        reader.process(2, own_memory, parent=1)
        copy(4)
        reader.read_all()
        reader.gone(1)
        copy(8)
        reader.read_all()
        reader.gone(2)
    copied = [(one.pid, one.work.value("nbytes")) for one in found if one.work.kind == "copy"]
    assert copied == [(1, 4), (2, 8)]
    assert not reader.spaces and not reader.unreadable


def test_data_may_go_on_in_the_next_segment(tables: VendorTables) -> None:
    push = PushBuffer()
    push.copy(0x1000, 0x2000, 64)
    words = np.array(push.words, np.uint32).tobytes()
    whole = [work.text for work in PushDecoder(tables, own_memory).feed(words)]
    assert any(text.startswith("copy 64 bytes from 0x2000 to 0x1000") for text in whole)
    for cut in range(4, len(words), 4):
        decoder = PushDecoder(tables, own_memory)
        parts = [*decoder.feed(words[:cut]), *decoder.feed(words[cut:])]
        assert [work.text for work in parts] == whole


@pytest.mark.parametrize(("kind", "major"), [
    (0xC5C0, 2), (0xC6C0, 3), (0xC7C0, 3), (0xC9C0, 3), (0xCBC0, 4), (0xCDC0, 5), (0xCEC0, 5),
])  # fmt: skip
def test_a_descriptor_that_the_pushbuffer_wrote_is_launched(
    tables: VendorTables, kind: int, major: int
) -> None:
    layout = descriptor_layout(major)
    values = {("grid_width", 0): 7, ("grid_height", 0): 3, ("grid_depth", 0): 1,
              ("block_width", 0): 96, ("block_height", 0): 2, ("block_depth", 0): 1,
              ("register_count", 0): 40, ("shared_nbytes", 0): 1024, ("grid_kind", 0): 2,
              ("program_address", 0): 0x123400}  # fmt: skip
    data = bytearray(layout.nbytes)
    for (name, index), value in values.items():
        if name != "grid_kind" or name in layout.fields:
            layout.write(data, name, value, index)
    place = 0x5000000
    # Turing is told by another method to begin, and has no other actions.
    begin = method(0x2C0, 3) if major > 2 else method(0x2BC, 2)
    fetch = method(0x2C0, 8) if major > 2 else method(0x2BC, 1)

    words = [
        *method(0, kind),
        *method(0x180, len(data), 1),
        *method(0x188, place >> 32, place & 0xFFFFFFFF),
        *method(0x1B0, 0x41),
        *method(0x1B4, *np.frombuffer(bytes(data), np.uint32).tolist(), kind=3),
        *method(0x2B4, place >> 8),
        *begin,
    ]  # fmt: skip
    # A signal that only fetches it is no launch, and a descriptor of zeros starts no program.
    words += [*fetch, *method(0x2B4, 0x9000), *begin]
    decoder = PushDecoder(tables, lambda at, nbytes: bytes(nbytes))
    works = list(decoder.feed(np.array(words, np.uint32).tobytes()))
    assert [work.kind for work in works] == ["bind", "copy", "launch", "empty"]
    launch = works[2]
    assert launch.value("grid") == (7, 3, 1)
    assert launch.value("block") == (96, 2, 1)
    assert (launch.value("registers"), launch.value("shared")) == (40, 1024)
    assert launch.value("program") == 0x123400
    assert not decoder.unknown


def test_descriptors_come_in_pieces_too(tables: VendorTables) -> None:
    """By data at one address, by a header that counts once, and inside the pushbuffer."""
    layout = descriptor_layout(4)
    data = bytes(layout.encode({("grid_width", 0): 5, ("block_width", 0): 64,
                                ("program_address", 0): 0x7700}))  # fmt: skip
    body = np.frombuffer(data, np.uint32).tolist()
    place = 0x5000100

    words = [
        *method(0, 0xCBC0),
        *method(0x180, len(data), 1, place >> 32, place),
        *method(0x1B0, 0x41, *body, kind=5),
        *method(0x2B4, place >> 8), *method(0x2C0, 3),
        *method(0x318, 0, place >> 8), *method(0x320, *body, 9), *method(0x2C0, 3),
        *method(0x180, len(data), 1, place >> 32, place),
        *method(0x1B0, 0x41), *method(0x1B4, *([0] * len(body)), kind=3),
        *method(0x2B4, place >> 8), *method(0x2C0, 3),
    ]  # fmt: skip
    whole = np.array(words, np.uint32).tobytes()
    headers = 13
    for cut in range(0, len(whole), 4):
        decoder = PushDecoder(tables, lambda at, nbytes: b"")
        works = [*decoder.feed(whole[:cut]), *decoder.feed(whole[cut:])]
        assert [one.kind for one in works] == ["bind", "copy", "launch", "launch", "copy", "empty"]
        for launch in works[2:4]:
            assert launch.value("grid") == (5, 0, 0) and launch.value("program") == 0x7700
        assert decoder.methods == len(words) - headers
        assert not decoder.unknown


@pytest.mark.parametrize("count", [2000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_words_that_nobody_meant(tables: VendorTables, count: int) -> None:
    chance = random.Random(3)
    push = PushBuffer()
    push.copy(0x1000, 0x2000, 64)
    words = np.array(push.words, np.uint32).tobytes()
    decoder = PushDecoder(tables, lambda at, nbytes: chance.randbytes(nbytes))
    for _ in range(count):
        data = bytearray(words)
        for _ in range(chance.randrange(6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        for work in decoder.feed(bytes(data) + chance.randbytes(chance.randrange(32))):
            assert work.kind in ("bind", "copy", "empty", "launch", "semaphore", "wait")
    for name in decoder.unknown:
        assert name.startswith(("header 0x", "host method 0x", "compute method 0x",
                                "copy method 0x", "other method 0x"))  # fmt: skip
