"""Calls that are known: what an operation makes of operands of one description is found by a key.

The first call of an operation with operands of a description runs its Python, which makes nodes,
and leaves a `CallTemplate`: what the results look like. Later calls of the description make no
nodes. Their results are `DeferredValue`s: which call, of which operands. Where only their
computation is asked for, the calls below the results, each template with the places that its
operands come from, are a key to a program that was made before. Whatever else looks at such a value
(`Storage.node`) has the calls written out: their Python runs, and gives the nodes that it would
have given at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from baregrad.base.locks import give_lock
from baregrad.dtypes import DType
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.node import Node, make_node
from baregrad.ir.core.op import Ops
from baregrad.tensor.array.grad_mode import grad_enabled, set_grad_enabled
from baregrad.tensor.array.link import SessionLike, session
from baregrad.tensor.array.views import Step

# Of more calls no key is made: what they compute is looked for by its graph.
MOST_CALLS = 4096
# A template whose calls were written out so much oftener than computed by key is not worth it.
MOST_WRITTEN_OUT = 8
_OUTPUTS = 1 << 8
# The position of a value that is no call's result.
_ARRAY = -1
_BUFFER = Ops.BUFFER


class Looks:
    """The lock of all steps from one way of knowing a value to another: see `Storage`.

    Nothing is computed while it is held, no Python of a call runs, and no other lock is asked for.
    """

    lock: threading.RLock

    def __init__(self) -> None:
        give_lock(self)


looks = Looks()


class Form:
    """What a value looks like, and its class of tensors; equal ones of a session are one object."""

    __slots__ = ("device", "dtype", "grad", "kind", "shape")

    def __init__(
        self, kind: type[Any], dtype: DType, shape: tuple[int, ...], device: str, grad: bool
    ) -> None:
        self.kind = kind
        self.dtype = dtype
        self.shape = shape
        self.device = device
        self.grad = grad


class OperandPlace:
    """The place of an operand among arguments that are the same in every call."""

    __slots__ = ("operand",)

    def __init__(self, operand: int) -> None:
        self.operand = operand


class Shown:
    """How a call shows a result: which storage through which steps.

    source: the number of the call's own value, or ~ the number of an operand that it is a view of,
    whose steps come first. steps: None where it is that operand itself. look: its shape and dtype,
    where it has steps. argument: which argument that operand is, None if it is a part of one or is
    given by name.
    """

    __slots__ = ("argument", "kind", "look", "source", "steps")

    def __init__(
        self, kind: type[Any], source: int, steps: tuple[Step, ...] | None,
        look: tuple[tuple[int, ...], DType] | None, argument: int | None,
    ) -> None:
        self.argument = argument
        self.kind = kind
        self.source = source
        self.steps = steps
        self.look = look


class Template:
    """What is made of values of one description: `run` gives the nodes of the results.

    results: the form of each. written_out: how much oftener calls of it were written out than
    computed by key. needs_history: it asks what its first operand is made of, not for its value.
    """

    __slots__ = ("results", "written_out")
    needs_history = False

    def __init__(self, results: tuple[Form, ...]) -> None:
        self.results = results
        self.written_out = 0

    def run(self, values: Sequence[tuple[Node, tuple[Step, ...]]]) -> tuple[Node, ...]:
        """The nodes of the results where the operands are nodes, each seen through steps."""
        raise NotImplementedError


class CallTemplate(Template):
    """An operation on operands of one description.

    args, kwargs: the arguments, with an `OperandPlace` for each operand. operands: the form of each
    one's storage. shown: what a call returns, by `build`; where that is None, the one there is.
    only: the form of the one value, where it is returned as it is. recorded: whether gradients are.
    """

    __slots__ = ("args", "build", "function", "kwargs", "only", "operands", "recorded", "shown")

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
        operands: tuple[Form, ...], results: tuple[Form, ...],
        shown: tuple[Shown, ...], build: Callable[[list[Any]], Any] | None,
    ) -> None:
        super().__init__(results)
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.operands = operands
        self.shown = shown
        self.build = build
        plain = build is None and shown[0].source == 0 and not shown[0].steps
        self.only = results[0] if plain else None
        self.recorded = grad_enabled()

    def run(self, values: Sequence[tuple[Node, tuple[Step, ...]]]) -> tuple[Node, ...]:
        """The nodes of the results of a call whose operands are nodes, each seen through steps."""
        operands = [
            form.kind._holding(node, form.device, form.grad, steps)
            for form, (node, steps) in zip(self.operands, values, strict=True)
        ]
        args = [_filled(arg, operands) for arg in self.args]
        kwargs = {name: _filled(arg, operands) for name, arg in self.kwargs.items()}
        watching = session().watching
        watching.at_once += 1
        try:
            if self.recorded == grad_enabled():
                found = self.function(*args, **kwargs)
            else:
                found = set_grad_enabled(self.recorded).run(self.function, *args, **kwargs)
        finally:
            watching.at_once -= 1
        several = (found,) if self.build is None else found
        made = {
            shown.source: tensor._storage.node
            for shown, tensor in zip(self.shown, several, strict=True)
        }
        return tuple([made[number] for number in range(len(self.results))])


def _filled(argument: Any, operands: Sequence[Any]) -> Any:
    kind = argument.__class__
    if kind is OperandPlace:
        return operands[argument.operand]
    if kind is tuple or kind is list:
        return kind([_filled(part, operands) for part in argument])
    return argument


class DeferredCall:
    """A call of a template: its operands, and the nodes of its results once it is written out.

    Of threads that write it out at once, the nodes of the first are those of all.
    """

    __slots__ = ("nodes", "operands", "template")

    def __init__(
        self,
        template: Template,
        operands: tuple[tuple[Node | DeferredValue, tuple[Step, ...]], ...],
        nodes: tuple[Node, ...] | None = None,
    ) -> None:
        self.template = template
        self.operands = operands
        self.nodes = nodes


class DeferredValue:
    """A value that is known without its node: the result of a call, or an array.

    call: whose result it is, None once that was computed for nothing but its value. handle: the
    buffer that it lies in then. is_read: another call may have it for an operand. is_noted: where
    it lies was noted once, while its call is kept for gradients.
    """

    __slots__ = (
        "__weakref__", "_node", "call", "form", "handle", "is_noted", "is_read", "position",
    )  # fmt: skip
    _node: Node
    handle: Any

    def __init__(self, call: DeferredCall | None, position: int, form: Form) -> None:
        self.call = call
        self.position = position
        self.form = form
        self.is_read = False
        self.is_noted = False

    @classmethod
    def of_leaf(cls, node: Node, form: Form) -> DeferredValue:
        """The value of an array that has a node already."""
        self = cls(None, _ARRAY, form)
        self._node = node
        self.handle = node.arg.handle
        return self

    @classmethod
    def of_array(cls, handle: Any, form: Form) -> DeferredValue:
        """The value of an array in a buffer, over which nobody has a node of another value."""
        self = cls(None, _ARRAY, form)
        self.handle = handle
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the value."""
        return self.form.shape

    @property
    def node(self) -> Node:
        """The value's node, always the same; its call is written out where it was not.

        That of an array is held, so that who counts its readers counts who holds the value.
        """
        call = self.call
        if call is not None and call.nodes is None:
            _write_out(call)
            # Another thread may have computed it meanwhile.
            call = self.call
        if call is None:
            return self._leaf()
        assert call.nodes is not None
        node = call.nodes[self.position]
        if self.is_noted:
            owner = session()
            ref = owner.realised(self)
            if ref is not None and owner.realised(node) is None:
                owner.note(node, ref)
        return node

    def lie_at(self, handle: Any) -> bool:
        """Be the array that was computed, unless the call was written out; whether it is one."""
        with looks.lock:
            call = self.call
            if call is None or call.nodes is not None:
                return False
            self.handle = handle
            self.call = None
            return True

    def _leaf(self) -> Node:
        with suppress(AttributeError):
            return self._node
        form = self.form
        ref = BufferRef(self.handle, form.shape, form.device)
        self._node = make_node(_BUFFER, form.dtype, (), ref, form.shape)
        return self._node


