"""Locks that a forked child finds free."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any


class _Owners:
    """The objects whose locks are made anew in a forked child, held weakly."""

    def __init__(self) -> None:
        self._living: weakref.WeakSet[Any] = weakref.WeakSet()

    def add(self, owner: Any) -> None:
        """Have the owner's lock made anew in children."""
        self._living.add(owner)

    def after_fork(self) -> None:
        """Give every owner a lock that no thread of the parent holds, and tell it."""
        for owner in list(self._living):
            owner.lock = threading.RLock()
            if hasattr(owner, "after_fork"):
                owner.after_fork()


_owners = _Owners()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_owners.after_fork)


def give_lock(owner: Any) -> None:
    """Give an object a reentrant `lock`, and another one in a forked child.

    The thread that held it in the parent is not there in the child to let go of it. An owner that
    has a method `after_fork` is notified there.
    """
    owner.lock = threading.RLock()
    _owners.add(owner)
