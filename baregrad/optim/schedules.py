"""Learning rates that follow a curve over the steps.

A schedule counts its steps in a tensor and computes the rates from it on the device, so it may be
stepped inside a captured function or outside. `LambdaLR`, whose curve is Python, only outside.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from baregrad.base.errors import ArgumentError, JitError
from baregrad.dtypes import dtypes
from baregrad.optim.optimizer import Optimizer
from baregrad.optim.scheduler import Following, LRScheduler, Others, kept_rate
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import explain_arguments, explain_constructor
from baregrad.tensor.array.link import session


class StepLR(LRScheduler):
    """base * gamma**(steps // step_size)."""

    is_followed = True

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, steps: Tensor) -> Tensor:
        """Return the rate after `steps` steps."""
        # The half keeps a count that divides exactly on its own side of rounding.
        return base * self.gamma ** ((steps + 0.5) / self.step_size).floor()


class MultiStepLR(LRScheduler):
    """base * gamma**n, where n of the milestones have been reached."""

    is_followed = True

    def __init__(
        self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        self.milestones = sorted(milestones)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, steps: Tensor) -> Tensor:
        """Return the rate after `steps` steps."""
        reached = steps.zeros_like()
        for milestone in self.milestones:
            reached = reached + (steps >= milestone).cast(dtypes.float64)
        return base * self.gamma**reached


class ExponentialLR(LRScheduler):
    """base * gamma**steps."""

    is_followed = True

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, steps: Tensor) -> Tensor:
        """Return the rate after `steps` steps."""
        return base * self.gamma**steps


