"""What is held is given back in reverse order, whatever failed before."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from types import TracebackType


class Teardown:
    """A stack of closing actions. `close` runs all, last pushed first, and raises the first error.

    An error of one action keeps none of the others from running; further errors are added to the
    first one as notes. In a process that was forked off nothing is run: what it inherited is its
    parent's.
    """

    def __init__(self) -> None:
        self._actions: dict[int, tuple[str, Callable[[], None]]] = {}
        self._numbers = itertools.count()
        self._process = os.getpid()

    def push(self, name: str, action: Callable[[], None]) -> int:
        """Remember an action and return a token for `run`."""
        token = next(self._numbers)
        self._actions[token] = (name, action)
        return token

    def run(self, token: int) -> None:
        """Run one action now; nothing happens if it ran already."""
        found = self._actions.pop(token, None)
        if found is not None and os.getpid() == self._process:
            found[1]()

    def names(self) -> list[str]:
        """Return what is still held, first pushed first."""
        return [name for name, _ in self._actions.values()]

    def close(self) -> None:
        """Run all actions, last pushed first."""
        if os.getpid() != self._process:
            self._actions.clear()
        first: Exception | None = None
        while self._actions:
            name, action = self._actions.popitem()[1]
            try:
                action()
            except Exception as error:  # noqa: BLE001  the others must be freed all the same
                if first is None:
                    first = error
                else:
                    first.add_note(f"and then, at {name}: {error}")
        if first is not None:
            raise first

    def __enter__(self) -> Teardown:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close if the block raised; what the closing raises becomes a note of that error."""
        if error is None:
            return
        try:
            self.close()
        except Exception as second:  # noqa: BLE001  the first error is the one to show
            error.add_note(f"and then, while closing: {second}")
