"""Initial values: PyTorch's distributions, written over a tensor in place, which is returned.

Sources: X. Glorot and Y. Bengio, AISTATS 2010 (xavier); K. He and others, ICCV 2015 (kaiming).
"""

from __future__ import annotations

import functools
import math
from statistics import NormalDist
from typing import Any

import numpy as np

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.base.namespaces import unknown_name
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import explained
from baregrad.tensor.array.random_state import RandomSource


@explained
def uniform_(
    tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: RandomSource | None = None
) -> Tensor:
    """Write numbers uniform in [a, b)."""
    with Tensor.no_grad():
        return tensor.uniform_(a, b, generator=generator)


@explained
def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: RandomSource | None = None
) -> Tensor:
    """Write normally distributed numbers."""
    with Tensor.no_grad():
        return tensor.normal_(mean, std, generator=generator)


@explained
def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0,
    generator: RandomSource | None = None,
) -> Tensor:
    """Write numbers of a normal distribution of which what lies beyond [a, b] is cut off."""
    if not (std > 0 and a < b):
        raise ArgumentError(
            "a normal distribution is cut off at two ends",
            found=f"a deviation of {std} between {a} and {b}",
            wanted="a deviation above 0, the lower end first",
        )
    normal = NormalDist(mean, std)
    with Tensor.no_grad():
        share = Tensor.uniform(
            *tensor.shape, low=normal.cdf(a), high=normal.cdf(b), dtype="float64",
            device=tensor.device, generator=generator,
        )
        return tensor.copy_((_quantile(share) * std + mean).clamp(a, b))


# By powers: numerators and denominators near the middle, further out, and in the tails.
_MIDDLE = (
    (3.3871327179, 50.434271938, 159.29113202, 59.109374720),
    (1.0, 17.895169469, 78.757757664, 67.187563600),
)
_FURTHER = (
    (1.4234372777, 2.7568153900, 1.3067284816, 0.17023821103),
    (1.0, 0.73700164250, 0.12021132975),
)
_TAIL = (
    (6.6579051150, 3.0812263860, 0.42868294337, 0.017337203997),
    (1.0, 0.24197894225, 0.012258202635),
)


def _ratio(x: Tensor, coefficients: tuple[tuple[float, ...], tuple[float, ...]]) -> Tensor:
    above, below = (
        functools.reduce(lambda total, c: total * x + c, reversed(row), x.zeros_like())
        for row in coefficients
    )
    return above / below


def _quantile(share: Tensor) -> Tensor:
    """Where the normal distribution has this share of its numbers below, to seven digits.

    Source: M. Wichura, Algorithm AS 241 (PPND7), Applied Statistics 37, 1988.
    """
    share = share.clamp(1e-300, 1 - 2**-53)
    distance = share - 0.5
    middle = distance * _ratio(0.180625 - distance * distance, _MIDDLE)
    root = (-share.minimum(1 - share).log()).sqrt()
    outside = (root <= 5).where(_ratio(root - 1.6, _FURTHER), _ratio(root - 5, _TAIL))
    return (distance.abs() <= 0.425).where(middle, (distance < 0).where(-outside, outside))


@explained
def constant_(tensor: Tensor, val: float) -> Tensor:
    """Write one number."""
    with Tensor.no_grad():
        return tensor.fill_(val)


@explained
def zeros_(tensor: Tensor) -> Tensor:
    """Write zeros."""
    return constant_(tensor, 0.0)


@explained
def ones_(tensor: Tensor) -> Tensor:
    """Write ones."""
    return constant_(tensor, 1.0)


@explained
def fans(tensor: Tensor) -> tuple[int, int]:
    """Return how many inputs and outputs a weight (out, in, ...) connects.

    Raises ShapeError for fewer than two axes.
    """
    if tensor.ndim < 2:
        raise ShapeError("a weight connects inputs and outputs", found=list(tensor.shape),
                         wanted="two axes or more")
    taps = math.prod(tensor.shape[2:])
    return tensor.shape[1] * taps, tensor.shape[0] * taps


@explained
def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return by what a nonlinearity shrinks the standard deviation; `param` is its slope."""
    if nonlinearity == "relu":
        return math.sqrt(2.0)
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        return math.sqrt(2.0 / (1 + slope * slope))
    if nonlinearity == "tanh":
        return 5.0 / 3
    if nonlinearity == "selu":
        return 0.75
    if nonlinearity in ("linear", "sigmoid", "conv1d", "conv2d", "conv3d"):
        return 1.0
    raise ArgumentError(f"no gain is known for the nonlinearity {nonlinearity!r}")


@explained
def xavier_uniform_(
    tensor: Tensor, gain: float = 1.0, generator: RandomSource | None = None
) -> Tensor:
    """Write uniform numbers of variance 2*gain**2 / (inputs + outputs)."""
    bound = gain * math.sqrt(6.0 / sum(fans(tensor)))
    return uniform_(tensor, -bound, bound, generator)


@explained
def xavier_normal_(
    tensor: Tensor, gain: float = 1.0, generator: RandomSource | None = None
) -> Tensor:
    """Write normal numbers of variance 2*gain**2 / (inputs + outputs)."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(fans(tensor))), generator)


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ArgumentError(f"mode is 'fan_in' or 'fan_out', not {mode!r}")
    inputs, outputs = fans(tensor)
    fan = inputs if mode == "fan_in" else outputs
    return calculate_gain(nonlinearity, a) / math.sqrt(fan) if fan else 0.0


