"""Cycles: rates that rise to a peak and fall, once or again and again, momenta the other way."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import NamedTuple

from baregrad.base.errors import ArgumentError
from baregrad.dtypes import dtypes
from baregrad.optim.optimizer import Optimizer, ParamGroup
from baregrad.optim.scheduler import Following, LRScheduler
from baregrad.tensor import Tensor
from baregrad.tensor.array.link import session


class _Phase(NamedTuple):
    """Steps up to `end`, from one place to another; places are 0 initial, 1 peak, 2 last."""

    end: float
    before: int
    after: int
    rises: bool | None  # the momentum falls while the rate rises; None where it stays


class _Cycling(LRScheduler):
    """A schedule that may move momenta as well, or the first betas."""

    _cycled: list[Tensor]

    def momentum(self, steps: Tensor) -> Tensor:
        """Return the momentum after `steps` steps, a float64 scalar."""
        raise NotImplementedError

    def _set(self, following: Following) -> None:
        super()._set(following)
        with Tensor.no_grad():
            for group, momentum in zip(self.optimizer.param_groups, self._cycled, strict=False):
                momentum.copy_(self.momentum(self.steps).contiguous())
                # Looked at each time: a state that the optimiser loads has a number there.
                if "betas" not in group:
                    group["momentum"] = momentum
                elif group["betas"][0] is not momentum:
                    group["betas"] = (momentum, group["betas"][1])
                session().watching.companions.append(weakref.ref(momentum._storage))


class OneCycleLR(_Cycling):
    """From max_lr/div_factor to max_lr and down to the first rate divided by final_div_factor.

    max_lr: of all groups, or one for each. The cycle takes `total_steps`, or epochs *
    steps_per_epoch; its last rate stays after that. pct_start: the share of steps that rise.
    anneal_strategy: "cos" or "linear". cycle_momentum: the momentum, or Adam's first beta, goes
    from max_momentum to base_momentum and back meanwhile. three_phase: fall to the first rate as
    long as it rose, then to the last. Raises ArgumentError for settings out of range, or for an
    optimiser without momentum.

    Source: L. Smith and N. Topin, Super-Convergence, 2017, as PyTorch has it.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float = 0.85,
        max_momentum: float = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
    ) -> None:
        if total_steps is None:
            total_steps = (epochs or 0) * (steps_per_epoch or 0)
        if total_steps < 1:
            raise ArgumentError(
                "a cycle has steps", found=total_steps,
                hint="give total_steps, or epochs and steps_per_epoch",
            )
        if anneal_strategy not in ("cos", "linear"):
            raise ArgumentError("anneal_strategy is 'cos' or 'linear'", found=repr(anneal_strategy))
        if not 0 <= pct_start <= 1:
            raise ArgumentError(f"a share of the steps is from 0 to 1, not {pct_start}")
        groups = optimizer.param_groups
        peaks = [max_lr] * len(groups) if isinstance(max_lr, int | float) else list(max_lr)
        if len(peaks) != len(groups):
            raise ArgumentError(f"{len(peaks)} peaks for {len(groups)} groups")
        self.total_steps = total_steps
        self.anneal_strategy = anneal_strategy
        self.div_factor, self.final_div_factor = div_factor, final_div_factor
        self.momenta = (max_momentum, base_momentum)
        rise = pct_start * total_steps - 1
        self.phases = [_Phase(rise, 0, 1, True), _Phase(total_steps - 1, 1, 2, False)]
        if three_phase:
            fall = 2 * pct_start * total_steps - 2
            self.phases[1:] = [_Phase(fall, 1, 0, False), _Phase(total_steps - 1, 0, 2, None)]
        for group, peak in zip(groups, peaks, strict=True):
            group["initial_lr"] = peak / div_factor
        self._cycled = [_cycled(group) for group in groups] if cycle_momentum else []
        super().__init__(optimizer)

    def rate(self, base: float, steps: Tensor) -> Tensor:
        """Return the rate after `steps` steps."""
        places = (base, base * self.div_factor, base / self.final_div_factor)
        return self._along(steps, [(places[p.before], places[p.after]) for p in self.phases])

    def _along(self, steps: Tensor, ways: Sequence[tuple[float, float]]) -> Tensor:
        """The value after `steps` steps of what goes one way in each phase."""
        found: Tensor | None = None
        for number in reversed(range(len(self.phases))):
            begin = self.phases[number - 1].end if number else 0.0
            end = self.phases[number].end
            share = ((steps - begin) / (end - begin if end != begin else 1.0)).clamp(max=1.0)
            start, stop = ways[number]
            if self.anneal_strategy == "cos":
                value = stop + (1 + (share * math.pi).cos()) * ((start - stop) / 2)
            else:
                value = start + (stop - start) * share
            found = value if found is None else (steps <= end).where(value, found)
        assert found is not None
        return found

    def momentum(self, steps: Tensor) -> Tensor:
        """Return the momentum after `steps` steps."""
        high, low = self.momenta
        ways = {True: (high, low), False: (low, high), None: (high, high)}
        return self._along(steps, [ways[phase.rises] for phase in self.phases])


