"""L-BFGS: steps along an estimate of Newton's direction, from the last gradients.

Source: J. Nocedal and S. Wright, "Numerical Optimization", 2006: algorithms 7.4, 3.5 and 3.6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from baregrad.base.errors import ArgumentError
from baregrad.optim.adaptive import Params
from baregrad.optim.optimizer import Optimizer
from baregrad.tensor import Tensor

# What a step has to gain, and how flat it has to end: the usual constants of both conditions.
_DECREASE, _CURVATURE = 1e-4, 0.9
# Below this a pair of changes says nothing of the curvature.
_LEAST_CURVATURE = 1e-10
_MOST_TRIES = 25


class _Point(NamedTuple):
    """A place along a direction: how far, the loss there, its gradient, and the slope."""

    size: float
    loss: float
    gradient: Tensor
    slope: float


class LBFGS(Optimizer):
    """Minimises what a closure computes, which each step calls several times.

    lr: the length of a step beside the estimate's; with line_search_fn "strong_wolfe" what a search
    begins with. history_size: how many changes the estimate is made of. There is one group of
    parameters. A step reads losses, so it is no part of a captured function.
    """

    def __init__(
        self, params: Params, lr: float = 1.0, max_iter: int = 20, max_eval: int | None = None,
        tolerance_grad: float = 1e-7, tolerance_change: float = 1e-9, history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        if line_search_fn not in (None, "strong_wolfe"):
            raise ArgumentError(
                "line_search_fn is 'strong_wolfe' or None", found=repr(line_search_fn)
            )
        super().__init__(params, {
            "lr": lr, "max_iter": max_iter,
            "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_grad": tolerance_grad, "tolerance_change": tolerance_change,
            "history_size": history_size, "line_search_fn": line_search_fn,
            "master_weights": False,
        })  # fmt: skip
        if len(self.param_groups) != 1:
            raise ArgumentError("LBFGS has one group of parameters", found=len(self.param_groups))
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._last: tuple[Tensor, Tensor, float] | None = None
        self._rounds = 0

    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Take up to `max_iter` steps; return the loss that the first call of `closure` gave.

        Raises ArgumentError without a closure, which clears gradients, computes the loss, calls
        `backward()` on it and returns it.
        """
        if closure is None:
            raise ArgumentError("LBFGS computes the loss again", wanted="step(closure)")
        group = self.param_groups[0]
        first = closure()
        loss, gradient = float(first.item()), self._gradient()
        evaluations = 1
        for _ in range(group["max_iter"]):
            if gradient.abs().amax().item() <= group["tolerance_grad"]:
                break
            direction, size = self._direction(gradient)
            slope = _dot(gradient, direction)
            if slope > -group["tolerance_change"]:
                break
            start = self._values()
            begun = _Point(0.0, loss, gradient, slope)

            def at(length: float, start: Tensor = start, direction: Tensor = direction) -> _Point:
                self._put(start + direction * length)
                value = float(closure().item())
                found = self._gradient()
                return _Point(length, value, found, _dot(found, direction))

            if group["line_search_fn"] is None:
                end, used = at(size), 1
            else:
                end, used = _searched(at, begun, size)
                self._put(start + direction * end.size)
            evaluations += used
            self._last = (direction, gradient, end.size)
            moved, change = end.size * direction.abs().amax().item(), abs(end.loss - loss)
            loss, gradient = end.loss, end.gradient
            if evaluations >= group["max_eval"] or moved <= group["tolerance_change"] \
                    or change < group["tolerance_change"]:
                break
        return first

    def _direction(self, gradient: Tensor) -> tuple[Tensor, float]:
        """Where to go, and how far to begin with."""
        group = self.param_groups[0]
        lr = float(group.lr.item())
        self._rounds += 1
        if self._last is None:
            shrunk = min(1.0, 1.0 / max(gradient.abs().sum().item(), 1e-38))
            return (-gradient).realize(), shrunk * lr
        direction, before, size = self._last
        change, step = (gradient - before).realize(), (direction * size).realize()
        if _dot(change, step) > _LEAST_CURVATURE:
            self._pairs = [*self._pairs, (change, step)][-group["history_size"] :]
        return _newton(gradient, self._pairs), lr

    # --- all parameters as one vector -------------------------------------------------------------

    def _params(self) -> list[Tensor]:
        params: list[Tensor] = self.param_groups[0]["params"]
        return params

    def _gradient(self) -> Tensor:
        parts = [
            (p.zeros_like() if p.grad is None else p.grad.detach()).reshape(-1)
            for p in self._params()
        ]
        return Tensor.cat(parts).clone().realize()

    def _values(self) -> Tensor:
        return Tensor.cat([p.detach().reshape(-1) for p in self._params()]).clone().realize()

    def _put(self, values: Tensor) -> None:
        first = 0
        with Tensor.no_grad():
            for p in self._params():
                p.copy_(values[first : first + p.numel()].reshape(p.shape))
                first += p.numel()
        self._realize()

    def state_dict(self) -> dict[str, Any]:
        """Return the settings, and the changes that the estimate is made of."""
        kept = super().state_dict()
        kept["pairs"] = list(self._pairs)
        kept["last"] = self._last
        return kept

    def load_state_dict(self, state_dict: Any) -> None:
        """Take over what `state_dict` returned."""
        super().load_state_dict(state_dict)
        self._pairs = list(state_dict.get("pairs", ()))
        self._last = state_dict.get("last")


