"""Steps scaled by each element's past gradients: Adagrad, Adadelta, Adamax, NAdam, RAdam, Rprop.

And ASGD, whose average of all parameters so far is in its state. Arithmetic and settings are
PyTorch's. Factors that depend on the step are computed in float64 as scalars on the device, so a
captured step keeps counting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from baregrad.base.errors import ArgumentError
from baregrad.dtypes import dtypes
from baregrad.optim.optimizer import Optimizer, ParamGroup, State, zeros_beside
from baregrad.tensor import Tensor

Params = Iterable[Tensor] | Iterable[Mapping[str, Any]]


def check_settings(**settings: float) -> None:
    """Raise ArgumentError for a number that is negative."""
    for name, value in settings.items():
        if not value >= 0:
            raise ArgumentError(f"{name} is a number from 0 on, not {value}")


def check_betas(betas: tuple[float, float]) -> None:
    """Raise ArgumentError unless both are shares below 1."""
    if not all(0 <= beta < 1 for beta in betas):
        raise ArgumentError(f"betas are numbers from 0 up to below 1, not {betas}")


def decayed(gradient: Tensor, p: Tensor, group: ParamGroup) -> Tensor:
    """The gradient with the weight decay's added."""
    decay = group["weight_decay"]
    return gradient + decay * p if decay else gradient


def written(state: State, name: str, value: Tensor) -> Tensor:
    """Write a new value into a state, and return it."""
    state[name].copy_(value)
    return value


def step_of(state: State) -> Tensor:
    """The count of steps in float64."""
    return state["step"].cast(dtypes.float64)


class Adagrad(Optimizer):
    """p -= lr / (1 + (step - 1)*lr_decay) * g / (root of all squares so far + eps).

    Source: J. Duchi and others, JMLR 2011.
    """

    def __init__(
        self, params: Params, lr: float = 1e-2, lr_decay: float = 0.0, weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0, eps: float = 1e-10, maximize: bool = False,
        master_weights: bool = True,
    ) -> None:
        check_settings(lr_decay=lr_decay, weight_decay=weight_decay, eps=eps,
                       initial_accumulator_value=initial_accumulator_value)
        super().__init__(params, {
            "lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value, "maximize": maximize,
            "master_weights": master_weights,
        })  # fmt: skip

    def initial_state(self, p: Tensor, group: ParamGroup) -> State:
        """Return the sum of squares to begin with."""
        return {"sum": p.full_like(group["initial_accumulator_value"]).clone()}

    def update(self, p: Tensor, gradient: Tensor, state: State, group: ParamGroup) -> Tensor:
        """Return the parameter after one step; see the class."""
        gradient = decayed(gradient, p, group)
        total = written(state, "sum", state["sum"] + gradient * gradient)
        rate = group.lr / (1 + (step_of(state) - 1) * group["lr_decay"])
        changed: Tensor = p - rate * gradient / (total.sqrt() + group["eps"])
        return changed


class Adadelta(Optimizer):
    """Steps of the root of past steps' squares over that of gradients'. Source: M. Zeiler, 2012."""

    def __init__(
        self, params: Params, lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6,
        weight_decay: float = 0.0, maximize: bool = False, master_weights: bool = True,
    ) -> None:
        check_settings(eps=eps, weight_decay=weight_decay)
        check_betas((rho, 0.0))
        super().__init__(params, {
            "lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize,
            "master_weights": master_weights,
        })  # fmt: skip

    def initial_state(self, p: Tensor, group: ParamGroup) -> State:
        """Return zeros for the running means."""
        return {"square_avg": zeros_beside(p), "acc_delta": zeros_beside(p)}

    def update(self, p: Tensor, gradient: Tensor, state: State, group: ParamGroup) -> Tensor:
        """Return the parameter after one step; see the class."""
        rho, eps = group["rho"], group["eps"]
        gradient = decayed(gradient, p, group)
        square = written(
            state, "square_avg", state["square_avg"] * rho + gradient * gradient * (1 - rho)
        )
        past = state["acc_delta"]
        delta = (past + eps).sqrt() / (square + eps).sqrt() * gradient
        written(state, "acc_delta", past * rho + delta * delta * (1 - rho))
        changed: Tensor = p - group.lr * delta
        return changed


