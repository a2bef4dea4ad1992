"""The session: owner of devices, plans, programs and everything that was realised.

Nothing of the engine lives at module level but the way to the current session.
"""

from __future__ import annotations

import contextvars
import importlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from baregrad.base.collecting import uncollected
from baregrad.base.errors import BaregradError, CompilerBug, UnsupportedDevice, user_frame
from baregrad.base.locks import give_lock
from baregrad.base.options import DEVICE_NAMES, device_named, options
from baregrad.base.tracing import active_recorder, span
from baregrad.dtypes import DType
from baregrad.engine import backends
from baregrad.engine.canonical import Canonical, canonicalise
from baregrad.engine.executor import (
    Executable,
    KeyedProgram,
    KeyedPrograms,
    keyed_program,
    mark_shared,
)
from baregrad.engine.generalise_offsets import GeneralPrograms
from baregrad.engine.launch import launch_expr
from baregrad.engine.realised import Realised
from baregrad.engine.watching import Watching
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import CONTROL_MASK, Ops
from baregrad.program import evaluate
from baregrad.runtime.buffers import Buffer

PLANS_KEPT = 512
_NOT_ONE_PROGRAM = Ops.COPY.bit | CONTROL_MASK
NO_DONATION: Mapping[int, Any] = MappingProxyType({})


