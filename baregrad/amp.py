"""`torch.amp`: products of narrow floats, and losses scaled so that gradients do not vanish."""

from __future__ import annotations

from baregrad.base.namespaces import unknown_name
from baregrad.optim import grad_scaler
from baregrad.tensor.array.grad_mode import autocast

__all__ = ["GradScaler", "autocast"]


class _Scaler(grad_scaler.GradScaler):
    """`optim.GradScaler` with the device first, as PyTorch has it: "cuda", "cpu" and others."""

    def __init__(
        self, device: str | None = None, init_scale: float = 2.0**16, growth_factor: float = 2.0,
        backoff_factor: float = 0.5, growth_interval: int = 2000, enabled: bool = True,
    ) -> None:
        super().__init__(
            init_scale, growth_factor, backoff_factor, growth_interval, enabled, device
        )


GradScaler = _Scaler


def __getattr__(name: str) -> object:
    raise unknown_name("baregrad.amp", name, __all__)
