"""Adam and AdamW. Sources: D. Kingma and J. Ba, ICLR 2015; I. Loshchilov and F. Hutter, ICLR 2019.

Factors that depend on the step or the learning rate are computed in float64, as scalars on the
device, so a captured step keeps counting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from baregrad.base.errors import ArgumentError
from baregrad.dtypes import dtypes
from baregrad.optim.optimizer import Optimizer, ParamGroup, State, zeros_beside
from baregrad.tensor import Tensor


class Adam(Optimizer):
    """Steps of the running mean of gradients over the root of that of their squares.

    weight_decay is added to the gradient as weight_decay*p. amsgrad divides by the highest such
    mean square so far. Raises ArgumentError for settings out of range.
    """

    _DECOUPLED = False

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[Mapping[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        maximize: bool = False,
        master_weights: bool = True,
    ) -> None:
        if not all(0 <= beta < 1 for beta in betas):
            raise ArgumentError(f"betas are numbers from 0 up to below 1, not {betas}")
        if eps < 0 or weight_decay < 0:
            raise ArgumentError("eps and weight_decay are numbers from 0 on")
        settings = {
            "lr": lr,
            "betas": tuple(betas),
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "master_weights": master_weights,
        }
        super().__init__(params, settings)

    def initial_state(self, p: Tensor, group: ParamGroup) -> State:
        """Return zeros for the running means."""
        names = ["exp_avg", "exp_avg_sq"] + ["max_exp_avg_sq"] * bool(group["amsgrad"])
        return {name: zeros_beside(p) for name in names}

    def update(self, p: Tensor, gradient: Tensor, state: State, group: ParamGroup) -> Tensor:
        """Return the parameter after one step; see the class."""
        beta, beta_squares = group["betas"]
        decay = group["weight_decay"]
        lr: Tensor = group.lr
        if decay and self._DECOUPLED:
            p = p * (1 - lr * decay)
        elif decay:
            gradient = gradient + decay * p
        mean = state["exp_avg"] + (gradient - state["exp_avg"]) * (1 - beta)
        square = state["exp_avg_sq"] * beta_squares + gradient * gradient * (1 - beta_squares)
        state["exp_avg"].copy_(mean)
        state["exp_avg_sq"].copy_(square)
        if group["amsgrad"]:
            square = state["max_exp_avg_sq"].maximum(square)
            state["max_exp_avg_sq"].copy_(square)
        step = state["step"].cast(dtypes.float64)
        # Each element is divided once: divisions are most of what a GPU does in a step.
        scale = 1 / (1 - beta_squares**step).sqrt()
        size: Tensor = lr / (1 - beta**step)
        changed: Tensor = p - size * (mean / (square.sqrt() * scale + group["eps"]))
        return changed


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameter itself, by lr*weight_decay at each step."""

    _DECOUPLED = True

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[Mapping[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        maximize: bool = False,
        master_weights: bool = True,
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, maximize, master_weights
        )