class Session:
    """Owns devices and caches; realises graphs.

    `realised` remembers, as long as the node lives, where the value of a node lies.

    Threads share a session. What runs, runs while `lock` is held: a realisation, a replay with the
    look at its state before, the copies that a capture makes. Graphs are built without it, and what
    was computed is read so; who looks at what a replay has left waits until none runs. Who
    watches a session watches the thread that it is in (`Watching`): another thread's work is
    neither captured nor refused.
    """

    lock: threading.RLock

    def __init__(self) -> None:
        self._backends: dict[str, backends.Backend] = {}
        self._realised_by_all = Realised()
        self._plans: OrderedDict[Any, Any] = OrderedDict()
        self._general = GeneralPrograms()
        self._keyed = KeyedPrograms()
        self.templates: dict[Any, Any] = {}
        self.forms: dict[Any, Any] = {}
        self.watching = Watching()
        self.origins: MutableMapping[Node, str] = weakref.WeakKeyDictionary()
        self.random_states: dict[str, Any] = {}
        self.seed: int | None = None
        self.overwrites = 0
        give_lock(self)

    @property
    def _realised(self) -> Realised:
        return self.watching.isolated or self._realised_by_all

    # --- devices
    # -------------------------------------------------------------------------------------

    def default_device(self) -> str:
        """The device that new tensors go to: the option, else CPU."""
        return device_named(options.device or "CPU")

    def known_device(self, name: str) -> str:
        """The name itself. Raises UnsupportedDevice where there is no such device."""
        if name not in DEVICE_NAMES:
            raise UnsupportedDevice(
                f"there is no device {name!r}",
                wanted=f"one of {', '.join(DEVICE_NAMES)}",
                hint="`baregrad doctor` lists what each device needs",
            )
        return device_named(name)

    def backend(self, name: str) -> backends.Backend:
        """The opened backend of a device, opened at first use. Raises UnsupportedDevice."""
        found = self._backends.get(name)
        if found is None:
            with self.lock:
                found = self._backends.get(name)
                if found is None:
                    if options.profile != Path():
                        _begin_profile()
                    found = backends.open_backend(self.known_device(name))
                    self._backends[name] = found
                    if options.viz:
                        _begin_viz(self)
        return found

    def adopt(self, backend: backends.Backend) -> None:
        """Use a backend that was opened elsewhere as the device of its name."""
        self._backends[backend.name] = backend

    def close(self) -> None:
        """Close every device, last opened first."""
        self._plans.clear()
        self._keyed.clear()
        for name in reversed(list(self._backends)):
            self._backends.pop(name).close()

    # --- memory
    # --------------------------------------------------------------------------------------

    def upload(
        self,
        data: np.ndarray[Any, Any],
        dtype: DType,
        shape: tuple[int, ...],
        device: str,
        noted: bool = True,
        over: Any = None,
    ) -> BufferRef:
        """A copy of raw host data (the dtype's storage type, C order) on a device.

        `noted`: the observers of uploads are notified. Of what the stack keeps for itself they are
        not: a function that is captured has not made it. `over`: a buffer as large that nobody
        reads any more, which is written instead of a fresh one.
        """
        self.watching.touched += 1
        flat = np.ascontiguousarray(data)
        target = self.backend(device).device
        buffer = target.allocate(flat.nbytes) if over is None else over
        if flat.nbytes:
            target.copy_in(buffer, flat)
        ref = BufferRef(buffer, tuple(shape), device)
        for observer in self.watching.uploads if noted else ():
            observer(ref, flat)
        return ref

    def wrap(self, data: Any, dtype: DType, shape: tuple[int, ...], device: str) -> BufferRef:
        """Host memory as a device array, without a copy where the device can see it."""
        target = self.backend(device).device
        if not target.host_visible:
            return self.upload(np.frombuffer(data, dtype.storage), dtype, shape, device)
        return BufferRef(target.wrap(data), tuple(shape), device)

    def download(self, ref: BufferRef, dtype: DType) -> np.ndarray[Any, Any]:
        """A copy of a realised array as raw storage of its dtype."""
        self.watching.touched += 1
        for observer in self.watching.downloads:
            observer(ref)
        shape = cast(tuple[int, ...], ref.shape)
        count = prod(shape)
        result = np.empty(count, dtype.storage)
        buffer: Buffer = ref.handle
        part = buffer if buffer.nbytes == result.nbytes else buffer.view(0, result.nbytes)
        if count:
            self.backend(ref.device).device.copy_out(part, result)
        return result.reshape(shape)

    def where(self, program: Canonical, launch: Any) -> str:
        """The user's file:line that first asked for what a launch computes, if it was noted."""
        found = (self.line_of(program, node) for node in launch.origins)
        return next(filter(None, found), "")

    def line_of(self, program: Canonical, node: Node) -> str:
        """The user's file:line that asked for a node, "" where it was not noted."""
        made = program.origins.get(node)
        return "" if made is None else self.origins.get(made, "")

    # --- realisation
    # ---------------------------------------------------------------------------------

    def realised(self, value: object) -> BufferRef | None:
        """Where the value of a node, or of what else stands for one, lies if it was realised."""
        return (self.watching.isolated or self._realised_by_all).get(value)

    def note(self, value: object, ref: BufferRef) -> None:
        """Note where a value lies; of a node's, the values that it reshapes lie there as well."""
        with self.lock:
            if isinstance(value, Node):
                self._remember(value, ref)
            else:
                self._realised.set(value, ref)

    def realize_by_key(
        self,
        key: tuple[Any, ...],
        device: str,
        leaves: Sequence[Buffer],
        write_out: Callable[[], list[Node]],
    ) -> list[Buffer] | None:
        """Compute what a key stands for, which says all but where its leaves lie; where that lies.

        Who calls it holds `lock`. write_out: gives the graph where the key is new, over the leaves
        as buffers. None where the device compiles nothing. Raises errors of our tree that carry the
        user's line.
        """
        try:
            self.watching.touched += 1
            whole = (self._keyed.setting(device, self.backend), key)
            found = self._keyed.get(whole)
            if found is None:
                backend = self.backend(device)
                if not backend.compiles or options.notes_lines:
                    return None
                found = self._keyed.add(whole, self._keyed_program(backend, leaves, write_out))
            if active_recorder() is None:
                return found.run(leaves)
            with span("run"):
                return found.run(leaves)
        except BaregradError as error:
            if getattr(error, "at", None) is None:
                error.at = str(user_frame())
            raise

    def _keyed_program(
        self,
        backend: backends.Backend,
        leaves: Sequence[Buffer],
        write_out: Callable[[], list[Node]],
    ) -> KeyedProgram | None:
        """The program of a graph that computes what it reads of nothing but its leaves."""
        with uncollected:
            nodes = write_out()
            if any(node.mask & _NOT_ONE_PROGRAM for node in nodes):
                return None
            with span("canonicalise"):
                program = canonicalise(nodes, _nowhere)
            program, executable = self._executable(backend, program, {})
        if not isinstance(executable, Executable):
            return None
        return keyed_program(executable, program, leaves)

    def forget(self, handles: Iterable[int]) -> None:
        """Forget values by where they lie in memory (ids of handles) that is overwritten.

        A thread with values of its own writes over memory in which others know of some.
        """
        with self.lock:
            found = tuple(handles)
            self._realised_by_all.forget(found)
            if self.watching.isolated is not None:
                self.watching.isolated.forget(found)

    @contextmanager
    def isolated(self, kept: bool = True) -> Iterator[None]:
        """Inside the block only what the block itself realised counts as realised.

        kept: so it does after the block, for everybody.
        """
        outside = self.watching.isolated
        inside = self.watching.isolated = Realised()
        try:
            yield
        finally:
            self.watching.isolated = outside
            if kept:
                with self.lock:
                    self._realised.update(inside)

    def realize(
        self,
        nodes: Sequence[Node],
        device: str,
        donate: Mapping[int, Any] = NO_DONATION,
        free: Collection[int] = (),
    ) -> list[BufferRef]:
        """Compute nodes on a device.

        `donate` maps a position in `nodes` to a buffer handle. The plan lets the result take its
        memory once nothing else of the plan reads it. That is done for the positions in `free`,
        whose handles nobody else will read. Raises errors of our tree that carry the user's line.
        """
        try:
            with self.lock:
                return self._realize(list(nodes), device, donate, free)
        except BaregradError as error:
            if getattr(error, "at", None) is None:
                error.at = str(user_frame())
            raise

    def _realize(
        self,
        nodes: list[Node],
        device: str,
        donate: Mapping[int, Any] = NO_DONATION,
        free: Collection[int] = (),
        variables: Mapping[str, int] | None = None,
    ) -> list[BufferRef]:
        self.watching.touched += 1
        if any(node.mask & Ops.COPY.bit for node in nodes):
            self._bring(nodes, device)
        if any(node.mask & CONTROL_MASK for node in nodes):
            from baregrad.engine.control.sources import run_control

            known = self._realised.on(device)
            run_control(nodes, known, partial(self._realize, device=device), self._remember)
        with uncollected:
            with span("canonicalise"):
                # A graph without leaves may have been realised on another device.
                program = canonicalise(nodes, self._realised.on(device))
            if variables:
                program = program.with_values(variables)
            donated = _slots_donated(program, donate) if donate else {}
            backend = self.backend(device)
            program, executable = self._executable(backend, program, donated)
            if isinstance(executable, Executable):
                executable = executable.written_over({i: donated[i] for i in free if i in donated})
        if free:
            self.overwrites += 1
        run = Run(backend, executable, program, ())
        results = backend.execute(executable, program, self.where)
        shapes = [self.concrete(node.shape, program.variables) for node in program.sink.src]
        refs = [
            BufferRef(buffer, shape, device) for buffer, shape in zip(results, shapes, strict=True)
        ]
        given = [ref.handle for ref in program.inputs]
        kept = [r.handle for place, r in enumerate(refs) if donate.get(place) is not r.handle]
        mark_shared(kept, given)
        for position in free:
            handle = donate[position]
            if refs[position].handle is handle:
                self.forget((id(handle),))
                refs[position] = refs[position].renewed()
        for node, ref in zip(nodes, refs, strict=True):
            self._remember(node, ref)
        run.outputs = tuple(refs)
        for observer in self.watching.observers:
            observer(run)
        return refs

    def _remember(self, node: Node, ref: BufferRef) -> None:
        """Note where a value lies, and so what it reshapes: views of it may be made of that."""
        while node.op is not Ops.BUFFER:
            self._realised.set(node, ref)
            if node.op is not Ops.RESHAPE:
                break
            (node,) = node.src
            if any(not isinstance(extent, int) for extent in node.shape):
                break
            ref = ref._replace(shape=node.shape)

    def _bring(self, nodes: list[Node], device: str) -> None:
        """Have what comes from other devices on this one: computed there, copied, remembered."""
        known = self._realised.on(device)

        def enter(node: Node) -> bool:
            return bool(node.mask & Ops.COPY.bit) and known(node) is None

        foreign: dict[str, list[Node]] = {}
        for node in toposort(*nodes, enter=lambda node: enter(node) and node.op is not Ops.COPY):
            if node.op is Ops.COPY and enter(node):
                # What is made of constants alone is made where it is wanted.
                foreign.setdefault(self._realised.home(node.src[0]) or device, []).append(node)
        for home, copies in foreign.items():
            refs = self._realize([copy.src[0] for copy in copies], home)
            for copy, ref in zip(copies, refs, strict=True):
                if home == device:
                    self._realised.set(copy, ref)
                    continue
                data = self.download(ref, copy.dtype)
                shape = cast(tuple[int, ...], ref.shape)
                self._realised.set(copy, self.upload(data, copy.dtype, shape, device))

    def _executable(
        self, backend: backends.Backend, program: Canonical, donated: dict[int, int]
    ) -> tuple[Canonical, Any]:
        """What runs a program; with it the program that it was made for, which may be of its kind.

        What observers see is the program itself.
        """
        setting = (backend.name, tuple(sorted(donated.items())), backend.setting())
        found = self._known_plan(program, setting)
        if found is None and backend.compiles and not self.watching.observers:
            other = self._general.alike(program, setting)
            if other is not None:
                program = other
                found = self._known_plan(program, setting)
        if found is None:
            found = self._plans[program.sink, setting] = _prepared(backend, program, donated)
            if len(self._plans) > PLANS_KEPT:
                self._plans.popitem(last=False)
        return program, found

    def _known_plan(self, program: Canonical, setting: Any) -> Any:
        """The plan of a program, now the last one that is forgotten; None if there is none."""
        key = (program.sink, setting)
        found = self._plans.get(key)
        if found is not None:
            self._plans.move_to_end(key)
        return found

    @staticmethod
    def concrete(shape: tuple[Any, ...], variables: Mapping[str, int]) -> tuple[int, ...]:
        """A shape with the values of its variables put in."""
        return tuple(
            extent if isinstance(extent, int) else evaluate(launch_expr(extent), variables)
            for extent in shape
        )


