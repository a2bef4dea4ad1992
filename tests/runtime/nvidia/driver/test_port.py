from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from baregrad.base.errors import DriverError
from baregrad.runtime.nvidia.abi.layout import struct
from baregrad.runtime.nvidia.driver.client import Client
from baregrad.runtime.nvidia.driver.doorbell import (
    CODE,
    PLACES,
    SOURCES,
    ByStores,
    RingPair,
    RingState,
    Ticket,
)
from baregrad.runtime.nvidia.driver.port import KernelPort
from baregrad.runtime.teardown import Teardown

WINDOW = struct("winsize", "asm-generic/termios.h", 8, "0 u16 rows\n2 u16 columns")


def test_memory_is_mapped_seen_and_stored_to() -> None:
    port = KernelPort()
    address = port.map_memory(8192)
    view = port.view(address, 8192)
    assert not any(view)
    port.store(address + 4100, 0xDEADBEEF)
    assert view[4096:4112] == b"\0\0\0\0\xef\xbe\xad\xde" + bytes(8)
    view.release()
    port.unmap(address, 8192)


class Stores(ByStores):
    """A port that stores to memory and remembers what."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def store(self, address: int, value: int) -> None:
        self.seen.append((address, value))
        ctypes.c_uint32.from_address(address).value = value


class Bench:
    """Two channels in plain memory, and a ticket for the first one."""

    def __init__(self, mask: int = 3, first: int = 0) -> None:
        self.memory = (ctypes.c_uint64 * 64)()
        self.base = ctypes.addressof(self.memory)
        self.state, self.copies = (
            RingState(
                ring=self.base + 8 * at, put_address=self.base + 64 + 8 * at,
                doorbell_address=self.base + 68 + 8 * at, mask=mask, token=0xFFFFFFFE - at,
                open=1, last=first, timeline_address=self.base + 128 + 8 * at,
                alarm_address=self.base + 150 + 8 * at,
            )
            for at in (0, 4)
        )  # fmt: skip
        self.memory[16] = self.memory[20] = first
        self.memory[40:50] = list(range(100, 110))
        # As it is among words: not on 8 bytes.
        self.value_at = 8 * 52 + 4
        self.ticket = Ticket(
            state=ctypes.addressof(self.state), copies=ctypes.addressof(self.copies),
            value_address=self.base + self.value_at, value=first, entry=0xA123456789ABCDE,
            clear_address=self.base + 8 * 41, clear_words=8,
        )  # fmt: skip
        self.pair = RingPair(ctypes.addressof(self.state), ctypes.addressof(self.copies))

    def all(self) -> tuple[bytes, ...]:
        """All that there is, less the addresses of this bench."""
        sizes = (ctypes.sizeof(RingState), ctypes.sizeof(Ticket))
        state, copies, ticket = map(bytearray, (self.state, self.copies, self.ticket))
        for data, places in ((state, (0, 8, 16, 48, 56)), (copies, (0, 8, 16, 48, 56)),
                             (ticket, (0, 8, 16, 40))):
            for place in places:
                data[place : place + 8] = bytes(8)
        assert (len(state), len(ticket)) == sizes
        return bytes(self.memory), bytes(state), bytes(copies), bytes(ticket)


def test_a_ring_is_filled_and_its_doorbell_rung() -> None:
    """By machine code and by stores alike: entries, the pointer, the token, and the ring's end."""
    for port in (KernelPort(), Stores()):
        bench = Bench()
        for number in range(6):
            port.ring(ctypes.addressof(bench.state), (number << 60) + 0x0123456789ABCDE)
        entries = [(n << 60) + 0x0123456789ABCDE for n in (4, 5, 2, 3)]
        assert bench.memory[:8] == [*entries, 0, 0, 0, 0]
        assert bench.memory[8] == 2 | 0xFFFFFFFE << 32 and bench.state.put == 2
        if isinstance(port, Stores):
            assert port.seen[-2:] == [(bench.base + 64, 2), (bench.base + 68, 0xFFFFFFFE)]
            assert len(port.seen) == 12


def go(port: KernelPort | Stores, bench: Bench) -> int:
    return port.go(ctypes.addressof(bench.ticket))


@pytest.mark.parametrize("first", [0, (1 << 32) - 2])
def test_a_ticket_is_submitted_or_refused(first: int) -> None:
    """By machine code and in Python alike; what is refused has changed nothing."""
    found = []
    for port in (KernelPort(), Stores()):
        bench, stages = Bench(first=first), []
        for turn in range(1, 6):
            assert go(port, bench) == first + turn
            assert bench.memory[40:50] == [100, *[0] * 8, 109]
            assert bench.state.last == bench.ticket.value == first + turn
            data = bytes(bench.memory)
            assert data[bench.value_at :][:8] == (first + turn).to_bytes(8, "little")
            assert bench.memory[(turn - 1) % 4] == bench.ticket.entry
            assert bench.memory[8] == turn % 4 | 0xFFFFFFFE << 32
            before = bench.all()
            assert go(port, bench) == 0 and bench.all() == before, "in flight"
            # Others of its kind may follow until the ring is full.
            bench.memory[41:49] = [7] * 8
            bench.memory[16] = first + turn
            stages.append(before)
        for name, field, bad, good in (
            ("state", "open", 0, 1), ("copies", "open", 0, 1), ("copies", "last", first + 1, first),
            ("state", "last", first + 8, first + 5),
            ("ticket", "value", (1 << 64) - 1, first + 5),
        ):  # fmt: skip
            setattr(getattr(bench, name), field, bad)
            before = bench.all()
            assert go(port, bench) == 0 and bench.all() == before, (name, field)
            setattr(getattr(bench, name), field, good)
        alarm = ctypes.c_uint16.from_address(bench.state.alarm_address)
        alarm.value = 0xFFFF
        before = bench.all()
        assert go(port, bench) == 0 and bench.all() == before, "alarm"
        alarm.value = 0
        bench.ticket.clear_words = 0
        assert go(port, bench) == first + 6
        assert bench.memory[41:49] == [7] * 8
        found.append([*stages, bench.all()])
    assert found[0] == found[1]


