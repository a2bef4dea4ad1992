"""What `baregrad.<name>` gives of PyTorch's functions: methods of `Tensor`, and a few beside them.

`import baregrad as torch` is how a program of PyTorch's is translated.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.base.namespaces import unknown_name
from baregrad.base.options import options
from baregrad.dtypes import DType, FloatInfo, as_dtype, default_float, dtypes, promote
from baregrad.dtypes import finfo as float_limits
from baregrad.dtypes import result_type as joined_dtype
from baregrad.tensor.array import grad_mode
from baregrad.tensor.array.arguments import explained
from baregrad.tensor.array.random_state import RandomSource
from baregrad.tensor.ops import creation, elementwise
from baregrad.tensor.ops.shapes import LAYOUTS, MemoryFormat
from baregrad.tensor.tensor import Tensor


@explained
def tensor(
    data: Any, *, dtype: object = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """Return a leaf of a copy of data: numbers, nested lists, arrays, tensors."""
    return Tensor(data, dtype, device, requires_grad)


@explained
def as_tensor(data: Any, dtype: object = None, device: str | None = None) -> Tensor:
    """Return data as a tensor: itself, with its gradients, if it is one that fits."""
    if isinstance(data, Tensor):
        return data.to(dtype=dtype, device=device)
    return Tensor(data, dtype, device)


def is_tensor(value: object) -> bool:
    """Whether a value is a tensor."""
    return isinstance(value, Tensor)


def device(name: str, index: int | None = None) -> str:
    """Return a device's name as tensors tell it: "cpu" and "cuda", 1 are "CPU" and "CUDA:1"."""
    if not isinstance(name, str):
        raise ArgumentError(
            "a device is named", found=f"{type(name).__name__} {name!r:.40}",
            wanted="a text, such as 'cpu'",
        )
    named = name if not index else f"{name}:{index}"
    return creation.choose_device(named.removesuffix(":0"))


def inference_mode(mode: bool = True) -> grad_mode.set_grad_enabled:
    """Return a context, or decorator, in which results do not require gradients."""
    return grad_mode.set_grad_enabled(not mode)


def set_float32_matmul_precision(precision: str) -> None:
    """Set the option `matmul_precision`: "highest", or "high", which "medium" is here as well."""
    if precision not in ("highest", "high", "medium"):
        raise ArgumentError(
            "there is no such precision", found=repr(precision), wanted="highest, high or medium"
        )
    _BEGUN.enter_context(
        options.override(matmul_precision="highest" if precision == "highest" else "high")
    )


# Blocks that end with the process.
_BEGUN = contextlib.ExitStack()


def get_float32_matmul_precision() -> str:
    """Return the option `matmul_precision`."""
    found: str = options.matmul_precision
    return found


def get_default_dtype() -> DType:
    """Return the dtype that floats have unless told: float32."""
    return default_float()


def promote_types(first: object, second: object) -> DType:
    """Return the smallest dtype that both are cast to. Raises DTypeError where there is none."""
    return promote(as_dtype(first), as_dtype(second))


def result_type(first: Any, second: Any) -> DType:
    """Return the dtype of what an operation makes of tensors and numbers, without computing it."""
    sides = [one for one in (first, second) if isinstance(one, Tensor)]
    return joined_dtype(
        [x.dtype for x in sides if x.ndim], [x.dtype for x in sides if not x.ndim],
        [one for one in (first, second) if not isinstance(one, Tensor)],
    )


def finfo(dtype: object = None) -> FloatInfo:
    """Return the limits of a dtype of floats, float32 unless told. Raises DTypeError."""
    return float_limits(default_float() if dtype is None else as_dtype(dtype))


class IntegerInfo(NamedTuple):
    """The limits of a dtype of integers."""

    bits: int
    min: int
    max: int


