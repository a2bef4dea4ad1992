"""`jit`: a function's work captured at its second call and replayed as one command list after that.

The first call runs as usual, the second runs while it is captured, later ones replay. A replay
equals the eager call bit for bit; of an argument that is a view it is handed a contiguous array,
whose sums may have another order than the view's. Results are fresh, tensors that the function
changes are changed again, and what it closes over is looked up at each call. A call that differs in
shapes, dtypes, devices, plain arguments or in anything the function closes over is captured anew;
`BAREGRAD_JIT_CHECK=1` runs every replay against the eager function and compares bits.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast, overload

from baregrad.base.collecting import uncollected
from baregrad.base.errors import JitError
from baregrad.base.locks import give_lock
from baregrad.base.options import Options, options
from baregrad.dtypes import default_float
from baregrad.engine.session import Session, current_session
from baregrad.tensor.array.grad_mode import grad_enabled
from baregrad.tensor.jit.check import run_checked
from baregrad.tensor.jit.entry import Entry
from baregrad.tensor.jit.fast_path import Alike
from baregrad.tensor.jit.parts import Call

P = ParamSpec("P")
R = TypeVar("R")
CAPTURES_KEPT = 64


class Jit(Generic[P, R]):
    """A jitted function; `captures` and `replays` count how often each happened.

    `beam` is the width of the search for its kernels' schedules, None for what the option says.
    `is_ours`: all that its first calls run is code of this package that makes the same each time:
    the first one is captured, and kept on disk for other processes.

    Threads may share it: one of them learns it while the others wait, and each replay is a whole.
    A capture is of what its own thread does.
    """

    lock: threading.RLock

    def __init__(
        self, function: Callable[P, R], beam: int | None = None, *, is_ours: bool = False
    ) -> None:
        give_lock(self)
        self.is_ours = is_ours
        self.function = function
        self.beam = beam
        self.captures = 0
        self.replays = 0
        self._entries: dict[Any, Entry] = {}
        # The entry that was replayed last, and once it was so twice running, by what to know that.
        self._latest: Entry | None = None
        self._last: Alike | None = None
        self._has_warned = False
        functools.update_wrapper(self, function)

    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., Any]:
        """A jitted method: one jit per instance, kept on the instance."""
        if instance is None:
            return self
        name = f"_jit_{self.function.__name__}"
        found = vars(instance).get(name)
        if found is None:
            made = Jit(self.function.__get__(instance, owner), self.beam, is_ours=self.is_ours)
            found = vars(instance).setdefault(name, made)
        return cast(Callable[..., Any], found)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, or replay what it did. Raises JitError for what cannot be replayed."""
        session = current_session()
        if session.watching.downloads or session.watching.transforming:
            return self.function(*args, **kwargs)
        settings = options.values()
        last = self._last
        if last is not None and not kwargs:
            with session.lock:
                handles = last.handles(args, session, settings)
                if handles is not None and not last.entry.is_stale():
                    self.replays += 1
                    # What is called here counts: every call comes this way.
                    found: R = last.entry.play_again(args, handles)
                    return found
        with self.lock:
            held = session.watching.held()
            try:
                return self._call(session, settings, Call(args, kwargs))
            except BaseException as error:
                if not isinstance(error, Exception):
                    # Interrupted: what was half learnt is forgotten, and nobody is left watching.
                    session.watching.put_back(held)
                    self._entries.clear()
                    self._latest = self._last = None
                raise

    def _call(self, session: Session, settings: Mapping[str, Any], call: Call) -> R:
        """A call that is looked at in full."""
        key = _key_of(session, settings, call)
        entry = self._entries.get(key)
        if entry is None and len(self._entries) >= CAPTURES_KEPT:
            return self._uncaptured(session, call)
        if entry is None or (entry.replay is not None and entry.is_stale()):
            entry = self._entries[key] = Entry(self.function, session)
            self._latest = self._last = None
        if entry.replay is None or entry.is_tangled(call):
            try:
                return self._learn(entry, call)
            except Exception:
                # Half learnt: the next call is the first again, which the one after is held to.
                self._entries.pop(key, None)
                self._latest = self._last = None
                raise
        self.replays += 1
        with session.lock:
            if settings["jit_check"]:
                return cast(R, run_checked(entry, call))
            if self._latest is entry:
                self._last = Alike.to(entry, call, session, settings)
            self._latest = entry
            return cast(R, entry.play(call, call.handles()))

    def _learn(self, entry: Entry, call: Call) -> R:
        """A call that is not replayed: the first, the captured one, or one that cannot be."""
        with uncollected, self._searching():
            if self.is_ours and entry.calls == 0:
                from baregrad.tensor.jit.kept import first_call

                return cast(R, first_call(entry, call))
            if entry.calls == 0 or entry.is_tangled(call):
                return cast(R, entry.first(call))
            self.captures += 1
            return cast(R, entry.capture(call))

    def _uncaptured(self, session: Session, call: Call) -> R:
        """A call of one kind too many: run as the first of a kind is, and not kept."""
        if not self._has_warned:
            self._has_warned = True
            numbers = any(_differ_in_numbers(key[0], call.key) for key in self._entries)
            hint = "pass a number that changes as a tensor" if numbers else (
                "give it symbolic sizes, or pad its inputs to few shapes"
            )
            warnings.warn(
                f"{self._called} was captured for {CAPTURES_KEPT} different kinds of arguments and "
                f"runs without a capture, slower, for all others: {hint}",
                RuntimeWarning, stacklevel=4,
            )
        return cast(R, Entry(self.function, session).first(call))

    def _searching(self) -> AbstractContextManager[None]:
        """Where what is compiled is searched for as widely as was asked for."""
        return nullcontext() if self.beam is None else options.override(beam=self.beam)

    def replayed(self, *args: Any) -> Entry | None:
        """What calls with arguments like these are replayed by, None where none was captured."""
        call = Call(args, {})
        entry = self._entries.get(_key_of(current_session(), options.values(), call))
        return None if entry is None or entry.replay is None else entry

    @property
    def _called(self) -> str:
        return getattr(self.function, "__qualname__", "a function")

    def reset(self) -> None:
        """Forget every capture."""
        self._entries.clear()
        self._latest = self._last = None
        self._has_warned = False


