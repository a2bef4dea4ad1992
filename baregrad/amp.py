"""`torch.amp`: products of narrow floats, and losses scaled so that gradients do not vanish."""

from __future__ import annotations

from typing import Any

from baregrad.base.namespaces import unknown_name
from baregrad.optim import grad_scaler
from baregrad.tensor.array.grad_mode import autocast

__all__ = ["GradScaler", "autocast"]


class _Scaler(grad_scaler.GradScaler):
    """`optim.GradScaler` with the device first, as PyTorch has it: "cuda", "cpu" and others."""

    def __init__(self, device: str | None = None, *args: Any, **settings: Any) -> None:
        super().__init__(*args, device=device, **settings)


GradScaler = _Scaler


def __getattr__(name: str) -> object:
    raise unknown_name("baregrad.amp", name, __all__)
