"""`jit`: a function's work captured at its second call and replayed as one command list after that.

The first call runs as usual, the second runs while it is captured, later ones replay. A replay
equals the eager call bit for bit: results are fresh, tensors that the function changes are changed
again, and what it closes over is looked up at each call. A call that differs in shapes, dtypes,
devices, plain arguments or in anything the function closes over is captured anew;
`BAREGRAD_JIT_CHECK=1` runs every replay against the eager function and compares bits.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Generic, ParamSpec, TypeVar, cast

from baregrad.base.errors import JitError
from baregrad.base.options import options
from baregrad.engine.capture import Capture, Replay, copies_of_inputs
from baregrad.engine.session import Session, current_session
from baregrad.ir.attrs import BufferRef
from baregrad.ir.node import Node
from baregrad.ir.op import Ops
from baregrad.tensor.closure import Surroundings
from baregrad.tensor.core import (
    Storage,
    buffer_node,
    handles_below,
    live_storages,
    realize_storages,
)
from baregrad.tensor.grad_mode import grad_enabled
from baregrad.tensor.tensor import Tensor
from baregrad.tensor.trees import is_variable, leaves, map_tree, shape_of_tree

P = ParamSpec("P")
R = TypeVar("R")
CAPTURES_KEPT = 64
_OWN_REFERENCES = 2  # the storage's, and that of the call that counts


class Jit(Generic[P, R]):
    """A jitted function; `captures` and `replays` count how often each happened."""

    def __init__(self, function: Callable[P, R]) -> None:
        self.function = function
        self.captures = 0
        self.replays = 0
        self._entries: dict[Any, _Entry] = {}
        functools.update_wrapper(self, function)

    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., Any]:
        """A jitted method: one jit per instance, kept on the instance."""
        if instance is None:
            return self
        name = f"_jit_{self.function.__name__}"
        found = vars(instance).get(name)
        if found is None:
            found = Jit(self.function.__get__(instance, owner))
            vars(instance)[name] = found
        return cast(Callable[..., Any], found)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, or replay what it did. Raises JitError for what cannot be replayed."""
        session = current_session()
        if session.downloads:
            return self.function(*args, **kwargs)
        call = _Call(args, kwargs)
        key = (id(session), call.key, grad_enabled(), options.device)
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= CAPTURES_KEPT:
                raise JitError(
                    f"{self._called} was captured for {CAPTURES_KEPT} different kinds of arguments",
                    hint="give it symbolic sizes, or pad its inputs to few shapes",
                )
            entry = self._entries[key] = _Entry(self.function, session)
        if entry.replay is not None and entry.is_stale():
            entry = self._entries[key] = _Entry(self.function, session)
        if entry.calls == 0:
            return cast(R, entry.first(call))
        if entry.replay is None:
            self.captures += 1
            return cast(R, entry.capture(call))
        self.replays += 1
        if options.jit_check:
            return cast(R, entry.checked(call))
        return cast(R, entry.play(call))

    @property
    def _called(self) -> str:
        return getattr(self.function, "__qualname__", "a function")

    def reset(self) -> None:
        """Forget every capture."""
        self._entries.clear()


class _Call:
    """One call's arguments: their tensors, realised, and the tree they stand in."""

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.tree = (args, dict(kwargs))
        found = leaves(self.tree)
        self.tensors: list[Tensor] = [leaf for leaf in found if isinstance(leaf, Tensor)]
        self.variables = {
            leaf.arg.name: int(leaf.src[0].arg) for leaf in found if is_variable(leaf)
        }
        first: dict[int, int] = {}
        aliases = tuple(first.setdefault(id(t._storage), i) for i, t in enumerate(self.tensors))
        self.key = (shape_of_tree(self.tree), aliases)

    def references(self) -> list[BufferRef]:
        """Where each tensor's value lies, as a contiguous array of its own handle."""
        realize_storages(t._storage for t in self.tensors)
        refs = []
        for tensor in self.tensors:
            if all(op is Ops.DETACH for op, _ in tensor._steps):
                ref = tensor._ref()
            else:
                (ref,) = current_session().realize([tensor._value()], tensor.device)
            # A view has an identity of its own, so that an argument that is also closed over is
            # told apart.
            handle = ref.handle.view(0, ref.handle.nbytes)
            refs.append(BufferRef(handle, ref.shape, ref.device))
        return refs