def _write_out(call: DeferredCall) -> None:
    """Run the Python of a call, and before that of all that it needs."""
    # What another call learns from does not count: that is done once.
    counted = not session().watching.at_once
    waiting = [call]
    while waiting:
        one = waiting[-1]
        if one.nodes is None:
            needed = [
                below for value, _ in one.operands
                if isinstance(value, DeferredValue)
                and (below := value.call) is not None and below.nodes is None
            ]
            if needed:
                waiting += needed
                continue
            template = one.template
            template.written_out += counted
            nodes = template.run([
                (value.node if isinstance(value, DeferredValue) else value, steps)
                for value, steps in one.operands
            ])
            with looks.lock:
                one.nodes = one.nodes or nodes
        waiting.pop()


def key_of_one(value: DeferredValue) -> tuple[tuple[Any, ...], list[Any]] | None:
    """The key of a value that a call makes of arrays alone, and its leaves; None for others.

    It is the key that `Asked` makes of it, in a fraction of the time: most values that a program
    asks for one after the other are such.
    """
    call = value.call
    if call is None:
        return None
    key: list[Any] = [call.template]
    leaves: list[Any] = []
    for operand, _ in call.operands:
        if operand.__class__ is not DeferredValue or operand.call is not None:
            return None
        handle = operand.handle
        if handle in leaves:
            key.append(~leaves.index(handle))
        else:
            leaves.append(handle)
            key.append(-len(leaves))
    key.append(value.position)
    return tuple(key), leaves