def iinfo(dtype: object) -> IntegerInfo:
    """Return the limits of a dtype of integers. Raises DTypeError for any other."""
    found = as_dtype(dtype)
    if not found.is_int:
        raise DTypeError("iinfo is of integers", found=found, hint="for floats see finfo()")
    return IntegerInfo(found.bits, int(found.min), int(found.max))


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape that arrays of these shapes have beside each other. Raises ShapeError."""
    found: list[int] = []
    for shape in shapes:
        extents = [shape] if isinstance(shape, int) else list(shape)
        found = [1] * (len(extents) - len(found)) + found
        for place, extent in enumerate(reversed(extents), 1):
            if found[-place] not in (1, extent) and extent != 1:
                raise ShapeError(
                    "shapes that do not go together", found=", ".join(map(str, shapes))
                )
            found[-place] = extent if found[-place] == 1 else found[-place]
    return tuple(found)


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return tensors expanded to the shape that they have beside each other."""
    given = _several(tensors)
    shape = broadcast_shapes(*[x.shape for x in given])
    return tuple([x.expand(shape) for x in given])


def atleast_1d(*tensors: Any) -> Any:
    """Return tensors with at least one axis; one alone for one."""
    return _each(tensors, lambda x: x if x.ndim else x.reshape(1))


def atleast_2d(*tensors: Any) -> Any:
    """Return tensors with at least two axes, new ones first; one alone for one."""
    return _each(tensors, lambda x: x if x.ndim > 1 else x.reshape(1, -1))


def atleast_3d(*tensors: Any) -> Any:
    """Return tensors with at least three axes, as NumPy adds them; one alone for one."""

    def three(x: Tensor) -> Tensor:
        if x.ndim > 2:
            return x
        return x.unsqueeze(-1) if x.ndim == 2 else x.reshape(1, -1, 1)

    return _each(tensors, three)


def _several(tensors: Sequence[Any]) -> list[Tensor]:
    """The tensors of several arguments, or of one sequence."""
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        tensors = tensors[0]
    for one in tensors:
        if not isinstance(one, Tensor):
            raise DTypeError("a tensor is wanted", found=f"{type(one).__name__} {one!r:.40}")
    return list(tensors)


def _each(tensors: Sequence[Any], function: Any) -> Any:
    alone = len(tensors) == 1 and isinstance(tensors[0], Tensor)
    found = tuple([function(x) for x in _several(tensors)])
    return found[0] if alone else found


def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors joined along the third axis."""
    deep: list[Tensor] = [atleast_3d(x) for x in _several(tensors)]
    return Tensor.cat(deep, dim=2)


def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors joined along the second axis, vectors as columns."""
    return Tensor.cat([x.reshape(-1, 1) if x.ndim < 2 else x for x in _several(tensors)], dim=1)


def block_diag(*tensors: Tensor) -> Tensor:
    """Return a matrix with these matrices along its diagonal, and zeros beside them."""
    blocks = [x if x.ndim == 2 else x.reshape(1, -1) for x in _several(tensors)]
    width, rows, before = sum(x.shape[1] for x in blocks), [], 0
    for x in blocks:
        rows.append(x.pad((before, width - before - x.shape[1])))
        before += x.shape[1]
    return Tensor.cat(rows, dim=0)


def cartesian_prod(*tensors: Tensor) -> Tensor:
    """Return all combinations of elements of vectors, a row each."""
    given = _several(tensors)
    if len(given) == 1:
        return given[0]
    return Tensor.stack([x.flatten() for x in Tensor.meshgrid(*given, indexing="ij")], dim=1)


@explained
def logspace(
    start: float, end: float, steps: int, base: float = 10.0, *, dtype: object = None,
    device: str | None = None, requires_grad: bool = False,
) -> Tensor:
    """Return powers of `base` whose exponents are evenly spaced from start to end."""
    first, last = float(start), float(end)
    if dtype is not None and as_dtype(dtype).is_int:
        first, last = int(first), int(last)
    exponents = Tensor.linspace(first, last, steps, dtype="float64", device=device)
    powers = Tensor(float(base), dtype="float64", device=device).pow(exponents)
    return powers.cast(dtype or default_float()).requires_grad_(requires_grad)


def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: object = dtypes.int64, device: str | None = None
) -> Tensor:
    """Return the rows and columns (2, n) of what lies on and below a diagonal of a matrix."""
    return _triangle_indices(Tensor.tril, row, col, offset, dtype, device)


