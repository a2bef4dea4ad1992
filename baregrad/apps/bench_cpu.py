"""The suite `cpu`: what a CPU is asked for every day, beside PyTorch's eager mode.

Sizes are square, long, thin, batched and odd on purpose; float32 unless a row's name says more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np

from baregrad.apps.bench_measure import Array
from baregrad.apps.bench_models import MODEL_ROWS
from baregrad.apps.bench_rows import Operation, Row, Suite
from baregrad.dtypes import dtypes
from baregrad.runtime.cpu.host import HostProcessor
from baregrad.tensor import Tensor

MATMUL_BAR = 0.90
NARROW_BAR = 0.70
CONVOLUTION_BAR = 0.85
MEMORY_BAR = 1.0
MATHS_BAR = 3.0
# Sums are of this many products; each rounds by 2^-24 of what is there already.
CONTRACTION_TOLERANCE = 2e-5
LONG = 1 << 24


def _matmul(name: str, *shapes: tuple[int, ...], quick: tuple[tuple[int, ...], ...] = ()) -> Row:
    operation = Operation(
        shapes, quick or tuple(tuple(min(size, 24) for size in shape) for shape in shapes),
        ours=lambda a, b: a @ b, torch=lambda torch, a, b: a @ b, numpy=lambda numpy, a, b: a @ b,
    )
    return Row(f"matmul {name}", MATMUL_BAR, operation.prepare, CONTRACTION_TOLERANCE)


def _exact_in_bfloat16(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Random numbers of 8 significant bits, so that converting them changes nothing."""
    bits = random.standard_normal(shape, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32)


def _bytes(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return random.integers(-128, 128, shape, np.int8)


def _lacks(*features: str) -> Callable[[HostProcessor], str]:
    """Say that a machine has none of some instructions, by Linux's names of them."""

    def unfit(host: HostProcessor) -> str:
        if host.features.intersection(features):
            return ""
        return f"this CPU has none of {', '.join(features)}"

    return unfit


_NARROW = (
    Row(
        "matmul bf16 1024", NARROW_BAR,
        Operation(
            ((1024, 1024), (1024, 1024)), ((24, 24), (24, 24)),
            ours=lambda a, b: a @ b, torch=lambda torch, a, b: a @ b,
            reference=lambda numpy, a, b: a @ b, draw=_exact_in_bfloat16, dtype="bfloat16",
        ).prepare,
        # The result is rounded to 8 bits.
        tolerance=2**-8, unfit=_lacks("avx512_bf16", "amx_bf16", "bf16"),
    ),
    Row(
        "matmul int8 1024", NARROW_BAR,
        Operation(
            # PyTorch's kernel wants sizes of 16 or more.
            ((1024, 1024), (1024, 1024)), ((32, 32), (32, 32)),
            ours=lambda a, b: a.cast(dtypes.int32) @ b.cast(dtypes.int32),
            torch=lambda torch, a, b: torch._int_mm(a, b),
            reference=lambda numpy, a, b: a @ b, draw=_bytes,
        ).prepare,
        tolerance=0.0, unfit=_lacks("avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"),
    ),
)


def _windows(x: Array, size: int, stride: int, padding: int) -> Array:
    """Return the windows (N, C, H', W', size, size) of (N, C, H, W)."""
    edge = (padding, padding)
    padded = np.pad(x, ((0, 0), (0, 0), edge, edge))
    view = np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(2, 3))
    return view[:, :, ::stride, ::stride]


def _convolution(
    name: str,
    image: tuple[int, ...],
    filters: tuple[int, ...],
    quick: tuple[tuple[int, ...], tuple[int, ...]],
    **settings: int,
) -> Row:
    stride, padding = settings.get("stride", 1), settings.get("padding", 0)

    def reference(numpy: Any, x: Array, w: Array) -> Array:
        windows = _windows(x, w.shape[-1], stride, padding)
        if w.shape[1] == 1 and x.shape[1] > 1:
            return np.asarray(np.einsum("nchwij,cij->nchw", windows, w[:, 0], optimize=True))
        found = np.tensordot(windows, w, axes=([1, 4, 5], [1, 2, 3]))
        return found.transpose(0, 3, 1, 2)

    operation = Operation(
        (image, filters), quick,
        ours=lambda x, w: x.conv2d(w, **settings),
        torch=lambda torch, x, w: torch.nn.functional.conv2d(x, w, **settings),
        reference=reference,
    )
    return Row(f"conv {name}", CONVOLUTION_BAR, operation.prepare, CONTRACTION_TOLERANCE)


_CONVOLUTIONS = (
    _convolution(
        "3x3 8x64x56x56", (8, 64, 56, 56), (64, 64, 3, 3), ((2, 4, 8, 8), (4, 4, 3, 3)), padding=1
    ),
    _convolution(
        "1x1 8x64x56x56", (8, 64, 56, 56), (64, 64, 1, 1), ((2, 4, 8, 8), (4, 4, 1, 1))
    ),
    _convolution(
        "depthwise 3x3 8x64x56x56", (8, 64, 56, 56), (64, 1, 3, 3),
        ((1, 64, 4, 4), (64, 1, 3, 3)), padding=1, groups=64,
    ),
    _convolution(
        "7x7 stride 2 8x3x224x224", (8, 3, 224, 224), (64, 3, 7, 7),
        ((2, 3, 14, 14), (4, 3, 7, 7)), stride=2, padding=3,
    ),
)


