"""The channel's words of a copy in pieces: written at once, by arrays.

Each piece is: wait until the threads have marked its slot; copy; say that it is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from baregrad.runtime.nvidia.pushbuffer import PushBuffer

if TYPE_CHECKING:
    from baregrad.runtime.nvidia.channel import Channel

Words = np.ndarray[Any, np.dtype[np.uint32]]

# Of a slot's words, what the threads write and what the GPU writes.
SLOT_NBYTES = 128
MARK_OFFSET, DONE_OFFSET = 0, 64

# Words of one piece, and where in them is what differs between copies: the value waited for; a
# pair of source and target addresses, upper halves first; bytes; the value told; the launch.
_PIECE_WORDS = 20
_WAITED, _SOURCE, _TARGET, _NBYTES, _TOLD, _LAUNCH = 3, 7, 9, 12, 17, 19
_RELEASE_VALUE = -3
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
        self._later = int(self._rows[0, _LAUNCH])
        # The first of a copy comes after all that was copied before.
        self._first = self._row(0, pipelined=False)[_LAUNCH]
        self._numbers = np.arange(most, dtype=np.uint64)
        self.most = most

    def _row(self, slot: int, *, pipelined: bool) -> list[int]:
        push, slots = PushBuffer(), self._slots
        stage = slots.stage_va + slot * slots.stride
        words = slots.words_va + slot * SLOT_NBYTES
        ends = (0, stage) if self._out else (stage, 0)
        push.acquire_word(words + MARK_OFFSET, 0)
        push.copy_and_tell(
            ends[1], ends[0], 1, words + DONE_OFFSET, 0, pipelined=pipelined
        )
        assert len(push.words) == _PIECE_WORDS
        return push.words

    def write(self, into: Words, first: int, gpu_va: int, nbytes: int, step: int) -> int:
        """Write the words of a copy's pieces, the first of which is number `first`.

        Returns how many words there are.
        """
        count = -(-nbytes // step)
        slots = self._slots
        phase = first % slots.total
        rows = self._rows[phase : phase + count]
        numbers = self._numbers[:count]
        told = numbers + np.uint64(first + 1 & _MASK)
        rows[:, _TOLD] = told & np.uint64(_MASK)
        # A slot is waited for until the host has filled it, or has emptied it the last time.
        waited = told + np.uint64(-slots.total & _MASK) if self._out else told
        rows[:, _WAITED] = waited & np.uint64(_MASK)
        places = numbers * np.uint64(step) + np.uint64(gpu_va)
        upper = _SOURCE if self._out else _TARGET
        rows[:, upper] = places >> np.uint64(32)
        rows[:, upper + 1] = places & np.uint64(_MASK)
        rows[:, _NBYTES] = step
        rows[-1, _NBYTES] = nbytes - (count - 1) * step
        rows[0, _LAUNCH] = self._first
        into[: count * _PIECE_WORDS] = rows.reshape(-1)
        rows[0, _LAUNCH] = self._later
        return count * _PIECE_WORDS


def words_nbytes(most: int) -> int:
    """Return how many bytes the words of so many pieces need, and of their end."""
    return 4 * (most * _PIECE_WORDS + 16)


def end_words(channel: Channel, value: int) -> list[int]:
    """Return the words that end a submission: the channel's timeline has `value` then."""
    push = PushBuffer()
    push.release(channel.timeline.gpu_va, value)
    return push.words
