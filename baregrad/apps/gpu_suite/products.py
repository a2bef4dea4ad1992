"""Matrix products, linear layers, convolutions and attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from baregrad.apps.beside.draws import Draw
from baregrad.apps.beside.tensor_case import TensorCase
from baregrad.apps.gpu_suite.row import COPY, FLOAT32, TFLOAT32, GpuRow
from baregrad.base.options import options
from baregrad.nn.block_scaled import FORMATS, BlockScaled, scaled_matmul
from baregrad.tensor import Tensor

_TINY = (48, 40, 32)
# Of PyTorch's, which multiplies by groups of warps: what `mma.sync` of single warps is to reach.
_BY_WARPS, _LINEAR_BY_WARPS, _CONV_BY_WARPS = 0.5, 0.45, 0.4


def _matmul(m: int, n: int, k: int, letters: str = "NN", dtype: str = "bfloat16") -> TensorCase:
    """A product of (m, k) and (k, n); T says which factor lies transposed in memory."""

    def product(a: Any, b: Any) -> Any:
        a = a.T if letters[0] == "T" else a
        return a @ (b.T if letters[1] == "T" else b)

    shapes = ((m, k), (k, n))
    draws = tuple(
        Draw(shape[::-1] if letter == "T" else shape, dtype)
        for shape, letter in zip(shapes, letters, strict=True)
    )
    return TensorCase(
        draws, product, lambda torch, a, b: product(a, b), flops=2.0 * m * n * k,
        traffic=sum(draw.nbytes for draw in draws),
    )


def _tfloat32(size: int) -> TensorCase:
    """A product of float32 that either side may round to tfloat32."""

    def ours(a: Any, b: Any) -> Any:
        with options.override(matmul_precision="high"):
            return a @ b

    def theirs(torch: Any, a: Any, b: Any) -> Any:
        settings = torch.backends.cuda.matmul
        before, settings.allow_tf32 = settings.allow_tf32, True
        try:
            return a @ b
        finally:
            settings.allow_tf32 = before

    draw = Draw((size, size), "float32")
    return TensorCase((draw, draw), ours, theirs, flops=2.0 * size**3, traffic=2 * draw.nbytes)


def _octets(size: int) -> TensorCase:
    """A product of 8-bit floats, of rows of both factors."""

    def theirs(torch: Any, a: Any, b: Any) -> Any:
        if a.dtype.itemsize > 1 or not a.is_cuda:
            return a.float() @ b.float().T
        one = torch.ones((), device=a.device)
        # Where sums keep but 14 bits it takes 1 % less.
        return torch._scaled_mm(a, b.T, one, one, out_dtype=torch.bfloat16)

    draw = Draw((size, size), "float8_e4m3fn")
    return TensorCase(
        (draw, draw), lambda a, b: a.matmul(b.T, out_dtype="bfloat16"), theirs, exact="float32",
        flops=2.0 * size**3, traffic=2 * draw.nbytes,
    )


def _integers(size: int) -> TensorCase:
    """A product of 8-bit integers, of rows of both factors, summed in 32 bits."""

    def theirs(torch: Any, a: Any, b: Any) -> Any:
        if a.dtype.itemsize > 1 or not a.is_cuda:
            return (a.long() @ b.long().T).int()
        return torch._int_mm(a, b.T)

    draw = Draw((size, size), "int8", below=127)
    return TensorCase(
        (draw, draw), lambda a, b: a.matmul(b.T, out_dtype="int32"), theirs,
        flops=2.0 * size**3, traffic=2 * draw.nbytes,
    )


def _scaled_octets(size: int) -> TensorCase:
    """As much, of factors with a scale for 128 numbers of a row, and for blocks of 128 x 128."""
    block, kind = 128, FORMATS["fp8"]

    def ours(a: Any, b: Any, rows: Any, blocks: Any) -> Any:
        factors = BlockScaled(kind, a, rows.T), BlockScaled(kind, b, blocks, block)
        return scaled_matmul(*factors, "bfloat16")

    def theirs(torch: Any, a: Any, b: Any, rows: Any, blocks: Any) -> Any:
        if a.dtype.itemsize > 1 or not a.is_cuda:
            left = a.float() * rows.T.repeat_interleave(block, 1)
            spread = blocks.repeat_interleave(block, 0).repeat_interleave(block, 1)
            return left @ (b.float() * spread).T
        return torch._scaled_mm(a, b.T, rows.T, blocks.T, out_dtype=torch.bfloat16)

    draw = Draw((size, size), "float8_e4m3fn")
    scales = [Draw(shape, "float32", 0.1, 1.0)
              for shape in ((size // block, size), (size // block, size // block))]  # fmt: skip
    return TensorCase(
        (draw, draw, *scales), ours, theirs, exact="float32",
        flops=2.0 * size**3, traffic=2 * draw.nbytes,
    )


def _chain(size: int, length: int) -> TensorCase:
    """Products one after the other, each of the last one's result and a matrix of its own."""

    def chain(x: Any, *factors: Any) -> Any:
        for factor in factors:
            x = x @ factor
        return x

    draws = (
        Draw((size, size)), *(Draw((size, size), scale=size**-0.5) for _ in range(length)),
    )
    return TensorCase(draws, chain, lambda torch, *all: chain(*all), flops=2.0 * size**3 * length)


