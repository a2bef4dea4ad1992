"""Optimisers, learning-rate schedules, gradient clipping: PyTorch's names and arithmetic."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from baregrad.base.namespaces import unknown_name
from baregrad.optim import lr_scheduler
from baregrad.optim.adam import Adam, AdamW
from baregrad.optim.adaptive import (
    ASGD,
    Adadelta,
    Adagrad,
    Adamax,
    NAdam,
    RAdam,
    Rprop,
)
from baregrad.optim.cycles import CyclicLR, OneCycleLR
from baregrad.optim.grad_scaler import GradScaler
from baregrad.optim.lbfgs import LBFGS
from baregrad.optim.matrices import Adafactor, Muon
from baregrad.optim.optimizer import Optimizer, ParamGroup
from baregrad.optim.rmsprop import RMSprop
from baregrad.optim.schedules import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LinearWarmup,
    LRScheduler,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from baregrad.optim.sgd import SGD
from baregrad.tensor.clipping import clip_grad_norm_, clip_grad_value_

if TYPE_CHECKING:
    from baregrad.optim import swa_utils as swa_utils

__all__ = [
    "ASGD",
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "GradScaler",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "LinearWarmup",
    "MultiStepLR",
    "MultiplicativeLR",
    "Muon",
    "NAdam",
    "OneCycleLR",
    "Optimizer",
    "ParamGroup",
    "PolynomialLR",
    "RAdam",
    "RMSprop",
    "ReduceLROnPlateau",
    "Rprop",
    "SequentialLR",
    "StepLR",
    "clip_grad_norm_",
    "clip_grad_value_",
    "lr_scheduler",
    "swa_utils",
]


def __getattr__(name: str) -> object:
    if name == "swa_utils":
        return importlib.import_module(f"{__name__}.{name}")
    raise unknown_name("baregrad.optim", name, __all__)
