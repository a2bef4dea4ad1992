"""`torch.cuda.amp`: `amp` as it is called where only GPUs are meant, without a device."""

from __future__ import annotations

from baregrad import amp
from baregrad.base.namespaces import unknown_name
from baregrad.optim.grad_scaler import GradScaler
from baregrad.tensor.array import grad_mode

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]

# PyTorch has modules below it: see `utils.places`.
__path__: tuple[str, ...] = ()

custom_fwd, custom_bwd = amp.custom_fwd, amp.custom_bwd


class _Autocast(grad_mode.autocast):
    """`amp.autocast` of GPUs."""

    def __init__(
        self, enabled: bool = True, dtype: object = None, cache_enabled: bool | None = None
    ) -> None:
        super().__init__("cuda", dtype, enabled, cache_enabled)


autocast = _Autocast


def __getattr__(name: str) -> object:
    raise unknown_name("baregrad.cuda.amp", name, __all__)
