"""PyTorch's functions about how programs run and are shown: threads, printing, compiling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from baregrad.base.errors import ArgumentError, DTypeError, OutOfMemory, UnsupportedError
from baregrad.base.options import options
from baregrad.dtypes import Defaults, as_dtype, to_numpy
from baregrad.engine.session import current_session, opened_devices
from baregrad.tensor.array.grad_mode import grad_enabled
from baregrad.tensor.ops import convert
from baregrad.tensor.tensor import Tensor
from baregrad.tensor.torch_names import named as typed

_F = TypeVar("_F")
OutOfMemoryError = OutOfMemory


def compile(
    model: _F | None = None, *, fullgraph: bool = False, dynamic: bool | None = None,
    backend: object = "baregrad", mode: str | None = None, options: object = None,
    disable: bool = False,
) -> _F | Callable[[_F], _F]:
    """Return the function or module itself: what it computes is compiled whoever calls it.

    What PyTorch's settings ask for changes nothing. `jit` captures a function's work and replays
    it, which takes Python's time away as well; see there for what such a function may do.
    """
    if model is None:
        return lambda given: given
    if not callable(model):
        raise ArgumentError("a function or a module is compiled", found=type(model).__name__)
    return model


def set_default_dtype(d: object) -> None:
    """Let floats that have no dtype of their own be of this one from now on, in every thread.

    So are Python's numbers, what is drawn and filled, parameters of layers, and what functions
    make of integers; complex numbers are of two such floats. Raises DTypeError for other dtypes.
    """
    found = as_dtype(d)
    if not found.is_float or found.bits < 16 or found.storage_only:
        raise DTypeError("the default dtype is one of floats", found=found,
                         wanted="float32, float64, float16 or bfloat16")  # fmt: skip
    Defaults.float = found


def set_default_tensor_type(t: Any) -> None:
    """Let floats be of a class of PyTorch's such as `DoubleTensor`; see `set_default_dtype`."""
    set_default_dtype(t().dtype if callable(t) else typed(str(t).rpartition(".")[2])().dtype)


def get_num_threads() -> int:
    """Return how many threads compute on the CPU."""
    device: Any = current_session().backend("CPU").device
    found: int = device.threads
    return found


def set_num_threads(threads: int) -> None:
    """Let so many threads compute on the CPU, as the option `threads` does: before its first use.

    Raises ArgumentError for what is no number of threads, UnsupportedError afterwards.
    """
    if threads.__class__ is not int or threads < 1:
        raise ArgumentError("a number of threads", found=repr(threads), wanted="1 or more")
    if "CPU" in opened_devices(current_session()) and get_num_threads() != threads:
        raise UnsupportedError(
            "threads are started with the CPU's first use", found=f"set_num_threads({threads})",
            hint=f"call it before anything is computed, or set BAREGRAD_THREADS={threads}",
        )
    options.begin(threads=threads)


def get_num_interop_threads() -> int:
    """Return 1: operations run one after another."""
    return 1


def set_num_interop_threads(threads: int) -> None:
    """Do nothing: operations run one after another, each on all threads."""


def set_printoptions(
    precision: int | None = None, threshold: int | None = None, edgeitems: int | None = None,
    linewidth: int | None = None, profile: str | None = None, sci_mode: bool | None = None,
) -> None:
    """Say how tensors are shown from now on.

    precision: digits behind the point. threshold: of how many elements on only the outer
    `edgeitems` are shown. linewidth: characters in a line. profile: "default", "short" or "full".
    sci_mode: false shows no number below 1e8 by a power of ten; true leaves it to the numbers, as
    it is by default. Raises ArgumentError for another profile.
    """
    profiles = {"default": (4, convert.PRINTED, 3), "short": (2, convert.PRINTED, 2),
                "full": (4, 2**63 - 1, 3)}  # fmt: skip
    given: dict[str, Any] = {}
    if profile is not None:
        if profile not in profiles:
            raise ArgumentError("there is no such profile", found=repr(profile),
                                wanted=" or ".join(profiles))  # fmt: skip
        given = dict(zip(("precision", "threshold", "edgeitems"), profiles[profile], strict=True))
        given["linewidth"] = 75
    own = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems,
           "linewidth": linewidth}  # fmt: skip
    given |= {name: value for name, value in own.items() if value is not None}
    if threshold is not None and math.isinf(threshold):
        given["threshold"] = 2**63 - 1
    if sci_mode is not None:
        given["suppress"] = not sci_mode
    convert.Printing.settings = {**convert.Printing.settings, **given}


