"""An op of the sweep, written once for both sides: inputs, and a function of a kit and them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from baregrad.apps.beside.draws import Draw
from baregrad.apps.sweep.pick import Pick
from baregrad.tensor import Tensor


@dataclass(frozen=True, slots=True)
class SweepOp:
    """One op at one size.

    `function(kit, *inputs)` gives a tensor or several. `smooth` numbers the inputs that gradients
    may be asked for, none where jumps would make rounding errors large. `takes_more`: whether
    element-wise work may follow, on a result of floats. `shown(*inputs, *results)` makes what
    is compared. `views`: whether the first input may be a view of a larger one.
    """

    text: str
    inputs: tuple[Draw, ...]
    function: Callable[..., Any]
    smooth: tuple[int, ...] = ()
    takes_more: bool = True
    shown: Callable[..., Any] | None = None
    views: bool = True
    tolerance: float = 1.0


# Makes an op by choices: one row of the table of a family, beside its name.
Maker = Callable[[Pick], SweepOp]


class OursKit:
    """Functions by PyTorch's names: the methods of our tensors are called like that."""

    def __init__(self) -> None:
        # The session's own, where new tensors go.
        self.device = None

    def __getattr__(self, name: str) -> Any:
        return getattr(Tensor, name)

    def wide(self, x: Tensor) -> Tensor:
        """Return floats as float32."""
        return x.float()

    def embedding(self, index: Tensor, weight: Tensor) -> Tensor:
        """Return rows of `weight`, arguments in PyTorch's order."""
        return weight.embedding(index)


class TorchKit:
    """Functions by name, of `torch.nn.functional` before those of `torch`."""

    def __init__(self, torch: Any, device: str) -> None:
        self._torch = torch
        self.device = device

    def __getattr__(self, name: str) -> Any:
        functional = self._torch.nn.functional
        return getattr(functional, name, None) or getattr(self._torch, name)

    def wide(self, x: Any) -> Any:
        """Return floats as float32 at least."""
        return x if x.dtype == self._torch.float64 else x.float()


def shape_text(shape: tuple[int, ...]) -> str:
    """Return a shape as 3x4x5."""
    return "x".join(map(str, shape)) or "1"
