"""The gradients that a captured function makes: of what it closes over, and of its arguments."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Sequence

from baregrad.base.errors import JitError
from baregrad.ir.core.op import Ops
from baregrad.tensor.array.storage import Storage
from baregrad.tensor.array.views import assign_gradient
from baregrad.tensor.jit.parts import Call
from baregrad.tensor.jit.state import Look
from baregrad.tensor.tensor import Tensor

_steps_of = operator.attrgetter("_gradient._steps")


class Gradients:
    """What a capture did to gradients, and how a replay does it again.

    held: tensors that the function closes over, and whether each had no gradient before. renewed:
    those of them that have another gradient now. looks: where the gradients of before are stored.
    marked: arguments that the function made leaves. of_arguments: the arguments, by position, whose
    gradient it changed. are_renewed: there are any of `renewed` or `of_arguments`.
    unlooked: those of `held` whose gradient is no state that replays watch. read: those whose
    gradient lies in such state, several perhaps in the same.
    """

    def __init__(
        self,
        call: Call,
        clones: Sequence[Tensor],
        before: Sequence[tuple[Tensor, Tensor | None]],
    ) -> None:
        """`clones` stood in for the call's tensors; `before`: the gradients before the call.

        Raises JitError where a gradient reaches an argument that is no leaf.
        """
        self.held = [(t, old is None) for t, old in before]
        self.unlooked = self.held
        self.read: list[Tensor] = []
        self._views = [() if old is None else old._steps for _, old in before]
        self._stored = [0 if old is None else id(old._storage) for _, old in before]
        self._places: list[int] = []
        self.renewed = [(t, t.grad) for t, old in before if t.grad is not old]
        self.looks: dict[int, Look] = {
            id(old._storage): GradientLook(t) for t, old in before if old is not None
        }
        self.marked: list[int] = []
        self.of_arguments: list[tuple[int, Tensor | None]] = []
        for position in range(call.given):
            clone, tensor = clones[position], call.tensors[position]
            place = call.grads.get(position)
            if clone.grad is not (None if place is None else clones[place]):
                if not tensor.is_leaf:
                    raise JitError(
                        "a gradient reaches an argument that was computed outside of the function",
                        hint="pass what it was computed from, or detach() it",
                    )
                self.of_arguments.append((position, clone.grad))
            if clone.requires_grad and not tensor.requires_grad and clone.is_leaf:
                self.marked.append(position)
        self.are_renewed = bool(self.renewed or self.of_arguments)

    def watched(self, looks: Collection[Look], closed: Iterable[Tensor]) -> None:
        """Note which gradients are looked at as state: of those a change is seen anyway.

        To be called while the storages of before are there. closed: what the function reaches.
        """
        seen = {id(look.tensor) for look in looks if isinstance(look, GradientLook)}
        stored = {
            place for place, look in self.looks.items()
            if isinstance(look, GradientLook) and id(look.tensor) in seen
        }
        held = zip(self.held, self._stored, self._views, strict=True)
        read = [(t, place, steps) for (t, _), place, steps in held if place in stored]
        self.unlooked = [each for each in self.held if id(each[0]) not in seen]
        self.read = [tensor for tensor, _, _ in read]
        self._views = [steps for _, _, steps in read]
        self._places = _places((place for _, place, _ in read), closed)

    def are_other(self, untouched: bool, closed: Iterable[Tensor]) -> bool:
        """Whether gradients are not as they were: there or not, views, stored together or apart.

        untouched: all state is, gradients among it. closed: what the function reaches.
        """
        for tensor, was_none in self.unlooked if untouched else self.held:
            if (tensor._gradient is None) is not was_none:
                return True
        if not self.read:
            return False
        same = all(map(operator.is_, map(_steps_of, self.read), self._views))
        if not same and [*map(_steps_of, self.read)] != self._views:
            return True
        # Where each has state of its own, that has told of any change.
        if untouched and len(self.read) + len(self.unlooked) == len(self.held):
            return False
        gradients = [tensor._gradient for tensor in self.read]
        stored = [0 if gradient is None else id(gradient._storage) for gradient in gradients]
        return _places(stored, closed) != self._places

    def made(self) -> list[Tensor]:
        """The gradients that the capture made, in the order in which a replay gives its."""
        return [g for _, g in (*self.renewed, *self.of_arguments) if g is not None]

    def renew(self, call: Call, storages: Sequence[Storage]) -> None:
        """Put this call's gradients, in memory of their own, where the captured ones were."""
        places = iter(storages)
        targets: list[tuple[Tensor, Tensor | None]] = [
            *self.renewed,
            *((call.tensors[i], g) for i, g in self.of_arguments),
        ]
        for tensor, gradient in targets:
            if gradient is not None:
                steps = tuple(step for step in gradient._steps if step[0] is not Ops.DETACH)
                gradient = type(gradient)._on(next(places), steps)
            # It has the shape and dtype of the captured one, which were looked at then.
            assign_gradient(tensor, gradient)


def _places(stored: Iterable[int], closed: Iterable[Tensor]) -> list[int]:
    """Which of the storages with these ids are the same, or those of `closed`, by numbers."""
    order: dict[int, int] = {}
    every = [*(id(tensor._storage) for tensor in closed), *stored]
    return [order.setdefault(place, len(order)) for place in every]


class GradientLook:
    """Where the gradient that a tensor has now is stored."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __call__(self) -> Storage | None:
        """The storage, None where there is no gradient now."""
        gradient = self.tensor.grad
        return None if gradient is None else gradient._storage
