"""The gradients that a captured function makes: of what it closes over, and of its arguments."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from baregrad.base.errors import JitError
from baregrad.ir.core.op import Ops
from baregrad.tensor.array.storage import Storage
from baregrad.tensor.jit.parts import Call
from baregrad.tensor.jit.state import Look
from baregrad.tensor.tensor import Tensor


class Gradients:
    """What a capture did to gradients, and how a replay does it again.

    held: tensors that the function closes over, and whether each had no gradient before. renewed:
    those of them that have another gradient now. looks: where the gradients of before are stored.
    marked: arguments that the function made leaves. of_arguments: the arguments, by position, whose
    gradient it changed. are_renewed: there are any of `renewed` or `of_arguments`.
    unlooked: those of `held` whose gradient is no state that replays watch.
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

    def watched(self, looks: Collection[Look]) -> None:
        """Note which gradients are looked at as state: of those a change is seen anyway."""
        seen = {id(look.tensor) for look in looks if isinstance(look, GradientLook)}
        self.unlooked = [each for each in self.held if id(each[0]) not in seen]

    def are_other(self, untouched: bool) -> bool:
        """Whether a tensor has a gradient now and had none, or the other way round.

        untouched: all state is, gradients among it.
        """
        for tensor, was_none in self.unlooked if untouched else self.held:
            if (tensor._gradient is None) is not was_none:
                return True
        return False

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
            tensor._gradient = gradient


class GradientLook:
    """Where the gradient that a tensor has now is stored."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __call__(self) -> Storage | None:
        """The storage, None where there is no gradient now."""
        gradient = self.tensor.grad
        return None if gradient is None else gradient._storage