def _begin_profile() -> None:
    """Have the process profiled, by a room that knows this one and not the other way round."""
    importlib.import_module("baregrad.profiling").begin_for_process()


def _begin_viz(session: Session) -> None:
    """Have what becomes of the process shown at its end, by a room that knows this one."""
    importlib.import_module("baregrad.viz.live").begin_for_process(session)


def _nowhere(node: Node) -> BufferRef | None:
    """No value is known to lie anywhere."""
    return None


def _slots_donated(program: Canonical, donate: Mapping[int, Any]) -> dict[int, int]:
    """The input that each donated buffer is, by the position that it is donated to.

    A buffer that is no input, or several, is not among them.
    """
    slots: dict[int, list[int]] = {}
    for slot, ref in enumerate(program.inputs):
        slots.setdefault(id(ref.handle), []).append(slot)
    found = ((position, slots.get(id(handle), ())) for position, handle in donate.items())
    return {position: places[0] for position, places in found if len(places) == 1}


def _prepared(
    backend: backends.Backend, program: Canonical, donated: Mapping[int, int]
) -> Any:
    try:
        if program.sink.mask & CONTROL_MASK:
            from baregrad.engine.control.loops import ControlExecutable

            return ControlExecutable(program, backend)
        return backend.prepare(program, donated)
    except BaregradError:
        raise
    except Exception as error:
        from baregrad.ir.text.dump import dump

        raise CompilerBug(
            f"a graph could not be planned: {type(error).__name__}: {error}",
            ir_text=dump(program.sink),
        ) from error


