"""All schedules under the name that PyTorch gives their module: `optim.lr_scheduler.StepLR`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baregrad.base.namespaces import unknown_name
from baregrad.optim.scheduler import LRScheduler
from baregrad.optim.schedules import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

if TYPE_CHECKING:
    from baregrad.optim.cycles import CyclicLR as CyclicLR
    from baregrad.optim.cycles import OneCycleLR as OneCycleLR

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]


def __getattr__(name: str) -> Any:
    if name in ("CyclicLR", "OneCycleLR"):
        from baregrad.optim import cycles

        return getattr(cycles, name)
    if name == "_LRScheduler":
        # What PyTorch called it before, of which programs make classes of their own.
        return LRScheduler
    raise unknown_name("baregrad.optim.lr_scheduler", name, __all__)
