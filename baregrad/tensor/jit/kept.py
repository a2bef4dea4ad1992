"""Functions of this package that later processes need not learn: their captures, kept on disk.

The first call of such a function is captured, as nobody's but our code has run. What it captured is
saved under everything that decides it: the function as other processes know it, the forms of its
arguments (`FunctionIdentity`), the options, the machine, and the text of all code that takes part.
A process that finds it runs none of the function's Python.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from baregrad.assemble.cache import DiskCache, key_of, source_fingerprint
from baregrad.base.errors import FileFormatError
from baregrad.base.options import options
from baregrad.engine.backends import CompiledBackend
from baregrad.engine.capture import Replay, is_plain
from baregrad.engine.kept.replays import Wanted, replay_from_text, replay_to_text
from baregrad.engine.session import Session
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.ir.text.parse import dtype_name, dtypes_by_name
from baregrad.tensor.array.core import realize_storages
from baregrad.tensor.array.grad_mode import grad_enabled
from baregrad.tensor.array.storage import Storage
from baregrad.tensor.jit.as_written import Replaced, loaded_marks
from baregrad.tensor.jit.closure import Surroundings
from baregrad.tensor.jit.identity import ROOMS, FunctionIdentity, Unnamed
from baregrad.tensor.jit.parts import Call, part_shared
from baregrad.tensor.jit.results import Hole, Place, Results
from baregrad.tensor.jit.state import State, States, read_by_others

if TYPE_CHECKING:
    from baregrad.tensor.jit.entry import Entry

# Whether captures are kept.
IS_KEPT = True
# What lies below is the same wherever it is loaded, but for times.
_LOOKED_AT = tuple([f"baregrad.{room}." for room in ROOMS if room not in ("base", "dtypes.py")])
# Options that change no program.
_ASIDE = frozenset((
    "beam_file", "beam_seconds", "beam_timeout", "cache", "cache_dir", "cc", "compile_workers",
    "cuda_home", "gpu_timeout", "nv_timeout", "profile", "progress", "viz",
))  # fmt: skip


def first_call(entry: Entry, call: Call) -> Any:
    """The first call of a function of this package.

    It is a replay where another process has captured the function; elsewhere it is captured, as
    our code makes the same at each call, and kept for other processes.
    """
    closed = {id(tensor._storage) for tensor in entry.surroundings.tensors}
    kept = None
    # Arrays stay what their forms say of them from here to the replay.
    with entry.session.lock:
        if not any(id(tensor._storage) in closed for tensor in call.tensors):
            kept = KeptCapture.of(entry.session, entry.surroundings, call)
        found = None if kept is None else kept.find(call)
        if found is not None:
            entry.take(call, *found)
            return entry.play(call, call.handles())
    if kept is None:
        return entry.first(call)
    given = entry.capture(call)
    gradients = entry.gradients
    if entry.replay is not None and not (entry.changed or gradients.held or gradients.marked):
        kept.keep(entry.replay, entry.state, entry.results)
    return given


class KeptCapture:
    """A function's first call, by what other processes know it by: where its capture is kept.

    `of` gives None where none is: without a cache, where the function has no name for others, and
    where somebody watches what runs.
    """

    def __init__(
        self, session: Session, backend: CompiledBackend, cache: DiskCache,
        identity: FunctionIdentity,
    ) -> None:
        self._session, self._backend, self._cache = session, backend, cache
        self._storages = identity.storages
        values = options.values()
        told = {name: repr(values[name]) for name in sorted(values) if name not in _ASIDE}
        self._source = source_fingerprint(ROOMS)
        self._key = key_of(
            "replay-2", backend.kept_environment, self._source, backend.name, np.__version__,
            json.dumps([told, repr(grad_enabled())]), identity.text,
        )  # fmt: skip
        self._marks = loaded_marks(_LOOKED_AT)

    @classmethod
    def of(cls, session: Session, surroundings: Surroundings, call: Call) -> KeptCapture | None:
        """The place of a function's capture for calls of a kind."""
        values = options.values()
        if not IS_KEPT or options.notes_lines or values["beam"] or values["schedules"].name:
            return None
        if values["jit_check"] or values["viz"]:
            return None
        if session.watching.observers or options.profile.name:
            return None
        tensors = [*surroundings.tensors, *call.tensors]
        devices = {tensor.device for tensor in tensors}
        if len(devices) != 1:
            return None
        backend = session.backend(devices.pop())
        if not isinstance(backend, CompiledBackend) or backend.name == "NULL":
            return None
        cache = backend.compiler.cache
        if cache is None:
            return None
        # As they are for a capture: what they are made of is not the function's.
        realize_storages([tensor._storage for tensor in tensors])
        try:
            return cls(session, backend, cache, FunctionIdentity(surroundings.function, call))
        except (Unnamed, Replaced):
            return None

    # --- keeping ----------------------------------------------------------------------------------

    def keep(self, replay: Replay, state: States, results: Results) -> None:
        """Save a capture, if another process can do with it."""
        places = []
        for one in state.every:
            storage = one.look()
            number = None if storage is None else self._storages.get(storage)
            if number is None or one.history is not None or type(one.look) is not weakref.ref:
                return
            places.append(number)
        template = _template_to_table(results)
        text = replay_to_text(replay)
        if template is None or text is None or source_fingerprint(ROOMS) != self._source:
            return
        try:
            # More of the package is loaded by now.
            marks = loaded_marks(_LOOKED_AT)
        except Replaced:
            return
        dtypes = [dtype_name(storage.node.dtype) for storage in results.fresh]
        table = [places, state.changing, template, dtypes, marks, text]
        self._cache.put(self._key, json.dumps(table, separators=(",", ":")).encode())

    # --- finding ----------------------------------------------------------------------------------

    def find(self, call: Call) -> tuple[Replay, States, Results] | None:
        """What `keep` saved, over the storages that there are now; None where there is nothing."""
        saved = self._cache.get(self._key)
        if saved is None:
            return None
        try:
            places, changing, template, kinds, marks, text = json.loads(saved)
            if any(marks.get(name, mark) != mark for name, mark in self._marks.items()):
                return None
            storages = list(self._storages)
            held = [storages[number] for number in places]
            if len(set(held)) < len(held) or not 0 <= changing <= len(held):
                raise ValueError("no such state")
            _part(held[:changing])
            refs = [storage.node.arg for storage in held]
            wanted = Wanted(self._session, self._backend, [*call.references(), *refs])
            replay = replay_from_text(text, wanted)
            results = _results(template, kinds, replay.outputs)
        except (FileFormatError, ValueError, TypeError, KeyError, IndexError, AttributeError):
            # Whole, as its checksum says, but not ours: it is made anew.
            return None
        state = States(
            [
                State(weakref.ref(storage), ref, place < changing, None)
                for place, (storage, ref) in enumerate(zip(held, refs, strict=True))
            ],
            changing,
        )
        return replay, state, results


