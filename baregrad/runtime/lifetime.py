"""Devices follow their process: those still open are closed at its exit, notified of its forks."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Protocol


class Follower(Protocol):
    """A device that lives no longer than its process."""

    name: str

    def close(self) -> None:
        """Free what the device holds."""

    def after_fork(self) -> None:
        """Start over, or refuse to be used, in a forked child: it has none of our threads."""


_open: weakref.WeakSet[Follower] = weakref.WeakSet()


class _Watcher:
    """Who are told of each device that is opened."""

    told: tuple[Callable[[Follower], None], ...] = ()


_watcher = _Watcher()


def follow_process(device: Follower) -> None:
    """Have a device closed at exit and notified of forks, without keeping it alive."""
    _open.add(device)
    for tell in _watcher.told:
        tell(device)


def leave_process(device: Follower) -> None:
    """Follow the process no longer: the device is closed, and nobody is to look at it."""
    _open.discard(device)


@contextlib.contextmanager
def watching_devices(tell: Callable[[Follower], None]) -> Iterator[None]:
    """For a block, tell of each device: of those that are open now, then of each as it opens."""
    for device in list(_open):
        tell(device)
    _watcher.told += (tell,)
    try:
        yield
    finally:
        _watcher.told = tuple([one for one in _watcher.told if one != tell])


def _close_all() -> None:
    for device in list(_open):
        try:
            device.close()
        except Exception as error:  # noqa: BLE001 - one device's trouble is not the others'
            print(f"baregrad: {device.name} did not close: {error}", file=sys.stderr)


def _notify_all() -> None:
    for device in list(_open):
        device.after_fork()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_notify_all)
