"""Timelines: numbers in memory that the GPU raises, for the host and channels to wait on."""

from __future__ import annotations

import time
from collections.abc import Callable

from baregrad.base.errors import DriverError
from baregrad.runtime.nvidia.driver.objects import Gpu
from baregrad.runtime.teardown import Teardown

DEFAULT_TIMEOUT_S = 30.0
_QUICK_LOOKS = range(500)
_SPIN_S = 200e-6
_CHECK_S = 0.005


class TimelineSemaphore:
    """A number that only grows: the GPU writes it, the host and channels wait for it.

    16 bytes of pinned memory: the value, and the GPU's time in nanoseconds when it was written.
    """

    def __init__(self, gpu: Gpu, *, owner: Teardown | None = None, begin_at: int = 0) -> None:
        self._pause = gpu.client.port.pause
        self._memory = gpu.memory.pinned(16, owner=owner)
        self._words = self._memory.view[:16].cast("Q")
        self._words[0] = begin_at
        # For whoever polls: the value, and the time when it was written.
        self.words = self._words
        keeper = gpu.allocations if owner is None else owner
        keeper.push("the timeline's view", self._words.release)
        self.gpu_va = self._memory.gpu_va
        self.host_address = self._memory.host_address

    @property
    def value(self) -> int:
        """What the GPU wrote last."""
        return self._words[0]

    @property
    def time_ns(self) -> int:
        """When it wrote that, by its own clock."""
        return self._words[1]

    def wait(
        self,
        value: int,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Wait until the value is reached; the time begins anew whenever the value moves.

        `check` is called every 5 ms and may raise what it finds. Raises DriverError.
        """
        words = self._words
        # As tight as it gets: whoever waits for one small kernel waits a few microseconds.
        for _ in _QUICK_LOOKS:
            if words[0] >= value:
                return
        now = time.perf_counter()
        spin_until, check_at, deadline = now + _SPIN_S, now + _CHECK_S, now + timeout_s
        seen = words[0]
        while (current := words[0]) < value:
            now = time.perf_counter()
            if current != seen:
                seen, deadline = current, now + timeout_s
            if now > check_at:
                check_at = now + _CHECK_S
                if check is not None:
                    check()
                if now > deadline:
                    raise DriverError(
                        f"the GPU made no progress for {timeout_s:g} s",
                        found=f"the timeline at {current}",
                        wanted=value,
                    )
            if now > spin_until:
                self._pause()

    def close(self) -> None:
        """Free the memory; no channel may use it any more."""
        self._words.release()
        self._memory.close()
