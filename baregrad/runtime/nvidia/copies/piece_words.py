"""The pieces of a copy, and the channel's words for them: written at once, by arrays.

Words of a copy begin with a wait for all that was copied before, for its pieces may overtake it and
each other. Behind it lie those of the pieces, one behind the other, each an entry of the ring:
copy, and say that it is done.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from baregrad.runtime.nvidia.driver.memory import PAGE_NBYTES
from baregrad.runtime.nvidia.queue.pushbuffer import PushBuffer

if TYPE_CHECKING:
    from baregrad.runtime.nvidia.queue.channel import Channel

Words = np.ndarray[Any, np.dtype[np.uint32]]

# What a piece costs beside its bytes, some microseconds, is then less than these take a thread.
LEAST_PIECE_NBYTES = 128 << 10
# Copies whose cuts are kept.
_KEPT_CUTS = 64

# The word of a slot; behind those of all slots is one that nobody reads.
SLOT_NBYTES = 64

# Words of one piece, and where in them is what differs between copies: a pair of source and target
# addresses, upper halves first; bytes; the value released.
PIECE_WORDS = 14
_SOURCE, _TARGET, _NBYTES, _TOLD = 1, 3, 6, 11
_MASK = 0xFFFFFFFF


class Slots(NamedTuple):
    """Where the GPU has the slots' memory and their words; bytes of a slot, how many there are."""

    stage_va: int
    words_va: int
    stride: int
    total: int


class Cuts(NamedTuple):
    """How many bytes lie in front of each piece of a copy and behind the last; bytes of each."""

    begins: np.ndarray[Any, np.dtype[np.uint64]]
    sizes: Words


@functools.lru_cache(_KEPT_CUTS)
def cut(nbytes: int, most: int, sharers: int, rounds: int) -> Cuts:
    """Cut a copy into pieces of at most `most` bytes for `sharers` threads that share them.

    A piece is no more than what is left for each thread in `rounds` of them, for what one does when
    the others have nothing left is waited for. The first ones grow from thread to thread: threads
    that end at different times keep the bus busy, and those that end together let it wait.
    """
    begins, number = [0], 0
    while (left := nbytes - begins[-1]) > 0:
        size = min(most, left // (sharers * rounds))
        if number < sharers:
            size = size * (number + 1) // sharers
        size = max(size // PAGE_NBYTES * PAGE_NBYTES, min(LEAST_PIECE_NBYTES, most))
        begins.append(begins[-1] + min(size, left))
        number += 1
    places = np.array(begins, np.uint64)
    return Cuts(places, np.diff(places).astype(np.uint32))


class PieceWords:
    """Makes the words of copies of at most `most` pieces, in one direction."""

    def __init__(self, slots: Slots, most: int, *, out: bool, pipelined: bool) -> None:
        self._slots = slots
        self._out = out
        rows = [self._row(slot, pipelined=pipelined) for slot in range(slots.total)]
        repeated = np.tile(np.array(rows, np.uint32), (-(-most // slots.total) + 1, 1))
        self._rows: Words = np.ascontiguousarray(repeated)
        self._numbers = np.arange(1, most + 1, dtype=np.uint32)
        push = PushBuffer()
        push.release(slots.words_va + slots.total * SLOT_NBYTES, 0)
        self._before = np.array(push.words, np.uint32)
        # How many words come before those of the pieces.
        self.lead = len(push.words)

    def _row(self, slot: int, *, pipelined: bool) -> list[int]:
        push, slots = PushBuffer(), self._slots
        stage = slots.stage_va + slot * slots.stride
        target, source = (stage, 0) if self._out else (0, stage)
        word = slots.words_va + slot * SLOT_NBYTES
        # A thread that reads the slot must see the bytes; one that writes over it need not know
        # where they are. A flush keeps the next piece from beginning: on an H200, pieces of 128 KiB
        # took 6.7 us to the GPU with it and 2.6 without, 3.7 and 2.4 to the host.
        push.copy_and_tell(
            target, source, 1, word, 0, pipelined=pipelined, flush=self._out
        )  # fmt: skip
        assert len(push.words) == PIECE_WORDS
        return push.words

    def write(self, into: Words, first: int, gpu_va: int, cuts: Cuts) -> int:
        """Write the words of a copy, whose first piece is number `first`.

        Returns how many words there are.
        """
        count = len(cuts.sizes)
        phase = first % self._slots.total
        rows = self._rows[phase : phase + count]
        rows[:, _TOLD] = self._numbers[:count] + np.uint32(first & _MASK)
        places = (cuts.begins[:-1] + np.uint64(gpu_va)).view(np.uint32).reshape(-1, 2)
        upper = _SOURCE if self._out else _TARGET
        rows[:, upper : upper + 2] = places[:, ::-1]
        rows[:, _NBYTES] = cuts.sizes
        end = self.lead + count * PIECE_WORDS
        into[: self.lead] = self._before
        into[self.lead : end] = rows.reshape(-1)
        return end


def words_nbytes(most: int) -> int:
    """Return how many bytes the words of `most` pieces need, with what is around them."""
    return 4 * (most * PIECE_WORDS + 32)


def end_words(channel: Channel, value: int) -> list[int]:
    """Return the words after which the channel's timeline has `value`, when all is copied."""
    push = PushBuffer()
    push.release(channel.timeline.gpu_va, value)
    return push.words
