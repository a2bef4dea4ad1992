"""Scaled losses, so that gradients of float16 do not vanish.

All is kept in tensors and nothing is read, so that whole steps may be captured.

Source: P. Micikevicius and others, "Mixed Precision Training", ICLR 2018.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from baregrad.base.errors import ArgumentError
from baregrad.dtypes import dtypes
from baregrad.optim.optimizer import Optimizer
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import explain_arguments, explain_constructor
from baregrad.tensor.array.link import session


class GradScaler:
    """Multiplies losses, divides gradients again, and leaves out steps that have overflowed.

    The scale grows by `growth_factor` after `growth_interval` steps without overflow, and shrinks
    by `backoff_factor` at each with one. Raises ArgumentError for factors that do not do so.
    """

    def __init__(
        self, init_scale: float = 2.0**16, growth_factor: float = 2.0,
        backoff_factor: float = 0.5, growth_interval: int = 2000, enabled: bool = True,
        device: str | None = None,
    ) -> None:
        if not growth_factor > 1 or not 0 < backoff_factor < 1 or not init_scale > 0:
            raise ArgumentError(
                "a scale grows by a factor above 1, and shrinks by one below",
                found=f"{growth_factor}, {backoff_factor}, from {init_scale}",
            )
        self.growth_factor, self.backoff_factor = growth_factor, backoff_factor
        self.growth_interval = growth_interval
        self._enabled = enabled
        # Where nothing is scaled there may be no such device.
        device = device if enabled else None
        self._scale = Tensor(float(init_scale), dtype=dtypes.float32, device=device).realize()
        self._steps = Tensor(0.0, dtype=dtypes.float32, device=device).realize()
        # Of optimisers since the last update: whether something was not finite, and who stepped.
        self._found: dict[int, Tensor] = {}
        self._stepped: set[int] = set()

    def is_enabled(self) -> bool:
        """Whether losses are scaled at all."""
        return self._enabled

    def get_scale(self) -> float:
        """Return what losses are multiplied by; computes it."""
        return float(self._scale.item()) if self._enabled else 1.0

    def scale(self, outputs: Any) -> Any:
        """Return a loss, or a list or tuple of them, times the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, list | tuple):
            return type(outputs)([self.scale(one) for one in outputs])
        scaled: Tensor = outputs * self._scale.detach().to(outputs.device)
        return scaled

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an optimiser's parameters by the scale, for clipping them.

        Raises ArgumentError where it was done since the last update.
        """
        if not self._enabled:
            return
        if id(optimizer) in self._found:
            raise ArgumentError(
                "gradients of this optimiser were already divided by the scale",
                hint="call update() at the end of each step",
            )
        bad: Tensor | None = None
        with Tensor.no_grad():
            inverse = 1.0 / self._scale
            for group in optimizer.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    gradient = p.grad.detach().float()
                    wrong = ~gradient.isfinite().all()
                    bad = wrong if bad is None else bad | wrong
                    p.grad = (gradient * inverse.to(p.device)).cast(p.grad.dtype)
        if bad is None:
            raise ArgumentError("no gradient to divide", hint="call backward() first")
        self._found[id(optimizer)] = bad

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Let the optimiser step where all gradients are finite; else nothing of it changes.

        Raises ArgumentError where it stepped since the last update.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if id(optimizer) in self._stepped:
            raise ArgumentError(
                "this optimiser has stepped since the scale was last updated",
                hint="call update() at the end of each step",
            )
        if id(optimizer) not in self._found:
            self.unscale_(optimizer)
        self._stepped.add(id(optimizer))
        bad = self._found[id(optimizer)]
        with Tensor.no_grad():
            optimizer.begin()
            copies: dict[int, Tensor] = {}
            olds = {place: copies.setdefault(id(t), t.detach().clone())
                    for place, t in _held(optimizer).items()}
            result = optimizer.step(*args, **kwargs)
            # By places: a count of steps that several shared may be another tensor afterwards.
            for place, tensor in {id(t): (at, t) for at, t in _held(optimizer).items()}.values():
                # What a step itself makes is as good as none before it.
                old = bad.to(tensor.device).where(olds.get(place, 0.0), tensor)
                tensor.copy_(old.cast(tensor.dtype))
        for tensor in _held(optimizer).values():
            session().watching.companions.append(weakref.ref(tensor._storage))
        return result

    def update(self, new_scale: float | None = None) -> None:
        """Change the scale by what the steps since the last update have met, or to a number."""
        if not self._enabled:
            return
        with Tensor.no_grad():
            if new_scale is not None:
                self._scale.copy_(Tensor(float(new_scale), dtype=dtypes.float32))
            elif self._found:
                bad: Tensor | None = None
                for one in self._found.values():
                    one = one.to(self._scale.device)
                    bad = one if bad is None else bad | one
                assert bad is not None
                count = bad.where(0.0, self._steps + 1)
                grows = count >= self.growth_interval
                grown = grows.where(self._scale * self.growth_factor, self._scale)
                self._scale.copy_(bad.where(self._scale * self.backoff_factor, grown))
                self._steps.copy_(grows.where(0.0, count))
        self._found.clear()
        self._stepped.clear()
        for tensor in (self._scale, self._steps):
            session().watching.companions.append(weakref.ref(tensor._storage))

    def state_dict(self) -> dict[str, Any]:
        """Return the scale, its settings, and the steps since it changed; computes them."""
        return {
            "scale": self.get_scale(), "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor, "growth_interval": self.growth_interval,
            "_growth_tracker": int(self._steps.item()),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` (or PyTorch's) returned."""
        with Tensor.no_grad():
            self._scale.copy_(Tensor(float(state_dict["scale"]), dtype=dtypes.float32))
            self._steps.copy_(Tensor(float(state_dict["_growth_tracker"]), dtype=dtypes.float32))
        self.growth_factor = state_dict["growth_factor"]
        self.backoff_factor = state_dict["backoff_factor"]
        self.growth_interval = state_dict["growth_interval"]


def _held(optimizer: Optimizer) -> dict[tuple[int, str], Tensor]:
    """What a step may change, by parameter and name; the parameters themselves have none."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    found = {(id(p), ""): p for p in params}
    for p, state in optimizer.state.items():
        found.update({(id(p), name): t for name, t in state.items()})
    return found


explain_constructor(GradScaler)
explain_arguments(GradScaler)