def _part(changing: Sequence[Storage]) -> None:
    """Give memory of its own to what replays write over and something else reads."""
    taken = read_by_others({storage: storage.node for storage in changing})
    handles = [storage.node.arg.handle for storage in changing]
    part_shared(changing, taken | {id(one) for one in handles if one.shared or one.readonly})


def _template_to_table(results: Results) -> list[Any] | None:
    """How a result of fresh tensors, reshaped perhaps, is saved; None for others."""
    places = []
    for place in results.places:
        shapes = [arg for op, arg in place.steps if op is Ops.RESHAPE and is_plain(arg)]
        if place.fresh < 0 or len(shapes) < len(place.steps):
            return None
        places.append([place.fresh, *shapes])
    template = results.template
    if template is None:
        return ["none", places]
    if isinstance(template, Hole):
        return ["one", places]
    kind = type(template)
    if kind in (list, tuple) and all(isinstance(each, Hole) for each in template):
        return [kind.__name__, places]
    return None


def _results(template: Sequence[Any], kinds: Sequence[str], outputs: Sequence[Any]) -> Results:
    """The results that a table describes. Raises what a broken table raises."""
    form, table = template
    if len(kinds) != len(outputs) or any(not 0 <= first < len(kinds) for first, *_ in table):
        raise ValueError("other results than there are")
    holes = [Hole() for _ in table]
    made = {
        "none": None, "one": next(iter(holes), None), "list": holes, "tuple": tuple(holes)
    }[form]  # fmt: skip
    dtypes = dtypes_by_name()
    fresh = [
        Storage(Node(Ops.BUFFER, dtypes[kind], (), ref), ref.device)
        for kind, ref in zip(kinds, outputs, strict=True)
    ]
    places = [
        Place(tuple([(Ops.RESHAPE, tuple(map(int, shape))) for shape in shapes]), fresh=first)
        for first, *shapes in table
    ]
    return Results(made, places, fresh, form == "tuple")
