"""Modules that programs import of PyTorch and that are files of other names here, or none.

`from baregrad.distributions.categorical import Categorical` gives what `baregrad.distributions`
has: a module that is not there by its own name shows the names of the one of ours that has them. In
comes a module's name, out goes how it is made; Python asks for those alone that no file serves.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Any

from baregrad.base.namespaces import unknown_name

_PACKAGE = "baregrad."
# PyTorch's packages, and the module of ours that has their names.
_PACKAGES = (
    ("accelerator", "cuda.accelerator"), ("backends", "utils.backends"),
    ("distributed", "utils.processes"), ("functional", ""), ("jit", "tensor.jit.jit"),
    ("multiprocessing", "utils.multiprocessing"), ("nn.modules", "nn"), ("nn.parallel", "nn"),
    ("nn.common_types", "utils.repeating"), ("onnx", "utils.onnx_writing"),
    ("random", "tensor.generators"),
)  # fmt: skip
# Modules of such packages, or of ours, by the module that has their names.
_MODULES = (
    ("amp", "amp", ("autocast_mode", "grad_scaler")),
    ("autograd", "autograd", ("function", "gradcheck", "grad_mode", "variable")),
    ("backends", "utils.backends", ("cuda", "cudnn", "mps")),
    ("cuda.amp", "cuda.amp", ("autocast_mode", "common", "grad_scaler")),
    ("distributions", "distributions", (
        "bernoulli", "beta", "binomial", "categorical", "cauchy", "chi2", "dirichlet",
        "distribution", "exponential", "fishersnedecor", "gamma", "geometric", "gumbel",
        "half_cauchy", "half_normal", "independent", "inverse_gamma", "kl", "kumaraswamy",
        "laplace", "log_normal", "lowrank_multivariate_normal", "mixture_same_family",
        "multinomial", "multivariate_normal", "negative_binomial", "normal",
        "one_hot_categorical", "pareto", "poisson", "relaxed_bernoulli", "relaxed_categorical",
        "studentT", "transformed_distribution", "uniform", "von_mises", "weibull",
    )),
    ("nn.modules", "nn", (
        "activation", "adaptive", "batchnorm", "channelshuffle", "container", "conv", "distance",
        "dropout", "flatten", "fold", "instancenorm", "lazy", "linear", "loss", "module",
        "normalization", "padding", "pixelshuffle", "pooling", "rnn", "sparse", "transformer",
        "upsampling",
    )),
    ("nn.modules", "utils.repeating", ("utils",)),
    ("nn.parallel", "nn", ("data_parallel", "distributed")),
    ("nn.utils", "nn.utils", ("clip_grad", "convert_parameters", "fusion")),
    ("optim", "optim", ("adadelta", "adagrad", "adamax", "adamw", "asgd", "nadam", "radam",
                        "rprop")),
    ("utils.data", "utils.data", ("dataloader", "dataset", "distributed", "sampler")),
)  # fmt: skip
# Names of PyTorch's that programs import though they are its own, by module of ours and name there.
_PRIVATE = MappingProxyType({
    ("nn", "_BatchNorm"): ("nn.normalisation", "BatchNorm"),
    ("nn", "_NormBase"): ("nn.normalisation", "BatchNorm"),
    ("nn", "_InstanceNorm"): ("nn.normalisation", "_InstanceNorm"),
    ("nn", "_ConvNd"): ("nn.convolution", "_Convolution"),
    ("nn", "_ConvTransposeNd"): ("nn.convolution", "_Transposed"),
    ("nn", "DistributedDataParallel"): ("nn.containers", "DistributedDataParallel"),
    ("nn", "_DropoutNd"): ("nn.layers", "Dropout"),
    ("nn", "_Loss"): ("nn.losses", "_Loss"),
    ("nn", "_WeightedLoss"): ("nn.losses", "_WeightedLoss"),
})  # fmt: skip


class _Place(ModuleType):
    """A module of PyTorch's that shows the names of one of ours, and keeps none of its own."""

    _of: str

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            # What `from ... import *` gives.
            return [one for one in dir(self) if not one.startswith("_")]
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name)
        module, name = _PRIVATE.get((self._of, name), (self._of, name))
        return getattr(importlib.import_module(f"{_PACKAGE}{module}".rstrip(".")), name)

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("_") or isinstance(value, ModuleType):
            super().__setattr__(name, value)
        else:
            setattr(importlib.import_module(f"{_PACKAGE}{self._of}".rstrip(".")), name, value)

    def __dir__(self) -> list[str]:
        return dir(importlib.import_module(f"{_PACKAGE}{self._of}".rstrip(".")))


class _Loader(Loader):
    """Makes a `_Place`."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module, which shows the names of `spec.loader_state`."""
        made = _Place(spec.name, f"`torch.{spec.name.removeprefix(_PACKAGE)}`, by our names.")
        made._of = spec.loader_state
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing, but where the name is one of settings: those take the module's place."""
        path, _, name = module.__name__.rpartition(".")
        if path == f"{_PACKAGE}backends":
            sys.modules[module.__name__] = getattr(module, name)
        elif module.__name__ == f"{_PACKAGE}jit":
            # A function that has the names as attributes.
            sys.modules[module.__name__] = module.jit


def spec_of(name: str) -> ModuleSpec | None:
    """Return how a module is made that no file serves; None unless PyTorch's name for it is known.

    name: such as "baregrad.nn.modules.batchnorm".
    """
    path = name.removeprefix(_PACKAGE)
    found = dict(_PACKAGES).get(path)
    is_package = found is not None
    holder, _, last = path.rpartition(".")
    for package, module, names in _MODULES:
        if found is None and package == holder and last in names:
            found = module
    if found is None:
        return None
    return ModuleSpec(name, _Loader(), loader_state=found, is_package=is_package)


def child(package: str, name: str, known: Sequence[str]) -> Any:
    """Return PyTorch's module of a name in a package of ours. Raises AttributeError for no such.

    known: what else the package has, of which the error names the nearest.
    """
    if spec_of(f"{package}.{name}") is None:
        raise unknown_name(package, name, known)
    return importlib.import_module(f"{package}.{name}")
