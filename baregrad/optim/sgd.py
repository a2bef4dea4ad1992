"""Stochastic gradient descent, with momentum, Nesterov's too, and weight decay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from baregrad.base.errors import ArgumentError
from baregrad.optim.optimizer import Optimizer, ParamGroup, State, has_momentum
from baregrad.tensor import Tensor


class SGD(Optimizer):
    """p -= lr * (g + weight_decay*p), where momentum replaces g by its running sum.

    Source of Nesterov's form: I. Sutskever and others, ICML 2013, as PyTorch has it. Raises
    ValueError for settings out of range.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[Mapping[str, Any]],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
        master_weights: bool = True,
    ) -> None:
        if momentum < 0 or weight_decay < 0:
            raise ArgumentError("momentum and weight_decay are numbers from 0 on")
        if nesterov and (momentum == 0 or dampening != 0):
            raise ArgumentError("nesterov wants a momentum and no dampening")
        settings = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "master_weights": master_weights,
        }
        super().__init__(params, settings)

    def update(self, p: Tensor, gradient: Tensor, state: State, group: ParamGroup) -> Tensor:
        """Return the parameter after one step; see the class."""
        momentum = group["momentum"]
        if group["weight_decay"]:
            gradient = gradient + group["weight_decay"] * p
        if has_momentum(group):
            known = state.get("momentum_buffer")
            if known is None:
                total = state["momentum_buffer"] = gradient.clone()
            else:
                total = known * momentum + gradient * (1 - group["dampening"])
                known.copy_(total)
            gradient = gradient + momentum * total if group["nesterov"] else total
        lr: Tensor = group.lr
        return p - lr * gradient
