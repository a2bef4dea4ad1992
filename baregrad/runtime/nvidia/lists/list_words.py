"""The words of a command list's image, for the channels that compute and copy."""

from __future__ import annotations

from collections.abc import Sequence

from baregrad.runtime.commands import Copy, Fill, Operand, Slot
from baregrad.runtime.nvidia.abi import methods as m
from baregrad.runtime.nvidia.code.launch_descriptor import SemaphoreRelease
from baregrad.runtime.nvidia.lists.list_launches import ANSWER, SIGNAL, LaunchTable
from baregrad.runtime.nvidia.lists.list_plan import ChannelStep
from baregrad.runtime.nvidia.queue.pushbuffer import COMPUTE_SUBCHANNEL, PushBuffer

_BY_FLAGS = m.COMPUTE["SEND_SIGNALING_PCAS_B"].word(INVALIDATE=1, SCHEDULE=1)


class ComputeWriter:
    """Writes the computing channel's words and links launches to chains.

    `by_action`: launches are sent by an action.

    The channel waits for idleness before whatever needs what was launched, first of all before the
    list itself. An engine is idle when no launch runs and none is to follow one that does: of
    160,000 chains of 1 to 20 launches on an H200, handed over back to back with nothing else
    between them, none met one that still ran; without the wait most did. So a chain needs no
    semaphore at its end: the host unit takes some 5 us to find that one has its value.
    """

    def __init__(
        self, table: LaunchTable, steps: Sequence[ChannelStep], timeline_va: int, *, by_action: bool
    ) -> None:
        self._table = table
        self._timeline_va = timeline_va
        self._by_action = by_action
        self._push = PushBuffer()
        self._style = table.style
        self._action = m.COMPUTE["SEND_SIGNALING_PCAS2_B"].word(PCAS_ACTION=self._style.action)
        self._chain: list[int] = []
        self._wave: list[int] = []
        self._running = False
        # Whether the last launch releases the timeline, and whether it is the head of its chain.
        self.released = self.head_releases = False
        # Commands in the order in which they are launched.
        self.order: list[int] = []
        marks = self._forget()
        # The last kernel of a submission before may have released the timeline and still run.
        self._push.wait_idle()
        if table.kind.stamped:
            self._push.release(table.begin_stamp_va, 1)
        for step in steps:
            self._step(step)
        self.value_place = self._end()
        if table.kind.stamped:
            for number in self.order:
                table.write_stamp(number)
        if table.has_progress:
            # The last one's release is the timeline's, where it has that.
            counted = self.order[: len(self.order) - self.released]
            for count, number in enumerate(counted, 1):
                table.write_progress(number, count)
        # Where a submission begins that changed nothing but the timeline's value.
        self.again = marks[self._kept()]
        self.words = self._push.words

    def _forget(self) -> tuple[int, int, int]:
        """Have the GPU forget what may have changed; return where to begin that it keeps some.

        Tensor maps are among the constants: 540 replays on an H200 with others where the last ones
        lay were right, with descriptors of textures kept, and none was with constants kept.
        """
        first = len(self._push.words)
        if self._style.keeps:
            self._push.drop_constants()
        else:
            self._forget_descriptors()
        second = len(self._push.words)
        if self._style.keeps:
            self._forget_descriptors()
        else:
            self._push.drop_constants()
        return first, second, len(self._push.words)

    def _forget_descriptors(self) -> None:
        # Not those of launches that run.
        self._push.wait_idle()
        self._push.methods(COMPUTE_SUBCHANNEL, m.COMPUTE["INVALIDATE_SKED_CACHES"], 0)

    def _kept(self) -> int:
        """Return how much is kept where nothing changed: neither, one, or both of the two."""
        style = self._style
        # The last launch of a chain is another each time where it releases the timeline.
        same = not self.released or (self.head_releases and style.refetched)
        return same + style.keeps

    def _step(self, step: ChannelStep) -> None:
        table, push = self._table, self._push
        if step.kind == "run":
            self._wave.append(step.value)
            self.order.append(step.value)
            return
        self._end_wave()
        if step.kind == "idle":
            return
        self._end_chain()
        if step.kind == "wait":
            push.acquire(table.semaphore(ANSWER), step.value)
            return
        self._idle()
        if step.kind == "signal":
            push.release(table.semaphore(SIGNAL), step.value)
        else:
            push.release(table.stamp_va(step.value), 0)

    def _end_wave(self) -> None:
        """Launch kernels of which none waits for another."""
        wave, self._wave = self._wave, []
        if len(wave) == 1 and self._style.chained:
            self._link(wave[0])
            return
        if wave:
            self._end_chain()
            self._idle()
        for number in wave:
            self._table.finish(number)
            self._send(number)

    def _link(self, number: int) -> None:
        if self._chain:
            self._table.follow(number, self._chain[-1])
        else:
            self._idle()
            self._send(number)
        self._chain.append(number)

    def _idle(self) -> None:
        if self._running:
            self._push.wait_idle()
            self._running = False

    def _send(self, number: int) -> None:
        push = self._push
        address = self._table.launch_va(number) >> 8
        push.methods(COMPUTE_SUBCHANNEL, m.COMPUTE["SEND_PCAS_A"], address)
        if self._by_action:
            push.methods(COMPUTE_SUBCHANNEL, m.COMPUTE["SEND_SIGNALING_PCAS2_B"], self._action)
        else:
            push.methods(COMPUTE_SUBCHANNEL, m.COMPUTE["SEND_SIGNALING_PCAS_B"], _BY_FLAGS)
        self._running = True

    def _end_chain(self) -> None:
        """Have no launch follow the last one of the open chain."""
        chain, self._chain = self._chain, []
        if chain:
            self._table.finish(chain[-1])

    def _end(self) -> int:
        """Release the timeline; return the place of its value, negative for one among the words."""
        self._end_wave()
        table, chain = self._table, self._chain
        if self._style.released and chain and table.can_release:
            self.released, self.head_releases = True, len(chain) == 1
            barrier = self._style.release_barrier
            return table.finish(chain[-1], SemaphoreRelease(self._timeline_va, 0, barrier=barrier))
        self._end_chain()
        self._idle()
        self._push.release(self._timeline_va, 0)
        # Lower and upper half of the value are the third and second word from the end.
        return -(len(self._push.words) - 3)


