"""Regions: functions that run as programs of their own, planned once however often they run.

A region is the graph of a function over stand-ins. It is put over arrays in memory and computed at
once, so that nothing inside it stays in memory; its gradient is a region too, which computes what
it needs of the inside again. Where values are not there yet, inside another transformation or with
symbolic extents, the graph is put into the one around it instead.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from baregrad.base.errors import ArgumentError
from baregrad.engine.session import current_session
from baregrad.func.stand_ins import carries, reads_stand_ins, stand_in
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import MOVEMENT, Ops, mask_of
from baregrad.tensor.array.grad_mode import enable_grad
from baregrad.tensor.array.storage import Storage, buffer_node, live_storages
from baregrad.tensor.array.views import Pull, Pulled, twin
from baregrad.tensor.autograd.gradients import pull_back
from baregrad.tensor.autograd.putting_in import (
    handed_over,
    made_of,
    order_below,
    put_in,
    what_was_handed,
)
from baregrad.tensor.tensor import Tensor

_BUFFER = Ops.BUFFER.bit
_MOVEMENT = mask_of(MOVEMENT)


class ProgramRegion:
    """A function's results over stand-ins; every value that it reads is one of `inputs`."""

    def __init__(self, inputs: Sequence[Node], roots: Sequence[Node], device: str) -> None:
        self.inputs = tuple(inputs)
        self.roots = tuple(roots)
        self.device = device
        self._backward: dict[tuple[int, ...], Backward] = {}

    def over(self, values: Sequence[Node]) -> list[Node]:
        """The results as part of a graph over values."""
        return put_in(self.roots, dict(zip(self.inputs, values, strict=True)))

    def run(self, values: Sequence[Node]) -> list[Node]:
        """The results, computed; gradients go on to the values that carry them."""
        if not are_there(values):
            return self.over(values)
        held = stored(values, self.device)
        results = computed(self.over(held), self.device)
        return marked(results, values, held, self._pull)

    def _pull(
        self, values: Sequence[Node], results: Sequence[Node], seeds: Mapping[int, Node]
    ) -> list[Node | None]:
        """The gradient by each value."""
        back = self.backward(seeds)
        found = back.region.run([*values, *[seeds[place] for place in sorted(seeds)]])
        parts: list[Node | None] = [None] * len(values)
        for place, part in zip(back.reached, found, strict=True):
            parts[place] = part
        return parts

    def backward(self, seeded: Collection[int]) -> Backward:
        """The region that takes the inputs, then gradients of these results."""
        key = tuple(sorted(seeded))
        found = self._backward.get(key)
        if found is None:
            found = self._backward[key] = self._differentiated(key)
        return found

    def _differentiated(self, seeded: tuple[int, ...]) -> Backward:
        marks = {one: twin(one) for one in self.inputs if one.dtype.is_float}
        roots = put_in(self.roots, marks)
        wanted = [roots[place] for place in seeded]
        seeds = [stand_in(root.shape, root.dtype, self.device) for root in wanted]
        found = pull_back(wanted, seeds, marks.values(), True)
        reached = [i for i, one in enumerate(self.inputs) if marks.get(one) in found]
        parts = [found[marks[self.inputs[i]]] for i in reached]
        parts = put_in(parts, {mark: one for one, mark in marks.items()})
        return Backward(ProgramRegion([*self.inputs, *seeds], parts, self.device), tuple(reached))


class Backward(NamedTuple):
    """A region's gradients, by those of its inputs whose places are in `reached`."""

    region: ProgramRegion
    reached: tuple[int, ...]


class StorageBefore(NamedTuple):
    """What a storage held, and whether gradients were wanted of it."""

    node: Node
    grad: bool


class TracedRegion(NamedTuple):
    """A function as a region, whose inputs are its arguments, then what it closes over.

    captured: the values of the latter. result: what the function returned, over stand-ins; its
    tensors are the first roots. written: what the storages outside held that it writes; those are
    the last roots.
    """

    region: ProgramRegion
    captured: tuple[Node, ...]
    result: Any
    written: Mapping[Storage, StorageBefore]


def traced_region(
    call: Callable[[list[Tensor]], tuple[Any, list[Tensor]]], given: Sequence[Node], device: str,
    stepped: str = "",
) -> TracedRegion:
    """Call a function on stand-ins for values.

    call: what gives, for tensors, the function's result and the tensors in it. stepped: who runs
    the function as often as there are steps, so that it may write nothing outside of it, for it is
    called once. Raises ArgumentError for one that does.
    """
    ones = [stand_in(value.shape, value.dtype, device) for value in given]
    tensors = [Tensor._make(one, device, one.dtype.is_float) for one in ones]
    with writes_outside() as written, enable_grad(), current_session().watching.standing_in():
        result, found = call(tensors)
    if stepped:
        draws = {state.storage for state in list(current_session().random_states.values())}
        refuse_writes({one: old for one, old in written.items() if one not in draws}, stepped)
    changed = {each: old for each, old in written.items() if reads_stand_ins([each.node])}
    roots = [each._value() for each in found] + [storage.node for storage in changed]
    captured = _captured(roots, set(ones))
    inside = {value: stand_in(value.shape, value.dtype, device) for value in captured}
    roots = put_in(roots, inside)
    region = ProgramRegion([*ones, *inside.values()], roots, device)
    return TracedRegion(region, tuple(captured), result, changed)


