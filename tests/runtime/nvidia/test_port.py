from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import termios

import pytest

from baregrad.base.errors import DriverError
from baregrad.runtime.nvidia.abi.layout import struct
from baregrad.runtime.nvidia.client import Client
from baregrad.runtime.nvidia.port import KernelPort, RingState, ring_by_stores
from baregrad.runtime.nvidia.teardown import Teardown

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


def test_a_ring_is_filled_and_its_doorbell_rung() -> None:
    """By machine code and by stores alike: entries, the pointer, the token, and the ring's end."""
    port = KernelPort()
    seen = []
    stores: list[tuple[int, int]] = []

    def by_stores(state: int, entry: int) -> None:
        ring_by_stores(lambda place, value: stores.append((place - address, value)), state, entry)

    for ring in (port.ring, by_stores):
        address = port.map_memory(4096)
        state = RingState(address, address + 1024, address + 2052, 0, 3, 0xFFFFFFFE)
        for number in range(6):
            ring(ctypes.addressof(state), (number << 60) + 0x0123456789ABCDE)
        view = port.view(address, 4096)
        seen.append((bytes(view[:40]), state.put))
        if ring is port.ring:
            assert view[1024:1028].cast("I")[0] == 2
            assert view[2048:2060].cast("I").tolist() == [0, 0xFFFFFFFE, 0]
        view.release()
        port.unmap(address, 4096)
    assert seen[0] == seen[1]
    entries = memoryview(seen[0][0]).cast("Q").tolist()
    assert entries == [(n << 60) + 0x0123456789ABCDE for n in (4, 5, 2, 3)] + [0]
    assert stores[-2:] == [(1024, 2), (2052, 0xFFFFFFFE)] and len(stores) == 12


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
        "from baregrad.runtime.nvidia.teardown import Teardown\n"
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