def _dot(a: Tensor, b: Tensor) -> float:
    return float(a.double().dot(b.double()).item())


def _newton(gradient: Tensor, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Minus the estimate of the inverse Hessian times the gradient, by two loops (7.4)."""
    found, shares = -gradient, []
    for change, step in reversed(pairs):
        share = step.dot(found) / change.dot(step)
        shares.append(share)
        found = found - share * change
    if pairs:
        change, step = pairs[-1]
        found = found * (change.dot(step) / change.dot(change))
    for (change, step), share in zip(pairs, reversed(shares), strict=True):
        found = found + step * (share - change.dot(found) / change.dot(step))
    return found.realize()


def _lowest_of_cubic(a: _Point, b: _Point) -> float:
    """Where the cubic through two places and slopes is lowest, held well within them."""
    low, high = min(a.size, b.size), max(a.size, b.size)
    if a.size > b.size:
        a, b = b, a
    turn = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.size - b.size)
    square = turn * turn - a.slope * b.slope
    middle = (low + high) / 2
    if square < 0:
        return middle
    root: float = square**0.5
    below = b.slope - a.slope + 2 * root
    place = middle if below == 0 else b.size - (b.size - a.size) * (b.slope + root - turn) / below
    edge = 0.1 * (high - low)
    return min(max(place, low + edge), high - edge)


def _searched(at: Callable[[float], _Point], begun: _Point, size: float) -> tuple[_Point, int]:
    """A place where both of Wolfe's strong conditions hold, or the best found; the calls (3.5)."""
    before, now, used = begun, at(size), 1
    while used < _MOST_TRIES:
        if _is_too_high(now, begun) or (used > 1 and now.loss >= before.loss):
            return _zoomed(at, begun, before, now, used)
        if abs(now.slope) <= -_CURVATURE * begun.slope:
            return now, used
        if now.slope >= 0:
            return _zoomed(at, begun, now, before, used)
        farther = now.size + 4 * (now.size - before.size)
        before, now = now, at(farther)
        used += 1
    return now, used


def _is_too_high(point: _Point, begun: _Point) -> bool:
    # What is no number is too high as well.
    return not point.loss <= begun.loss + _DECREASE * point.size * begun.slope


def _zoomed(
    at: Callable[[float], _Point], begun: _Point, low: _Point, high: _Point, used: int
) -> tuple[_Point, int]:
    """A place between two, of which `low` is the lower (3.6)."""
    while used < _MOST_TRIES and abs(high.size - low.size) > 1e-9 * max(1.0, abs(low.size)):
        finite = abs(high.loss) < float("inf")
        size = _lowest_of_cubic(low, high) if finite else (low.size + high.size) / 2
        now = at(size)
        used += 1
        if _is_too_high(now, begun) or now.loss >= low.loss:
            high = now
            continue
        if abs(now.slope) <= -_CURVATURE * begun.slope:
            return now, used
        if now.slope * (high.size - low.size) >= 0:
            high = low
        low = now
    return low, used
