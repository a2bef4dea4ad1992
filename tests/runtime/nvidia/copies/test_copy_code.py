"""The machine code of copies: its bytes are those of its text, and threads share pieces rightly."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from baregrad.runtime.nvidia.copies.copy_code import (
    LISTING,
    CopyCode,
    CrewState,
    copy_code,
    read_listing,
)
from baregrad.runtime.nvidia.driver.doorbell import RingState

SLOTS, STEP = 8, 192
WORDS_APART, ENTRY, APART, RING = 16, 1 << 40, 56, 64


@pytest.fixture
def code() -> CopyCode:
    found = copy_code()
    if found is None:
        pytest.skip("there is no such code for this processor")
    return found


def assembly() -> str:
    """The text of the listing, with the fields' places."""
    lines = [".intel_syntax noprefix"]
    for name, *_ in CrewState._fields_:
        lines.append(f".set S_{name}, {getattr(CrewState, name).offset}")
    for line in LISTING.splitlines():
        if not line.startswith("#"):
            lines.append(line if line.endswith(":") else " ".join(line.split()[1:]))
    return "\n".join(lines) + "\n"


def test_the_bytes_are_what_an_assembler_makes_of_the_text(tmp_path: Path) -> None:
    if shutil.which("as") is None or shutil.which("objcopy") is None:
        pytest.skip("needs as and objcopy")
    source, made, raw = (tmp_path / name for name in ("code.s", "code.o", "code.bin"))
    source.write_text(assembly())
    done = subprocess.run(["as", "--64", "-o", made, source], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("the assembler is not for x86-64")
    subprocess.run(["objcopy", "-O", "binary", "-j", ".text", made, raw], check=True)
    assert raw.read_bytes() == read_listing(LISTING)[0]


class Crew:
    """A state over plain memory, and threads; slots may be used at any time."""

    def __init__(self, code: CopyCode, threads: int) -> None:
        self.code = code
        self.address = code.take_page()
        self.state = state = CrewState.from_address(self.address)
        self.stage = np.zeros((SLOTS, STEP), np.uint8)
        self.words = np.zeros((SLOTS, WORDS_APART), np.uint32)
        state.stage, state.stride = self.stage.ctypes.data, STEP
        state.words, state.mask = self.words.ctypes.data, SLOTS - 1
        assert code.move is not None
        state.move, state.spins, state.idle_spins = code.move, 1000, 300
        # A ring with its pointer and doorbell behind it.
        self.ring = np.zeros(RING + 2, np.uint64)
        place = self.ring.ctypes.data
        self.ring_state = RingState(place, place + 8 * RING, place + 8 * RING + 8, 0, RING - 1, 77)
        state.entry = ENTRY
        state.ring, state.entry_stride = ctypes.addressof(self.ring_state), APART
        state.nap[1] = 50_000
        self.threads = [
            threading.Thread(target=code.work, args=(self.address,), daemon=True)
            for _ in range(threads)
        ]
        for thread in self.threads:
            thread.start()

    def begin(self, host: np.ndarray, *, out: bool) -> int:
        """Begin a copy of an array and return the first piece's number."""
        state, first = self.state, self.state.end
        # Pieces of different sizes, none larger than a slot.
        ends = np.cumsum(STEP - np.arange(host.size) * 37 % STEP)
        self.cuts = np.concatenate(([0], ends[ends < host.size], [host.size])).astype(np.uint64)
        self.count = len(self.cuts) - 1
        state.base, state.host, state.cuts = first, host.ctypes.data, self.cuts.ctypes.data
        state.out, state.lag, state.ahead = out, *((0, SLOTS) if out else (SLOTS, 0))
        state.end = first + self.count
        self.code.wake(self.address, len(self.threads))
        return first

    def close(self) -> None:
        self.state.stop = 1
        self.code.wake(self.address, 100)
        for thread in self.threads:
            thread.join(600)
            assert not thread.is_alive()
        self.code.give_page(self.address)


def test_each_piece_is_moved_once_to_its_place(code: CopyCode) -> None:
    """Many short copies: threads that are late for one meet the next."""
    crew = Crew(code, 3)
    crew.stage[:] = np.arange(1, SLOTS + 1, dtype=np.uint8)[:, None]
    crew.words[:, 0] = 1 << 30
    random = np.random.default_rng(1)
    for _ in range(400):
        host = np.zeros(int(random.integers(1, 30 * STEP)), np.uint8)
        put = crew.ring_state.put
        first = crew.begin(host, out=True)
        while code.join(crew.address, 2000):
            pass
        pieces = np.arange(crew.count)
        sizes = np.diff(crew.cuts.astype(np.int64))
        wanted = np.repeat(((pieces + first) % SLOTS + 1).astype(np.uint8), sizes)
        assert np.array_equal(host, wanted)
        assert crew.state.finished == crew.state.next == crew.state.end
        # What comes into a slot that was emptied is submitted, each once.
        rung = (crew.ring_state.put - put) % RING
        assert rung == max(0, len(pieces) - SLOTS)
        entries = [int(crew.ring[(put + i) % RING]) for i in range(rung)]
        assert sorted(entries) == [ENTRY + APART * i for i in range(SLOTS, len(pieces))]
    crew.close()


def test_a_slot_is_filled_when_it_is_free_and_not_before(code: CopyCode) -> None:
    crew = Crew(code, 2)
    host = np.random.default_rng(2).integers(0, 256, 3 * SLOTS * STEP - 7, np.uint8)
    # The slots' last pieces, numbered below 0, are done.
    crew.words[:, 0] = np.arange(SLOTS, dtype=np.int64).astype(np.uint32) - np.uint32(SLOTS - 1)
    crew.state.held, crew.state.entry = 1, 0
    crew.begin(host, out=False)
    seen = {}
    time.sleep(0.01)
    assert not crew.ring_state.put and not crew.ring[RING:].any()
    # The place of the words is known no sooner than they are there.
    crew.state.entry = ENTRY
    crew.state.held = 0
    looks = 0
    while len(seen) < crew.count:
        code.join(crew.address, 100)
        looks += 1
        assert looks < 100_000_000
        at = len(seen)
        if at % RING == crew.ring_state.put:
            continue
        piece, left = divmod(int(crew.ring[at]) - ENTRY, APART)
        assert not left and piece not in seen
        slot, nbytes = piece % SLOTS, int(crew.cuts[piece + 1] - crew.cuts[piece])
        # No slot is used again before we have said that it is free.
        assert piece < SLOTS or piece - SLOTS in seen
        seen[piece] = crew.stage[slot, :nbytes].copy()
        crew.words[slot, 0] = piece + 1
    assert not code.join(crew.address, 10_000)
    assert np.array_equal(np.concatenate([seen[piece] for piece in sorted(seen)]), host)
    assert crew.ring[RING] & 0xFFFFFFFF == crew.ring_state.put == crew.count > 3 * SLOTS
    assert crew.ring[RING + 1] == 77
    crew.close()


def test_giving_up_leaves_the_array_alone(code: CopyCode) -> None:
    crew = Crew(code, 2)
    host = np.zeros(5 * SLOTS * STEP, np.uint8)
    crew.stage[:] = 1
    crew.begin(host, out=True)
    assert code.join(crew.address, 1000) == 1
    crew.state.abort = 1
    while code.join(crew.address, 1000):
        pass
    assert crew.state.finished == crew.state.end and not host.any()
    crew.close()


def test_looking_for_a_number_ends(code: CopyCode) -> None:
    number = ctypes.c_uint64(7)
    assert code.until(ctypes.addressof(number), 7, 1) == 1
    assert code.until(ctypes.addressof(number), 8, code.turns(1e-3)) == 0
    assert code.until(ctypes.addressof(number), 6, 1) == 1
