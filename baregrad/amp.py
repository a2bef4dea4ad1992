"""`torch.amp`: products of narrow floats, and losses scaled so that gradients do not vanish."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from baregrad.base.namespaces import unknown_name
from baregrad.optim import grad_scaler
from baregrad.tensor import Tensor
from baregrad.tensor.array.grad_mode import autocast, cast_dtype

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "is_autocast_available"]

# PyTorch has modules below it: see `utils.places`.
__path__: tuple[str, ...] = ()


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


def is_autocast_available(device_type: str) -> bool:
    """Return true: products take narrow floats on every kind of device."""
    return True


def custom_fwd(
    fwd: Callable[..., Any] | None = None, *, device_type: str = "cuda", cast_inputs: object = None
) -> Callable[..., Any]:
    """A `forward` of an `autograd.Function` that `custom_bwd` has a mode of `autocast` of.

    cast_inputs: a dtype that floats among its arguments are cast to where products take narrow
    ones; it runs with that switched off then.
    """
    if fwd is None:
        return partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @wraps(fwd)
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        ctx._narrow = cast_dtype() if cast_inputs is None else None
        if cast_inputs is None or cast_dtype() is None:
            return fwd(ctx, *args, **kwargs)

        def cast(value: Any) -> Any:
            if isinstance(value, Tensor):
                is_cast = value.is_floating_point() and value.dtype.bits < 64
                return value.cast(cast_inputs) if is_cast else value
            if isinstance(value, list | tuple):
                return type(value)(map(cast, value))
            if isinstance(value, dict):
                return {key: cast(each) for key, each in value.items()}
            return value

        with autocast(device_type, enabled=False):
            return fwd(ctx, *cast(args), **cast(kwargs))

    return forward


def custom_bwd(
    bwd: Callable[..., Any] | None = None, *, device_type: str = "cuda"
) -> Callable[..., Any]:
    """A `backward` of an `autograd.Function` that runs in the mode that its `forward` ran in."""
    if bwd is None:
        return partial(custom_bwd, device_type=device_type)

    @wraps(bwd)
    def backward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        narrow = ctx._narrow
        with autocast(device_type, dtype=narrow, enabled=narrow is not None):
            return bwd(ctx, *args, **kwargs)

    return backward


def __getattr__(name: str) -> object:
    raise unknown_name("baregrad.amp", name, __all__)
