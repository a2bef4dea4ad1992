"""Reductions of every kind over any axes, scans, norms and losses."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from baregrad.apps.beside.draws import Draw
from baregrad.apps.sweep.pick import Pick
from baregrad.apps.sweep.sweep_op import Maker, SweepOp, shape_text

# Name, function of an array and an axis, and whether it is smooth.
_ALONG: tuple[tuple[str, Callable[..., Any], bool], ...] = (
    ("sum", lambda k, x, dim: x.sum(dim), True),
    ("mean", lambda k, x, dim: x.mean(dim), True),
    ("sum of squares", lambda k, x, dim: (x * x).sum(dim), True),
    ("amax", lambda k, x, dim: x.amax(dim), False),
    ("var", lambda k, x, dim: x.var(dim, unbiased=False), True),
    ("logsumexp", lambda k, x, dim: x.logsumexp(dim), True),
    ("prod", lambda k, x, dim: (x * 0.01 + 1).prod(dim), False),
    ("softmax", lambda k, x, dim: k.softmax(x, dim), True),
    ("log_softmax", lambda k, x, dim: k.log_softmax(x, dim), True),
    ("cumsum", lambda k, x, dim: x.cumsum(dim), True),
    ("logcumsumexp", lambda k, x, dim: x.logcumsumexp(dim), False),
    ("cumprod", lambda k, x, dim: (x * 0.01 + 1).cumprod(dim), False),
)


def _along(row: tuple[str, Callable[..., Any], bool]) -> Maker:
    name, function, is_smooth = row

    def make(pick: Pick) -> SweepOp:
        shape, dtype = pick.shape(1, 4), pick.floats()
        axis = pick.one(range(len(shape)))
        # The relative errors of a product's factors add up as a walk of random steps does.
        steps = shape[axis] ** 0.5 / 32 if name in ("prod", "cumprod") else 0.0
        return SweepOp(
            f"{name} of {shape_text(shape)} over {axis}", (Draw(shape, dtype),),
            lambda k, x: function(k, x, axis), (0,) if is_smooth else (),
            tolerance=max(4.0, steps),
        )

    return make


def _whole(pick: Pick) -> SweepOp:
    """A reduction to one number, whose numbers are no zeros on average."""
    shape, dtype = pick.shape(), pick.floats()
    name, function, is_smooth = pick.one((
        ("sum", lambda k, x: k.wide(x).sum(), True), ("mean", lambda k, x: x.mean(), True),
        ("amin", lambda k, x: x.amin(), False),
        ("norm", lambda k, x: k.wide(x).square().sum().sqrt(), True),
        ("sum of two axes", lambda k, x: x.reshape(1, *x.shape).mean((0, -1)), True),
    ))
    return SweepOp(
        f"{name} of all {shape_text(shape)}", (Draw(shape, dtype, 0.25, 1.0),), function,
        (0,) if is_smooth else (), tolerance=4.0,
    )


def _extreme_index(pick: Pick) -> SweepOp:
    shape, dtype = pick.shape(2, 3), pick.floats()
    axis, name = pick.one(range(len(shape))), pick.one(("argmax", "argmin"))
    return SweepOp(
        f"{name} of {shape_text(shape)} over {axis}", (Draw(shape, dtype),),
        lambda k, x: getattr(x, name)(axis), takes_more=False,
        # Which one of several equal numbers is found is not told.
        shown=lambda x, index: x.gather(axis, index.unsqueeze(axis)),
    )


def _truth(pick: Pick) -> SweepOp:
    shape = pick.shape(2, 3)
    axis, name = pick.one(range(len(shape))), pick.one(("any", "all", "count_nonzero"))
    return SweepOp(
        f"{name} of {shape_text(shape)} over {axis}", (Draw(shape, "int32", below=3),),
        lambda k, x: getattr(x == 1, name)(axis), takes_more=False,
    )


def _integer_sum(pick: Pick) -> SweepOp:
    shape = pick.shape(1, 3)
    axis = pick.one(range(len(shape)))
    name = pick.one(("sum", "amax", "cumsum"))
    return SweepOp(
        f"{name} of int64 {shape_text(shape)} over {axis}", (Draw(shape, "int64", below=1000),),
        lambda k, x: getattr(x, name)(axis), takes_more=False,
    )


def _norm(pick: Pick) -> SweepOp:
    """Layer, RMS, group or batch norm with scale and shift."""
    name, dtype = pick.one(("layer_norm", "rms_norm", "group_norm", "batch_norm")), pick.floats()
    scale = (0.1, 1.0)
    if name in ("layer_norm", "rms_norm"):
        shape = pick.shape(2, 3)
        # One number alone has no deviation.
        shape = (*shape[:-1], max(4, shape[-1]))
        weight, bias = Draw(shape[-1:], dtype, *scale), Draw(shape[-1:], dtype)
        if name == "rms_norm":
            return SweepOp(
                f"{name} of {shape_text(shape)}", (Draw(shape, dtype), weight),
                lambda k, x, w: k.rms_norm(x, w.shape, w, eps=1e-5), (0, 1), tolerance=4.0,
            )
        return SweepOp(
            f"{name} of {shape_text(shape)}", (Draw(shape, dtype), weight, bias),
            lambda k, x, w, b: k.layer_norm(x, w.shape, w, b), (0, 1, 2), tolerance=4.0,
        )
    batch, size = pick.whole(2, 32), pick.whole(2, 64)
    channels = 4 * pick.whole(1, max(1, min(128, pick.largest // (4 * batch * size * size))))
    shape = (batch, channels, size, size)
    inputs = (Draw(shape, dtype), Draw((channels,), dtype, *scale), Draw((channels,), dtype))

    def group(k: Any, x: Any, w: Any, b: Any) -> Any:
        return k.group_norm(x, 4, w, b)

    def over_batch(k: Any, x: Any, w: Any, b: Any) -> Any:
        return k.batch_norm(x, None, None, w, b, training=True)

    function = group if name == "group_norm" else over_batch
    return SweepOp(f"{name} of {shape_text(shape)}", inputs, function, (0, 1, 2), tolerance=4.0)


def _cross_entropy(pick: Pick) -> SweepOp:
    rows = pick.size(1, 8192)
    classes = pick.size(2, max(2, min(131072, pick.largest // rows)))
    return SweepOp(
        f"cross_entropy of {rows}x{classes}",
        (Draw((rows, classes), pick.floats()), Draw((rows,), below=classes)),
        lambda k, x, y: k.cross_entropy(x, y), (0,), tolerance=4.0,
    )


def _loss(pick: Pick) -> SweepOp:
    shape, dtype = pick.shape(1, 3), pick.floats()
    name = pick.one(("mse_loss", "huber_loss", "binary_cross_entropy_with_logits"))

    def function(k: Any, x: Any, y: Any) -> Any:
        target = y.sigmoid() if name.startswith("binary") else y
        return getattr(k, name)(k.wide(x), k.wide(target))

    return SweepOp(
        f"{name} of {shape_text(shape)}", (Draw(shape, dtype), Draw(shape, dtype)), function, (0,),
        tolerance=4.0,
    )


def _cummax(pick: Pick) -> SweepOp:
    shape = pick.shape(1, 3)
    axis = pick.one(range(len(shape)))
    return SweepOp(
        f"cummax of {shape_text(shape)} over {axis}", (Draw(shape, pick.floats()),),
        lambda k, x: x.cummax(axis)[0], takes_more=prod(shape) > 1,
    )


REDUCTIONS: tuple[tuple[str, Maker], ...] = (
    *((row[0], _along(row)) for row in _ALONG),
    ("whole", _whole), ("whole", _whole), ("argmax", _extreme_index), ("any", _truth),
    ("integer sum", _integer_sum), ("cummax", _cummax), ("norm", _norm), ("norm", _norm),
    ("norm", _norm), ("cross_entropy", _cross_entropy), ("loss", _loss),
)