def _key_of(session: Session, settings: Mapping[str, Any], call: Call) -> tuple[Any, ...]:
    """What calls of one kind, which are replayed by one entry, have in common."""
    read = settings["device"], settings["matmul_precision"], default_float()
    return (call.key, id(session), grad_enabled(), *read)


def _differ_in_numbers(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two keys of arguments differ in the values of plain numbers alone."""
    if len(one) != len(other):
        return False
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a != b]
    return bool(pairs) and all(
        isinstance(a, tuple) and isinstance(b, tuple) and a[0] is b[0] and a[0] in (int, float)
        for a, b in pairs
    )


def _as_it_is(function: Any = None, *args: Any, **kwargs: Any) -> Any:
    """A function, class or module itself: PyTorch's compiler of Python's text has none here."""
    return function if function is not None else _as_it_is


def _is_not() -> bool:
    """False: nothing is traced or read as text."""
    return False


def _with_names_of_pytorch(function: R) -> R:
    """A function with what programs ask of `torch.jit`, which is a module there."""
    for name in ("export", "ignore", "interface", "script", "script_if_tracing", "unused"):
        setattr(function, name, _as_it_is)
    for name in ("is_scripting", "is_tracing", "_is_tracing"):
        setattr(function, name, _is_not)
    vars(function).update(Final=Final, annotate=lambda kind, value: value)
    return function


@overload
def jit(function: Callable[P, R], *, beam: int | None = None) -> Jit[P, R]: ...


@overload
def jit(
    function: None = None, *, beam: int | None = None
) -> Callable[[Callable[P, R]], Jit[P, R]]: ...


@_with_names_of_pytorch
def jit(
    function: Callable[P, R] | None = None, *, beam: int | None = None
) -> Jit[P, R] | Callable[[Callable[P, R]], Jit[P, R]]:
    """Capture a function's work at its second call and replay it after that.

    Arguments may be tensors, plain values, and lists, tuples, dicts and dataclasses of them;
    results likewise. Returned tensors are fresh and carry no gradients: call `backward` inside the
    function. With `beam`, faster schedules are searched for, that many at a time, for the kernels
    of this function alone: `@jit(beam=4)`. Raises OptionError for a width that is none.
    """
    if beam is not None:
        Options.beam.check(beam, "jit(beam=...)")
    if function is None:
        return lambda given: jit(given, beam=beam)
    if not callable(function):
        raise JitError(
            "jit captures functions", found=f"{type(function).__name__} {function!r:.40}",
            hint="give it the function itself: jit(f), not jit(f(x))",
        )
    return Jit(function, beam)


TinyJit = jit
