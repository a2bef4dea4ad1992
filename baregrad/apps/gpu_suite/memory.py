"""Work that is bound by memory: element by element, reductions, norms, losses, orders, gathers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from baregrad.apps.bench_measure import Array
from baregrad.apps.beside.draws import Draw
from baregrad.apps.beside.ours import Ours
from baregrad.apps.beside.peer import Peer
from baregrad.apps.beside.tensor_case import TensorCase
from baregrad.apps.beside.work import SideWork
from baregrad.apps.gpu_suite.row import COPY, FLOAT32, GpuRow
from baregrad.tensor import Tensor

_LONG = 1 << 28
_SQUARE = (1 << 14, 1 << 14)
_WIDE = (16384, 8192)
_TINY = (6, 40)


def _alike(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same text for PyTorch, which is given first and not needed."""
    return lambda torch, *inputs: function(*inputs)


def _streamed(
    name: str, bar: float, shape: tuple[int, ...], tiny: tuple[int, ...],
    function: Callable[..., Any], passes: int, dtype: str = "float32",
    torch: Callable[..., Any] | None = None, tolerance: float = FLOAT32,
) -> GpuRow:
    """A row whose bar is a share of a copy's rate: it moves its array `passes` times."""

    def case(is_tiny: bool) -> TensorCase:
        # Numbers that are no zeros on average, so that errors of sums are told by what they are.
        draw = Draw(tiny if is_tiny else shape, dtype, shift=0.5)
        return TensorCase(
            (draw,), function, torch or _alike(function), traffic=passes * draw.nbytes,
        )

    return GpuRow(name, bar, case, COPY, tolerance)


def _five(x: Any) -> Any:
    return ((x * 1.5 + 0.25).relu() - x) * 0.125


BANDWIDTH = (
    _streamed("x+1 of 2^28", 0.97, (_LONG,), (1000,), lambda x: x + 1, 2),
    _streamed("copy of 2^28", 0.97, (_LONG,), (1000,), lambda x: x.clone(), 2),
    _streamed("sum of 2^28", 0.97, (_LONG,), (1000,), lambda x: x.sum(), 1, tolerance=1e-3),
    _streamed(
        "column sum of 2^14x2^14", 0.97, _SQUARE, (40, 30), lambda x: x.sum(0), 1, tolerance=1e-4
    ),
    _streamed("chain of five of 2^28", 0.97, (_LONG,), (1000,), _five, 2),
    _streamed(
        "softmax 16384x8192", 0.92, _WIDE, _TINY, lambda x: x.softmax(-1), 2, "bfloat16",
        tolerance=2.0**-7,
    ),
    _streamed(
        "rmsnorm 16384x8192", 0.92, _WIDE, _TINY, lambda x: x.rms_norm(x.shape[1], eps=1e-5), 2,
        "bfloat16",
        lambda torch, x: torch.nn.functional.rms_norm(x, x.shape[1:], eps=1e-5), 2.0**-7,
    ),
    _streamed(
        "layernorm 16384x8192", 0.92, _WIDE, _TINY, lambda x: x.layer_norm(x.shape[1]), 2,
        "bfloat16", lambda torch, x: torch.nn.functional.layer_norm(x, x.shape[1:]), 2.0**-7,
    ),
    _streamed(
        "transpose of 8192x8192", 0.92, (8192, 8192), (40, 24), lambda x: x.T.clone(), 2,
        torch=lambda torch, x: x.T.contiguous(),
    ),
)


# --- rows with their gradients --------------------------------------------------------------------


def _softmax_gradient(is_tiny: bool) -> TensorCase:
    draw = Draw(_TINY if is_tiny else _WIDE)
    return TensorCase(
        (draw, draw), lambda x: x.softmax(-1), lambda torch, x: x.softmax(-1), (0,),
        traffic=4 * draw.nbytes,
    )


def _norm_gradient(is_tiny: bool) -> TensorCase:
    draw = Draw(_TINY if is_tiny else _WIDE)
    width = draw.shape[1:]
    scale = Draw(width, scale=0.1, shift=1.0)
    return TensorCase(
        (draw, scale, Draw(width), draw),
        lambda x, weight, bias: x.layer_norm(width, weight, bias),
        lambda torch, x, weight, bias: torch.nn.functional.layer_norm(x, width, weight, bias),
        (0, 1, 2), traffic=4 * draw.nbytes,
    )


def _cross_entropy(is_tiny: bool) -> TensorCase:
    shape = _TINY if is_tiny else (8192, 50304)
    draw = Draw(shape)
    return TensorCase(
        (draw, Draw(shape[:1], below=shape[1])), lambda x, y: x.cross_entropy(y),
        lambda torch, x, y: torch.nn.functional.cross_entropy(x, y), (0,), is_scalar=True,
        traffic=2 * draw.nbytes, exact="float32",
    )


