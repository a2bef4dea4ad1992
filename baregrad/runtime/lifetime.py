"""Devices follow their process: those still open are closed at its exit, notified of its forks."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from typing import Protocol


class Follower(Protocol):
    """A device that lives no longer than its process."""

    name: str

    def close(self) -> None:
        """Free what the device holds."""

    def after_fork(self) -> None:
        """Start over, or refuse to be used, in a forked child: it has none of our threads."""


_open: weakref.WeakSet[Follower] = weakref.WeakSet()


def follow_process(device: Follower) -> None:
    """Have a device closed at exit and notified of forks, without keeping it alive."""
    _open.add(device)


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
