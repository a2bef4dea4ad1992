"""Reading and writing by index: NumPy's basic and advanced indexing.

Integers, slices, `None` and `...` give views. Integer tensors, arrays and lists give copies, their
shapes broadcast together; a bool mask stands for the positions where it holds, which are counted
when it is used, so its values are computed then. Those of an array or a list are known as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from baregrad.base.errors import DTypeError, IndexOutOfRange, ShapeError
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Slice
from baregrad.ir.core.node import Node, alu, const
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.core.requirements import value_of
from baregrad.tensor.array import nodes
from baregrad.tensor.array.operands import accumulator, as_chosen, lift, result
from baregrad.tensor.array.put_off import put_off
from baregrad.tensor.array.tensor_like import Tensor, TensorLike

_BASIC = frozenset((int, slice, type(None), type(...)))


@dataclass(slots=True)
class _Plan:
    """The parts of a key: slices of every axis, the axes that go or come, and index tensors."""

    slices: list[Slice]
    flips: list[int]
    layout: list[Any]  # per axis of the result of the slicing: its axis, None for a new one
    dropped: set[int]
    advanced: dict[int, TensorLike]  # by position in `layout`
    together: bool  # whether the index tensors stand side by side


def _fitting_entries(x: Tensor, key: Any) -> list[Any]:
    """The entries of a key. Raises IndexOutOfRange for those of more axes than x has."""
    entries = list(key) if isinstance(key, tuple) else [key]
    converted = [_as_entry(x, entry) for entry in entries]
    width = sum(_width(entry) for entry in converted)
    if sum(1 for entry in converted if entry is Ellipsis) > 1:
        raise ShapeError("an index has at most one ellipsis", found="several")
    if width > x.ndim:
        raise IndexOutOfRange(
            "too many indices", found=f"{width}", wanted=f"at most {x.ndim} for {list(x.shape)}"
        )
    return converted


def _entries(x: Tensor, key: Any) -> list[Any]:
    """The entries of a key with `...` written out and masks turned into positions."""
    converted = _fitting_entries(x, key)
    width = sum(_width(entry) for entry in converted)
    fill = [slice(None)] * (x.ndim - width)
    if Ellipsis not in [e for e in converted if not _is_array(e)]:
        return [*converted, *fill]
    at = next(i for i, entry in enumerate(converted) if entry is Ellipsis)
    return [*converted[:at], *fill, *converted[at + 1 :]]


def _as_entry(x: Tensor, entry: Any) -> Any:
    if entry is None or entry is Ellipsis or isinstance(entry, slice):
        return entry
    if isinstance(entry, bool | np.bool_):
        raise DTypeError(
            "a Python bool is no index", found=repr(entry), hint="use a mask, or an int"
        )
    if isinstance(entry, int | np.integer):
        return int(entry)
    if isinstance(entry, TensorLike | Node):
        return entry
    if isinstance(entry, list | tuple | range | np.ndarray):
        array = _as_array(entry)
        if not array.size and array.dtype.kind == "f":
            array = array.astype(np.int64)
        if array.dtype.kind not in "iub":
            raise DTypeError("an index array holds integers or bools", found=str(array.dtype))
        real = type(x.pairs() if x.is_paired else x)
        return array if array.dtype.kind == "b" else real(array, device=x.device)
    raise DTypeError(
        "not an index",
        found=f"{type(entry).__name__} {entry!r:.40}",
        wanted="ints, slices, None, ..., integer tensors or bool masks",
    )


def _as_array(entry: Any) -> np.ndarray[Any, Any]:
    """The array of nested sequences of integers or bools."""
    try:
        return np.asarray(entry)
    except ValueError as error:
        raise ShapeError(
            "an index array has rows of one length", found=f"{entry!r:.60}",
            hint="pad them to one length",
        ) from error


def _is_array(entry: Any) -> bool:
    """Whether an entry is an index tensor or a mask."""
    return isinstance(entry, np.ndarray | TensorLike)


def _is_mask(entry: Any) -> bool:
    """Whether an entry is a mask: a tensor, or what the host knows."""
    if isinstance(entry, TensorLike):
        return entry.dtype is dtypes.bool
    return isinstance(entry, np.ndarray)


def _width(entry: Any) -> int:
    """How many axes of the tensor an entry takes."""
    if entry is None or entry is Ellipsis:
        return 0
    return entry.ndim if _is_mask(entry) else 1


def _is_basic(key: Any) -> bool:
    """Whether a key is of integers, slices, `None` and `...` alone."""
    return _BASIC.issuperset(map(type, key if key.__class__ is tuple else (key,)))


def _plan(x: Tensor, key: Any) -> _Plan:
    plan = _Plan([], [], [], set(), {}, True)
    spans: list[int] = []
    axis = 0
    for entry in _entries(x, key):
        if entry is None:
            plan.layout.append(None)
            continue
        if _is_array(entry):
            if _is_mask(entry) and not entry.ndim:
                # One truth for no axis: a new axis, of extent 1 or 0.
                plan.advanced[len(plan.layout)] = _none_or_first(x, entry)
                spans.append(len(plan.layout))
                plan.layout.append(None)
                continue
            for places in _positions(x, entry, axis):
                spans.append(len(plan.layout))
                plan.advanced[len(plan.layout)] = places
                plan.layout.append(axis)
                plan.slices.append(Slice(0, x.shape[axis]))
                axis += 1
            continue
        extent = x.shape[axis]
        if isinstance(entry, slice):
            one, backwards = _slice(entry, extent)
            plan.slices.append(one)
            if backwards:
                plan.flips.append(axis)
        else:
            start = _integer(entry, extent, axis)
            plan.slices.append(Slice(start, index.add(start, 1)))
            plan.dropped.add(axis)
        plan.layout.append(axis)
        axis += 1
    plan.together = not spans or _adjacent(x, key)
    return plan


def _adjacent(x: Tensor, key: Any) -> bool:
    """Whether all index entries stand side by side; integers count as such beside tensors."""
    flags = [_is_array(entry) or isinstance(entry, int | Node) for entry in _entries(x, key)]
    first = flags.index(True)
    last = len(flags) - 1 - flags[::-1].index(True)
    return all(flags[first : last + 1])


def _slice(entry: slice, extent: Any) -> tuple[Slice, bool]:
    """A slice as start:stop:step of positive step, and whether it runs backwards."""
    symbolic = any(isinstance(v, Node) for v in (entry.start, entry.stop, extent))
    step = 1 if entry.step is None else int(entry.step)
    if step == 0:
        raise ShapeError("a slice's step cannot be 0", wanted="a positive or negative step")
    if symbolic:
        if step != 1:
            raise ShapeError("a slice with symbolic ends has step 1", found=f"step {step}")
        start = _symbolic_end(entry.start, 0, extent)
        stop = _symbolic_end(entry.stop, extent, extent)
        return Slice(start, stop), False
    for end in (entry.start, entry.stop):
        if end is not None and not hasattr(end, "__index__"):
            raise DTypeError("a slice's ends are integers", found=f"{type(end).__name__} {end!r}")
    start, stop, _ = slice(entry.start, entry.stop, step).indices(extent)
    count = len(range(start, stop, step))
    if not count:
        return Slice(0, 0), False
    if step > 0:
        return Slice(start, start + (count - 1) * step + 1, step), False
    last = start + (count - 1) * step
    return Slice(last, start + 1, -step), True


def _symbolic_end(end: Any, default: Any, extent: Any) -> Any:
    if end is None:
        return default
    if isinstance(end, int) and end < 0:
        return index.as_dim(index.add(extent, end))
    found = index.as_dim(end)
    if index.upper(found) < 0:
        return index.as_dim(index.add(extent, found))
    if isinstance(extent, int) and index.upper(found) > extent:
        raise IndexOutOfRange(
            "a symbolic end may leave the axis",
            found=f"up to {index.upper(found)}",
            wanted=f"at most {extent}",
            hint="declare the variable with a smaller bound",
        )
    return found


def _integer(entry: Any, extent: Any, axis: int) -> Any:
    if isinstance(entry, Node):
        if index.upper(entry) < 0:
            entry = index.add(extent, entry)
        lo, hi = index.lower(entry), index.upper(entry)
        if lo < 0 or (isinstance(extent, int) and hi >= extent):
            raise IndexOutOfRange(
                f"a symbolic index may leave axis {axis}",
                found=f"{lo} to {hi}",
                wanted=f"0 to {extent - 1}",
            )
        return index.as_dim(entry)
    if not isinstance(extent, int):
        return entry if entry >= 0 else index.as_dim(index.add(extent, entry))
    if not -extent <= entry < extent:
        raise IndexOutOfRange(
            f"index {entry} is out of range for axis {axis}",
            found=f"an axis of extent {extent}",
            wanted=f"{-extent} to {extent - 1}",
        )
    return entry % extent


def _positions(x: Tensor, entry: Any, axis: int) -> list[Tensor]:
    """Index tensors, counted from 0, for the axes that an entry takes."""
    if _is_mask(entry):
        if entry.shape != x.shape[axis : axis + entry.ndim]:
            raise ShapeError(
                "a mask has the shape of the axes that it indexes",
                found=str(list(entry.shape)),
                wanted=str(list(x.shape[axis : axis + entry.ndim])),
            )
        found = np.nonzero(entry if isinstance(entry, np.ndarray) else entry.numpy())
        return [type(x)(places, device=x.device) for places in found]
    if entry.dtype.kind not in ("int", "uint"):
        raise DTypeError(
            "an index tensor holds integers or bools",
            found=f"dtype {entry.dtype}",
            hint="cast it, for example with long()",
        )
    return [count_from_zero(entry, x.shape[axis], axis)]


def _none_or_first(x: Tensor, truth: Any) -> Tensor:
    return type(x)(np.arange(int(truth.item())), device=x.device)


def count_from_zero(places: Tensor, extent: Any, axis: int) -> Tensor:
    """Index values with negative ones counted from the end.

    Raises IndexOutOfRange for values that are already known and out of range.
    """
    _check_known(places, extent, axis)
    if places.dtype.kind == "uint":
        return places
    limit = nodes.size_as(extent, dtypes.int64)
    wide = nodes.cast(places.node, dtypes.int64)
    negative = nodes.alu(Ops.CMPLT, wide, const(0, dtypes.int64))
    return result(nodes.where(negative, nodes.add(wide, limit), wide), places)


def check_class_ids(target: Tensor, classes: Any, ignored: int) -> None:
    """Raise IndexOutOfRange for class ids that came from the host and are out of range."""
    known = _known(target)
    if known is None or not isinstance(classes, int):
        return
    for value in known:
        if value != ignored and not 0 <= value < classes:
            raise IndexOutOfRange(
                "a class id is out of range", found=value, wanted=f"0 to {classes - 1}"
            )


def _known(x: Tensor) -> tuple[int, int] | None:
    """The least and the greatest element, where they came from the host and all are shown."""
    if any(op is Ops.SHRINK or op is Ops.BITCAST for op, _ in x._steps):
        return None
    return x._storage.known


def _check_known(places: Tensor, extent: Any, axis: int) -> None:
    """Check index values that came from the host; the others are not known yet."""
    known, count = _known(places), value_of(extent)
    if known is None or count is None:
        return
    for value in reversed(known):
        if not -count <= value < count:
            raise IndexOutOfRange(
                f"index {value} is out of range for axis {axis}",
                found=f"an axis of extent {extent}",
                wanted=f"{-count} to {count - 1}",
            )


# --- reading ------------------------------------------------------------------------------------


def _basic_view(x: Tensor, plan: _Plan) -> Tensor:
    """The view of the slices, integers and new axes of a plan; index tensors are left for later."""
    y = x
    if any(one != Slice(0, extent) for one, extent in zip(plan.slices, x.shape, strict=True)):
        y = y._view(Ops.SHRINK, tuple(plan.slices))
    if plan.flips:
        y = y._view(Ops.FLIP, tuple(plan.flips))
    wanted = tuple(
        1 if axis is None else y.shape[axis] for axis in plan.layout if axis not in plan.dropped
    )
    if plan.dropped or None in plan.layout:
        return y._view(Ops.RESHAPE, wanted)
    return y


def _index_axes(plan: _Plan) -> list[int]:
    """The axes of the basic view that index tensors apply to, in order."""
    kept = [i for i, axis in enumerate(plan.layout) if axis is None or axis not in plan.dropped]
    return [kept.index(position) for position in plan.advanced]


def getitem(x: Tensor, key: Any) -> Tensor:
    """Return x[key]: a view for ints, slices, None and ...; else a copy."""
    plan = _plan(x, key)
    view = _basic_view(x, plan)
    if view is x:
        view = x._view(Ops.PERMUTE, tuple(range(x.ndim)))
    if not plan.advanced:
        return view
    axes = _index_axes(plan)
    places, order = _places(view, axes, list(plan.advanced.values()), plan.together)
    node = nodes.permute(nodes.gather(view.node, *places), order)
    return result(node, x, *plan.advanced.values())


def _places(
    view: Tensor, axes: list[int], tensors: list[TensorLike], together: bool
) -> tuple[list[Node], tuple[int, ...]]:
    """One index node per axis of `view`, in a common shape, and NumPy's order of the result's axes.

    The common shape is that of the index tensors, then the axes that are kept.
    """
    shape = nodes.broadcast_shapes(*(t.shape for t in tensors))
    kept = [axis for axis in range(view.ndim) if axis not in axes]
    whole = (*shape, *(view.shape[axis] for axis in kept))
    places: list[Node] = []
    for axis in range(view.ndim):
        if axis in axes:
            tensor = tensors[axes.index(axis)]
            padded = nodes.reshape(tensor.node, (*tensor.shape, *(1,) * len(kept)))
            places.append(nodes.broadcast(padded, whole))
        else:
            places.append(nodes.iota_along(whole, len(shape) + kept.index(axis)))
    order = list(range(len(whole)))
    if together and shape is not None:
        before = sum(1 for axis in kept if axis < axes[0])
        front = list(range(len(shape), len(shape) + before))
        order = [*front, *range(len(shape)), *range(len(shape) + before, len(whole))]
    return places, tuple(order)


# --- writing ------------------------------------------------------------------------------------


def setitem(x: Tensor, key: Any, value: Any) -> None:
    """Write x[key] = value, the value broadcast and cast to what it replaces.

    Raises DTypeError for a value of a higher category (float into int), GradientError on a leaf
    that requires gradients.
    """
    if x.is_paired:
        try:
            setitem(x.pairs(), paired_key(x, key), x.pairs_like(value))
        except ShapeError as error:
            if not isinstance(value, TensorLike):
                raise
            raise ShapeError(
                error.message, found=str(list(value.shape)), wanted=str(list(x[key].shape))
            ) from error
        return
    if isinstance(key, TensorLike) and key.dtype is dtypes.bool and key.shape == x.shape:
        if not isinstance(value, TensorLike) or value.ndim == 0:
            lifted = lift(value, x)
            if lifted.__class__ is float and x.dtype.kind == "float":
                lifted = type(x)._make(as_chosen(lifted, x.dtype), x.device)
            if not isinstance(lifted, TensorLike) or lifted.ndim == 0:
                x.masked_fill_(key, lifted)  # type: ignore[arg-type]
                return
    advanced: dict[int, TensorLike] = {}
    if _is_basic(key):
        view = put_off(getitem, (x, key), {})
    else:
        plan = _plan(x, key)
        advanced = plan.advanced
        view = _basic_view(x, plan)
    lifted = lift(value, x)
    if not advanced:
        if isinstance(lifted, TensorLike) and lifted._storage is x._storage:
            if lifted._steps == view._steps:
                return  # x[key] += ... has already written through the view
        view.copy_(lifted)
        return
    check_writable(view.dtype.kind, lifted)
    grad = view.requires_grad or (isinstance(lifted, TensorLike) and lifted.requires_grad)

    def put(since: int) -> None:
        written = _written(view, plan, lifted, None)
        if written is not None:
            view._write(written, grad, since)

    view._storage.update(put)


def paired_key(x: Tensor, key: Any) -> tuple[Any, ...]:
    """The key of pairs for a key of complex x: the pairs' own axis is taken whole."""
    entries = _fitting_entries(x, key)
    rest = () if any(entry is ... for entry in entries) else (...,)
    return (*entries, *rest, slice(None))


