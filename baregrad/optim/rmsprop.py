"""RMSprop. Source: G. Hinton, Coursera lecture 6e, 2012; its form is PyTorch's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from baregrad.base.errors import ArgumentError
from baregrad.optim.optimizer import Optimizer, ParamGroup, State, has_momentum, zeros_beside
from baregrad.tensor import Tensor


class RMSprop(Optimizer):
    """p -= lr * g / (root + eps), with the root of the running mean of squared gradients.

    alpha: what that mean keeps at each step. centered: of it the square of the mean gradient is
    taken away. momentum: of the steps. Raises ArgumentError for settings out of range.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[Mapping[str, Any]],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        maximize: bool = False,
        master_weights: bool = True,
    ) -> None:
        if min(alpha, eps, weight_decay, momentum) < 0:
            raise ArgumentError("alpha, eps, weight_decay and momentum are numbers from 0 on")
        settings = {
            "lr": lr,
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "centered": centered,
            "maximize": maximize,
            "master_weights": master_weights,
        }
        super().__init__(params, settings)

    def initial_state(self, p: Tensor, group: ParamGroup) -> State:
        """Return zeros for the running means."""
        names = ["square_avg"] + ["momentum_buffer"] * has_momentum(group)
        names += ["grad_avg"] * bool(group["centered"])
        return {name: zeros_beside(p) for name in names}

    def update(self, p: Tensor, gradient: Tensor, state: State, group: ParamGroup) -> Tensor:
        """Return the parameter after one step; see the class."""
        alpha = group["alpha"]
        if group["weight_decay"]:
            gradient = gradient + group["weight_decay"] * p
        square = state["square_avg"] * alpha + gradient * gradient * (1 - alpha)
        state["square_avg"].copy_(square)
        if group["centered"]:
            mean = state["grad_avg"] + (gradient - state["grad_avg"]) * (1 - alpha)
            state["grad_avg"].copy_(mean)
            square = square - mean * mean
        moved = gradient / (square.sqrt() + group["eps"])
        if has_momentum(group):
            moved = state["momentum_buffer"] * group["momentum"] + moved
            state["momentum_buffer"].copy_(moved)
        lr: Tensor = group.lr
        changed: Tensor = p - lr * moved
        return changed