@contextmanager
def writes_outside() -> Iterator[dict[Storage, StorageBefore]]:
    """What older storages held that are written inside the block.

    Where it raises, those that hold what is not there yet get it back.
    """
    older = {id(storage): storage.grad for storage in live_storages()}
    written: dict[Storage, StorageBefore] = {}
    writes = current_session().watching.writes

    def note(storage: Storage, old: Node) -> None:
        if id(storage) in older:
            written.setdefault(storage, StorageBefore(old, older[id(storage)]))

    writes.append(note)
    try:
        yield written
    except BaseException:
        put_back({each: old for each, old in written.items() if reads_stand_ins([each.node])})
        raise
    finally:
        writes.remove(note)


def put_back(written: Mapping[Storage, StorageBefore]) -> None:
    """Give tensors what they held."""
    for storage, old in written.items():
        storage.put(old.node, old.grad)


def _captured(roots: Sequence[Node], given: set[Node]) -> list[Node]:
    """The values from outside that a function's results read; constants are the function's own."""
    order = order_below(roots, given)
    reached = set(given)
    found: dict[Node, None] = {}

    def note(value: Node) -> None:
        # Views are the function's own: what is stored is what they are of.
        while value.op.bit & _MOVEMENT and len(value.src) == 1:
            (value,) = value.src
        if value.mask & _BUFFER:
            found.setdefault(value)

    for node in order:
        sources = made_of(node)
        if node not in given and not reached.isdisjoint(sources):
            reached.add(node)
            for source in sources:
                if source not in reached:
                    note(source)
    for root in roots:
        if root not in reached:
            note(root)
    return list(found)


def are_there(values: Sequence[Node]) -> bool:
    """Whether values can be computed now, and have extents that are numbers."""
    plain = all(extent.__class__ is int for value in values for extent in value.shape)
    return plain and not reads_stand_ins(values)


def stored(values: Sequence[Node], device: str) -> list[Node]:
    """The arrays in which values lie, computed together if need be."""
    bare = []
    for value in values:
        while value.op is Ops.DETACH:
            (value,) = value.src
        bare.append(value)
    missing = list(dict.fromkeys([value for value in bare if value.op is not Ops.BUFFER]))
    held = dict(zip(missing, computed(missing, device), strict=True)) if missing else {}
    return [held.get(value, value) for value in bare]


def computed(roots: Sequence[Node], device: str) -> list[Node]:
    """The arrays that values are computed into."""
    if not roots:
        return []
    refs = current_session().realize(list(roots), device)
    return [buffer_node(ref, root.dtype) for ref, root in zip(refs, roots, strict=True)]


def _known_as(value: Node, held: Node) -> Node:
    """The array in which a value lies, with the value's gradient."""
    if not carries(value):
        return held
    return Node(Ops.DETACH, held.dtype, (held,), Pulled((value,), lambda gradient: (gradient,)))


PullAll = Callable[[Sequence[Node], Sequence[Node], dict[int, Node]], Sequence[Node | None]]


def marked(
    results: Sequence[Node], values: Sequence[Node], held: Sequence[Node], pull: PullAll
) -> list[Node]:
    """Arrays whose gradients go to the values that they were computed of, all at once.

    held: the arrays in which the values lie. pull: from these, the results, and the gradients of
    results by their places, to one for each value.
    """
    carriers = [i for i, value in enumerate(values) if carries(value)]
    if not carriers:
        return list(results)
    sources = tuple([values[i] for i in carriers])
    met: list[weakref.ref[Node]] = []

    def with_mark(one: Node, place: int, meeting: Node) -> Node:
        if not one.dtype.is_float:
            return one

        def hand(gradient: Node) -> tuple[Node | None, ...]:
            return (handed_over({place: gradient}),)

        return Node(Ops.DETACH, one.dtype, (one,), Pulled((meeting,), hand))

    def all_marked(meeting: Node) -> list[Node]:
        return [with_mark(one, place, meeting) for place, one in enumerate(results)]

    def pulled(again: bool) -> Pull:
        def rule(handed: Node) -> tuple[Node | None, ...]:
            seeds = what_was_handed(handed)
            if again:
                # What is differentiated again is so by the values, not by where they lie.
                inputs = [_known_as(value, at) for value, at in zip(values, held, strict=True)]
                meeting = met[0]()
                assert meeting is not None
                parts = pull(inputs, all_marked(meeting), seeds)
            else:
                parts = pull(held, results, seeds)
            return tuple([parts[i] for i in carriers])

        return rule

    # The gradients of all results meet here, as marks of zeros that are added up. What is to be
    # freed with its last user holds no circle: the meeting knows itself weakly.
    meets = Pulled(sources, pulled(True), pulled(False))
    nothing = handed_over({})
    meeting = Node(Ops.DETACH, nothing.dtype, (nothing,), meets)
    met.append(weakref.ref(meeting))
    return all_marked(meeting)


def refuse_writes(written: Mapping[Storage, StorageBefore], what: str) -> None:
    """Give tensors from outside back what they held, and raise ArgumentError if there are any."""
    put_back(written)
    if written:
        raise ArgumentError(
            f"the function of {what} changes a tensor that it did not make, in place",
            hint="take its value in, and return the new one",
        )