def _batched(batch: int, m: int, n: int, k: int) -> TensorCase:
    return TensorCase(
        (Draw((batch, m, k)), Draw((batch, k, n))), lambda a, b: a @ b,
        lambda torch, a, b: a @ b, flops=2.0 * batch * m * n * k,
    )


def _linear(batch: int, length: int, before: int, after: int, with_gradients: bool) -> TensorCase:
    draws = [
        Draw((batch, length, before)), Draw((after, before), scale=before**-0.5), Draw((after,)),
    ]
    wanted: tuple[int, ...] = ()
    if with_gradients:
        draws.append(Draw((batch, length, after)))
        wanted = (0, 1, 2)
    return TensorCase(
        tuple(draws), lambda x, w, b: x.linear(w, b).gelu(),
        lambda torch, x, w, b: torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b)),
        wanted, flops=(6.0 if wanted else 2.0) * batch * length * before * after,
    )


def _plain_linear(length: int, before: int, after: int) -> TensorCase:
    """A linear layer without a bias, and both of its gradients."""
    draws = (
        Draw((length, before)), Draw((after, before), scale=before**-0.5), Draw((length, after)),
    )
    return TensorCase(
        draws, lambda x, w: x.linear(w), lambda torch, x, w: torch.nn.functional.linear(x, w),
        (0, 1), flops=6.0 * length * before * after,
    )


def _of(
    function: Callable[..., TensorCase], full: tuple[Any, ...], tiny: tuple[Any, ...]
) -> Callable[[bool], TensorCase]:
    return lambda is_tiny: function(*(tiny if is_tiny else full))


def _matmul_row(
    name: str, bar: float, sizes: tuple[int, ...], letters: str = "NN", tiny: Any = _TINY,
    by_warps: float | None = _BY_WARPS,
) -> GpuRow:
    case = _of(partial(_matmul, letters=letters), sizes, tiny)
    return GpuRow(f"matmul {name}", bar, case, by_warps=by_warps)


PRODUCTS = (
    *(
        GpuRow(
            f"matmul {size}, a chain of ten", bar, _of(_chain, (size, 10), (32, 10)),
            by_warps=_BY_WARPS,
        )
        for size, bar in ((1024, 0.9), (2048, 0.97))
    ),
    _matmul_row("4096", 0.97, (4096,) * 3),
    _matmul_row("8192", 0.97, (8192,) * 3),
    _matmul_row("8192x8192x1024", 0.95, (8192, 8192, 1024)),
    *(_matmul_row(f"4096 {letters}", 0.97, (4096,) * 3, letters) for letters in ("NT", "TN", "TT")),
    GpuRow(
        "linear 8x1024x768 to 3072 with bias and gelu, forward", 0.95,
        _of(_linear, (8, 1024, 768, 3072, False), (2, 16, 24, 32, False)),
        by_warps=_LINEAR_BY_WARPS,
    ),
    GpuRow(
        "linear 8x1024x768 to 3072 with bias and gelu, and gradients", 0.95,
        _of(_linear, (8, 1024, 768, 3072, True), (2, 16, 24, 32, True)), tolerance=2.0**-6,
        by_warps=_LINEAR_BY_WARPS,
    ),
    GpuRow(
        "linear 4096x4096 to 4096 with bias and gelu, forward", 1.15,
        _of(_linear, (1, 4096, 4096, 4096, False), (1, 16, 24, 32, False)),
        by_warps=_LINEAR_BY_WARPS,
    ),
    GpuRow(
        "linear 4096x4096 to 14336, and gradients", 0.95,
        _of(_plain_linear, (4096, 4096, 14336), (16, 24, 32)), tolerance=2.0**-6,
        by_warps=_LINEAR_BY_WARPS,
    ),
    _matmul_row("16x8192x8192", 0.85, (16, 8192, 8192), tiny=(16, 40, 48), by_warps=None),
    _matmul_row("1x8192x8192", 0.95, (1, 8192, 8192), tiny=(1, 40, 48), by_warps=None),
    GpuRow("matmul 64 of 128x128x64", 0.7, _of(_batched, (64, 128, 128, 64), (3, 16, 16, 8))),
    GpuRow(
        "matmul fp16 4096", 0.95, _of(partial(_matmul, dtype="float16"), (4096,) * 3, _TINY),
        by_warps=_BY_WARPS,
    ),
    GpuRow("matmul fp8 8192", 0.93, _of(_octets, (8192,), (64,))),
    GpuRow("matmul fp8 8192, scaled by blocks", 0.93, _of(_scaled_octets, (8192,), (256,))),
    GpuRow("matmul int8 8192", 0.9, _of(_integers, (8192,), (64,))),
    GpuRow("matmul tf32 4096", 0.93, _of(_tfloat32, (4096,), (64,)), tolerance=TFLOAT32),
    GpuRow(
        "matmul 4096 fp32", 0.8,
        _of(partial(_matmul, dtype="float32"), (4096,) * 3, _TINY), tolerance=FLOAT32,
    ),
)