def index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Any, accumulate: bool = False
) -> Tensor:
    """Return `x` with values written, or added, at the places that index tensors name together.

    indices: of the first axes, integers or bools that broadcast, None for a whole axis. values
    broadcast to what is written. Where a place is named more than once its last value stays; with
    `accumulate` all are added. Raises DTypeError for other indices or values of a higher category.
    """
    if x.is_paired:
        made = index_put(x.pairs(), indices, x.pairs_like(values), accumulate)
        return type(x)._on(made._storage, made._steps)
    for entry in indices:
        if entry is not None and not isinstance(entry, TensorLike):
            raise DTypeError(
                "places are named by tensors", found=f"{type(entry).__name__} {entry!r:.40}"
            )
    key = tuple(slice(None) if entry is None else entry for entry in indices)
    plan = _plan(x, key)
    lifted = lift(values, x)
    check_writable(x.dtype.kind, lifted)
    others = [lifted] if isinstance(lifted, TensorLike) else []
    if not plan.advanced:
        given = nodes.broadcast(_fit(as_chosen(lifted, x.dtype), x.shape), x.shape)
        if accumulate:
            return result(alu(Ops.ADD, x.node, given), x, *others)
        # A choice: what was there, NaN too, leaves nothing but a gradient of 0.
        everywhere = nodes.full(True, x.shape, dtypes.bool)
        return result(alu(Ops.WHERE, everywhere, given, x.node), x, *others)
    written = _written(x, plan, lifted, Ops.ADD if accumulate else None)
    return x.clone() if written is None else result(written, x, *others)


