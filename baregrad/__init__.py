"""baregrad: deep learning from arrays to machine code, in one readable package.

Names are imported from their rooms when they are first asked for, so `import baregrad` is quick.
Beside those in `__all__` it has PyTorch's functions and dtypes under their names:
`import baregrad as torch`.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from baregrad import fft as fft
    from baregrad import linalg as linalg
    from baregrad import nn as nn
    from baregrad import optim as optim
    from baregrad import special as special
    from baregrad.base.errors import BaregradError as BaregradError
    from baregrad.base.options import options as options
    from baregrad.dtypes import DType as DType
    from baregrad.dtypes import dtypes as dtypes
    from baregrad.engine.canonical import bind as bind
    from baregrad.engine.search import search as search
    from baregrad.io import load_torch as load_torch
    from baregrad.io import safe_load as safe_load
    from baregrad.io import safe_save as safe_save
    from baregrad.ir.core.index import variable as variable
    from baregrad.profiling import Profile as profile  # noqa: N813 - a block, as `search` is
    from baregrad.profiling.explain import explain as explain
    from baregrad.tensor import Tensor as Tensor
    from baregrad.tensor.array.grad_mode import autocast as autocast
    from baregrad.tensor.array.grad_mode import enable_grad as enable_grad
    from baregrad.tensor.array.grad_mode import no_grad as no_grad
    from baregrad.tensor.jit.jit import TinyJit as TinyJit
    from baregrad.tensor.jit.jit import jit as jit

# One row for each public name: where it lives and what it is called there.
_EXPORTS = (
    ("BaregradError", "baregrad.base.errors", "BaregradError"),
    ("DType", "baregrad.dtypes", "DType"),
    ("Tensor", "baregrad.tensor", "Tensor"),
    ("TinyJit", "baregrad.tensor.jit.jit", "TinyJit"),
    ("autocast", "baregrad.tensor.array.grad_mode", "autocast"),
    ("bind", "baregrad.engine.canonical", "bind"),
    ("dtypes", "baregrad.dtypes", "dtypes"),
    ("enable_grad", "baregrad.tensor.array.grad_mode", "enable_grad"),
    ("explain", "baregrad.profiling.explain", "explain"),
    ("fft", "baregrad.fft", ""),
    ("jit", "baregrad.tensor.jit.jit", "jit"),
    ("linalg", "baregrad.linalg", ""),
    ("load_torch", "baregrad.io", "load_torch"),
    ("nn", "baregrad.nn", ""),
    ("no_grad", "baregrad.tensor.array.grad_mode", "no_grad"),
    ("optim", "baregrad.optim", ""),
    ("options", "baregrad.base.options", "options"),
    ("profile", "baregrad.profiling", "Profile"),
    ("safe_load", "baregrad.io", "safe_load"),
    ("safe_save", "baregrad.io", "safe_save"),
    ("search", "baregrad.engine.search", "search"),
    ("special", "baregrad.special", ""),
    ("variable", "baregrad.ir.core.index", "variable"),
)

# What PyTorch has at its top and we in other rooms, by the same names.
_ELSEWHERE = (
    ("baregrad.distributions.discrete", ("poisson",)),
    ("baregrad.fft.windows", (
        "bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window",
    )),
    ("baregrad.linalg", ("matrix_rank",)),
    ("baregrad.tensor.generators", (
        "Generator", "default_generator", "get_rng_state", "initial_seed", "seed", "set_rng_state",
    )),
    ("baregrad.tensor.torch_running", (
        "OutOfMemoryError", "compile", "dropout_", "empty_strided", "fill", "frobenius_norm",
        "frombuffer", "get_deterministic_debug_mode", "get_num_interop_threads",
        "get_num_threads", "is_distributed", "is_inference_mode_enabled", "is_storage",
        "is_warn_always_enabled", "norm_except_dim", "nuclear_norm",
        "set_deterministic_debug_mode", "set_warn_always",
        "set_default_dtype", "set_default_tensor_type", "set_flush_denormal",
        "set_num_interop_threads", "set_num_threads", "set_printoptions", "sym_float", "sym_int",
        "sym_max", "sym_min", "sym_not", "sym_sqrt", "sym_sum",
    )),
    ("baregrad.amp", ("GradScaler",)),
    ("baregrad.cuda", ("Event", "Stream")),
    ("baregrad.autograd.anomalies", (
        "is_anomaly_check_nan_enabled", "is_anomaly_enabled", "set_anomaly_enabled",
    )),
    ("baregrad.linalg.elimination", ("lu_unpack",)),
    ("baregrad.linalg.lowrank", ("lobpcg", "pca_lowrank", "svd_lowrank")),
    ("baregrad.linalg.older", ("chain_matmul", "vander")),
    ("baregrad.io", ("load", "save")),
    ("baregrad.func", ("cond", "vmap", "while_loop")),
    ("baregrad.nn.functional", (
        "adaptive_max_pool1d", "alpha_dropout", "bilinear", "celu_", "channel_shuffle", "conv_tbc",
        "ctc_loss", "embedding_bag", "feature_alpha_dropout", "native_channel_shuffle", "pdist",
        "pixel_unshuffle", "rrelu", "rrelu_", "selu_", "threshold_",
    )),
)
# Rooms that are not imported before somebody asks for them.
_ROOMS = (
    "amp", "array_api", "autograd", "cuda", "data", "distributions", "func", "io", "utils",
)

# Modules that PyTorch has at its top and that are elsewhere here.
_MODULES = (
    "accelerator", "backends", "distributed", "functional", "multiprocessing", "onnx", "random",
)

__all__ = [
    "BaregradError",
    "DType",
    "Tensor",
    "TinyJit",
    "__version__",
    "autocast",
    "bind",
    "dtypes",
    "enable_grad",
    "explain",
    "fft",
    "jit",
    "linalg",
    "load_torch",
    "nn",
    "no_grad",
    "optim",
    "options",
    "profile",
    "safe_load",
    "safe_save",
    "search",
    "special",
    "variable",
]


def __getattr__(name: str) -> Any:
    for public, module, attribute in _EXPORTS:
        if public == name:
            value = importlib.import_module(module)
            found = getattr(value, attribute) if attribute else value
            # Kept, so that this function runs once a name.
            globals()[name] = found
            return found
    for module, names in _ELSEWHERE:
        if name in names:
            return getattr(importlib.import_module(module), name)
    if name in _ROOMS or name in _MODULES:
        return importlib.import_module(f"baregrad.{name}")
    if name.startswith("__"):
        raise AttributeError(f"module 'baregrad' has no attribute {name!r}")
    from baregrad.tensor import torch_names

    kept = globals()[name] = torch_names.named(name)
    return kept


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))


class _Places:
    """Where modules are that PyTorch has and no file of ours is called after."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> Any:
        """Return how to make a module of this package, None for others: Python asks this last."""
        if not name.startswith("baregrad."):
            return None
        return importlib.import_module("baregrad.utils.places").spec_of(name)


sys.meta_path.append(_Places)