def set_flush_denormal(mode: bool) -> bool:
    """Return whether small numbers are flushed to zero as asked: they are never."""
    return not mode


def is_inference_mode_enabled() -> bool:
    """Return whether results require no gradients here."""
    return not grad_enabled()


def is_storage(value: object) -> bool:
    """Return false: memory has no class of its own."""
    return False


def is_distributed(x: Tensor) -> bool:
    """Return false: a tensor lies in one place."""
    return False


def frombuffer(
    buffer: Any, *, dtype: object, count: int = -1, offset: int = 0, requires_grad: bool = False
) -> Tensor:
    """Return a vector of the elements that lie in a buffer of bytes, copied.

    count: how many, all of them with -1. offset: how many bytes are before them. Raises
    ArgumentError where the buffer has not so many.
    """
    given = as_dtype(dtype)
    # NumPy has no bfloat16 and no floats of 8 bits: their bits are read.
    is_coded = given.is_float and given.numpy is None and given.bits >= 8
    wanted = np.dtype(f"u{given.itemsize}") if is_coded else to_numpy(given)
    whole, size = memoryview(buffer).nbytes, wanted.itemsize
    found = (whole - offset) // size if count < 0 else count
    if offset < 0 or found < 1 or offset + found * size > whole or (
        count < 0 and (whole - offset) % size
    ):
        raise ArgumentError(
            "elements that lie in the buffer", found=f"{count} of {size} bytes from byte {offset}",
            wanted=f"whole ones, at least one, in {whole} bytes",
        )
    made = Tensor(np.frombuffer(buffer, wanted, found, offset).copy())
    return (made.bitcast(given) if is_coded else made).requires_grad_(requires_grad)


def empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: object = None,
    device: str | None = None, requires_grad: bool = False, pin_memory: bool = False,
) -> Tensor:
    """Return a tensor of a size; its values are not to be relied on, and lie in row-major order."""
    beside = Tensor.zeros(0, dtype=dtype, device=device)
    return beside.new_empty_strided(size, stride, requires_grad=requires_grad)


def norm_except_dim(v: Tensor, pow: int = 2, dim: int = 0) -> Tensor:
    """Return the norms over all axes but one, which are kept with one element; -1 for all."""
    if dim == -1:
        return v.norm(pow)
    return v.norm(pow, dim=[axis for axis in range(v.ndim) if axis != dim % v.ndim], keepdim=True)


def frobenius_norm(x: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Tensor:
    """Return the roots of sums of squares over axes, all by default."""
    return x.norm(2, dim=list(dim) or None, keepdim=keepdim)


def nuclear_norm(x: Tensor, dim: Sequence[int] = (-2, -1), keepdim: bool = False) -> Tensor:
    """Return the sums of singular values of matrices along two axes."""
    from importlib import import_module

    found: Tensor = import_module("baregrad.linalg").matrix_norm(x, "nuc", tuple(dim), keepdim)
    return found


def fill(x: Tensor, value: Tensor | float) -> Tensor:
    """Return a tensor like `x` of one value."""
    made = x.clone()
    made[...] = value
    return made


def dropout_(x: Tensor, p: float, train: bool) -> Tensor:
    """Write zeros at this share of the elements over `x`, others scaled; return `x`."""
    return x.copy_(x.dropout(p, train))


def get_deterministic_debug_mode() -> int:
    """Return 2: results are the same each time."""
    return 2


def set_deterministic_debug_mode(debug_mode: int | str) -> None:
    """Do nothing: the same program has the same bits each time."""


def is_warn_always_enabled() -> bool:
    """Return false: a warning is shown once for each place."""
    return False


def set_warn_always(b: bool) -> None:
    """Do nothing: `warnings` says how often each is shown."""


def sym_max(a: Any, b: Any) -> Any:
    """Return the larger of two numbers, a float where one is."""
    found = max(a, b)
    return float(found) if isinstance(a, float) or isinstance(b, float) else found


def sym_min(a: Any, b: Any) -> Any:
    """Return the smaller of two numbers, a float where one is."""
    found = min(a, b)
    return float(found) if isinstance(a, float) or isinstance(b, float) else found


def sym_not(a: Any) -> bool:
    """Return whether a condition does not hold."""
    return not a


sym_int, sym_float, sym_sum, sym_sqrt = int, float, sum, math.sqrt
