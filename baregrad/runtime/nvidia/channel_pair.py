"""The two channels of a device, one that computes and one that copies: made and waited for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from baregrad.base.errors import DriverError
from baregrad.runtime.nvidia.copies.copy_engines import copy_engines
from baregrad.runtime.nvidia.lists.list_image import ListImage
from baregrad.runtime.nvidia.queue.channel import Channel
from baregrad.runtime.nvidia.queue.channel_group import ChannelGroup

if TYPE_CHECKING:
    from baregrad.runtime.nvidia.driver.objects import Gpu

# After this time without a sign of life doorbells are rung again, which changes nothing where all
# is well, and wakes a GPU that has missed one.
_RING_AGAIN_S = 1.0


class ChannelPair(NamedTuple):
    """The channel that computes and the one that copies."""

    compute: Channel
    copies: Channel

    @property
    def is_dead(self) -> bool:
        """Whether one of the channels was stopped, or left for dead."""
        return any(channel.group.dead is not None for channel in self)

    def look(self) -> None:
        """Raise DriverError if the driver has reported an error of either channel."""
        for channel in self:
            channel.check()

    def wait_for(self, channel: Channel, value: int, timeout_s: float) -> None:
        """Wait for a channel's timeline, or raise DriverError and leave the channel for dead.

        The time is that of `watcher`, which is made at the first check: most waits end before.
        """
        watch: Callable[[], None] | None = None

        def check() -> None:
            nonlocal watch
            if watch is None:
                watch = self.watcher(channel, timeout_s)
            watch()

        channel.timeline.wait(value, math.inf, check)

    def wait_quietly(self, timeout_s: float) -> None:
        """Wait until nothing runs; what went wrong is raised to whoever asks next."""
        for channel in self:
            if channel.group.dead is None:
                channel.wait(channel.last_value, timeout_s)
                channel.forget_done()

    def watcher(
        self, channel: Channel, timeout_s: float, progress: Callable[[], int] = int
    ) -> Callable[[], None]:
        """Return what is called every few milliseconds by whoever waits for a channel.

        It raises DriverError, and leaves the channel for dead, where the driver has reported an
        error or nothing moves. The time counts from the last sign of life before the wait gives up:
        its beginning, the end of a submission of either channel, that of a kernel of a list whose
        kernels report it (`progress` of the style), or another value of `progress`. So one kernel
        has `timeout_s`, however many are waited for, and no more than that.
        """
        seen = self._signs(), progress()
        moved = rung = time.perf_counter()

        def watch() -> None:
            nonlocal seen, moved, rung
            self.look()
            now, signs = time.perf_counter(), (self._signs(), progress())
            if signs != seen:
                seen, moved, rung = signs, now, now
            elif now - moved > timeout_s:
                raise DriverError(f"no sign of life for {timeout_s:g} s", found=self.state())
            elif now - rung > _RING_AGAIN_S:
                rung = now
                for one in self:
                    one.ring_again()

        def watch_and_blame() -> None:
            try:
                watch()
            except DriverError as error:
                if not self.is_dead:
                    # A copy that is not done may be waiting for a kernel that is not.
                    compute = self.compute
                    stuck = compute if compute.words[0] < compute.last_value else channel
                    stuck.group.dead = str(error)
                raise

        return watch_and_blame

    def _signs(self) -> tuple[int, int, int]:
        work = self.compute.unfinished()
        done = work.progress if isinstance(work, ListImage) else 0
        return self.compute.words[0], self.copies.words[0], done

    def state(self) -> str:
        """Say how far each channel is: what to look at where work does not end."""
        return "; ".join(
            f"{'copies' if one.copies else 'kernels'}: {one.state()}" for one in self
        )


def open_channels(
    gpu: Gpu, engine: int | None, value: int, copy_value: int
) -> tuple[ChannelPair, int]:
    """Return new channels whose timelines begin at values, and the number of the copy engine.

    `engine` is the copy engine to use, None for the best by what the driver says, -1 for the
    graphics engine's.
    """
    group = ChannelGroup(gpu)
    compute = Channel(group, begin_at=value)
    engine, copies = _open_copies(gpu, group, engine, copy_value)
    group.schedule()
    if copies.group is not group:
        copies.group.schedule()
    return ChannelPair(compute, copies), engine


def _open_copies(
    gpu: Gpu, group: ChannelGroup, engine: int | None, value: int
) -> tuple[int, Channel]:
    """Return the copy engine's number and a channel of it: of the first that works, if any may."""
    why = "as asked for"
    numbers: tuple[int, ...] = () if engine is None else (engine,)
    if engine is None:
        numbers, why = copy_engines(gpu)
    for number in numbers:
        if number < 0:
            break
        try:
            return number, _open_alone(gpu, number, why, value)
        except DriverError as error:
            if engine is not None:
                raise
            why += f"; {number} is refused: {error}"
    group.why = why
    return -1, Channel(group, copies=True, begin_at=value)


def _open_alone(gpu: Gpu, number: int, why: str, value: int) -> Channel:
    group = ChannelGroup(gpu, copy_engine=number, why=why)
    try:
        return Channel(group, begin_at=value)
    except BaseException:
        group.close()
        raise
