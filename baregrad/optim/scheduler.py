"""What schedules share: the count of steps, and rates that are set by it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from baregrad.base.errors import JitError
from baregrad.dtypes import dtypes
from baregrad.optim.optimizer import Optimizer
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import explain_arguments, explain_constructor
from baregrad.tensor.array.link import session

# Of the first rate, how far from the end of a curve counts as there: more than rounding makes.
_AT_END = 1e-9


# What takes the place of a rate that something else set, of it and of the rate of count 0.
Following = Callable[[Tensor, float], Tensor]


class Others:
    """What tells, for each group of parameters, whether something else set its rate."""

    def __init__(self) -> None:
        # What the rates would be now if nothing else had set them.
        self._own: dict[int, Tensor] = {}

    @property
    def tensors(self) -> list[Tensor]:
        """What is kept from step to step."""
        return list(self._own.values())

    def set(
        self, place: int, there: Tensor, base: float, rate: Tensor, following: Following
    ) -> None:
        """Set a group's rate: the one of the count, or what follows the one that is there."""
        if place not in self._own:
            self._own[place] = there.full_like(base)
        own = self._own[place]
        # Computed once, so that what is there and what is compared with it are the same number.
        rate = rate.cast(there.dtype).contiguous()
        followed = following(there.cast(dtypes.float64), base).cast(there.dtype)
        there.copy_((there != own).where(followed, rate).contiguous())
        own.copy_(rate)


def kept_rate(rate: Tensor, base: float) -> Tensor:
    """A rate that was loaded with the optimiser's state stays."""
    return rate


class LRScheduler:
    """The base of schedules; a subclass writes `rate`. Made, it sets the rates of step 0.

    Or it writes `get_lr`, as PyTorch's do: a Python function of `last_epoch`, which gives a rate
    for each group. Such a one raises JitError when it is stepped inside a captured function, whose
    replays would not call it. last_epoch: the step to go on behind, -1 to begin.

    A rate is a function of the count of steps. Those that PyTorch computes of the rate before go on
    from what something else set in the meantime, as PyTorch's do (`is_followed`); the others, whose
    rates it computes of the count alone, set theirs whatever there is.
    """

    # Whether a rate that something else set is gone on from.
    is_followed: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        explain_constructor(cls)

    def __init__(
        self, optimizer: Optimizer, last_epoch: int = -1, verbose: object = False
    ) -> None:
        self.optimizer = optimizer
        first = optimizer.param_groups[0].lr
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.steps = Tensor(last_epoch + 1.0, dtype=dtypes.float64, device=first.device)
        self._others = Others()
        self._set(self.begun if last_epoch < 0 else self._moved)

    @property
    def last_epoch(self) -> int:
        """The count of steps, read; settable. Raises JitError inside a captured function."""
        return self._count_read()

    @last_epoch.setter
    def last_epoch(self, count: float) -> None:
        with Tensor.no_grad():
            self.steps.fill_(count)

    def _count_read(self) -> int:
        if session().watching.downloads:
            raise JitError(
                f"{type(self).__name__} computes its rate in Python, which a replay would not",
                hint="step it outside the captured function, which sees its rates",
            )
        count = self.steps.item()
        return int(count) if count == int(count) else count

    def get_lr(self) -> list[Any]:
        """Return the rate of each group at the present count; computes them."""
        return [self.rate(base, self.steps).item() for base in self.base_lrs]

    def rate(self, base: float, steps: Tensor) -> Tensor:
        """Return the rate after `steps` steps, a float64 scalar, where `base` is that of 0."""
        raise NotImplementedError(f"{type(self).__name__} has no rate()")

    def begun(self, rate: Tensor, base: float) -> Tensor:
        """Return what the schedule starts at where something else set another rate before."""
        return rate * (self.rate(base, self.steps) / base) if base else rate

    def moved(self, rate: Tensor, base: float, steps: Tensor) -> Tensor:
        """Return what follows a rate that something else set one step before `steps`.

        Its distance to the end of the curve changes by the share that the curve's does.
        """
        if not self.is_followed:
            return self.rate(base, steps)
        end = self.end()
        before, now = self.rate(base, steps - 1) - end, self.rate(base, steps) - end
        # Where the curve was at its end there is no share, and it changes by as much.
        is_there = before.abs() <= _AT_END * abs(base)
        share = now / is_there.where(1.0, before)
        return is_there.where(rate + (now - before), end + (rate - end) * share)

    def end(self) -> float:
        """Return the rate that distances are counted from."""
        return 0.0

    def step(self, epoch: float | None = None) -> None:
        """Move on by one step, or to a count of them, and change the rates of the optimiser."""
        if epoch is not None:
            self.last_epoch = epoch
            self._set(lambda rate, base: self.rate(base, self.steps))
            return
        with Tensor.no_grad():
            self.steps.add_(1)
        self._set(self._moved)

    def _moved(self, rate: Tensor, base: float) -> Tensor:
        return self.moved(rate, base, self.steps)

    def _set(self, following: Following) -> None:
        """Set the rates of the count, or what follows those that something else set."""
        if type(self).get_lr is not LRScheduler.get_lr:
            self._count_read()
            rates = self.get_lr()
            for group, own in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = own
            return
        with Tensor.no_grad():
            groups = zip(self.optimizer.param_groups, self.base_lrs, strict=True)
            for place, (group, base) in enumerate(groups):
                rate = self.rate(base, self.steps)
                if self.is_followed:
                    self._others.set(place, group.lr, base, rate, following)
                else:
                    group.lr.copy_(rate.contiguous())
        # Computed with the optimiser's next step, and not later: the count would grow a chain.
        session().watching.companions.extend(
            weakref.ref(each._storage) for each in (self.steps, *self._others.tensors)
        )

    def get_last_lr(self) -> list[float]:
        """Return the present rate of each group; computes them."""
        return [group.lr.item() for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the step count and the base rates."""
        return {"last_epoch": round(self.steps.item()), "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` (or PyTorch's) returned.

        Rates that the optimiser's state brought stay as they are, and are gone on from.
        """
        self._count_from(state_dict)
        self._set(kept_rate)

    def _count_from(self, state_dict: Mapping[str, Any]) -> None:
        self.base_lrs = [float(rate) for rate in state_dict["base_lrs"]]
        with Tensor.no_grad():
            self.steps.copy_(Tensor(float(state_dict["last_epoch"]), dtype=dtypes.float64))


explain_constructor(LRScheduler)
explain_arguments(LRScheduler)
