"""Matrix products, convolutions, pooling and attention.

The second factor of a product is drawn so small that results are about 1: float16 holds them, and
what is made of them and of their gradients.
"""

from __future__ import annotations

from typing import Any

from baregrad.apps.beside.draws import Draw
from baregrad.apps.sweep.pick import Pick
from baregrad.apps.sweep.sweep_op import Maker, SweepOp, shape_text

# Operations of one call for each element that arrays may have at most: 2^35 for 2^26.
_OPERATIONS = 512


def _extents(pick: Pick, batch: int = 1) -> tuple[int, int, int]:
    """Choose m, n and k, so that arrays and operations stay within bounds."""
    budget = max(1, pick.largest * _OPERATIONS // 2 // batch)
    most = max(1, pick.largest // batch)
    m = pick.size(1, min(8192, most))
    n = pick.size(1, max(1, min(8192, most // m)))
    k = pick.size(1, max(1, min(8192, most // m, most // n, budget // (m * n))))
    return m, n, k


def _matmul(pick: Pick) -> SweepOp:
    m, n, k = _extents(pick)
    dtype = pick.floats()
    letters = pick.one(("NN", "NT", "TN", "TT"))

    def function(kit: Any, a: Any, b: Any) -> Any:
        a = a.T if letters[0] == "T" else a
        return a @ (b.T if letters[1] == "T" else b)

    shapes = [(m, k), (k, n)]
    draws = tuple(
        Draw(shape[::-1] if letter == "T" else shape, dtype, scale)
        for shape, letter, scale in zip(shapes, letters, (1.0, k**-0.5), strict=True)
    )
    return SweepOp(f"matmul {letters} {m}x{n}x{k}", draws, function, (0, 1), tolerance=4.0)


def _batched(pick: Pick) -> SweepOp:
    batch = pick.whole(2, 128)
    m, n, k = _extents(pick, batch)
    return SweepOp(
        f"matmul {batch} of {m}x{n}x{k}",
        (Draw((batch, m, k), dtype := pick.floats()), Draw((batch, k, n), dtype, k**-0.5)),
        lambda kit, a, b: a @ b, (0, 1), tolerance=4.0,
    )


def _linear(pick: Pick) -> SweepOp:
    batch = pick.whole(1, 16)
    m, n, k = _extents(pick, batch)
    dtype = pick.floats()
    return SweepOp(
        f"linear {batch}x{m}x{k} to {n}",
        (Draw((batch, m, k), dtype), Draw((n, k), dtype, k**-0.5), Draw((n,), dtype)),
        lambda kit, x, w, b: kit.linear(x, w, b), (0, 1, 2), tolerance=4.0,
    )


def _einsum(pick: Pick) -> SweepOp:
    """Products over axes in any place, as of heads."""
    batch, heads = pick.whole(1, 8), pick.whole(1, 16)
    m, n, k = _extents(pick, batch * heads)
    dtype = pick.floats()
    equation, first, second = pick.one((
        ("bhqd,bhkd->bhqk", (batch, heads, m, k), (batch, heads, n, k)),
        ("bqhd,bkhd->bhqk", (batch, m, heads, k), (batch, n, heads, k)),
        ("bhqk,bkhd->bqhd", (batch, heads, m, k), (batch, k, heads, n)),
        ("bqhd,hde->bqhe", (batch, m, heads, k), (heads, k, n)),
    ))
    return SweepOp(
        f"einsum {equation} of {shape_text(first)} and {shape_text(second)}",
        (Draw(first, dtype), Draw(second, dtype, k**-0.5)),
        lambda kit, a, b: kit.einsum(equation, a, b), (0, 1), tolerance=4.0,
    )


def _thin(pick: Pick) -> SweepOp:
    """A matrix and a vector, or two vectors."""
    m, n, _ = _extents(pick)
    dtype = pick.floats()
    if pick.chance(0.5):
        return SweepOp(
            f"matrix {m}x{n} by vector", (Draw((m, n), dtype), Draw((n,), dtype, n**-0.5)),
            lambda kit, a, b: a @ b, (0, 1), tolerance=4.0,
        )
    return SweepOp(
        f"outer {m}x{n}", (Draw((m,), dtype), Draw((n,), dtype)),
        lambda kit, a, b: kit.outer(a, b), (0, 1),
    )


def _image(pick: Pick, work: int) -> tuple[int, int, int]:
    """Choose batch, channels and size of images, where each element costs `work` operations."""
    channels = pick.one((1, 3, pick.size(1, 512)))
    size = pick.size(4, 128)
    budget = min(pick.largest, pick.largest * _OPERATIONS // max(work, 1))
    size = max(4, min(size, int((budget // channels) ** 0.5)))
    batch = pick.whole(1, max(1, min(64, budget // (channels * size * size))))
    return batch, channels, size


def _convolution(pick: Pick) -> SweepOp:
    side, stride = pick.one((1, 3, 3, 5, 7)), pick.one((1, 1, 2))
    after = pick.size(1, 512)
    is_transposed, is_deep = pick.chance(0.25), pick.chance(0.2)
    batch, before, size = _image(pick, 2 * (1 if is_deep else after) * side * side)
    after = max(1, min(after, pick.largest // (before * side * side)))
    dtype = pick.floats()
    groups = before if is_deep else 1
    after = before if is_deep else after
    settings = {"stride": stride, "padding": side // 2, "groups": groups}
    fan_in = before // groups * side * side
    shape = (before, after // groups) if is_transposed else (after, before // groups)
    name = "conv_transpose2d" if is_transposed else "conv2d"
    return SweepOp(
        f"{name} {side}x{side} of {batch}x{before}x{size}x{size} to {after}, stride {stride}"
        + (", depthwise" if is_deep else ""),
        (
            Draw((batch, before, size, size), dtype),
            Draw((*shape, side, side), dtype, fan_in**-0.5), Draw((after,), dtype),
        ),
        lambda kit, x, w, b: getattr(kit, name)(x, w, b, **settings), (0, 1, 2), tolerance=4.0,
    )


def _convolution_of_rows(pick: Pick) -> SweepOp:
    side, after, dtype = pick.one((3, 5, 9)), pick.size(1, 512), pick.floats()
    before = pick.size(1, 256)
    after = max(1, min(after, pick.largest // (before * side)))
    budget = min(pick.largest, pick.largest * _OPERATIONS // (2 * after * side))
    length = pick.size(16, max(16, min(1 << 16, budget // before)))
    return SweepOp(
        f"conv1d {side} of {before}x{length} to {after}",
        (
            Draw((1, before, length), dtype),
            Draw((after, before, side), dtype, (before * side) ** -0.5),
        ),
        lambda kit, x, w: kit.conv1d(x, w, padding=side // 2), (0, 1), tolerance=4.0,
    )


def _pool(pick: Pick) -> SweepOp:
    batch, channels, size = _image(pick, 9)
    shape, dtype = (batch, channels, size, size), pick.floats()
    name, function, is_smooth = pick.one((
        ("max_pool2d", lambda k, x: k.max_pool2d(x, 2), False),
        ("max_pool2d 3 stride 2", lambda k, x: k.max_pool2d(x, 3, 2, 1), False),
        ("avg_pool2d", lambda k, x: k.avg_pool2d(x, 2), True),
        ("adaptive_avg_pool2d", lambda k, x: k.adaptive_avg_pool2d(x, 1), True),
        ("interpolate", lambda k, x: k.interpolate(x[..., ::2, ::2], scale_factor=2), True),
    ))
    return SweepOp(
        f"{name} of {shape_text(shape)}", (Draw(shape, dtype),), function,
        (0,) if is_smooth else (), tolerance=2.0,
    )


def _attention(pick: Pick) -> SweepOp:
    batch, heads, width = pick.whole(1, 8), pick.whole(1, 16), pick.one((32, 64, 128))
    most = pick.largest * _OPERATIONS // (4 * batch * heads * width)
    keys = pick.size(1, max(1, min(4096, pick.largest // (batch * heads * width), int(most**0.5))))
    queries = pick.one((1, keys))
    is_causal = queries == keys and pick.chance(0.6)
    is_written, dtype = pick.chance(0.3), pick.floats()

    def function(k: Any, q: Any, key: Any, value: Any) -> Any:
        if not is_written:
            return k.scaled_dot_product_attention(q, key, value, is_causal=is_causal)
        scores = (q @ key.transpose(-2, -1)) * width**-0.5
        if is_causal:
            scores = scores.masked_fill((k.ones_like(scores) > 0).tril().logical_not(), -1e4)
        return k.softmax(scores, -1) @ value

    draws = tuple(
        Draw((batch, heads, length, width), dtype) for length in (queries, keys, keys)
    )
    return SweepOp(
        f"attention of {batch}x{heads}x{queries}x{width}, {keys} keys"
        + (", causal" if is_causal else "") + (", by hand" if is_written else ""),
        # One key has all the weight, whatever its score is: only rounding moves that.
        draws, function, (0, 1, 2) if keys > 1 else (2,), tolerance=4.0,
    )


PRODUCTS: tuple[tuple[str, Maker], ...] = (
    ("matmul", _matmul), ("matmul", _matmul), ("matmul", _matmul), ("batched", _batched),
    ("linear", _linear), ("linear", _linear), ("einsum", _einsum), ("einsum", _einsum),
    ("thin", _thin), ("thin", _thin), ("conv", _convolution), ("conv", _convolution),
    ("conv", _convolution), ("conv", _convolution), ("conv1d", _convolution_of_rows),
    ("pool", _pool), ("pool", _pool), ("attention", _attention), ("attention", _attention),
    ("attention", _attention),
)
