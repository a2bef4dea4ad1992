"""Threads that do one job together, woken and waited for in microseconds."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable

_PR_SET_TIMERSLACK = 29
_SLACK_NS = 1000


class CopyThreads:
    """`count` threads beside the caller's, which sleep until there is a job."""

    def __init__(self, count: int, name: str) -> None:
        self._job: Callable[[int], None] | None = None
        self._lock = threading.Lock()
        self._left = 0
        self._finished = _taken()
        self._wakes = [_taken() for _ in range(count)]
        self._threads = [
            threading.Thread(target=self._work, args=(i,), name=f"{name} {i}", daemon=True)
            for i in range(1, count + 1)
        ]
        for thread in self._threads:
            thread.start()

    def share(self, job: Callable[[int], None], count: int) -> None:
        """Call `job(number)` here, for 0, and in `count` threads; return when all are done.

        A job raises nothing. An interrupt of this thread is raised when all are done.
        """
        wakes = self._wakes[:count]
        self._job, self._left = job, len(wakes)
        for wake in wakes:
            wake.release()
        interrupt: BaseException | None = None
        try:
            job(0)
        except BaseException as error:  # noqa: BLE001  raised again below
            interrupt = error
        while wakes:
            try:
                self._finished.acquire()
                break
            except BaseException as error:  # noqa: BLE001  as above
                interrupt = error
        self._job = None
        if interrupt is not None:
            raise interrupt

    def _work(self, number: int) -> None:
        # Short naps end when they should, where the system has a setting for that.
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _SLACK_NS, 0, 0, 0)
        wake = self._wakes[number - 1]
        while True:
            wake.acquire()
            job = self._job
            if job is None:
                return
            job(number)
            del job
            with self._lock:
                self._left -= 1
                last = not self._left
            if last:
                self._finished.release()

    def close(self) -> None:
        """End the threads; none has a job."""
        for wake in self._wakes:
            wake.release()
        for thread in self._threads:
            thread.join()


def _taken() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock
