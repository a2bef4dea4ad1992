"""The life of a jitted function for one kind of arguments: run, captured, replayed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

from baregrad.base.errors import JitError
from baregrad.engine.capture import Capture, Replay, copies_of_others, is_plain
from baregrad.engine.session import Run, Session
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.node import Node
from baregrad.tensor.array.core import realize_storages
from baregrad.tensor.array.storage import Storage, buffer_node, leaf_of
from baregrad.tensor.array.views import Assigned, Reviewed
from baregrad.tensor.jit.closure import Surroundings
from baregrad.tensor.jit.constants import differing_constant
from baregrad.tensor.jit.gradients import Gradients
from baregrad.tensor.jit.parts import Call, Histories, part_shared
from baregrad.tensor.jit.results import Outlet, Results, settled_view, sort_results
from baregrad.tensor.jit.state import (
    States,
    changed_state,
    every_storage,
    holders_of,
    read_by_others,
    settle_state,
)
from baregrad.tensor.jit.trees import leaves, map_tree
from baregrad.tensor.tensor import Tensor


class Entry:
    """The life of a jit for one kind of arguments."""

    def __init__(self, function: Callable[..., Any], session: Session) -> None:
        self.function = function
        self.session = session
        self.calls = 0
        self.uploads: list[bytes] = []
        self.sinks: list[Node] = []
        self.first_surroundings: Surroundings | None = None
        self.replay: Replay | None = None
        self.surroundings = Surroundings(function)
        self.closed: frozenset[int] = frozenset()
        self.states: weakref.WeakSet[Storage] = weakref.WeakSet()
        self.written: set[int] = set()
        self.written_arguments: set[int] = set()
        self.shapes: dict[Storage, tuple[Any, ...]] = {}
        # The marks at which all gradients and state were known to be as they were.
        self._assigned: object = None
        self._reviewed: object = None

    # --- the first call ---------------------------------------------------------------------------

    def first(self, call: Call) -> Any:
        """Run as usual; note what is uploaded and computed, to compare with the second call."""
        self.calls = 1
        # Computed before, as they are for a capture: what they are made of is not the function's.
        # Not those of symbolic extents, which are numbers afterwards.
        realize_storages(
            tensor._storage for tensor in call.tensors if is_plain(tensor._storage.node.shape)
        )
        if not self.session.watching.observers:
            _settle_closed(self.surroundings)
        seen: list[bytes] = []
        runs: list[Run] = []
        with self.session.watching.observing(runs.append):
            result = self.run(call, seen)
        self.uploads = seen
        self.sinks = [run.program.sink for run in runs]
        self.first_surroundings = self.surroundings
        return result

    def take(self, call: Call, replay: Replay, state: States, results: Results) -> None:
        """Be as if this entry had captured what another process did."""
        self.calls += 1
        self.replay, self.state, self.results = replay, state, results
        self.changed: list[int] = []
        self.gradients = Gradients(call, call.tensors, [])
        self.gradients.watched([one.look for one in state.every], self.surroundings.tensors)
        for one in state.every[: state.changing]:
            storage = one.look()
            if storage is not None:
                self.written.add(id(storage))
                self.states.add(storage)
        self.closed = frozenset(id(t._storage) for t in self.surroundings.tensors)
        self.state.renew()
        self.outlets = self._make_outlets(replay, [])
        self.is_plain = self._is_plain(replay, len(call.tensors))

    def run(self, call: Call, uploads: list[bytes]) -> Any:
        """Run as usual, and compute together what is returned and changed, as a replay does."""
        older = every_storage()
        with self._watched(uploads) as written:
            args, kwargs = call.tree
            result = self.function(*args, **kwargs)
            tensors = [leaf for leaf in leaves(result) if isinstance(leaf, Tensor)]
            older.update(self._random_states())
            changed = [s for s in written if id(s) in older]
            shown = [settled_view(t) for t in tensors]
            _compute(tensors, shown, changed)
        self._settle_written(changed)
        self._note_written(call.tensors, changed)
        given = {id(t) for t in (*call.tensors, *self.surroundings.tensors)}

        def fill(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            made = shown.pop(0)
            return leaf if id(leaf) in given else made.detach()

        return map_tree(result, fill)

    def _random_states(self) -> dict[int, Storage]:
        """The states of random numbers: the session's, also where this run drew the first."""
        held = [state.storage for state in list(self.session.random_states.values())]
        return {id(storage): storage for storage in held}

    @contextmanager
    def _watched(self, uploads: list[bytes]) -> Iterator[dict[Storage, Node]]:
        """The storages written inside the block, with what they held before."""
        written: dict[Storage, Node] = {}

        def note(ref: BufferRef, data: Any) -> None:
            uploads.append(data.tobytes())

        def watch(storage: Storage, old: Node) -> None:
            written.setdefault(storage, old)

        self.session.watching.uploads.append(note)
        self.session.watching.writes.append(watch)
        # Somebody watches downloads: random numbers keep their state on the device, as in a
        # capture.
        self.session.watching.downloads.append(_ignore)
        try:
            yield written
        finally:
            self.session.watching.uploads.remove(note)
            self.session.watching.writes.remove(watch)
            self.session.watching.downloads.remove(_ignore)

    def _settle_written(self, changed: Sequence[Storage]) -> None:
        """Let what the function changed hold its value alone, without gradients."""
        for storage in changed:
            node = storage.node
            ref = _ref_of(self.session, node)
            if ref is None:
                continue  # another thread has changed it since
            storage.hold(buffer_node(ref, node.dtype), node)
            storage.grad = False

    def _note_written(self, arguments: Sequence[Tensor], changed: Sequence[Storage]) -> None:
        """Note which arguments and which other storages the function changes."""
        own = {id(tensor._storage): i for i, tensor in enumerate(arguments)}
        for storage in changed:
            if id(storage) in own:
                self.written_arguments.add(own[id(storage)])
            else:
                self.written.add(id(storage))
                self.states.add(storage)

    def is_tangled(self, call: Call) -> bool:
        """Whether an argument is also closed over, and is changed as one or the other.

        Arguments are stood in for, so the one would not show what is written into the other.
        """
        if self.replay is None:
            self.surroundings = Surroundings(self.function)
            self.closed = frozenset(id(t._storage) for t in self.surroundings.tensors)
        if not self.written and not self.written_arguments:
            return False
        for position, tensor in enumerate(call.tensors):
            place = id(tensor._storage)
            changes = place in self.written or position in self.written_arguments
            if changes and place in self.closed:
                return True
        return bool(call.tensors) and _is_tangled_with_gradients(self, call)

    # --- the second call --------------------------------------------------------------------------

    def capture(self, call: Call) -> Any:
        """Run while every run of this thread is noted, then make the replay.

        Other threads compute while the function's own code runs, and wait before and after it.
        """
        with ExitStack() as held:
            held.enter_context(self.session.lock)
            before = self.surroundings
            leafs = [t for t in before.tensors if t.is_leaf and t.requires_grad]
            gradients = [(t, t.grad) for t in leafs]
            with self._prepare(before, [g for _, g in gradients if g is not None]) as histories:
                refs = call.references()
                clones = call.stand_ins(refs)
                held.close()
                with Capture(self.session) as capture:
                    args, kwargs = _with_stand_ins(call, clones)
                    older, written, result = self._noting_writes(args, kwargs, held)
                    tensors = [t for t in leaves(result) if isinstance(t, Tensor)]
                    shown = [settled_view(t) for t in tensors]
                    made = [t.grad for t in (*leafs, *clones) if t.grad is not None]
                    computed = (*written, *(g._storage for g in made))
                    settled = [t._storage for t in shown]
                    # Those that are symbolic are so no more once they are computed.
                    self.shapes = {each: each.node.shape for each in (*settled, *computed)}
                    _compute(tensors, shown, computed)
            self._check(capture, before)
            self.gradients = Gradients(call, clones, gradients)
            self.results = sort_results(result, shown, clones, older, before.tensors)
            last = self._build(call, clones, refs, capture, written, histories)
            self.surroundings = Surroundings(self.function)
            self.closed = frozenset(id(t._storage) for t in self.surroundings.tensors)
            looks = [one.look for one in self.state.every]
            self.gradients.watched(looks, self.surroundings.tensors)
            self.calls += 1
            given = self._give(call, last, [None] * len(self.outlets))
            for outlet in self.outlets:
                # What this call made stays the capture's own.
                outlet.clear()
            return given

    def _noting_writes(
        self, args: Any, kwargs: Any, held: ExitStack
    ) -> tuple[dict[int, Storage], dict[Storage, Node], Any]:
        """Call the function: the storages that were there, which it changed, and its result.

        The session is `held` afterwards.
        """
        # Held, so that no storage that the function makes takes the address of one of these.
        older = every_storage()
        written: dict[Storage, Node] = {}
        watch = _note_write(written)
        self.session.watching.writes.append(watch)
        try:
            result = self.function(*args, **kwargs)
        finally:
            self.session.watching.writes.remove(watch)
        held.enter_context(self.session.lock)
        older.update(self._random_states())
        # A storage that the function made itself (a clone, say) is no state.
        return older, {s: old for s, old in written.items() if id(s) in older}, result

    def _prepare(self, before: Surroundings, gradients: Sequence[Tensor]) -> Histories:
        """Compute what the function may read, and what is still to be computed of earlier work."""
        pending = [held for ref in self.session.watching.companions if (held := ref()) is not None]
        closed = dict.fromkeys((*(t._storage for t in (*before.tensors, *gradients)), *self.states))
        realize_storages((*closed, *pending))
        part_shared(closed)
        return Histories(closed)

    def _check(self, capture: Capture, before: Surroundings) -> None:
        """Raise JitError for what a replay would not do again."""
        now = [data for _, data in capture.uploads]
        first, self.first_surroundings = self.first_surroundings, None
        sinks, self.sinks = self.sinks, []
        numbers = None
        if first is not None and not first.changed():
            numbers = differing_constant(sinks, [run.program.sink for run in capture.runs])
        if numbers is not None or (self.uploads and now != self.uploads):
            values = "" if numbers is None else f": {numbers[0]!r}, then {numbers[1]!r}"
            raise JitError(
                "host data made inside the function differs from call to call (a Python number "
                f"that changes, np.random, ...){values}; a replay would repeat the old values",
                hint="pass it as an argument, or use the stack's own random numbers",
            )
        changed = before.changed()
        if changed:
            raise JitError(
                f"the function changes {changed} at every call, which a replay would not",
                hint="keep what changes from call to call in a tensor and change it in place",
            )

    def _build(
        self,
        call: Call,
        clones: list[Tensor],
        refs: list[BufferRef],
        capture: Capture,
        written: dict[Storage, Node],
        histories: Histories,
    ) -> list[Any]:
        """Sort every array of the capture into arguments, state, results and intermediates.

        Returns where this call's own results lie, in the order in which a replay gives its.
        """
        own = {clone._storage for clone in clones}
        self._settle_written(list(written))
        self._note_written(clones, list(written))
        looks = self.gradients.looks
        updates, state = changed_state(written, own, looks)
        fresh_refs = [cast(BufferRef, _ref_of(self.session, s.node)) for s in self.results.fresh]
        self.changed = [
            i for i, clone in enumerate(clones)
            if clone._storage in written and clone._storage not in {c._storage for c in clones[:i]}
        ]
        for position in self.changed:
            call.refuse_views_of(position)
        changed_refs = [clones[i]._storage.node.arg for i in self.changed]
        kept = {id(ref.handle) for _, ref in state.values()}
        results = [*changed_refs, *fresh_refs]
        copies = copies_of_others(capture, results, kept)
        made = self.gradients.made()
        shapes = self._take_shapes([clones[i] for i in self.changed], made)
        gradients = [cast(BufferRef, _ref_of(self.session, g._storage.node)) for g in made]
        read = [*capture.reads(), *(ref for ref, _ in updates), *results, *gradients]
        known = {id(ref.handle) for ref in refs} | capture.own()
        outside = [ref for ref in read if id(ref.handle) not in known]
        closed = [tensor._storage for tensor in self.surroundings.tensors]
        holders = holders_of(outside, state, closed, looks, histories.nodes, histories.cut)
        self.state = States(holders, len(state))
        updated = [(ref.handle, handle) for ref, handle in updates]
        last_copies = copies_of_others(capture, gradients, kept)
        seen = read_by_others(written) if updated else set()
        # Replays write over what this call computed: it is not the value of these nodes for long.
        self.session.forget(kept | capture.own())
        inputs = [*refs, *(one.ref for one in self.state.every)]
        outputs = [*results, *gradients]
        self.replay = Replay(capture, inputs, outputs, updated, kept, seen, shapes, call.variables)
        settle_state(updated, written, self.replay.in_place)
        self.state.renew()
        self.outlets = self._make_outlets(self.replay, made)
        self.is_plain = self._is_plain(self.replay, len(refs))
        last = [copies.get(id(ref.handle), ref.handle) for ref in results]
        return last + [last_copies.get(id(ref.handle), ref.handle) for ref in gradients]

    def _make_outlets(self, replay: Replay, gradients: Sequence[Tensor]) -> list[Outlet]:
        """An outlet for each fresh result, then for each gradient."""
        dtypes = [storage.node.dtype for storage in self.results.fresh]
        dtypes += [gradient.dtype for gradient in gradients]
        first = len(self.changed)
        slots = [replay.slot_of(place) for place in range(first + len(dtypes))]
        return [
            # Storages that share their memory are distinguished by being made anew.
            Outlet(dtype, slot if slots.count(slot) == 1 else -1)
            for dtype, slot in zip(dtypes, slots[first:], strict=True)
        ]

    def _take_shapes(
        self, changed: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> list[tuple[Any, ...]]:
        """The shapes of all that a call makes, in order, symbolic where they were."""
        storages = [tensor._storage for tensor in changed]
        storages += [*self.results.fresh, *(gradient._storage for gradient in gradients)]
        shapes, self.shapes = self.shapes, {}
        return [shapes[storage] for storage in storages]

    def _is_plain(self, replay: Replay, given: int) -> bool:
        """Whether a call is the buffers of arguments, state and results, and nothing else."""
        count = len(self.outlets)
        return (
            [outlet.slot for outlet in self.outlets] == list(range(count))
            and replay.takes_buffers_alone(given + len(self.state.every) + count)
            and self.results.are_fresh_alone
            and not self.gradients.are_renewed
        )

    # --- later calls ------------------------------------------------------------------------------

    def is_stale(self) -> bool:
        """Whether something the function closes over is not what it was at capture."""
        if self.surroundings.places and self.surroundings.changed():
            return True
        if not self.gradients.held and not self.state.every:
            return False
        # Where nobody has assigned a gradient since, it need not be looked at which there are.
        assigned, reviewed = Assigned.mark, Reviewed.mark
        if assigned is self._assigned and reviewed is self._reviewed and self.state.is_at_rest():
            return False
        untouched = self.state.are_untouched()
        if self.gradients.are_other(untouched, self.surroundings.tensors):
            return True
        if untouched:
            self._assigned, self._reviewed = assigned, reviewed
            return False
        return bool(self.state.every) and self.state.is_stale()

    @property
    def changes_what_is_given(self) -> bool:
        """Whether a replay changes its arguments or their gradients."""
        return bool(
            self.written_arguments or self.changed
            or self.gradients.marked or self.gradients.of_arguments
        )

    @property
    def closed_and_written(self) -> frozenset[int]:
        """The ids of storages that are no arguments where a replay is to be: `is_tangled` asks."""
        return self.closed.intersection(self.written)

    def play(self, call: Call, handles: list[Any]) -> Any:
        """Replay over this call's arguments, which lie in `handles`."""
        assert self.replay is not None
        if self.state.every:
            handles += self.state.places(self.surroundings.tensors)
        memory: dict[int, Any] = {}
        taken: list[Storage | None] = []
        for outlet in self.outlets:
            storage = outlet.take()
            taken.append(storage)
            if storage is not None:
                memory[outlet.slot] = storage.node.arg.handle
        return self._give(call, self.replay(handles, call.variables, memory), taken)

    def play_again(self, args: tuple[Any, ...], handles: list[Any]) -> Any:
        """Replay over arguments of a known kind, of which a replay changes none."""
        if not self.is_plain:
            return self.play(Call.alike(args), handles)
        replay = self.replay
        assert replay is not None
        if self.state.every:
            handles = handles + self.state.places(self.surroundings.tensors)
        if not self.outlets:
            replay.submit(handles)
            return self.results.template
        # Kernels that go through much memory leave nothing of the interpreter in the caches: what
        # can be done before them takes a few microseconds, and afterwards ten times as long.
        storages = [
            outlet.take() or outlet.make(replay.fresh(place))
            for place, outlet in enumerate(self.outlets)
        ]
        made = tuple(map(Tensor._on, storages))
        replay.submit(handles + [storage.node.arg.handle for storage in storages])
        return made if self.results.is_plain or len(made) > 1 else made[0]

    def _give(self, call: Call, made: Sequence[Any], taken: Sequence[Storage | None]) -> Any:
        """The call's result from the replay's arrays; changed arguments change.

        `taken`: for each outlet what is used again, None where the memory is fresh.
        """
        gradients = self.gradients
        if self.changed or gradients.marked:
            self._change_arguments(call, made)
        storages = [
            storage or self._make(place, made, call.variables)
            for place, storage in enumerate(taken)
        ]
        if gradients.are_renewed:
            gradients.renew(call, storages[len(self.results.fresh) :])
        return self.results.give(call.tensors, storages)

    def _change_arguments(self, call: Call, made: Sequence[Any]) -> None:
        """Change the arguments that the function changes."""
        assert self.replay is not None
        for place, position in enumerate(self.changed):
            call.refuse_views_of(position)
            tensor = call.tensors[position]
            ref = self.replay.ref(place, made[place], call.variables)
            tensor._storage.put(buffer_node(ref, tensor.dtype))
        for position in self.gradients.marked:
            call.tensors[position].requires_grad_()

    def _make(self, place: int, made: Sequence[Any], variables: Mapping[str, int]) -> Storage:
        """A storage over the fresh memory of an outlet."""
        assert self.replay is not None
        position = len(self.changed) + place
        return self.outlets[place].make(self.replay.ref(position, made[position], variables))


def _is_tangled_with_gradients(entry: Entry, call: Call) -> bool:
    """Whether an argument is a gradient now that the function changes, or is changed as one.

    A tensor that is closed over may have another gradient from call to call.
    """
    if entry.replay is None:
        gradients = [tensor._gradient for tensor in entry.surroundings.tensors]
        places = [id(gradient._storage) for gradient in gradients if gradient is not None]
        changed = {place: place in entry.written for place in places}
    else:
        changed = entry.state.gradients_now()
    return any(
        changed.get(id(tensor._storage), False)
        or (position in entry.written_arguments and id(tensor._storage) in changed)
        for position, tensor in enumerate(call.tensors)
    )


def _compute(
    tensors: Sequence[Tensor], shown: Sequence[Tensor], others: Sequence[Storage]
) -> None:
    """Compute results and `others` as `realize` does, and then views among results by themselves.

    shown: the results, views settled that have symbolic extents. Beside the rest they would change
    its kernels, which then had other last bits than after a plain call.
    """
    realize_storages((*(tensor._storage for tensor in tensors), *others))
    realize_storages([each._storage for each in shown])


def _ref_of(session: Session, node: Node) -> BufferRef | None:
    """Where the value of a node lies."""
    return leaf_of(node) or session.realised(node)


def _settle_closed(surroundings: Surroundings) -> None:
    """Have what a function reaches in memory, each in its own, as it will be for a capture.

    So its first two calls are one program, which is planned and compiled once.
    """
    closed = dict.fromkeys(tensor._storage for tensor in surroundings.tensors)
    realize_storages(closed)
    part_shared(closed)


def _ignore(ref: BufferRef) -> None:
    """A watcher of downloads that lets them pass."""


def _note_write(written: dict[Storage, Node]) -> Callable[..., None]:
    def note(storage: Storage, old: Node) -> None:
        written.setdefault(storage, old)

    return note


def _with_stand_ins(call: Call, clones: Sequence[Tensor]) -> tuple[Any, Any]:
    """The call's arguments with its tensors stood in for."""
    replacement = {id(t): clone for t, clone in zip(call.tensors, clones, strict=True)}
    return cast(tuple[Any, Any], map_tree(
        call.tree,
        lambda leaf: replacement.get(id(leaf), leaf) if isinstance(leaf, Tensor) else leaf,
    ))