class Asked:
    """Values that are asked for together, as a key to what computes them.

    key: of each call its template and the places that its operands come from, sources first, and
    the places of what is asked for; None where there is no such key. leaves: the buffers that are
    read, in the order of the key. calls: those of the key, in its order. noted: values that are
    read as arrays, but that gradients may be asked of.
    """

    __slots__ = ("_reads_results", "calls", "key", "leaves", "noted", "values")

    def __init__(self, values: Collection[DeferredValue], owner: SessionLike) -> None:
        self.values = values
        self.leaves: list[Any] = []
        self.noted: dict[DeferredValue, BufferRef] = {}
        self.calls: list[DeferredCall] = []
        self.key: tuple[Any, ...] | None = None
        self._reads_results = False
        # The places of calls and of buffers.
        places: dict[Any, int] = {}
        key: list[Any] = []
        for value in values:
            call = value.call
            if call is None:
                key.append(self._place(value.handle, places))
            elif call in places or self._enter(call, places, key, owner):
                key.append(places[call] + value.position)
            else:
                return
        if self.noted and any(call.template.needs_history for call in self.calls):
            # What a gradient is of is there as an array alone.
            return
        self.key = tuple(key)

    def _enter(
        self, root: DeferredCall, places: dict[Any, int], key: list[Any], owner: SessionLike
    ) -> bool:
        """Put a call and all that is below it into the key; False where they are too many."""
        calls, leaves = self.calls, self.leaves
        waiting = [root]
        while waiting:
            call = waiting[-1]
            row: list[Any] = [call.template]
            is_ready = True
            for value, _ in call.operands:
                if isinstance(value, DeferredValue):
                    below = value.call
                    if below is None:
                        handle = value.handle
                        if value.position != _ARRAY:
                            self._reads_results = True
                    elif value.is_noted and (ref := self._noted(value, call, owner)):
                        handle = ref.handle
                    else:
                        place = places.get(below)
                        if place is None:
                            waiting.append(below)
                            is_ready = False
                        else:
                            row.append(place + value.position)
                        continue
                elif value.op is _BUFFER:
                    handle = value.arg.handle
                else:
                    continue
                place = places.get(handle)
                if place is None:
                    place = places[handle] = ~len(leaves)
                    leaves.append(handle)
                row.append(place)
            if is_ready:
                waiting.pop()
                if call not in places:
                    key += row
                    places[call] = len(calls) * _OUTPUTS
                    calls.append(call)
                    if len(calls) > MOST_CALLS:
                        return False
        return True

    def _noted(
        self, value: DeferredValue, reader: DeferredCall, owner: SessionLike
    ) -> BufferRef | None:
        """Where a value lies that was computed and whose call is kept; None where that is gone."""
        if reader.template.needs_history:
            return None
        ref = owner.realised(value)
        if ref is not None:
            self.noted[value] = ref
        return ref

    def _place(self, handle: Any, places: dict[Any, int]) -> int:
        """The place of a buffer among the leaves."""
        place = places.setdefault(handle, ~len(self.leaves))
        if place == ~len(self.leaves):
            self.leaves.append(handle)
        return place

    def write_out(self) -> list[Node]:
        """The nodes of what is asked for, over leaves that are read and nothing else.

        Where a value was computed before, it is read as an array here, so that the graph is that
        of every call with this key.
        """
        if not self._reads_results and not self.noted:
            return [value.node for value in self.values]
        made: dict[DeferredCall, tuple[Node, ...]] = {}

        def node_of(value: Node | DeferredValue) -> Node:
            if not isinstance(value, DeferredValue):
                return value
            ref = self.noted.get(value)
            if ref is not None:
                return make_node(_BUFFER, value.form.dtype, (), ref, value.form.shape)
            call = value.call
            return value.node if call is None else made[call][value.position]

        for call in self.calls:
            made[call] = call.template.run(
                [(node_of(value), steps) for value, steps in call.operands]
            )
        return [node_of(value) for value in self.values]
