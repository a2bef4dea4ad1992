"""Optimisers, learning-rate schedules, gradient clipping: PyTorch's names and arithmetic."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from baregrad.base.namespaces import unknown_name
from baregrad.optim import lr_scheduler
from baregrad.optim.adam import Adam, AdamW
from baregrad.optim.grad_scaler import GradScaler
from baregrad.optim.optimizer import Optimizer, ParamGroup
from baregrad.optim.scheduler import LRScheduler
from baregrad.optim.schedules import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LinearWarmup,
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
    from baregrad.optim.adaptive import ASGD as ASGD
    from baregrad.optim.adaptive import Adadelta as Adadelta
    from baregrad.optim.adaptive import Adagrad as Adagrad
    from baregrad.optim.adaptive import Adamax as Adamax
    from baregrad.optim.adaptive import NAdam as NAdam
    from baregrad.optim.adaptive import RAdam as RAdam
    from baregrad.optim.adaptive import Rprop as Rprop
    from baregrad.optim.cycles import CyclicLR as CyclicLR
    from baregrad.optim.cycles import OneCycleLR as OneCycleLR
    from baregrad.optim.lbfgs import LBFGS as LBFGS
    from baregrad.optim.matrices import Adafactor as Adafactor
    from baregrad.optim.matrices import Muon as Muon
    from baregrad.optim.rmsprop import RMSprop as RMSprop

# Names by the module that has them, which is imported with the first of them.
_LATER = (
    ("adaptive", ("ASGD", "Adadelta", "Adagrad", "Adamax", "NAdam", "RAdam", "Rprop")),
    ("rmsprop", ("RMSprop",)), ("cycles", ("CyclicLR", "OneCycleLR")), ("lbfgs", ("LBFGS",)),
    ("matrices", ("Adafactor", "Muon")),
)  # fmt: skip

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
    for module, names in _LATER:
        if name in names:
            found = globals()[name] = getattr(
                importlib.import_module(f"{__name__}.{module}"), name
            )
            return found
    raise unknown_name("baregrad.optim", name, __all__)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