def test_a_pair_is_looked_at_until_both_are_done() -> None:
    for port in (KernelPort(), Stores()):
        bench = Bench(first=5)
        pair = ctypes.addressof(bench.pair)
        assert port.spin(pair) == 1
        for place, state in ((16, bench.state), (20, bench.copies)):
            state.last = 1 << 40
            assert port.spin(pair) == 0
            bench.memory[place] = 1 << 40
            assert port.spin(pair) == 1
            state.open = 0
            assert port.spin(pair) == 0
            state.open = 1


def test_machine_code_is_called_like_any_function() -> None:
    port = KernelPort()
    for function in (port.go, port.spin):
        for bad in ("text", None, 1.5):
            with pytest.raises(TypeError):
                function(bad)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            function()  # type: ignore[call-arg]
    bench = Bench()
    before = sys.getrefcount(None)
    for _ in range(1000):
        port.spin(ctypes.addressof(bench.pair))
        bench.memory[16] = go(port, bench)
    assert bench.state.last == 1000 and abs(sys.getrefcount(None) - before) < 100
    assert KernelPort().go is port.go, "one page for the process"


@pytest.mark.parametrize("machine", SOURCES)
def test_the_bytes_are_what_an_assembler_makes_of_the_text(machine: str, tmp_path: Path) -> None:
    assembler = next((path for name in ("llvm-mc", *(f"llvm-mc-{n}" for n in range(14, 23)))
                      if (path := shutil.which(name))), None)
    if assembler is None:
        pytest.skip("llvm-mc is not installed; the functions are called in the tests above")
    made = tmp_path / "code.o"
    subprocess.run(
        [assembler, f"-triple={machine}-linux-gnu", "-filetype=obj", "-o", str(made)],
        input=SOURCES[machine], text=True, check=True, capture_output=True,
    )  # fmt: skip
    elftools = pytest.importorskip("elftools.elf.elffile", reason="reads what llvm-mc writes")
    with made.open("rb") as file:
        elf = elftools.ELFFile(file)
        assert elf.get_section_by_name(".text").data() == CODE[machine]
        symbols = elf.get_section_by_name(".symtab").iter_symbols()
        places = {one.name: one["st_value"] for one in symbols if one.name[:1].isalpha()}
    assert places == PLACES[machine]


def test_an_ioctl_reads_and_writes_its_record() -> None:
    port = KernelPort()
    master, slave = os.openpty()
    port.ioctl(master, termios.TIOCSWINSZ, WINDOW.record(rows=12, columns=345))
    record = WINDOW.record()
    port.ioctl(slave, termios.TIOCGWINSZ, record)
    assert (record["rows"], record["columns"]) == (12, 345)
    os.close(slave)
    os.close(master)
    with pytest.raises(OSError, match="Bad file descriptor"):
        port.ioctl(master, termios.TIOCGWINSZ, record)


def test_refusals_of_the_system_are_os_errors() -> None:
    port = KernelPort()
    with pytest.raises(OSError, match="mmap"):
        port.map_device(os.open("/dev/null", os.O_RDWR), 0)
    with pytest.raises(OSError, match="munmap"):
        port.unmap(1, 4096)
    assert not port.exists("/dev/nvidia-of-nobody")


def test_no_driver_is_said_in_words() -> None:
    class Absent(KernelPort):
        def open(self, path: str) -> int:
            return super().open("/nowhere" + path)

    with pytest.raises(DriverError, match="cannot open /dev/nvidiactl.*driver loaded"):
        Client(Absent())


def test_what_is_held_is_given_back_in_reverse_order_after_errors() -> None:
    order: list[str] = []

    def fails(name: str) -> None:
        order.append(name)
        raise ValueError(name)

    teardown = Teardown()
    teardown.push("a", lambda: order.append("a"))
    teardown.push("b", lambda: fails("b"))
    token = teardown.push("c", lambda: order.append("c"))
    teardown.push("d", lambda: fails("d"))
    teardown.run(token)
    teardown.run(token)
    assert teardown.names() == ["a", "b", "d"]
    with pytest.raises(ValueError, match="d") as caught:
        teardown.close()
    assert order == ["c", "d", "b", "a"]
    assert caught.value.__notes__ == ["and then, at b: b"]
    teardown.close()


def test_a_block_that_raises_is_undone_and_one_that_does_not_is_kept() -> None:
    order: list[str] = []
    teardown = Teardown()
    with teardown:
        teardown.push("kept", lambda: order.append("kept"))
    assert order == []
    with pytest.raises(KeyError), teardown:
        raise KeyError
    assert order == ["kept"]


def test_a_forked_process_gives_back_nothing() -> None:
    text = (
        "import os\n"
        "from baregrad.runtime.teardown import Teardown\n"
        "teardown = Teardown()\n"
        "teardown.push('a', lambda: print('ran', flush=True))\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    teardown.close()\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == ""
