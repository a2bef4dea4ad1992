"""The channel's words of a copy in pieces: written at once, by arrays.

Words of a copy begin with a wait for all that was copied before, for its pieces may overtake it and
each other. Behind it lie those of the pieces, one behind the other, each an entry of the ring:
copy, and say that it is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from baregrad.runtime.nvidia.pushbuffer import PushBuffer

if TYPE_CHECKING:
    from baregrad.runtime.nvidia.channel import Channel

Words = np.ndarray[Any, np.dtype[np.uint32]]

# The word of a slot; behind those of all slots is one that nobody reads.
SLOT_NBYTES = 64

# Words of one piece, and where in them is what differs between copies: a pair of source and target
# addresses, upper halves first; bytes; the value told.
PIECE_WORDS = 14
_SOURCE, _TARGET, _NBYTES, _TOLD = 1, 3, 6, 11
_MASK = 0xFFFFFFFF


class Slots(NamedTuple):
    """Where the GPU has the slots' memory and their words; bytes of a slot, how many there are."""

    stage_va: int
    words_va: int
    stride: int
    total: int


class PieceWords:
    """Makes the words of copies of at most `most` pieces, in one direction."""

    def __init__(self, slots: Slots, most: int, *, out: bool, pipelined: bool) -> None:
        self._slots = slots
        self._out = out
        rows = [self._row(slot, pipelined=pipelined) for slot in range(slots.total)]
        repeated = np.tile(np.array(rows, np.uint32), (-(-most // slots.total) + 1, 1))
        self._rows: Words = np.ascontiguousarray(repeated)
        self._numbers = np.arange(most, dtype=np.uint64)
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
        push.copy_and_tell(target, source, 1, word, 0, pipelined=pipelined)
        assert len(push.words) == PIECE_WORDS
        return push.words

    def write(self, into: Words, first: int, gpu_va: int, nbytes: int, step: int) -> int:
        """Write the words of a copy, whose first piece is number `first`.

        Returns how many words there are.
        """
        count = -(-nbytes // step)
        phase = first % self._slots.total
        rows = self._rows[phase : phase + count]
        numbers = self._numbers[:count]
        rows[:, _TOLD] = numbers + np.uint64(first + 1 & _MASK) & np.uint64(_MASK)
        places = numbers * np.uint64(step) + np.uint64(gpu_va)
        upper = _SOURCE if self._out else _TARGET
        rows[:, upper] = places >> np.uint64(32)
        rows[:, upper + 1] = places & np.uint64(_MASK)
        rows[:, _NBYTES] = step
        rows[-1, _NBYTES] = nbytes - (count - 1) * step
        end = self.lead + count * PIECE_WORDS
        into[: self.lead] = self._before
        into[self.lead : end] = rows.reshape(-1)
        return end


def words_nbytes(most: int) -> int:
    """Return how many bytes the words of so many pieces need, with what is around them."""
    return 4 * (most * PIECE_WORDS + 32)


def end_words(channel: Channel, value: int) -> list[int]:
    """Return the words after which the channel's timeline has `value`, when all is copied."""
    push = PushBuffer()
    push.release(channel.timeline.gpu_va, value)
    return push.words
