"""Joining and cutting, orders, gathers and scatters, and random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from baregrad.apps.beside.draws import Draw
from baregrad.apps.sweep.pick import Pick
from baregrad.apps.sweep.sweep_op import Maker, SweepOp, shape_text

# From so many numbers on their mean and deviation say something.
_MANY = 1 << 14


def _joined(pick: Pick) -> SweepOp:
    shape, dtype = pick.shape(1, 3, pick.whole(1, pick.largest // 2)), pick.floats()
    axis, name = pick.one(range(len(shape))), pick.one(("cat", "stack"))
    return SweepOp(
        f"{name} of two {shape_text(shape)} along {axis}", (Draw(shape, dtype),) * 2,
        lambda k, x, y: getattr(k, name)([x, y * 2], dim=axis), (0, 1),
    )


def _moved(pick: Pick) -> SweepOp:
    """A copy of an array whose elements lie elsewhere."""
    shape, dtype = pick.shape(2, 4), pick.floats()
    last = len(shape) - 1
    turns: tuple[tuple[str, Callable[..., Any]], ...] = (
        ("transpose", lambda k, x: x.transpose(0, last).contiguous()),
        ("reversed axes", lambda k, x: x.permute(*range(last, -1, -1)).contiguous()),
    )
    # Axes without neighbours are turned without a copy.
    name, function = pick.one((
        *(turns if min(shape) > 1 else ()),
        ("flip", lambda k, x: x.flip(last)), ("roll", lambda k, x: x.roll(1, last)),
        ("every other", lambda k, x: x[..., ::2] * 1), ("tail", lambda k, x: x[:, -1:] * 1),
        ("pad", lambda k, x: k.pad(x, (1, 2))), ("tril", lambda k, x: x.tril()),
        ("repeat", lambda k, x: x[:1].expand(*x.shape) * 1),
        ("two halves", lambda k, x: x[: (len(x) + 1) // 2] * 2),
    ))
    return SweepOp(f"{name} of {shape_text(shape)}", (Draw(shape, dtype),), function, (0,))


def _taken(pick: Pick) -> SweepOp:
    """Rows of a table: by embedding or index_select."""
    rows, width = pick.size(1, 1 << 17), pick.size(1, 2048)
    rows = max(1, min(rows, pick.largest // width))
    count = pick.size(1, max(1, min(1 << 16, pick.largest // width)))
    name = pick.one(("embedding", "index_select", "indexing"))

    def function(k: Any, table: Any, index: Any) -> Any:
        if name == "embedding":
            return k.embedding(index, table)
        return table.index_select(0, index) if name == "index_select" else table[index]

    return SweepOp(
        f"{name} of {count} from {rows}x{width}",
        (Draw((rows, width), pick.floats()), Draw((count,), below=rows)), function, (0,),
        views=False,
    )


def _gathered(pick: Pick) -> SweepOp:
    shape = pick.shape(2, 3, pick.whole(1, pick.largest // 4))
    axis = pick.one(range(len(shape)))
    return SweepOp(
        f"gather of {shape_text(shape)} along {axis}",
        (Draw(shape, pick.floats()), Draw(shape, below=shape[axis])),
        lambda k, x, index: x.gather(axis, index), (0,), views=False,
    )


def _scattered(pick: Pick) -> SweepOp:
    """Sums at places that come several times; in float32, since orders differ."""
    bins, width = pick.size(1, 1 << 17), pick.one((1, 1, pick.size(1, 512)))
    bins = max(1, min(bins, pick.largest // width))
    count = pick.size(1, max(1, min(1 << 21, pick.largest // 4 // width)))
    is_flat = width == 1

    def function(k: Any, x: Any, index: Any, source: Any) -> Any:
        return x.scatter_add(0, index, source) if is_flat else x.index_add(0, index, source)

    tail = () if is_flat else (width,)
    return SweepOp(
        f"{'scatter_add' if is_flat else 'index_add'} of {count} to {bins}x{width}",
        (
            Draw((bins, *tail), "float32"), Draw((count,), below=bins),
            Draw((count, *tail), "float32"),
        ),
        function, (0, 2), views=False, tolerance=8.0,
    )


def _sorted(pick: Pick) -> SweepOp:
    rows = pick.one((1, pick.whole(1, 1024)))
    width = pick.size(1, min(1 << 22, max(1, pick.largest // 8 // rows)))
    name = pick.one(("sort", "topk", "median", "kthvalue"))
    count = pick.whole(1, min(width, 100))

    def function(k: Any, x: Any) -> Any:
        if name == "topk":
            return tuple(x.topk(count))
        if name == "kthvalue":
            return tuple(x.kthvalue(count))
        return tuple(x.median(-1)) if name == "median" else tuple(x.sort(descending=count > 50))

    def shown(x: Any, values: Any, index: Any) -> Any:
        if index.ndim < x.ndim:
            index = index.unsqueeze(-1)
        # Values of what was found, since equal numbers may stand in any order.
        return values, x.gather(-1, index)

    named = f"{name} {count}" if name in ("topk", "kthvalue") else name
    return SweepOp(
        f"{named} of {rows}x{width}", (Draw((rows, width), pick.floats()),), function,
        takes_more=False, shown=shown,
    )


def _one_hot(pick: Pick) -> SweepOp:
    count = pick.size(1, 1 << 14)
    classes = pick.size(2, max(2, min(4096, pick.largest // 8 // count)))
    return SweepOp(
        f"one_hot of {count} in {classes}", (Draw((count,), below=classes),),
        lambda k, x: k.one_hot(x, classes), takes_more=False, views=False,
    )


def _random(pick: Pick) -> SweepOp:
    """Random numbers: of the result, only mean and deviation are alike."""
    count = pick.size(_MANY, pick.largest)
    name = pick.one(("randn", "rand", "dropout"))

    def function(k: Any, x: Any) -> Any:
        if name == "dropout":
            return k.dropout(x, 0.3, True)
        return getattr(k, name)(count, device=k.device) + x.mean() * 0

    def shown(x: Any, drawn: Any) -> Any:
        # The first result is the largest, so that errors are by something that is not 0.
        return drawn.mean() + 1, drawn.std() + 1, (drawn == 0).float().mean() + 1

    draw = Draw((count,) if name == "dropout" else (1,), "float32", 0.5, 1.0)
    return SweepOp(
        f"{name} of {count}", (draw,), function, takes_more=False, shown=shown, views=False,
        tolerance=5e3,
    )


STRUCTURE: tuple[tuple[str, Maker], ...] = (
    ("cat", _joined), ("moved", _moved), ("moved", _moved), ("moved", _moved), ("taken", _taken),
    ("taken", _taken), ("gather", _gathered), ("scatter", _scattered), ("scatter", _scattered),
    ("sort", _sorted), ("sort", _sorted), ("sort", _sorted), ("one_hot", _one_hot),
    ("random", _random), ("random", _random),
)