# --- convolutions ---------------------------------------------------------------------------------

FORWARD, BY_INPUT, BY_FILTER = "forward", "gradient by input", "gradient by filter"


def _convolution(
    what: str, batch: int, before: int, after: int, size: int, filter_size: int, stride: int,
    groups: int = 1, channels_last: str = "torch",
) -> TensorCase:
    """A convolution padded by half its filter, or one of its gradients."""
    padding = filter_size // 2
    settings = {"stride": stride, "padding": padding, "groups": groups}
    out = (size + 2 * padding - filter_size) // stride + 1
    fan_in = before // groups * filter_size**2
    draws = [
        Draw((batch, before, size, size)),
        Draw((after, before // groups, filter_size, filter_size), scale=fan_in**-0.5),
    ]
    if what != FORWARD:
        draws.append(Draw((batch, after, out, out)))
    wanted = {FORWARD: (), BY_INPUT: (0,), BY_FILTER: (1,)}[what]
    return TensorCase(
        tuple(draws), lambda x, w: x.conv2d(w, **settings),
        lambda torch, x, w: torch.nn.functional.conv2d(x, w, **settings), wanted,
        alone=what != FORWARD, exact="float32", channels_last=channels_last,
        flops=2.0 * batch * after * out * out * fan_in,
        traffic=sum(draw.nbytes for draw in draws[:2]),
    )


def _convolutions() -> list[GpuRow]:
    """Each convolution forward, and its gradients: name, bar, sizes, tiny sizes."""
    table = (
        ("3x3 64x256x56x56", 0.85, (64, 256, 256, 56, 3, 1), (2, 16, 16, 6, 3, 1)),
        ("1x1 64x256x56x56", 0.4, (64, 256, 256, 56, 1, 1), (2, 16, 16, 6, 1, 1)),
        ("7x7 stride 2 64x3x224x224", 0.4, (64, 3, 64, 224, 7, 2), (2, 3, 8, 14, 7, 2)),
        ("3x3 64x64x56x56", 0.4, (64, 64, 64, 56, 3, 1), (2, 8, 8, 6, 3, 1)),
        ("3x3 stride 2 64x128x56x56", 0.4, (64, 128, 128, 56, 3, 2), (2, 8, 8, 6, 3, 2)),
        ("1x1 64x1024x14x14 to 256", 0.4, (64, 1024, 256, 14, 1, 1), (2, 16, 8, 4, 1, 1)),
        ("3x3 64x512x7x7", 0.4, (64, 512, 512, 7, 3, 1), (2, 16, 16, 5, 3, 1)),
        (
            "depthwise 3x3 64x256x56x56", 1.0,
            (64, 256, 256, 56, 3, 1, 256), (2, 16, 16, 6, 3, 1, 16),
        ),
    )
    what_is_asked = (FORWARD, BY_INPUT, BY_FILTER)
    rows = [
        GpuRow(
            f"conv {name}, {what}", bar, _of(_convolution, (what, *full), (what, *tiny)),
            by_warps=_CONV_BY_WARPS if "depthwise" not in name else None,
        )
        for name, bar, full, tiny in table
        for what in what_is_asked
    ]
    # The same arrays for both: above, PyTorch's lie as it likes them and ours in row-major order.
    name, bar, full, tiny = table[0]
    return rows + [
        GpuRow(
            f"conv {name}, channels last, {what}", bar,
            _of(_convolution, (what, *full, 1, "both"), (what, *tiny, 1, "both")),
            by_warps=_CONV_BY_WARPS,
        )
        for what in what_is_asked
    ]


# --- attention ------------------------------------------------------------------------------------


def _attention(
    batch: int, heads: int, key_heads: int, length: int, width: int, with_gradients: bool
) -> TensorCase:
    """Causal attention of `heads`, over as many heads of keys or fewer."""
    queries, keys = (batch, heads, length, width), (batch, key_heads, length, width)
    is_grouped = heads != key_heads
    draws = [Draw(queries), Draw(keys), Draw(keys)]
    wanted: tuple[int, ...] = ()
    if with_gradients:
        draws.append(Draw(queries))
        wanted = (0, 1, 2)

    def ours(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return query.scaled_dot_product_attention(
            key, value, is_causal=True, enable_gqa=is_grouped
        )

    def theirs(torch: Any, query: Any, key: Any, value: Any) -> Any:
        # PyTorch would keep all float32 scores of grouped heads: too many for one GPU.
        is_repeated = is_grouped and query.dtype == torch.float32
        if is_repeated:
            key, value = (one.repeat_interleave(heads // key_heads, 1) for one in (key, value))
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=is_grouped and not is_repeated
        )

    # Half of two products forward; five more where gradients are asked for.
    flops = 2.0 * batch * heads * length * length * width
    return TensorCase(
        tuple(draws), ours, theirs, wanted, exact="float32",
        flops=flops * (3.5 if with_gradients else 1.0),
    )


def _decoding(
    streams: int, heads: int, key_heads: int, length: int, width: int, stored: str = "bfloat16"
) -> TensorCase:
    """A query of each stream over keys and values that lie in memory as `stored`."""
    cache = Draw((streams, key_heads, length, width), stored)

    def ours(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key, value = (one.cast(query.dtype) for one in (key, value))
        return query.scaled_dot_product_attention(key, value, enable_gqa=True)

    def theirs(torch: Any, query: Any, key: Any, value: Any) -> Any:
        key, value = (
            one.to(query.dtype).repeat_interleave(heads // key_heads, 1) for one in (key, value)
        )
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    return TensorCase(
        (Draw((streams, heads, 1, width)), cache, cache), ours, theirs, exact="float32",
        traffic=2 * cache.nbytes,
    )


def _attentions() -> list[GpuRow]:
    table = (
        ("b4 h32 s4096 d128", (4, 32, 32, 4096, 128), (1, 2, 2, 48, 16)),
        ("b4 h32 s4096 d64", (4, 32, 32, 4096, 64), (1, 2, 2, 48, 16)),
        ("b4 h32 s1024 d64", (4, 32, 32, 1024, 64), (1, 2, 2, 32, 16)),
        ("b1 h16 s16384 d128", (1, 16, 16, 16384, 128), (1, 2, 2, 80, 16)),
        ("b4 h32 of 8 s4096 d128", (4, 32, 8, 4096, 128), (1, 4, 2, 32, 16)),
    )
    rows = [
        GpuRow(
            f"attention causal {name}, {'and gradients' if gradients else 'forward'}",
            0.8 if gradients else 0.9,
            _of(_attention, (*full, gradients), (*tiny, gradients)), tolerance=2.0**-6,
            by_warps=0.3 if gradients else 0.35,
        )
        for name, full, tiny in table
        for gradients in (False, True)
    ]
    decoded = [
        GpuRow(
            f"attention decode 64 of 8192 keys, 32 heads of 8 d128, {name}", 0.9,
            _of(_decoding, (64, 32, 8, 8192, 128, stored), (2, 4, 2, 700, 16, stored)), COPY,
            tolerance=2.0**-6, limit_s=60.0,
        )
        for name, stored in (("bf16", "bfloat16"), ("fp8", "float8_e4m3fn"))
    ]
    return rows + decoded


CONVOLUTIONS = tuple(_convolutions())
ATTENTIONS = tuple(_attentions())
