"""When no search for cycles runs: while many small objects are made, and hardly a cycle.

Imports, graphs, vocabularies and kernels are such. A sixth of the time that a process took from its
start to a model's first token went into searches that found nothing.
"""

from __future__ import annotations

import gc
import threading

from baregrad.base.locks import give_lock


class Uncollected:
    """A block without searches for cycles, which may be entered again inside.

    The collector is the process's, so the first thread to enter stops it and the last one to leave
    starts it again, where it ran before.
    """

    lock: threading.RLock

    def __init__(self) -> None:
        give_lock(self)
        # How often each thread is inside.
        self._inside: dict[int, int] = {}
        self._enabled = False

    def __enter__(self) -> None:
        with self.lock:
            if not self._inside:
                self._enabled = gc.isenabled()
                gc.disable()
            thread = threading.get_ident()
            self._inside[thread] = self._inside.get(thread, 0) + 1

    def __exit__(self, *error: object) -> None:
        with self.lock:
            thread = threading.get_ident()
            depth = self._inside.pop(thread, 1) - 1
            if depth:
                self._inside[thread] = depth
            elif not self._inside and self._enabled:
                gc.enable()

    def after_fork(self) -> None:
        """Forget the threads that were inside in the parent, and let the child be searched."""
        if self._inside:
            self._inside.clear()
            if self._enabled:
                gc.enable()


uncollected = Uncollected()