class CopyWriter:
    """Writes the copying channel's words; `patches` are (word, slot, offset) of slots' addresses.

    The upper half of an address is the word, the lower half the one behind it.
    """

    def __init__(self, table: LaunchTable, steps: Sequence[ChannelStep], timeline_va: int) -> None:
        self._table = table
        self._push = PushBuffer()
        self.patches: list[tuple[int, int, int]] = []
        self.words = self._push.words
        if not steps:
            return
        for step in steps:
            self._step(step)
        self._push.release(timeline_va, 0)

    def _step(self, step: ChannelStep) -> None:
        table, push = self._table, self._push
        if step.kind == "run":
            command = table.command(step.value)
            if isinstance(command, Copy):
                self._copy(command)
            else:
                assert isinstance(command, Fill)
                self._fill(command)
        elif step.kind == "signal":
            push.release(table.semaphore(ANSWER), step.value)
        elif step.kind == "wait":
            push.acquire(table.semaphore(SIGNAL), step.value)
        else:
            push.release(table.stamp_va(step.value), 0)

    def _copy(self, command: Copy) -> None:
        target, source = command.target, command.source
        for begin, nbytes in pieces_of(command.nbytes):
            place = len(self._push.words) + 1
            self._push.copy(
                self._address(target, begin, place + 2),
                self._address(source, begin, place),
                nbytes,
            )

    def _fill(self, command: Fill) -> None:
        target = command.target
        offset = target.offset if isinstance(target, Slot) else target.address
        wide = offset % 4 == 0 and command.nbytes % 4 == 0
        if isinstance(target, Slot) and self._table.kind.bytewise:
            wide = False
        self._push.fill_pattern(command.byte * (0x01010101 if wide else 1), wide=wide)
        for begin, nbytes in pieces_of(command.nbytes):
            place = len(self._push.words) + 1
            self._push.fill_piece(
                self._address(target, begin, place), nbytes // 4 if wide else nbytes
            )

    def _address(self, operand: Operand, begin: int, place: int) -> int:
        if isinstance(operand, Slot):
            self.patches.append((place, operand.index, operand.offset + begin))
            return 0
        return operand.address + begin


def pieces_of(nbytes: int) -> list[tuple[int, int]]:
    """Return (begin, bytes) of the pieces in which `nbytes` bytes are copied."""
    step = 1 << 31
    return [(begin, min(step, nbytes - begin)) for begin in range(0, nbytes, step)]
