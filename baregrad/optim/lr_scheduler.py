"""All schedules under the name that PyTorch gives their module: `optim.lr_scheduler.StepLR`."""

from __future__ import annotations

from baregrad.base.namespaces import unknown_name
from baregrad.optim.cycles import CyclicLR, OneCycleLR
from baregrad.optim.schedules import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

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


def __getattr__(name: str) -> object:
    raise unknown_name("baregrad.optim.lr_scheduler", name, __all__)