class Run:
    """One executed plan: what capture replays."""

    __slots__ = ("backend", "executable", "outputs", "program")

    def __init__(
        self,
        backend: backends.Backend,
        executable: Any,
        program: Canonical,
        outputs: tuple[BufferRef, ...],
    ) -> None:
        self.backend = backend
        self.executable = executable
        self.program = program
        self.outputs = outputs

    @property
    def programs(self) -> list[Run]:
        """The run itself; of a loop or a choice, one of each program that its bodies have."""
        if not self.program.sink.mask & CONTROL_MASK:
            return [self]
        values = self.program.variables
        return [Run(self.backend, executable, program.with_values(values), ())
                for program, executable in self.executable.work.leaves]


_current: contextvars.ContextVar[Session | None] = contextvars.ContextVar("session", default=None)


class _Process:
    """The process's own session, made at first use."""

    lock: threading.RLock

    def __init__(self) -> None:
        give_lock(self)
        self.session: Session | None = None

    def default(self) -> Session:
        """The process's own session."""
        with self.lock:
            self.session = self.session or Session()
            return self.session


_process = _Process()


def opened_devices(session: Session) -> list[str]:
    """The names of the devices that a session used so far."""
    return list(session._backends)


def current_session() -> Session:
    """The session in force: the innermost `use_session`, else the process's own."""
    return _current.get() or _process.session or _process.default()


@contextmanager
def use_session(session: Session) -> Iterator[Session]:
    """Make `session` the current one inside the block."""
    token = _current.set(session)
    try:
        yield session
    finally:
        _current.reset(token)
