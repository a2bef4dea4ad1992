"""Replays over memory that somebody else has: no tensors of ours, no storages, no nodes.

A caller with hundreds of arrays of another library, whose kinds it checks itself, would make a
tensor of each for a call and take one apart for each result, which takes longer than the kernels of
a small model. Here it gives buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from baregrad.base.options import options
from baregrad.engine.session import Session, current_session
from baregrad.runtime.buffers import Buffer
from baregrad.tensor.array.grad_mode import grad_enabled
from baregrad.tensor.jit.entry import Entry
from baregrad.tensor.jit.jit import Jit


class OverMemory:
    """Calls of a jitted function that are like a known one: tensors alone, none changed.

    Whoever calls sees to it that arguments are of the shapes and dtypes of that call. Results are a
    tuple of fresh arrays.
    """

    __slots__ = ("_entry", "_grad", "_jitted", "_session", "_settings")

    def __init__(
        self, jitted: Jit[..., Any], entry: Entry, session: Session, settings: Mapping[str, Any]
    ) -> None:
        self._jitted = jitted
        self._entry = entry
        self._session = session
        self._settings = settings
        self._grad = grad_enabled()

    @staticmethod
    def of(jitted: Jit[..., Any], *args: Any) -> OverMemory | None:
        """Calls like that with `args`, None where such a call was not captured yet.

        None too where a replay is more than its arguments', state's and results' arrays.
        """
        entry, settings = jitted.replayed(*args), options.values()
        if entry is None or settings["jit_check"] or not entry.is_plain:
            return None
        if entry.changes_what_is_given or entry.state.changes_gradients:
            return None
        return OverMemory(jitted, entry, current_session(), settings)

    def run(self, arguments: list[Buffer], results: list[Buffer]) -> bool:
        """Replay into `results`. False, and nothing done, where the call may be of another kind."""
        session, entry = self._session, self._entry
        replay, state = entry.replay, entry.state
        if (
            current_session() is not session
            or options.values() is not self._settings
            or grad_enabled() is not self._grad
            or session.watching.downloads
            or session.watching.transforming
        ):
            return False
        with session.lock:
            if replay is None or entry.is_stale():
                return False
            self._jitted.replays += 1
            kept = state.places(entry.surroundings.tensors) if state.every else []
            replay.submit([*arguments, *kept, *results])
        return True
