"""Copies of ordinary arrays by threads that need no Python while they copy.

Threads, and the caller's with them, run machine code that fills slots of pinned memory, or empties
them, and rings the doorbell for each piece when it may be copied (copy_code.py). Words for all of
them are written before; what ends a copy to the GPU is submitted when all its pieces were.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from baregrad.base.bits import round_up
from baregrad.base.errors import DriverError
from baregrad.runtime.nvidia.abi import methods as m
from baregrad.runtime.nvidia.copies.copy_code import CopyCode, CrewState
from baregrad.runtime.nvidia.copies.piece_words import (
    PIECE_WORDS,
    SLOT_NBYTES,
    Cuts,
    PieceWords,
    Slots,
    Words,
    cut,
    end_words,
    words_nbytes,
)
from baregrad.runtime.nvidia.driver.memory import PAGE_NBYTES, Allocation
from baregrad.runtime.nvidia.driver.port import KernelPort
from baregrad.runtime.nvidia.queue.pushbuffer import PushBuffer

if TYPE_CHECKING:
    from baregrad.runtime.nvidia.copies.staging_options import StagingOptions, Wait, Watch
    from baregrad.runtime.nvidia.driver.objects import Gpu
    from baregrad.runtime.nvidia.driver.suballocator import Suballocation
    from baregrad.runtime.nvidia.queue.channel import Channel

# Pieces whose words are written at once; bytes of a copy at once, in pieces of the largest size:
# there are more of them, for the first and the last are smaller. Threads that they are cut for.
_MOST_PIECES, _MOST_WHOLE, _MOST_SHARERS = 1024, 256, 64
# Each may be in the ring at once.
_MOST_SLOTS = 256
_EVERYBODY = 1 << 30
_MASK = 0xFFFFFFFF
# How long threads look for the GPU before they nap, and for how long; how long they look for the
# next copy before they sleep until they are woken.
_LOOK_S, _NAP_NS, _IDLE_S = 1e-3, 50_000, 400e-6
# The caller's look, the first and later ones, and how often it looks for faults.
_FIRST_LOOK_S, _LATER_LOOK_S, _CHECK_S = 1e-3, 100e-6, 5e-3
# Where doorbells are seen by the port alone, the caller rings them, this often.
_RING_S = 20e-6


class SharedCopies:
    """Pinned memory in slots, their words, and `workers` less one threads; one copy at a time.

    `wait` waits for a value of a channel's timeline; `watch` makes what looks for faults, given the
    channel and what returns the progress.
    """

    def __init__(
        self, gpu: Gpu, code: CopyCode, workers: int, options: StagingOptions, wait: Wait,
        watch: Watch,
    ) -> None:  # fmt: skip
        self._code, self._workers, self._options = code, workers, options
        self._wait, self._watch = wait, watch
        self._port = gpu.client.port
        self._pause: Callable[[], None] = self._port.pause
        self._by_hand = not isinstance(self._port, KernelPort)
        self._channel: Channel | None = None
        # The timeline's value when the last copy to the GPU is done, 0 if it went to the host.
        self.last_value = 0
        count = min(_MOST_SLOTS, 1 << (workers * options.depth - 1).bit_length())
        stride = round_up(options.piece_nbytes, PAGE_NBYTES)
        self.stage: Allocation = gpu.memory.host(count * stride, large_pages=options.large_pages)
        self._memory = gpu.memory.pinned((count + 1) * SLOT_NBYTES)
        self._slot_words = self._memory.view[: count * SLOT_NBYTES].cast("I")
        slots = self._slots = Slots(self.stage.gpu_va, self._memory.gpu_va, stride, count)
        # Made when a copy of their direction is.
        self._words: dict[bool, PieceWords] = {}
        self._pieces = [gpu.pieces.take(words_nbytes(_MOST_PIECES), 64) for _ in range(2)]
        self._views = [_word_array(piece) for piece in self._pieces]
        # The timeline's values when the words of each of the two are done with.
        self._values = [0, 0]
        self._address = code.take_page()
        self._state = CrewState.from_address(self._address)
        self._fill_state(slots)
        self._threads = [
            threading.Thread(
                target=code.work, args=(self._address,), name=f"copies {number}", daemon=True
            )
            for number in range(1, workers)
        ]
        for thread in self._threads:
            thread.start()

    def _fill_state(self, slots: Slots) -> None:
        state, code = self._state, self._code
        assert code.move is not None
        state.stage, state.stride = self.stage.host_address, slots.stride
        state.words, state.mask = self._memory.host_address, slots.total - 1
        state.move, state.entry_stride = code.move, 4 * PIECE_WORDS
        state.spins, state.idle_spins = code.turns(_LOOK_S), code.turns(_IDLE_S)
        state.nap[1] = _NAP_NS

    def copy(self, channel: Channel, host: int, gpu_va: int, nbytes: int, *, out: bool) -> None:
        """Copy host memory to the GPU's or back; of the former nothing is needed any more then."""
        # To the host, where each piece costs the GPU more, they are larger.
        stride = self._slots.stride
        most = stride if out else round_up(stride // 2, PAGE_NBYTES)
        sharers = min(self._workers, _MOST_SHARERS)
        for begin in range(0, nbytes, most * _MOST_WHOLE):
            cuts = cut(min(most * _MOST_WHOLE, nbytes - begin), most, sharers, self._options.rounds)
            self._copy(channel, host + begin, gpu_va + begin, cuts, out=out)

    def _copy(self, channel: Channel, host: int, gpu_va: int, cuts: Cuts, *, out: bool) -> None:
        if channel.group.dead is not None:
            raise DriverError("the channel is dead", found=channel.group.dead)
        if self._channel is not channel:
            self._begin_anew(channel)
        # The words of the copy before the last are written over.
        self._values.reverse()
        self._views.reverse()
        self._pieces.reverse()
        if channel.words[0] < self._values[0]:
            self._wait(channel, self._values[0])
        state, slots = self._state, self._slots
        channel.make_room(slots.total + 2)
        first, count = state.end, len(cuts.sizes)
        # No thread looks at the cuts any more when this copy is done.
        state.base, state.host, state.cuts = first, host, cuts.begins.ctypes.data
        state.out, state.lag, state.ahead = out, *((0, slots.total) if out else (slots.total, 0))
        state.ring, state.held = ctypes.addressof(channel.ring_state), 1
        try:
            # From here on threads use the array.
            state.end = first + count
            helpers = min(self._workers - 1, count - 1)
            if not out:
                self._code.wake(self._address, helpers)
            end = self._begin(channel, first, gpu_va, cuts, out=out)
            if out:
                self._code.wake(self._address, helpers)
        except BaseException:
            self._give_up()
            raise
        interrupt = self._finish(channel)
        self.last_value = self._values[0] = 0
        if not out:
            channel.enter(end, ())
            self.last_value = self._values[0] = channel.last_value
        if interrupt is not None:
            self._wait(channel, channel.last_value)
            raise interrupt

    def _begin(
        self, channel: Channel, first: int, gpu_va: int, cuts: Cuts, *, out: bool
    ) -> int:
        """Write the words, let the threads submit them, and return the entry of the end."""
        words = self._words.get(out)
        if words is None:
            words = self._words[out] = PieceWords(
                self._slots, _MOST_PIECES, out=out, pipelined=self._options.pipelined
            )
        view, place = self._views[0], self._pieces[0].gpu_va
        count = words.write(view, first, gpu_va, cuts)
        end = end_words(channel, channel.last_value + 1)
        view[count : count + len(end)] = end
        self._state.entry = _entry(place + 4 * words.lead, PIECE_WORDS)
        # To the host, what goes into free slots need not wait for any thread.
        pieces = min(len(cuts.sizes), self._slots.total) if out else 0
        channel.enter_part(_entry(place, words.lead + PIECE_WORDS * pieces))
        self._port.store(self._address + CrewState.held.offset, 0)
        return _entry(place + 4 * count, len(end))

    def _finish(self, channel: Channel) -> BaseException | None:
        """Copy until all is done; return an interrupt of this thread, raise a fault at once."""
        code, state = self._code, self._state
        interrupt: BaseException | None = None
        check = self._watch(channel, lambda: int(state.finished))
        looks = (_RING_S, _RING_S) if self._by_hand else (_FIRST_LOOK_S, _LATER_LOOK_S)
        turns, later = map(code.turns, looks)
        check_at = time.perf_counter() + _CHECK_S
        while True:
            try:
                if not code.join(self._address, turns):
                    break
                turns = later
                if self._by_hand:
                    ring = channel.ring_state
                    self._port.store(ring.doorbell_address, ring.token)
                self._pause()
                if time.perf_counter() > check_at:
                    check()
                    check_at = time.perf_counter() + _CHECK_S
            except Exception as error:
                channel.group.dead = channel.group.dead or str(error)
                self._give_up()
                raise
            except BaseException as error:  # noqa: BLE001  raised when all is done
                interrupt = error
        return interrupt

    def _give_up(self) -> None:
        """Have the threads let go of the array; pieces that they have not submitted never are."""
        state, turns = self._state, self._code.turns(_LATER_LOOK_S)
        state.abort = 1
        while True:
            try:
                if not self._code.join(self._address, turns):
                    break
            except KeyboardInterrupt:
                # Whoever gives up raises already.
                continue
        state.abort = state.held = 0
        self._channel = None

    def _begin_anew(self, channel: Channel) -> None:
        """Mark all slots as used by pieces that are done, once the channel uses none of them."""
        self._wait(channel, channel.submit(PushBuffer()))
        end, count = self._state.end, self._slots.total
        for number in range(end, end + count):
            at = number % count * SLOT_NBYTES
            self._slot_words[at >> 2] = number + 1 - count & _MASK
        self._values = [0, 0]
        self._channel = channel

    @property
    def nbytes(self) -> int:
        """Bytes of pinned memory that are held."""
        return self.stage.nbytes + self._memory.nbytes

    def close(self) -> None:
        """Stop the threads and free the memory; nothing is being copied."""
        self._state.stop = 1
        self._code.wake(self._address, _EVERYBODY)
        for thread in self._threads:
            thread.join()
        self._code.give_page(self._address)
        self._slot_words.release()
        self._views = []
        for piece in self._pieces:
            piece.close()
        self._memory.close()
        self.stage.close()


def _entry(gpu_va: int, words: int) -> int:
    """Return the ring's entry for words at an address."""
    return gpu_va | words << m.GP_ENTRY_LENGTH_SHIFT | m.GP_ENTRY_SUBROUTINE


def _word_array(piece: Suballocation) -> Words:
    """Return a piece of the GPU's memory as an array of words."""
    return np.frombuffer(piece.view, np.uint32)