GRADIENTS = (
    GpuRow("softmax 16384x8192 and gradient", 1.2, _softmax_gradient, tolerance=2.0**-6),
    GpuRow("layernorm 16384x8192 and gradients", 1.2, _norm_gradient, tolerance=2.0**-6),
    GpuRow("cross entropy 8192x50304 and gradient", 1.2, _cross_entropy, tolerance=2.0**-6),
)


# --- random numbers, orders, gathers and scatters -------------------------------------------------


class _Normal:
    """Normal numbers: results are their mean and mean powers, since the two draw different ones."""

    def __init__(self, is_tiny: bool) -> None:
        self.count = 1 << 12 if is_tiny else 1 << 26

    def on_ours(self, side: Ours) -> SideWork:
        """Draw a new tensor in each call."""
        work = side.repeated(lambda: Tensor.randn(self.count, device=side.name), [()])
        return SideWork(work.run, lambda: [_moments(work.outputs()[0])])

    def on_peer(self, side: Peer) -> SideWork:
        """Draw a new tensor in each call; exact are the moments themselves."""
        torch = side.torch
        work = side.repeated(lambda: torch.randn(self.count, device=side.device), [()])
        return SideWork(
            work.run, lambda: [_moments(work.outputs()[0])],
            exact=lambda: [np.array([0.0, 1.0, 0.0, 3.0])], facts={"traffic": 4 * self.count},
        )


def _moments(numbers: Array) -> Array:
    wide = numbers.astype(np.float64)
    return np.array([(wide**power).mean() for power in (1, 2, 3, 4)])


def _argmax(is_tiny: bool) -> TensorCase:
    def shown(x: Any, index: Any) -> Any:
        # Which one of several equal numbers is found is not told.
        return x.gather(1, index.unsqueeze(1))

    draw = Draw(_TINY if is_tiny else (64, 128256))
    return TensorCase(
        (draw,), lambda x: x.argmax(-1), lambda torch, x: x.argmax(-1), shown=shown,
        traffic=draw.nbytes,
    )


def _topk(is_tiny: bool) -> TensorCase:
    def shown(x: Any, values: Any, index: Any) -> Any:
        return values, x.gather(1, index)

    draw = Draw(_TINY if is_tiny else (64, 128256))
    k = 5 if is_tiny else 50
    return TensorCase(
        (draw,), lambda x: tuple(x.topk(k)), lambda torch, x: tuple(x.topk(k)), shown=shown,
        traffic=draw.nbytes,
    )


def _cumsum(is_tiny: bool) -> TensorCase:
    draw = Draw(_TINY if is_tiny else (4096, 4096), "float32")
    return TensorCase(
        (draw,), lambda x: x.cumsum(1), lambda torch, x: x.cumsum(1), traffic=2 * draw.nbytes
    )


def _sort(is_tiny: bool) -> TensorCase:
    draw = Draw((500,) if is_tiny else (1 << 22,), "float32")

    def shown(x: Any, values: Any, index: Any) -> Any:
        return values, x.gather(0, index)

    return TensorCase(
        (draw,), lambda x: tuple(x.sort()), lambda torch, x: tuple(x.sort(stable=True)),
        shown=shown, traffic=4 * draw.nbytes,
    )


def _embedding_gradient(is_tiny: bool) -> TensorCase:
    words, width, count = (30, 8, 50) if is_tiny else (50304, 768, 8192)
    table = Draw((words, width))
    return TensorCase(
        (table, Draw((count,), below=words), Draw((count, width))),
        lambda weight, index: weight.embedding(index),
        lambda torch, weight, index: torch.nn.functional.embedding(index, weight),
        (0,), alone=True, traffic=table.nbytes,
    )


def _scatter_add(is_tiny: bool) -> TensorCase:
    bins, count = (64, 500) if is_tiny else (1 << 16, 1 << 22)
    return TensorCase(
        (
            Draw((bins,), "float32"), Draw((count,), below=bins), Draw((count,), "float32"),
        ),
        lambda x, index, source: x.scatter_add(0, index, source),
        lambda torch, x, index, source: x.scatter_add(0, index, source), traffic=12 * count,
    )


ORDERS = (
    GpuRow("randn of 2^26", 0.3, _Normal, tolerance=0.1),
    GpuRow("argmax of 64x128256", 1.0, _argmax, tolerance=0.0),
    GpuRow("topk 50 of 64x128256", 1.0, _topk, tolerance=0.0),
    GpuRow("cumsum of 4096x4096 fp32", 1.0, _cumsum, tolerance=FLOAT32),
    GpuRow("sort of 2^22 fp32", 0.4, _sort, tolerance=0.0),
    GpuRow("embedding gradient 50304x768 from 8192", 1.0, _embedding_gradient),
    GpuRow("scatter-add of 2^22 into 2^16 fp32", 1.0, _scatter_add, tolerance=1e-4),
)
