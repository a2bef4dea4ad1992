"""The two channels of a device, one that computes and one that copies: made, watched, told of."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from baregrad.base.errors import DriverError
from baregrad.runtime.nvidia.copies.copy_engines import copy_engines
from baregrad.runtime.nvidia.lists.list_image import ListImage
from baregrad.runtime.nvidia.queue.channel import Channel
from baregrad.runtime.nvidia.queue.channel_group import ChannelGroup

if TYPE_CHECKING:
    from baregrad.runtime.nvidia.driver.objects import Gpu

T = TypeVar("T")
Channels = tuple[Channel, Channel]

# After so long without a sign of life doorbells are rung again, which changes nothing where all is
# well, and tells a GPU that has missed one.
_RING_AGAIN_S = 1.0


class Returns(deque[T]):
    """What nobody refers to any more, for the device to free; nothing is taken in once it is shut.

    Finalizers hold on to it for as long as what they wait for lives, and that may be in here.
    """

    shut = False

    def append(self, one: T) -> None:
        """Take something in."""
        if not self.shut:
            super().append(one)

    def close(self) -> None:
        """Forget all, now and later: closing the device frees it anyway."""
        self.shut = True
        self.clear()


def open_channels(
    gpu: Gpu, engine: int | None, value: int, copy_value: int
) -> tuple[Channels, int]:
    """Return new channels whose timelines begin at values, and the number of the copy engine.

    `engine` is the copy engine to use, None for the best by what the driver tells, -1 for the
    graphics engine's.
    """
    group = ChannelGroup(gpu)
    compute = Channel(group, begin_at=value)
    engine, copies = _open_copies(gpu, group, engine, copy_value)
    group.schedule()
    if copies.group is not group:
        copies.group.schedule()
    return (compute, copies), engine


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


def is_dead(channels: Channels) -> bool:
    """Return whether one of the channels was stopped, or left for dead."""
    return any(channel.group.dead is not None for channel in channels)


def look(channels: Channels) -> None:
    """Raise DriverError if the driver has reported an error of either channel."""
    for channel in channels:
        channel.check()


def wait_for(channels: Channels, channel: Channel, value: int, timeout_s: float) -> None:
    """Wait for a channel's timeline, or raise DriverError and leave the channel for dead.

    The time is that of `watcher`, which is made at the first check: most waits end before.
    """
    watch: Callable[[], None] | None = None

    def check() -> None:
        nonlocal watch
        if watch is None:
            watch = watcher(channels, channel, timeout_s)
        watch()

    channel.timeline.wait(value, math.inf, check)


def watcher(
    channels: Channels, channel: Channel, timeout_s: float, progress: Callable[[], int] = int
) -> Callable[[], None]:
    """Return what is called every few milliseconds by whoever waits for a channel.

    It raises DriverError, and leaves the channel for dead, where the driver has told of an error or
    nothing moves. The time counts from the last sign of life before the wait gives up: its
    beginning, the end of a submission of either channel, that of a kernel of a list whose kernels
    tell (`progress` of the style), or another value of `progress`. So one kernel has `timeout_s`,
    however many are waited for, and no more than that.
    """
    seen = _signs(channels), progress()
    moved = rung = time.perf_counter()

    def watch() -> None:
        nonlocal seen, moved, rung
        look(channels)
        now, signs = time.perf_counter(), (_signs(channels), progress())
        if signs != seen:
            seen, moved, rung = signs, now, now
        elif now - moved > timeout_s:
            raise DriverError(f"no sign of life for {timeout_s:g} s", found=tell(channels))
        elif now - rung > _RING_AGAIN_S:
            rung = now
            for one in channels:
                one.ring_again()

    def watch_and_blame() -> None:
        try:
            watch()
        except DriverError as error:
            if not is_dead(channels):
                # A copy that is not done may be waiting for a kernel that is not.
                compute, _ = channels
                stuck = compute if compute.words[0] < compute.last_value else channel
                stuck.group.dead = str(error)
            raise

    return watch_and_blame


def _signs(channels: Channels) -> tuple[int, int, int]:
    compute, copies = channels
    work = compute.unfinished()
    done = work.progress if isinstance(work, ListImage) else 0
    return compute.words[0], copies.words[0], done


def tell(channels: Channels) -> str:
    """Say how far each channel is: what to look at where work does not end."""
    return "; ".join(
        f"{'copies' if one.copies else 'kernels'}: {one.state()}" for one in channels
    )
