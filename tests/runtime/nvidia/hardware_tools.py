"""What the steps of the hardware check share."""

from __future__ import annotations

import time
from collections.abc import Callable

from baregrad.runtime.nvidia.channel import Channel, ChannelGroup
from baregrad.runtime.nvidia.objects import Gpu

MIB = 1 << 20


def expect(condition: bool, message: str) -> None:
    """Stop the step if something is not as it must be."""
    if not condition:
        raise AssertionError(message)


def timed(what: str, action: Callable[[], object], times: int = 1) -> float:
    """Run an action, print how long it took on average and return that, in seconds."""
    begin = time.perf_counter()
    for _ in range(times):
        action()
    seconds = (time.perf_counter() - begin) / times
    print(f"  {what}: {seconds * 1e6:.1f} us")
    return seconds


def noise(nbytes: int, seed: int = 1) -> bytes:
    """Return bytes that repeat only after a prime number of them."""
    block = bytes((i * i * 31 + i * 7 + seed) & 0xFF for i in range(65521))
    return (block * (nbytes // len(block) + 1))[:nbytes]


def two_channels(gpu: Gpu, **options: int) -> tuple[Channel, Channel]:
    """Return a channel that computes and one that copies, of one group, both scheduled."""
    group = ChannelGroup(gpu)
    compute, copies = Channel(group, **options), Channel(group, copies=True, **options)
    group.schedule()
    return compute, copies