def _written(view: Tensor, plan: _Plan, value: Any, op: Op | None) -> Node | None:
    """The view with a value written, or folded in, at the places of a plan; None for no places."""
    axes = _index_axes(plan)
    places, order = _places(view, axes, list(plan.advanced.values()), plan.together)
    shape = tuple(places[0].shape[axis] for axis in order)
    if any(extent.__class__ is int and extent == 0 for extent in shape):
        return None
    node = nodes.broadcast(_fit(as_chosen(value, view.dtype), shape), shape)
    node = nodes.permute(node, nodes.opposite(order))
    if op is None:
        return nodes.scatter(view.node, node, tuple(places), None)
    wide = accumulator(view.dtype)
    folded = nodes.scatter(nodes.cast(view.node, wide), nodes.cast(node, wide), tuple(places), op)
    return nodes.cast(folded, view.dtype)


def _fit(node: Node, shape: tuple[Any, ...]) -> Node:
    """A value without the leading axes of extent 1 that its destination lacks, as NumPy allows."""
    fitting = fitting_shape(node.shape, shape)
    return node if fitting == node.shape else nodes.reshape(node, fitting)


def fitting_shape(found: tuple[Any, ...], shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """The shape of a value without such axes. Raises ShapeError where it does not broadcast."""
    given, extra = found, len(found) - len(shape)
    if extra > 0 and all(e.__class__ is int and e == 1 for e in found[:extra]):
        found = found[extra:]
    fits = len(found) <= len(shape) and all(
        have == want or (have.__class__ is int and have == 1)
        for have, want in zip(reversed(found), reversed(shape), strict=False)
    )
    if not fits:
        raise ShapeError(
            "the value does not broadcast to what it is written into",
            found=str(list(given)),
            wanted=str(list(shape)),
        )
    return found


def check_writable(kind: str, value: Any) -> None:
    """Raise DTypeError when a value is of a higher category than what it is written into."""
    from baregrad.dtypes import scalar_dtype

    if isinstance(value, Node):
        found = dtypes.int64
    else:
        found = value.dtype if isinstance(value, TensorLike) else scalar_dtype(value)
    rank = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}
    if rank[found.kind] > rank[kind]:
        raise DTypeError(
            "the value's dtype is of a higher category than what it is written into",
            found=f"{found} into {kind}",
            hint="cast the value first, for example value.int()",
        )