def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: object = dtypes.int64, device: str | None = None
) -> Tensor:
    """Return the rows and columns (2, n) of what lies on and above a diagonal of a matrix."""
    return _triangle_indices(Tensor.triu, row, col, offset, dtype, device)


def _triangle_indices(
    part: Any, row: int, col: int, offset: int, dtype: object, device: str | None
) -> Tensor:
    import numpy as np

    keep = np.tril if part is Tensor.tril else np.triu
    places = np.nonzero(keep(np.ones((row, col), dtype=bool), offset))
    return Tensor(np.stack(places), dtype=dtype, device=device)


def scalar_tensor(
    value: Any, *, dtype: object = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """Return a number as a tensor without axes, of floats unless told."""
    return Tensor(value, dtype or default_float(), device, requires_grad)


@explained
def normal(
    mean: Tensor | float = 0.0, std: Tensor | float = 1.0, size: Any = None, *,
    dtype: object = None, device: str | None = None, requires_grad: bool = False,
    generator: RandomSource | None = None,
) -> Tensor:
    """Return normal numbers, of a size or, for each element, of its own mean and deviation."""
    if isinstance(mean, Tensor) or isinstance(std, Tensor):
        shape = broadcast_shapes(*[x.shape for x in (mean, std) if isinstance(x, Tensor)])
        like = mean if isinstance(mean, Tensor) else std
        assert isinstance(like, Tensor)
        drawn = Tensor.randn(
            *shape, dtype=like.dtype, device=like.device, generator=generator
        )
        return drawn * std + mean
    return Tensor.normal(
        mean, std, () if size is None else size, dtype=dtype, device=device,
        requires_grad=requires_grad, generator=generator,
    )


@explained
def randint_like(
    x: Tensor, low: int, high: int | None = None, *, dtype: object = None,
    generator: RandomSource | None = None,
) -> Tensor:
    """Return integers uniform in [low, high), or below `low` alone, of the shape of `x`."""
    first, last = (0, low) if high is None else (low, high)
    return Tensor.randint(
        first, last, x.shape, dtype=dtype or x.dtype, device=x.device, generator=generator
    )


@explained
def rsub(x: Tensor, other: Tensor | bool | int | float, *, alpha: float = 1) -> Tensor:
    """Return other - alpha * x."""
    return elementwise.rsub(x, other, alpha=None if alpha == 1 else alpha)


@explained
def range(
    start: float = 0, end: float | None = None, step: float = 1, *, dtype: object = None,
    device: str | None = None, requires_grad: bool = False,
) -> Tensor:
    """Return numbers from start to end, that one too if a step reaches it; floats unless told."""
    first, last = (0, start) if end is None else (start, end)
    finite = all(map(math.isfinite, (first, last, step)))
    if not finite or not step or (last - first) / step < 0:
        raise ArgumentError("steps that lead to the end", found=f"{first} to {last} by {step}")
    count = math.floor((last - first) / step) + 1
    wanted = as_dtype(dtype or default_float())
    places = Tensor.arange(count, dtype="int64" if wanted.is_int else "float64", device=device)
    return (places * step + first).cast(wanted).requires_grad_(requires_grad)


class Histogram(NamedTuple):
    """How many elements lie in each bin, and the ends of bins."""

    hist: Tensor
    bin_edges: Tensor


def _equal_bins(x: Tensor, bins: int, ends: Sequence[float] | None) -> Tensor:
    """The ends of equal bins, from the least to the largest element by default."""
    if ends is None:
        ends = (x.amin().item(), x.amax().item()) if x.numel() else (0.0, 1.0)
    if bins < 1 or len(ends) != 2 or not all(map(math.isfinite, ends)) or ends[0] > ends[1]:
        raise ArgumentError("bins from a finite number to a larger one",
                            found=f"{bins} from {' to '.join(map(str, ends))}")  # fmt: skip
    low, high = ends if ends[0] < ends[1] else (ends[0] - 0.5, ends[1] + 0.5)
    return Tensor.linspace(low, high, bins + 1, dtype=x.dtype, device=x.device)


@explained
def histogram(
    x: Tensor, bins: int | Tensor = 100, *, range: Sequence[float] | None = None,
    weight: Tensor | None = None, density: bool = False,
) -> Histogram:
    """Return how many elements lie in each of equal bins, or of those between given ends.

    range: where bins begin and end, by default the least and the largest element, which are read.
    Elements outside count nowhere, the last end is part of the last bin. weight: what each element
    counts. density: divided so that the histogram's integral is 1. Raises DTypeError for others
    than floats, ArgumentError for bins without finite ends, ShapeError for other shapes.
    """
    if not x.dtype.is_float:
        raise DTypeError("a histogram is of floats", found=x.dtype, hint="cast them: x.float()")
    if weight is not None and weight.shape != x.shape:
        raise ShapeError("a weight for each element", found=weight.shape, wanted=x.shape)
    flat = x.reshape(-1)
    edges = bins if isinstance(bins, Tensor) else _equal_bins(flat, bins, range)
    if edges.ndim != 1 or edges.shape[0] < 2:
        raise ShapeError("the ends of bins, two or more", found=list(edges.shape))
    count = edges.shape[0] - 1
    inside = (flat >= edges[0]) & (flat <= edges[-1])
    where = (edges.searchsorted(flat, right=True) - 1).clamp(0, count - 1)
    weights = flat.ones_like() if weight is None else weight.reshape(-1)
    found = Tensor.zeros(count, dtype=x.dtype, device=x.device)
    found = found.scatter_add(0, where, inside.where(weights, 0.0).cast(x.dtype))
    if density:
        found = found / (found.sum() * (edges[1:] - edges[:-1]))
    return Histogram(found, edges)


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Do nothing: the same program has the same bits each time, whatever one asks."""


def are_deterministic_algorithms_enabled() -> bool:
    """Return true: results are the same each time."""
    return True


def get_default_device() -> str:
    """Return the device of tensors that are made without one."""
    return creation.choose_device(None)


def set_default_device(device: str | None) -> None:
    """Let tensors be made on a device unless told, by the option `device`; None is the CPU."""
    _BEGUN.enter_context(options.override(device=creation.choose_device(device or "CPU")))


def is_autocast_enabled(device_type: str | None = None) -> bool:
    """Return whether products take narrow floats here; so it is on every kind of device."""
    return grad_mode.cast_dtype() is not None


def get_autocast_dtype(device_type: str | None = None) -> DType:
    """Return the dtype that `autocast` has products take, or would unless told: bfloat16."""
    return grad_mode.cast_dtype() or dtypes.bfloat16


get_autocast_gpu_dtype = get_autocast_cpu_dtype = get_autocast_dtype


def typename(value: Any) -> str:
    """Return the name of a class, or a value's; of a tensor that of PyTorch's by its dtype."""
    if isinstance(value, Tensor):
        names = [name for name, dtype in _TYPED.items() if dtype is value.dtype]
        return f"torch.{names[0]}" if names else f"torch.Tensor of {value.dtype}"
    kind = value if hasattr(value, "__qualname__") else type(value)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def can_cast(from_: object, to: object) -> bool:
    """Return whether values of a dtype may be written into another by an operation in place."""
    order = ("bool", "int", "float", "complex")
    kinds = [
        order.index("int" if one.is_int else "complex" if one.is_complex else one.kind)
        for one in (as_dtype(from_), as_dtype(to))
    ]
    return kinds[0] <= kinds[1]


def _copying(name: str) -> Any:
    """PyTorch's function of a view that copies: of `squeeze_copy` that is `squeeze`."""
    view = getattr(Tensor, name.removesuffix("_copy"))

    def function(*args: Any, **kwargs: Any) -> Any:
        found = view(*args, **kwargs)
        if isinstance(found, Tensor):
            return found.clone()
        return type(found)([one.clone() for one in found])

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return what `{view.__name__}` does, copied."
    return function


def constant_pad_nd(x: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    """Return `x` with a value around its last axes; see `Tensor.pad`."""
    return x.pad(tuple(pad), value=value)


def _property(name: str) -> Any:
    """A property of tensors, as a function."""

    def function(input: Tensor) -> Any:
        return getattr(input, name)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return `input.{name}`."
    return function


def _typed(dtype: DType) -> Any:
    """PyTorch's class of tensors of a dtype, as a function: of sizes, or of data."""

    def typed(*data: Any) -> Tensor:
        if data and all(isinstance(one, int) for one in data):
            return Tensor.empty(*data, dtype=dtype)
        return Tensor(data[0] if data else [], dtype=dtype)

    typed.__doc__ = f"Return {dtype} of data, or of sizes with values that are not to be relied on."
    return typed


_TYPED = MappingProxyType({
    "BFloat16Tensor": dtypes.bfloat16, "BoolTensor": dtypes.bool, "ByteTensor": dtypes.uint8,
    "CharTensor": dtypes.int8, "DoubleTensor": dtypes.float64, "FloatTensor": dtypes.float32,
    "HalfTensor": dtypes.float16, "IntTensor": dtypes.int32, "LongTensor": dtypes.int64,
    "ShortTensor": dtypes.int16,
})  # fmt: skip
_OWN = frozenset({
    "as_tensor", "atleast_1d", "atleast_2d", "atleast_3d", "block_diag", "broadcast_shapes",
    "broadcast_tensors", "cartesian_prod", "column_stack", "constant_pad_nd", "device", "dstack",
    "finfo", "get_default_dtype", "get_float32_matmul_precision", "iinfo", "inference_mode",
    "is_tensor", "logspace", "normal",
    "promote_types", "randint_like", "range", "histogram", "use_deterministic_algorithms",
    "are_deterministic_algorithms_enabled", "get_default_device", "result_type", "rsub",
    "scalar_tensor",
    "set_float32_matmul_precision", "tensor", "set_default_device", "typename", "can_cast",
    "is_autocast_enabled", "get_autocast_dtype", "get_autocast_gpu_dtype",
    "get_autocast_cpu_dtype",
    "tril_indices", "triu_indices",
})  # fmt: skip
_CONSTANTS = MappingProxyType(
    {"pi": math.pi, "e": math.e, "inf": math.inf, "nan": math.nan, "newaxis": None}
    | {"strided": "strided"}
    | {one.name: one for one in LAYOUTS}
)
_CLASSES = MappingProxyType({"Size": tuple, "dtype": DType, "memory_format": MemoryFormat})
# PyTorch's functions under whose name a tensor has something else, or nothing.
_BY_METHOD = MappingProxyType({
    "row_stack": "vstack",
})  # fmt: skip
_COPYING = frozenset(f"{name}_copy" for name in (
    "as_strided", "detach", "diagonal", "expand", "permute", "select", "split", "split_with_sizes",
    "squeeze", "t", "transpose", "unbind", "unfold", "unsqueeze", "view", "view_as_complex",
    "view_as_real",
))  # fmt: skip
# What is a property of a tensor.
_PROPERTIES = frozenset(("real", "imag"))
def named(name: str) -> Any:
    """What PyTorch's `torch.<name>` is here. Raises AttributeError that names the nearest."""
    if name in _OWN:
        return globals()[name]
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    if name in _CLASSES:
        return _CLASSES[name]
    if name == "asarray":
        return as_tensor
    if name in _TYPED:
        return _typed(_TYPED[name])
    if not name.startswith("_"):
        if hasattr(dtypes, name) and isinstance(getattr(dtypes, name), DType):
            return getattr(dtypes, name)
        if name in _COPYING:
            return _copying(name)
        if name in _PROPERTIES:
            return _property(name)
        found = getattr(Tensor, _BY_METHOD.get(name, name), None)
        if callable(found):
            return found
    raise unknown_name("module 'baregrad'", name, known())


def known() -> list[str]:
    """The names that `named` knows."""
    methods = [n for n in dir(Tensor) if not n.startswith("_") and callable(getattr(Tensor, n))]
    types = [n for n in dir(dtypes) if isinstance(getattr(dtypes, n, None), DType)]
    return [*_OWN, *_CONSTANTS, *_TYPED, *methods, *types]
