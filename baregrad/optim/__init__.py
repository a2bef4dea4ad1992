"""Optimisers, learning-rate schedules, gradient clipping: PyTorch's names and arithmetic."""

from __future__ import annotations

from baregrad.base.namespaces import unknown_name
from baregrad.optim.adam import Adam, AdamW
from baregrad.optim.clip import clip_grad_norm_, clip_grad_value_
from baregrad.optim.one_cycle import OneCycleLR
from baregrad.optim.optimizer import Optimizer, ParamGroup
from baregrad.optim.rmsprop import RMSprop
from baregrad.optim.schedules import (
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LinearWarmup,
    LRScheduler,
    MultiStepLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from baregrad.optim.sgd import SGD

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "LinearWarmup",
    "MultiStepLR",
    "OneCycleLR",
    "Optimizer",
    "ParamGroup",
    "PolynomialLR",
    "RMSprop",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
    "clip_grad_norm_",
    "clip_grad_value_",
]


def __getattr__(name: str) -> object:
    raise unknown_name("baregrad.optim", name, __all__)