class Adamax(Optimizer):
    """Adam with the largest past gradient, decayed, for its root. (D. Kingma, J. Ba, 2015)."""

    def __init__(
        self, params: Params, lr: float = 2e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0.0, maximize: bool = False,
        master_weights: bool = True,
    ) -> None:
        check_settings(eps=eps, weight_decay=weight_decay)
        check_betas(betas)
        super().__init__(params, {
            "lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay,
            "maximize": maximize, "master_weights": master_weights,
        })  # fmt: skip

    def initial_state(self, p: Tensor, group: ParamGroup) -> State:
        """Return zeros for the mean and the largest gradient."""
        return {"exp_avg": zeros_beside(p), "exp_inf": zeros_beside(p)}

    def update(self, p: Tensor, gradient: Tensor, state: State, group: ParamGroup) -> Tensor:
        """Return the parameter after one step; see the class."""
        beta, beta_largest = group["betas"]
        gradient = decayed(gradient, p, group)
        mean = state["exp_avg"]
        mean = written(state, "exp_avg", mean + (gradient - mean) * (1 - beta))
        largest = (state["exp_inf"] * beta_largest).maximum(gradient.abs() + group["eps"])
        written(state, "exp_inf", largest)
        changed: Tensor = p - group.lr / (1 - beta ** step_of(state)) * (mean / largest)
        return changed


class NAdam(Optimizer):
    """Adam with Nesterov's momentum. Source: T. Dozat, ICLR workshop 2016."""

    def __init__(
        self, params: Params, lr: float = 2e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0.0, momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False, maximize: bool = False, master_weights: bool = True,
    ) -> None:
        check_settings(eps=eps, weight_decay=weight_decay, momentum_decay=momentum_decay)
        check_betas(betas)
        super().__init__(params, {
            "lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay,
            "momentum_decay": momentum_decay, "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize, "master_weights": master_weights,
        })  # fmt: skip

    def initial_state(self, p: Tensor, group: ParamGroup) -> State:
        """Return zeros for the running means; the product of momenta begins as one."""
        one = Tensor(1.0, dtype=dtypes.float64, device=p.device)
        return {"exp_avg": zeros_beside(p), "exp_avg_sq": zeros_beside(p), "mu_product": one}

    def update(self, p: Tensor, gradient: Tensor, state: State, group: ParamGroup) -> Tensor:
        """Return the parameter after one step; see the class."""
        beta, beta_squares = group["betas"]
        lr: Tensor = group.lr
        if group["decoupled_weight_decay"]:
            p = p * (1 - lr * group["weight_decay"])
        else:
            gradient = decayed(gradient, p, group)
        step, decay = step_of(state), group["momentum_decay"]
        now = beta * (1 - 0.5 * 0.96 ** (step * decay))
        then = beta * (1 - 0.5 * 0.96 ** ((step + 1) * decay))
        product = written(state, "mu_product", state["mu_product"] * now)
        mean = state["exp_avg"]
        mean = written(state, "exp_avg", mean + (gradient - mean) * (1 - beta))
        square = state["exp_avg_sq"] * beta_squares + gradient * gradient * (1 - beta_squares)
        written(state, "exp_avg_sq", square)
        root = (square / (1 - beta_squares**step)).sqrt() + group["eps"]
        moved = gradient * ((1 - now) / (1 - product)) + mean * (then / (1 - product * then))
        changed: Tensor = p - lr * moved / root
        return changed