class _Entry:
    """The life of a jit for one kind of arguments."""

    def __init__(self, function: Callable[..., Any], session: Session) -> None:
        self.function = function
        self.session = session
        self.calls = 0
        self.uploads: list[bytes] = []
        self.replay: Replay | None = None
        self.surroundings: Surroundings | None = None

    # --- the first call
    # ------------------------------------------------------------------------------

    def first(self, call: _Call) -> Any:
        """Run as usual; note what is uploaded, to compare with the second call."""
        self.calls = 1
        seen: list[bytes] = []
        written: dict[Storage, Node] = {}
        note = _note_upload(seen)
        older = _storages()
        watch = _note_write(written)
        self.session.uploads.append(note)
        self.session.writes.append(watch)
        # Somebody watches downloads: random numbers keep their state on the device, as in a
        # capture.
        self.session.downloads.append(_ignore)
        try:
            args, kwargs = call.tree
            result = self.function(*args, **kwargs)
            tensors = [leaf for leaf in leaves(result) if isinstance(leaf, Tensor)]
            changed = [s for s in written if id(s) in older]
            realize_storages((*changed, *(t._storage for t in tensors)))
        finally:
            self.session.uploads.remove(note)
            self.session.writes.remove(watch)
            self.session.downloads.remove(_ignore)
        self.uploads = seen
        return map_tree(result, lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf)

    # --- the second call
    # -----------------------------------------------------------------------------

    def capture(self, call: _Call) -> Any:
        """Run while every run of the session is noted, then make the replay."""
        refs = call.references()
        clones = [_clone(t, ref) for t, ref in zip(call.tensors, refs, strict=True)]
        replacement = {id(t): clone for t, clone in zip(call.tensors, clones, strict=True)}
        args, kwargs = map_tree(
            call.tree,
            lambda leaf: replacement.get(id(leaf), leaf) if isinstance(leaf, Tensor) else leaf,
        )
        before = Surroundings(self.function)
        grads = [(t, t.grad) for t in before.tensors if t.is_leaf and t.requires_grad]
        written: dict[Storage, Node] = {}
        watch = _note_write(written)
        self.session.writes.append(watch)
        capture = Capture(self.session)
        # Held, so that no storage that the function makes takes the address of one of these.
        older = _storages()
        try:
            with capture:
                result = self.function(*args, **kwargs)
                # A storage that the function made itself (a clone, say) is no state.
                written = {s: old for s, old in written.items() if id(s) in older}
                results, nodes = self._realise_results(result, written, grads)
        finally:
            self.session.writes.remove(watch)
        self._check_uploads(capture)
        changed = before.changed()
        if changed:
            raise JitError(
                f"the function changes {changed} at every call, which a replay would not",
                hint="keep what changes from call to call in a tensor and change it in place",
            )
        self.gradients = [(t, held is None, t.grad) for t, held in grads]
        self._build(call, clones, refs, capture, written, results, nodes)
        self.surroundings = Surroundings(self.function)
        self.calls += 1
        return self._give(call, result, self._last)

    def _realise_results(
        self, result: Any, written: dict[Storage, Node], grads: list[tuple[Tensor, Any]]
    ) -> tuple[list[Tensor], list[Node]]:
        """Compute what the function left lazy, in one run: results, state and gradients."""
        results = [leaf for leaf in leaves(result) if isinstance(leaf, Tensor)]
        made = [t.grad for t, _ in grads if t.grad is not None]
        storages = dict.fromkeys((*written, *(g._storage for g in made)))
        lazy = [s for s in storages if s.node.op is not Ops.BUFFER]
        nodes = [t._value() for t in results]
        by_device: dict[str, list[Node]] = {}
        for storage in lazy:
            by_device.setdefault(storage.device, []).append(storage.node)
        for tensor, node in zip(results, nodes, strict=True):
            by_device.setdefault(tensor.device, []).append(node)
        for device, wanted in by_device.items():
            unique = [n for n in dict.fromkeys(wanted) if self._ref_of(n) is None]
            if unique:
                self.session.realize(unique, device)
        for storage in lazy:
            ref = self._ref_of(storage.node)
            if ref is not None:
                storage.node = buffer_node(ref, storage.node.dtype)
        return results, nodes

    def _ref_of(self, node: Node) -> BufferRef | None:
        return node.arg if node.op is Ops.BUFFER else self.session.realised(node)

    def _check_uploads(self, capture: Capture) -> None:
        now = [data for _, data in capture.uploads]
        if self.uploads and now != self.uploads:
            raise JitError(
                "host data made inside the function differs from call to call (a Python number "
                "that changes, np.random, ...): a replay would repeat the old values",
                hint="pass it as an argument, or use the stack's own random numbers",
            )

    def _build(
        self,
        call: _Call,
        clones: list[Tensor],
        refs: list[BufferRef],
        capture: Capture,
        written: dict[Storage, Node],
        results: list[Tensor],
        nodes: list[Node],
    ) -> None:
        """Sort every array of the capture into arguments, state, results and intermediates."""
        arguments = {id(ref.handle) for ref in refs}
        fixed = {id(ref.handle) for ref, _ in capture.uploads}
        outside = [
            ref
            for ref in capture.reads()
            if id(ref.handle) not in arguments and id(ref.handle) not in fixed
        ]
        own = {id(clone._storage) for clone in clones}
        updates = []
        state: dict[int, tuple[weakref.ref[Storage], BufferRef]] = {}
        for storage, old in written.items():
            if id(storage) in own or old.op is not Ops.BUFFER:
                continue
            kept, made = old.arg, storage.node.arg
            state[id(kept.handle)] = (weakref.ref(storage), kept)
            if made.handle is not kept.handle:
                updates.append((made.handle, kept.handle))
                storage.node = old
        self.result_refs = [cast(BufferRef, self._ref_of(node)) for node in nodes]
        copies = copies_of_inputs(capture, self.result_refs)
        self._settle(updates, written)
        self.implicit = self._holders(outside, state)
        self.changed = [i for i, clone in enumerate(clones) if clone._storage in written]
        changed_refs = [clones[i]._storage.node.arg for i in self.changed]
        kept_handles = {id(ref.handle) for _, ref in state.values()}
        states = {id(storage) for storage in written}
        self.session.forget(kept_handles)
        self.held = [
            tensor if id(tensor._storage) in states and id(ref.handle) in kept_handles else None
            for tensor, ref in zip(results, self.result_refs, strict=True)
        ]
        self.same = [
            next((i for i, clone in enumerate(clones) if _is_whole(tensor, clone)), -1)
            for tensor in results
        ]
        self._last = [
            (copies.get(id(ref.handle), ref.handle), tuple(ref.shape))
            for ref in (*changed_refs, *self.result_refs)
        ]
        inputs = [*refs, *(ref for _, ref in self.implicit)]
        self.grad_refs = self._gradient_refs(inputs)
        outputs = [*changed_refs, *self.result_refs, *self.grad_refs]
        self.replay = Replay(capture, inputs, outputs, updates)
        self.overwritten = kept_handles
        self._renew_state([self._present(*pair) for pair in self.implicit])

    def _gradient_refs(self, inputs: list[BufferRef]) -> list[BufferRef]:
        """Where the captured call left gradients that it made itself."""
        given = {id(ref.handle) for ref in inputs}
        made = [g._storage.node.arg for _, _, g in self.gradients if g is not None]
        return [ref for ref in made if id(ref.handle) not in given]

    def _settle(self, updates: list[tuple[Any, Any]], written: dict[Storage, Node]) -> None:
        """Bring the captured call's own new state into memory that replays may overwrite.

        That is the memory it had, unless another tensor still reads that: then memory of its own.
        """
        copies = {id(kept): bytes(made.as_memoryview()) for made, kept in updates}
        others = [s.node for s in _storages().values() if s not in written]
        read = handles_below(others) if copies else set()
        for storage in written:
            ref = storage.node.arg
            data = copies.get(id(ref.handle)) if storage.node.op is Ops.BUFFER else None
            if data is None:
                continue
            if id(ref.handle) in read:
                own = ref.handle.device.allocate(ref.handle.nbytes)
                storage.node = buffer_node(replace(ref, handle=own), storage.node.dtype)
                ref = storage.node.arg
            ref.handle.device.copy_in(ref.handle, data)

    def _holders(
        self, outside: list[BufferRef], state: dict[int, tuple[weakref.ref[Storage], BufferRef]]
    ) -> list[tuple[weakref.ref[Storage], BufferRef]]:
        """The storages whose values the function read without being given them."""
        found = [state[id(ref.handle)] for ref in outside if id(ref.handle) in state]
        found.extend(pair for key, pair in state.items() if all(pair is not f for f in found))
        rest = {id(ref.handle): ref for ref in outside if id(ref.handle) not in state}
        if not rest:
            return found
        # Who holds a leaf that reads one of these arrays?
        for candidate in live_storages():
            if candidate.node.op is Ops.BUFFER:
                ref = candidate.node.arg
                if rest.pop(id(ref.handle), None) is not None:
                    found.append((weakref.ref(candidate), ref))
        return found

    # --- later calls
    # ---------------------------------------------------------------------------------

    def is_stale(self) -> bool:
        """Whether something the function closes over is not what it was at capture."""
        assert self.surroundings is not None
        if self.surroundings.changed():
            return True
        if any((tensor.grad is None) != was_none for tensor, was_none, _ in self.gradients):
            return True
        for holder, ref in self.implicit:
            storage = holder()
            if storage is not None and (
                storage.node.shape != ref.shape or storage.device != ref.device
            ):
                return True
        return False

    def play(self, call: _Call) -> Any:
        """Replay over this call's arguments."""
        assert self.replay is not None
        refs = call.references()
        handles = [ref.handle for ref in refs]
        assert self.surroundings is not None
        for tensor in self.surroundings.tensors:
            tensor._cached = None
        for holder, ref in self.implicit:
            handle = self._present(holder, ref)
            if id(ref.handle) in self.overwritten and _is_shared(holder()):
                own = handle.device.allocate(handle.nbytes)
                own.device.copy_in(own, handle.as_memoryview())
                handle = own
            handles.append(handle)
        made = self.replay(handles, call.variables)
        self._renew_state(handles[len(refs) :])
        self._renew_gradients(made[len(made) - len(self.grad_refs) :])
        return self._give(call, None, made)

    def _present(self, holder: weakref.ref[Storage], ref: BufferRef) -> Any:
        """Where state lies now: where its storage says, or where it was if the storage is gone."""
        storage = holder()
        if storage is None:
            return ref.handle
        if storage.node.op is not Ops.BUFFER:
            realize_storages((storage,))
        held = self._ref_of(storage.node)
        assert held is not None
        return held.handle

    def _renew_gradients(self, made: list[tuple[Any, tuple[int, ...]]]) -> None:
        """Put this call's gradients, in memory of their own, where the captured ones were."""
        fresh = {
            id(ref.handle): BufferRef(handle, shape, ref.device)
            for ref, (handle, shape) in zip(self.grad_refs, made, strict=True)
        }
        for tensor, _, gradient in self.gradients:
            if gradient is None:
                tensor.grad = None
                continue
            ref = gradient._storage.node.arg
            place = fresh.get(id(ref.handle), ref)
            tensor.grad = Tensor._make(buffer_node(place, gradient.dtype), gradient.device)

    def _renew_state(self, handles: list[Any]) -> None:
        """Give state whose memory was overwritten a leaf of its own.

        What was computed from the old leaf is then not taken for what is computed from the new.
        """
        assert self.replay is not None
        for (holder, ref), handle in zip(self.implicit, handles, strict=True):
            storage = holder()
            if storage is None or id(ref.handle) not in self.overwritten:
                continue
            moved = replace(ref, handle=handle.view(0, handle.nbytes))
            storage.node = buffer_node(moved, storage.node.dtype)

    def _give(self, call: _Call, result: Any, made: list[tuple[Any, tuple[int, ...]]]) -> Any:
        """The call's result from the replay's arrays; changed arguments change."""
        if result is not None or not hasattr(self, "template"):
            self.template = map_tree(result, _Hole.make)
        count = len(self.changed)
        for position, (handle, shape) in zip(self.changed, made[:count], strict=True):
            tensor = call.tensors[position]
            if any(op is not Ops.DETACH for op, _ in tensor._steps):
                raise JitError(
                    "a jitted function changes an argument that is a view of another tensor",
                    hint="pass the whole tensor, or return the new value",
                )
            ref = BufferRef(handle, shape, tensor.device)
            tensor._storage.put(buffer_node(ref, tensor.dtype))
        places = iter(range(len(self.result_refs)))

        def fill(leaf: Any) -> Any:
            if not isinstance(leaf, _Hole):
                return leaf
            place = next(places)
            held = self.held[place]
            if held is not None:
                return held
            if self.same[place] >= 0:
                return call.tensors[self.same[place]]
            handle, shape = made[count + place]
            ref = BufferRef(handle, shape, leaf.device)
            return Tensor._make(buffer_node(ref, leaf.dtype), leaf.device)

        return map_tree(self.template, fill)

    # --- checking
    # ------------------------------------------------------------------------------------

    def checked(self, call: _Call) -> Any:
        """Replay, run the function itself from the same state, and compare bits."""
        from baregrad.tensor.jit_check import run_checked

        return run_checked(self, call)