class CosineAnnealingLR(LRScheduler):
    """From base to eta_min over T_max steps along half a cosine, and on along it.

    Source: I. Loshchilov and F. Hutter, ICLR 2017.
    """

    is_followed = True

    def __init__(
        self,
        optimizer: Optimizer,
        T_max: int,  # noqa: N803 - PyTorch's name
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def end(self) -> float:
        """Return the rate that distances are counted from."""
        return self.eta_min

    def rate(self, base: float, steps: Tensor) -> Tensor:
        """Return the rate after `steps` steps."""
        return self.eta_min + (base - self.eta_min) * (
            (1 + (steps * (math.pi / self.T_max)).cos()) * 0.5
        )


class CosineAnnealingWarmRestarts(LRScheduler):
    """From base to eta_min along half a cosine, again and again.

    The first time takes T_0 steps, each other one T_mult times as many as the one before. Raises
    ArgumentError for lengths below 1. Source: I. Loshchilov and F. Hutter, ICLR 2017.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,  # noqa: N803 - PyTorch's names
        T_mult: int = 1,  # noqa: N803
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        if T_0 < 1 or T_mult < 1:
            raise ArgumentError("T_0 and T_mult are integers from 1 on", found=f"{T_0}, {T_mult}")
        self.T_0 = T_0
        self.T_mult = T_mult
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, steps: Tensor) -> Tensor:
        """Return the rate after `steps` steps."""
        # What is added keeps a count that is a cycle's first on its own side of rounding, and of
        # fractions.
        if self.T_mult == 1:
            begin = ((steps + 2.0**-14) / self.T_0).floor() * self.T_0
            length: Tensor | int = self.T_0
        else:
            done = (steps + 2.0**-14) * ((self.T_mult - 1) / self.T_0) + 1
            times = self.T_mult ** (done.log() / math.log(self.T_mult)).floor()
            begin = self.T_0 * (times - 1) / (self.T_mult - 1)
            length = self.T_0 * times
        share = (steps - begin) / length
        return self.eta_min + (base - self.eta_min) * ((1 + (share * math.pi).cos()) * 0.5)


class ConstantLR(LRScheduler):
    """base times a factor for the first total_iters steps, base after that."""

    is_followed = True

    def __init__(
        self, optimizer: Optimizer, factor: float = 1 / 3, total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, steps: Tensor) -> Tensor:
        """Return the rate after `steps` steps."""
        return (steps < self.total_iters).where(base * self.factor, steps * 0 + base)


class PolynomialLR(LRScheduler):
    """base * (1 - steps/total_iters)**power, and 0 after total_iters steps."""

    is_followed = True

    def __init__(
        self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1
    ) -> None:
        self.total_iters = total_iters
        self.power = power
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, steps: Tensor) -> Tensor:
        """Return the rate after `steps` steps."""
        left = (1 - steps / max(self.total_iters, 1)).clamp(min=0.0)
        return base * left**self.power


class LinearLR(LRScheduler):
    """base times a factor that goes from start_factor to end_factor over total_iters steps."""

    is_followed = True

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, steps: Tensor) -> Tensor:
        """Return the rate after `steps` steps."""
        share = (steps / max(self.total_iters, 1)).clamp(max=1.0)
        return base * (self.start_factor + (self.end_factor - self.start_factor) * share)


class LinearWarmup(LinearLR):
    """base times a factor that goes from start_factor to 1 over warmup_steps steps."""

    def __init__(
        self, optimizer: Optimizer, warmup_steps: int, start_factor: float = 0.0
    ) -> None:
        super().__init__(optimizer, start_factor, 1.0, warmup_steps)


class SequentialLR(LRScheduler):
    """Schedules one after another, each counting from 0 at its milestone, as of the same base."""

    is_followed = True

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int]
    ) -> None:
        if len(schedulers) != len(milestones) + 1:
            raise ArgumentError(
                f"{len(schedulers)} schedules have {len(schedulers) - 1} milestones between them, "
                f"not {len(milestones)}"
            )
        self.schedulers = list(schedulers)
        self.milestones = list(milestones)
        super().__init__(optimizer)

    def begun(self, rate: Tensor, base: float) -> Tensor:
        """Return the first rate, whatever those of the schedules, as they were made, left."""
        return self.rate(base, self.steps)

    def moved(self, rate: Tensor, base: float, steps: Tensor) -> Tensor:
        """Return what follows a rate that something else set: a schedule's own where it begins."""
        found = self.schedulers[0].moved(rate, base, steps)
        for schedule, start in zip(self.schedulers[1:], self.milestones, strict=True):
            later = schedule.moved(rate, base, steps - start)
            first = schedule.rate(base, steps - start)
            found = (steps > start).where(later, (steps == start).where(first, found))
        return found

    def rate(self, base: float, steps: Tensor) -> Tensor:
        """Return the rate after `steps` steps."""
        found = self.schedulers[0].rate(base, steps)
        for schedule, start in zip(self.schedulers[1:], self.milestones, strict=True):
            found = (steps >= start).where(schedule.rate(base, steps - start), found)
        return found


class LambdaLR(LRScheduler):
    """base times a Python function of the step count, one function or one for each group.

    Raises JitError when it is stepped inside a captured function, whose replays would not call it.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        functions: list[Any] = [lr_lambda] * len(optimizer.param_groups)
        if isinstance(lr_lambda, Sequence):
            functions = list(lr_lambda)
        if len(functions) != len(optimizer.param_groups):
            raise ArgumentError(
                f"{len(functions)} functions for {len(optimizer.param_groups)} groups"
            )
        self.lr_lambdas = functions
        super().__init__(optimizer, last_epoch)

    def _set(self, following: Following) -> None:
        count = self._count_read()
        groups = self.optimizer.param_groups
        for group, base, function in zip(groups, self.base_lrs, self.lr_lambdas, strict=True):
            group["lr"] = base * function(count)


class MultiplicativeLR(LambdaLR):
    """At each step, the rate before times a Python function of the step count: see `LambdaLR`."""

    def _set(self, following: Following) -> None:
        count = self._count_read()
        for group, function in zip(self.optimizer.param_groups, self.lr_lambdas, strict=True):
            if count:
                group["lr"] = group.lr.item() * function(count)


class ChainedScheduler:
    """Several schedules of one optimiser, whose rates, as shares of the first, are multiplied.

    Each is one whose rate is proportional to the first, as those of factors and powers are. Raises
    ArgumentError for none, or for schedules of another optimiser.
    """

    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        if not isinstance(schedulers, Iterable):
            raise ArgumentError(
                "a chain is of schedules", found=type(schedulers).__name__, wanted="a list of them"
            )
        given = list(schedulers)
        if not given:
            raise ArgumentError("a chain of schedules has some", found="none")
        for one in given:
            if not isinstance(one, LRScheduler):
                raise ArgumentError("a chain is of schedules", found=type(one).__name__)
        self.optimizer = optimizer or given[0].optimizer
        if any(one.optimizer is not self.optimizer for one in given):
            raise ArgumentError("schedules of one optimiser are chained", found="several")
        self._schedulers = given
        self.base_lrs = list(given[0].base_lrs)
        self._others = Others()
        self._set(self._begun)

    def step(self) -> None:
        """Move all schedules on by one step, and change the rates of the optimiser."""
        with Tensor.no_grad():
            for one in self._schedulers:
                one.steps.add_(1)
        self._set(self._moved)

    def _rate(self, base: float) -> Tensor:
        """The product of the shares of the first rate that the schedules give."""
        total = Tensor(base, dtype=dtypes.float64, device=self._schedulers[0].steps.device)
        for one in self._schedulers:
            total = total * one.rate(base, one.steps) / base
        return total

    def _begun(self, rate: Tensor, base: float) -> Tensor:
        return self._rate(base)

    def _moved(self, rate: Tensor, base: float) -> Tensor:
        for one in self._schedulers:
            rate = one.moved(rate, base, one.steps)
        return rate

    def _set(self, following: Following) -> None:
        """Set the rates of the counts, or what follows those that something else set."""
        with Tensor.no_grad():
            groups = zip(self.optimizer.param_groups, self.base_lrs, strict=True)
            for place, (group, base) in enumerate(groups):
                if base:
                    self._others.set(place, group.lr, base, self._rate(base), following)
        kept = [*[one.steps for one in self._schedulers], *self._others.tensors]
        session().watching.companions.extend(weakref.ref(each._storage) for each in kept)

    def get_last_lr(self) -> list[float]:
        """Return the present rate of each group; computes them."""
        return [group.lr.item() for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all schedules."""
        return {"_schedulers": [one.state_dict() for one in self._schedulers],
                "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.base_lrs = [float(rate) for rate in state_dict["base_lrs"]]
        for one, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            one._count_from(state)
        self._set(kept_rate)


class ReduceLROnPlateau:
    """Rates times `factor` once a figure has not got better for more than `patience` steps.

    mode: "min" where less is better, "max" where more is. threshold: by what share of the best
    (threshold_mode "rel") or by how much ("abs") a figure must be better. cooldown: steps after a
    change in which none is counted. min_lr: the least rate. Stepped outside captured functions,
    with the figure; these see its rates. Raises ArgumentError for settings out of range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ArgumentError(
                "mode is min or max and threshold_mode rel or abs",
                found=f"{mode!r} and {threshold_mode!r}",
            )
        if not 0 <= factor < 1:
            raise ArgumentError(f"a factor that reduces is from 0 up to below 1, not {factor}")
        self.optimizer = optimizer
        self.mode, self.factor, self.patience = mode, factor, patience
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.cooldown, self.min_lr, self.eps = cooldown, min_lr, eps
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0

    def step(self, metrics: float | Tensor) -> None:
        """Take note of a figure; change the rates if it is time. Raises JitError if captured."""
        if session().watching.downloads:
            raise JitError(
                "ReduceLROnPlateau looks at its figure in Python, which a replay would not",
                hint="step it outside the captured function, which sees its rates",
            )
        figure = float(metrics)
        self.last_epoch += 1
        if self._is_better(figure):
            self.best, self.num_bad_epochs = figure, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    def _is_better(self, figure: float) -> bool:
        margin = self.threshold * (self.best if self.threshold_mode == "rel" else 1.0)
        if math.isinf(self.best):
            margin = 0.0
        return figure < self.best - margin if self.mode == "min" else figure > self.best + margin

    def _reduce(self) -> None:
        for group in self.optimizer.param_groups:
            old = group.lr.item()
            new = max(old * self.factor, self.min_lr)
            if old - new > self.eps:
                group["lr"] = new

    def get_last_lr(self) -> list[float]:
        """Return the present rate of each group; computes them."""
        return [group.lr.item() for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return what was counted and the best figure."""
        return {
            name: getattr(self, name)
            for name in ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` (or PyTorch's) returned."""
        for name in self.state_dict():
            setattr(self, name, state_dict[name])


explain_constructor(ReduceLROnPlateau)
explain_arguments(ReduceLROnPlateau)