class RAdam(Optimizer):
    """Adam whose root is left out until its variance is bounded. Source: L. Liu, ICLR 2020."""

    def __init__(
        self, params: Params, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0.0, decoupled_weight_decay: bool = False,
        maximize: bool = False, master_weights: bool = True,
    ) -> None:
        check_settings(eps=eps, weight_decay=weight_decay)
        check_betas(betas)
        super().__init__(params, {
            "lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay, "maximize": maximize,
            "master_weights": master_weights,
        })  # fmt: skip

    def initial_state(self, p: Tensor, group: ParamGroup) -> State:
        """Return zeros for the running means."""
        return {"exp_avg": zeros_beside(p), "exp_avg_sq": zeros_beside(p)}

    def update(self, p: Tensor, gradient: Tensor, state: State, group: ParamGroup) -> Tensor:
        """Return the parameter after one step; see the class."""
        beta, beta_squares = group["betas"]
        lr: Tensor = group.lr
        if group["decoupled_weight_decay"]:
            p = p * (1 - lr * group["weight_decay"])
        else:
            gradient = decayed(gradient, p, group)
        mean = state["exp_avg"]
        mean = written(state, "exp_avg", mean + (gradient - mean) * (1 - beta))
        square = state["exp_avg_sq"] * beta_squares + gradient * gradient * (1 - beta_squares)
        written(state, "exp_avg_sq", square)
        step = step_of(state)
        kept = beta_squares**step
        limit = 2 / (1 - beta_squares) - 1
        length = limit - 2 * step * kept / (1 - kept)
        # Below this length the variance is not bounded; the root is then not of a number.
        bounded = length > 5
        long = bounded.where(length, 6.0)
        share = ((long - 4) * (long - 2) * limit / ((limit - 4) * (limit - 2) * long)).sqrt()
        scale = share * (1 - kept).sqrt() / (square.sqrt() + group["eps"])
        changed: Tensor = p - lr * (mean / (1 - beta**step)) * bounded.where(scale, 1.0)
        return changed


class Rprop(Optimizer):
    """Steps by the sign of gradients, which grow while it stays. Source: M. Riedmiller, 1993."""

    def __init__(
        self, params: Params, lr: float = 1e-2, etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0), maximize: bool = False,
        master_weights: bool = True,
    ) -> None:
        if not 0 < etas[0] < 1 < etas[1]:
            raise ArgumentError(f"etas are a factor below 1 and one above, not {etas}")
        super().__init__(params, {
            "lr": lr, "etas": tuple(etas), "step_sizes": tuple(step_sizes), "maximize": maximize,
            "master_weights": master_weights,
        })  # fmt: skip

    def initial_state(self, p: Tensor, group: ParamGroup) -> State:
        """Return the step sizes to begin with, and no gradient before."""
        size = (p.zeros_like() + group.lr).cast(p.dtype)
        return {"prev": zeros_beside(p), "step_size": size}

    def update(self, p: Tensor, gradient: Tensor, state: State, group: ParamGroup) -> Tensor:
        """Return the parameter after one step; see the class."""
        less, more = group["etas"]
        turned = (gradient * state["prev"]).sign()
        # Of the dtype of gradients, as numbers alone would not be.
        factor = (turned > 0).where(more, (turned < 0).where(less, turned.ones_like()))
        size = (state["step_size"] * factor).clamp(*group["step_sizes"])
        size = written(state, "step_size", size)
        gradient = (turned < 0).where(0.0, gradient)
        written(state, "prev", gradient)
        changed: Tensor = p - gradient.sign() * size
        return changed


class ASGD(Optimizer):
    """Gradient descent with a falling rate, and the mean of parameters from step t0 on as `ax`.

    Source: B. Polyak and A. Juditsky, 1992.
    """

    def __init__(
        self, params: Params, lr: float = 1e-2, lambd: float = 1e-4, alpha: float = 0.75,
        t0: float = 1e6, weight_decay: float = 0.0, maximize: bool = False,
        master_weights: bool = True,
    ) -> None:
        check_settings(weight_decay=weight_decay, lambd=lambd)
        super().__init__(params, {
            "lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0, "weight_decay": weight_decay,
            "maximize": maximize, "master_weights": master_weights,
        })  # fmt: skip

    def initial_state(self, p: Tensor, group: ParamGroup) -> State:
        """Return zeros for the mean."""
        return {"ax": zeros_beside(p)}

    def update(self, p: Tensor, gradient: Tensor, state: State, group: ParamGroup) -> Tensor:
        """Return the parameter after one step; see the class."""
        gradient = decayed(gradient, p, group)
        lr, before = group.lr, step_of(state) - 1
        # The rate of a step is made from the count before it, and the first is lr itself.
        rate = lr / (1 + group["lambd"] * lr * before) ** group["alpha"]
        changed: Tensor = p * (1 - group["lambd"] * rate) - rate * gradient
        share = 1 / (before - group["t0"]).clamp(min=1.0)
        written(state, "ax", state["ax"] + (changed - state["ax"]) * share)
        return changed
