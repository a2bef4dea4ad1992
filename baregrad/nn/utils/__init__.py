"""What PyTorch's `nn.utils` has, by its names: tools for weights, gradients and sequences.

In come modules and tensors, out go the same, changed. Imports `nn`'s modules and `tensor`; the
layers that take packed sequences import `rnn`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from baregrad.base.namespaces import unknown_name

if TYPE_CHECKING:
    from baregrad.nn.utils import parametrizations as parametrizations
    from baregrad.nn.utils import parametrize as parametrize
    from baregrad.nn.utils import rnn as rnn
    from baregrad.nn.utils.weights import fuse_conv_bn_eval as fuse_conv_bn_eval
    from baregrad.nn.utils.weights import fuse_conv_bn_weights as fuse_conv_bn_weights
    from baregrad.nn.utils.weights import fuse_linear_bn_eval as fuse_linear_bn_eval
    from baregrad.nn.utils.weights import fuse_linear_bn_weights as fuse_linear_bn_weights
    from baregrad.nn.utils.weights import parameters_to_vector as parameters_to_vector
    from baregrad.nn.utils.weights import remove_spectral_norm as remove_spectral_norm
    from baregrad.nn.utils.weights import remove_weight_norm as remove_weight_norm
    from baregrad.nn.utils.weights import skip_init as skip_init
    from baregrad.nn.utils.weights import spectral_norm as spectral_norm
    from baregrad.nn.utils.weights import vector_to_parameters as vector_to_parameters
    from baregrad.nn.utils.weights import weight_norm as weight_norm
    from baregrad.tensor.clipping import clip_grad_norm_ as clip_grad_norm_
    from baregrad.tensor.clipping import clip_grad_value_ as clip_grad_value_
    from baregrad.tensor.clipping import clip_grads_with_norm_ as clip_grads_with_norm_
    from baregrad.tensor.clipping import get_total_norm as get_total_norm

# Names by the module that has them, which is imported with the first of them.
_LATER = (
    ("baregrad.nn.utils.weights", (
        "fuse_conv_bn_eval", "fuse_conv_bn_weights", "fuse_linear_bn_eval",
        "fuse_linear_bn_weights", "parameters_to_vector", "remove_spectral_norm",
        "remove_weight_norm", "skip_init", "spectral_norm", "vector_to_parameters", "weight_norm",
    )),
    ("baregrad.tensor.clipping", (
        "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm",
    )),
)  # fmt: skip
_MODULES = ("parametrizations", "parametrize", "rnn")

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "fuse_conv_bn_eval",
    "fuse_conv_bn_weights",
    "fuse_linear_bn_eval",
    "fuse_linear_bn_weights",
    "get_total_norm",
    "parameters_to_vector",
    "parametrizations",
    "parametrize",
    "remove_spectral_norm",
    "remove_weight_norm",
    "rnn",
    "skip_init",
    "spectral_norm",
    "vector_to_parameters",
    "weight_norm",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    for module, names in _LATER:
        if name in names:
            found = globals()[name] = getattr(importlib.import_module(module), name)
            return found
    raise unknown_name("baregrad.nn.utils", name, __all__)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