@explained
def kaiming_uniform_(
    tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
    generator: RandomSource | None = None,
) -> Tensor:
    """Write uniform numbers of variance gain**2 / inputs (or outputs)."""
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


@explained
def kaiming_normal_(
    tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
    generator: RandomSource | None = None,
) -> Tensor:
    """Write normal numbers of variance gain**2 / inputs (or outputs)."""
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), generator)


@explained
def eye_(tensor: Tensor) -> Tensor:
    """Write a matrix of ones on the diagonal. Raises ShapeError for other numbers of axes."""
    if tensor.ndim != 2:
        raise ShapeError("an identity is a matrix", found=list(tensor.shape), wanted="two axes")
    with Tensor.no_grad():
        return tensor.copy_(Tensor.eye(*tensor.shape, dtype=tensor.dtype, device=tensor.device))


@explained
def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Write the weight (out, in, ...) of a convolution that passes channels on as they are.

    Raises ShapeError unless there are three to five axes, and `groups` divides the outputs.
    """
    if not 3 <= tensor.ndim <= 5 or groups < 1 or tensor.shape[0] % groups:
        raise ShapeError(
            "a convolution's weight has three to five axes, and groups of outputs",
            found=f"{list(tensor.shape)}, {groups} groups",
        )
    outputs, inputs, *taps = tensor.shape
    values = np.zeros(tensor.shape, dtype=bool)
    each = outputs // groups
    for group in range(groups):
        for place in range(min(each, inputs)):
            values[(group * each + place, place, *[tap // 2 for tap in taps])] = True
    with Tensor.no_grad():
        return tensor.copy_(Tensor(values, device=tensor.device).cast(tensor.dtype))


@explained
def orthogonal_(
    tensor: Tensor, gain: float = 1.0, generator: RandomSource | None = None
) -> Tensor:
    """Write a matrix (out, the rest) of orthonormal rows, or columns if those are fewer, by `gain`.

    The factor Q of a normal matrix, with the signs that make it unique (F. Mezzadri, 2007). Raises
    ShapeError for fewer than two axes.
    """
    if tensor.ndim < 2:
        raise ShapeError("a weight has two axes or more", found=list(tensor.shape))
    if not tensor.numel():
        return tensor
    rows, columns = tensor.shape[0], math.prod(tensor.shape[1:])
    with Tensor.no_grad():
        drawn = Tensor.randn(
            rows, columns, dtype="float64", generator=generator,
            device=None if generator is None else generator.device,
        ).numpy()
        q, r = np.linalg.qr(drawn if rows >= columns else drawn.T)
        q = q * np.where(np.diag(r) < 0, -1.0, 1.0)
        made = (q if rows >= columns else q.T).reshape(tensor.shape) * gain
        return tensor.copy_(Tensor(made, device=tensor.device).cast(tensor.dtype))


@explained
def sparse_(
    tensor: Tensor, sparsity: float, std: float = 0.01, generator: RandomSource | None = None
) -> Tensor:
    """Write normal numbers, and zeros at this share of the places of each column of a matrix."""
    if tensor.ndim != 2 or not 0 <= sparsity <= 1:
        raise ShapeError("zeros are a share of each column of a matrix",
                         found=f"{list(tensor.shape)}, {sparsity}")
    zeros = math.ceil(sparsity * tensor.shape[0])
    with Tensor.no_grad():
        drawn = Tensor.rand(*tensor.shape, device=tensor.device, generator=generator)
        order = drawn.argsort(0).argsort(0)
        return tensor.copy_((order < zeros).where(0.0, normal_(tensor, 0.0, std, generator)))


@explained
def drawn(*shape: int, fan: int, dtype: object = None, device: str | None = None) -> Tensor:
    """Return a parameter uniform within 1/sqrt(fan) of 0: what linear layers begin with."""
    if fan < 0:
        raise ShapeError("a layer's inputs are 0 or more", found=fan)
    bound = 1 / math.sqrt(fan) if fan else 0.0
    return Tensor.uniform(
        *shape, low=-bound, high=bound, dtype=dtype, device=device, requires_grad=True
    )


@explained
def redraw(fan: int, *tensors: Tensor | None) -> None:
    """Write values uniform within 1/sqrt(fan) of 0 over tensors."""
    bound = fan**-0.5 if fan > 0 else 0.0
    for held in tensors:
        if held is not None:
            uniform_(held, -bound, bound)


@explained
def refill(weight: Tensor | None, bias: Tensor | None) -> None:
    """Write ones over a weight and zeros over a bias."""
    if weight is not None:
        ones_(weight)
    if bias is not None:
        zeros_(bias)


@explained
def begin(module: Any, kind: type, name: str = "reset_parameters") -> None:
    """Let a class made of the layer `kind` write first values of its own, if it does."""
    own, usual = (getattr(one, name, None) for one in (type(module), kind))
    if own is None or usual is None:
        raise ArgumentError(
            f"no layer with {name}", found=f"{type(module).__name__} and {kind!r:.60}",
            wanted="a layer, and the class that it is of",
        )
    if own is not usual:
        own(module)


def __getattr__(name: str) -> object:
    if name == "_calculate_fan_in_and_fan_out":
        # PyTorch's own, which published models call.
        return fans
    known = [each for each in globals() if each.endswith("_") and not each.startswith("_")]
    # PyTorch's older names have no line behind them.
    meant = {name: f"{name}_"} if f"{name}_" in known else {}
    raise unknown_name("baregrad.nn.init", name, known, meant)