class _Hole:
    """The place of a tensor in a result."""

    __slots__ = ("device", "dtype")

    def __init__(self, tensor: Tensor) -> None:
        self.dtype = tensor.dtype
        self.device = tensor.device

    @staticmethod
    def make(leaf: Any) -> Any:
        """A hole for a tensor; other leaves stay."""
        return _Hole(leaf) if isinstance(leaf, Tensor) else leaf


def _clone(tensor: Tensor, ref: BufferRef) -> Tensor:
    """A tensor of its own storage over an argument's memory."""
    made = Tensor._make(buffer_node(ref, tensor.dtype), tensor.device)
    return made.requires_grad_() if tensor.requires_grad else made


def _ignore(ref: BufferRef) -> None:
    """A watcher of downloads that lets them pass."""


def _is_whole(tensor: Tensor, clone: Tensor) -> bool:
    """Whether a result is an argument itself, not a view of a part or in another order."""
    if tensor._storage is not clone._storage:
        return False
    return all(op is Ops.DETACH for op, _ in tensor._steps)


def _storages() -> dict[int, Storage]:
    """Every storage there is, held so that no later one takes its address."""
    return {id(storage): storage for storage in live_storages()}


def _is_shared(storage: Storage | None) -> bool:
    """Whether anything but its storage reads state's leaf: a copy of it, or a lazy expression."""
    return storage is not None and sys.getrefcount(storage.node) > _OWN_REFERENCES


def _note_upload(seen: list[bytes]) -> Callable[..., None]:
    def note(ref: BufferRef, data: Any) -> None:
        seen.append(data.tobytes())

    return note


def _note_write(written: dict[Storage, Node]) -> Callable[..., None]:
    def note(storage: Storage, old: Node) -> None:
        written.setdefault(storage, old)

    return note


def jit(function: Callable[P, R]) -> Jit[P, R]:
    """Capture a function's work at its second call and replay it after that.

    Arguments may be tensors, plain values, and lists, tuples, dicts and dataclasses of them;
    results likewise. Returned tensors are fresh and carry no gradients: call `backward` inside the
    function.
    """
    if not callable(function):
        raise JitError(
            "jit captures functions", found=f"{type(function).__name__} {function!r:.40}",
            hint="give it the function itself: jit(f), not jit(f(x))",
        )
    return Jit(function)


TinyJit = jit