def _memory(
    name: str, shape: tuple[int, ...], traffic: int, function: Callable[..., Any],
    ours: Callable[..., Any] | None = None, torch: Callable[..., Any] | None = None,
) -> Row:
    """A row of 2^24 elements, where `function` takes ours, tensors of PyTorch and arrays alike."""
    draw = np.random.Generator.random
    operation = Operation(
        (shape,), (tuple(max(2, size >> 8) for size in shape),),
        ours=ours or function, torch=torch or (lambda torch, x: function(x)),
        numpy=lambda numpy, x: function(x), draw=lambda random, shape: draw(random, shape, "f4"),
    )
    return Row(name, MEMORY_BAR, operation.prepare, traffic=traffic)


_SQUARE = (4096, 4096)
_MEMORY = (
    _memory("x+1 of 2^24", (LONG,), 8 * LONG, lambda x: x + 1),
    _memory(
        "copy of 2^24", (LONG,), 8 * LONG, lambda x: x.copy(),
        lambda x: x.clone(), lambda torch, x: x.clone(),
    ),
    _memory("sum of 2^24", (LONG,), 4 * LONG, lambda x: x.sum()),
    _memory("row sum of 4096x4096", _SQUARE, 4 * LONG, lambda x: x.sum(1)),
    _memory("column sum of 4096x4096", _SQUARE, 4 * LONG, lambda x: x.sum(0)),
    _memory(
        "transpose of 4096x4096", _SQUARE, 8 * LONG, lambda x: x.T.copy(),
        lambda x: x.T.clone(), lambda torch, x: x.T.contiguous(),
    ),
)

_MATHS_SHAPE = ((2048, 2048),)
_MATHS_QUICK = ((32, 32),)


def _erf(x: Array) -> Array:
    return np.array([math.erf(value) for value in x.ravel()]).reshape(x.shape)


def _softmax(numpy: Any, x: Array) -> Array:
    found = numpy.exp(x - x.max(1, keepdims=True))
    return np.asarray(found / found.sum(1, keepdims=True))


def _layer_norm(numpy: Any, x: Array) -> Array:
    centred = x - x.mean(1, keepdims=True)
    return np.asarray(centred / numpy.sqrt((centred * centred).mean(1, keepdims=True) + 1e-5))


def _layer_norm_of_ours(x: Tensor) -> Tensor:
    return x.layer_norm(x.shape[1])


def _maths(name: str, operation: Operation) -> Row:
    return Row(name, MATHS_BAR, operation.prepare)


_MATHS = (
    _maths("sigmoid(2x+1)*tanh(x)+x^2 of 2^22", Operation(
        ((1 << 22,),), ((100,),),
        ours=lambda x: (2 * x + 1).sigmoid() * x.tanh() + x * x,
        torch=lambda torch, x: (2 * x + 1).sigmoid() * x.tanh() + x * x,
        numpy=lambda numpy, x: numpy.tanh(x) / (1 + numpy.exp(-(2 * x + 1))) + x * x,
    )),
    _maths("gelu of 2048x2048", Operation(
        _MATHS_SHAPE, _MATHS_QUICK,
        ours=lambda x: x.gelu(), torch=lambda torch, x: torch.nn.functional.gelu(x),
        reference=lambda numpy, x: x * 0.5 * (1 + _erf(x * math.sqrt(0.5))),
    )),
    _maths("softmax of 2048x2048", Operation(
        _MATHS_SHAPE, _MATHS_QUICK,
        ours=lambda x: x.softmax(1), torch=lambda torch, x: x.softmax(1), numpy=_softmax,
    )),
    _maths("layernorm of 2048x2048", Operation(
        _MATHS_SHAPE, _MATHS_QUICK, ours=_layer_norm_of_ours,
        torch=lambda torch, x: torch.nn.functional.layer_norm(x, x.shape[1:]), numpy=_layer_norm,
    )),
)

CPU_ROWS = (
    *(_matmul(str(size), (size, size), (size, size)) for size in (256, 512, 1024, 2048)),
    _matmul("4096x64x4096", (4096, 64), (64, 4096)),
    _matmul("1x4096x4096", (1, 4096), (4096, 4096)),
    _matmul("64 of 128", (64, 128, 128), (64, 128, 128), quick=((3, 8, 8), (3, 8, 8))),
    *_NARROW,
    *_CONVOLUTIONS,
    *_MEMORY,
    *_MATHS,
    *MODEL_ROWS,
)

SUITES = MappingProxyType({
    "cpu": Suite("cpu", "operations and models on the CPU, in float32", "CPU", CPU_ROWS),
})