class CyclicLR(_Cycling):
    """From base_lr up to max_lr in step_size_up steps, down in step_size_down, and again.

    mode: the height stays ("triangular"), halves each time ("triangular2"), or is multiplied by
    gamma**steps ("exp_range"). cycle_momentum: the momentum, or Adam's first beta, goes from
    max_momentum to base_momentum and back meanwhile. Raises ArgumentError. Source: L. Smith, 2017.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float,
        max_lr: float,
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        cycle_momentum: bool = True,
        base_momentum: float = 0.8,
        max_momentum: float = 0.9,
    ) -> None:
        if mode not in ("triangular", "triangular2", "exp_range"):
            raise ArgumentError(
                "mode is 'triangular', 'triangular2' or 'exp_range'", found=repr(mode)
            )
        down = step_size_up if step_size_down is None else step_size_down
        if not step_size_up > 0 or not down > 0:
            raise ArgumentError("a cycle rises and falls", found=f"{step_size_up}, {down} steps")
        self.max_lr, self.mode, self.gamma = max_lr, mode, gamma
        self.length = float(step_size_up + down)
        self.share = step_size_up / self.length
        self.momenta = (max_momentum, base_momentum)
        for group in optimizer.param_groups:
            group["initial_lr"] = base_lr
        groups = optimizer.param_groups
        self._cycled = [_cycled(group) for group in groups] if cycle_momentum else []
        super().__init__(optimizer)

    def _height(self, steps: Tensor) -> Tensor:
        """How high after `steps` steps, where the first peak is 1."""
        turns = steps / self.length
        place = turns - turns.floor()
        rising, falling = place / self.share, (place - 1) / (self.share - 1)
        height = (place <= self.share).where(rising, falling).clamp(min=0.0)
        if self.mode == "triangular2":
            return height / 2 ** turns.floor()
        return height * self.gamma**steps if self.mode == "exp_range" else height

    def rate(self, base: float, steps: Tensor) -> Tensor:
        """Return the rate after `steps` steps."""
        return base + (self.max_lr - base) * self._height(steps)

    def momentum(self, steps: Tensor) -> Tensor:
        """Return the momentum after `steps` steps."""
        high, low = self.momenta
        return high - (high - low) * self._height(steps)


def _cycled(group: ParamGroup) -> Tensor:
    """What a group's momentum is to be: a float64 scalar beside its rate."""
    if "momentum" not in group and "betas" not in group:
        raise ArgumentError(
            "the optimiser has no momentum to cycle", hint="give cycle_momentum=False"
        )
    return Tensor(0.0, dtype=dtypes.float64, device=group.lr.device)
