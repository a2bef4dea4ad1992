"""Optimisers that see a weight as a matrix: Muon and Adafactor, with PyTorch's arithmetic."""

from __future__ import annotations

import math

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.dtypes import dtypes, finfo
from baregrad.optim.adaptive import Params, check_settings, step_of, written
from baregrad.optim.optimizer import Optimizer, ParamGroup, State, zeros_beside
from baregrad.tensor import Tensor

# The quintic that brings singular values near 1 in five rounds (K. Jordan, 2024).
_QUINTIC = (3.4445, -4.775, 2.0315)


class Muon(Optimizer):
    """Steps of the momentum with all its singular values brought near 1, for matrices alone.

    Source: K. Jordan and others, "Muon: an optimizer for hidden layers", 2024. adjust_lr_fn:
    "original" scales a step by the root of rows over columns, where that is above 1;
    "match_rms_adamw" by 0.2 times the root of the longer side. Raises ShapeError for parameters
    that are no matrices.
    """

    def __init__(
        self, params: Params, lr: float = 1e-3, weight_decay: float = 0.1, momentum: float = 0.95,
        nesterov: bool = True, ns_coefficients: tuple[float, float, float] = _QUINTIC,
        eps: float = 1e-7, ns_steps: int = 5, adjust_lr_fn: str | None = None,
        master_weights: bool = True,
    ) -> None:
        check_settings(weight_decay=weight_decay, momentum=momentum, eps=eps)
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ArgumentError(
                "adjust_lr_fn is 'original' or 'match_rms_adamw'", found=repr(adjust_lr_fn)
            )
        if not 0 <= ns_steps < 100:
            raise ArgumentError("fewer than 100 rounds", found=f"ns_steps {ns_steps}")
        super().__init__(params, {
            "lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov,
            "ns_coefficients": tuple(ns_coefficients), "eps": eps, "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn, "master_weights": master_weights,
        })  # fmt: skip
        for group in self.param_groups:
            for p in group["params"]:
                if p.ndim != 2:
                    raise ShapeError(
                        "Muon is for matrices", found=list(p.shape),
                        hint="give the other parameters to AdamW",
                    )

    def initial_state(self, p: Tensor, group: ParamGroup) -> State:
        """Return zeros for the momentum."""
        return {"momentum_buffer": zeros_beside(p)}

    def update(self, p: Tensor, gradient: Tensor, state: State, group: ParamGroup) -> Tensor:
        """Return the parameter after one step; see the class."""
        momentum, lr = group["momentum"], group.lr
        held = state["momentum_buffer"]
        held = written(state, "momentum_buffer", held.lerp(gradient, 1 - momentum))
        moved = gradient.lerp(held, momentum) if group["nesterov"] else held
        rows, columns = p.shape
        scale = math.sqrt(max(1.0, rows / columns))
        if group["adjust_lr_fn"] == "match_rms_adamw":
            scale = 0.2 * math.sqrt(max(rows, columns))
        step = _orthogonalised(moved, group["ns_coefficients"], group["ns_steps"], group["eps"])
        kept = p * (1 - lr * group["weight_decay"])
        changed: Tensor = kept - lr * scale * step.cast(p.dtype)
        return changed


def _orthogonalised(
    x: Tensor, coefficients: tuple[float, float, float], rounds: int, eps: float
) -> Tensor:
    """A matrix with its singular values brought near 1, in bfloat16, by Newton and Schulz."""
    a, b, c = coefficients
    tall = x.shape[0] > x.shape[1]
    y = x.bfloat16()
    y = y.T if tall else y
    y = (y / y.norm().clamp(min=eps)).contiguous()
    for _ in range(rounds):
        gram = (y @ y.T).contiguous()
        # Each is rounded once, as by one kernel.
        wide = gram.float()
        mixed = (b * wide + c * gram.matmul(gram, out_dtype=dtypes.float32)).bfloat16().contiguous()
        y = (a * y.float() + mixed.matmul(y, out_dtype=dtypes.float32)).bfloat16().contiguous()
    return y.T if tall else y


class Adafactor(Optimizer):
    """Adam whose mean squares are kept by rows and columns, with relative steps.

    Source: N. Shazeer and M. Stern, ICML 2018. lr: the most that a step's share is. eps: what mean
    squares and the parameter's own size are held above; None is the dtype's.
    """

    def __init__(
        self, params: Params, lr: float = 1e-2, beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3), d: float = 1.0, weight_decay: float = 0.0,
        maximize: bool = False, master_weights: bool = True,
    ) -> None:
        check_settings(weight_decay=weight_decay)
        if not isinstance(eps, tuple | list) or len(eps) != 2:
            raise ArgumentError("eps is a pair", found=repr(eps), wanted="(None, 1e-3) or the like")
        if not beta2_decay <= 0 or not d >= 1:
            raise ArgumentError(
                "beta2_decay is 0 or below, d is 1 or above", found=f"{beta2_decay}, {d}"
            )
        super().__init__(params, {
            "lr": lr, "beta2_decay": beta2_decay, "eps": tuple(eps), "d": d,
            "weight_decay": weight_decay, "maximize": maximize, "master_weights": master_weights,
        })  # fmt: skip

    def initial_state(self, p: Tensor, group: ParamGroup) -> State:
        """Return zeros for the mean squares."""
        if p.ndim < 2:
            return {"variance": zeros_beside(p)}
        *lead, rows, columns = p.shape
        return {"row_var": p.new_zeros(*lead, rows, 1), "col_var": p.new_zeros(*lead, 1, columns)}

    def update(self, p: Tensor, gradient: Tensor, state: State, group: ParamGroup) -> Tensor:
        """Return the parameter after one step; see the class."""
        least, smallest = group["eps"]
        least = finfo(p.dtype).eps if least is None else least
        step, lr = step_of(state), group.lr
        share = step ** group["beta2_decay"]
        root = math.sqrt(p.numel())
        size = (p.norm() / root).clamp(min=smallest) * lr.minimum(1 / step.sqrt())
        if group["weight_decay"]:
            p = p * (1 - lr * group["weight_decay"])
        squares = gradient * gradient
        if gradient.ndim < 2:
            variance = _towards(state, "variance", squares, share)
        else:
            rows = _towards(state, "row_var", squares.mean(-1, True), share)
            columns = _towards(state, "col_var", squares.mean(-2, True), share)
            variance = rows @ columns / rows.mean(-2, True).clamp(min=least)
        moved = gradient * variance.clamp(min=least * least).rsqrt()
        most = (moved.norm() / (root * group["d"])).clamp(min=1.0)
        changed: Tensor = p - (size / most).cast(p.dtype) * moved
        return changed


def _towards(state: State, name: str, value: Tensor, share: Tensor) -> Tensor:
    """Move a mean by a share of the way to a value, and return it."""
    held = state[name]
    return written(state, name, (held + (value - held) * share).cast(held.dtype))
