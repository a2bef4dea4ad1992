"""Folding, scanning and scattering with any monoid, on NumPy arrays.

Accumulators of floats narrower than 32 bits are float32; sums and products of float32 are folded in
float64 and rounded at the end, since a reference should be nearer to the truth than what it judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from baregrad.base.bits import next_power_of_two
from baregrad.base.errors import IndexOutOfRange
from baregrad.ir.core.monoid import Monoid
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.alu import REDUCED_BY, Array, apply, constant, round_to, working_dtype

States = tuple[Array, ...]


def run_slots(
    outputs: Sequence[Node], slots: Sequence[Array], *, round_narrow: bool = False
) -> States:
    """The values of small expressions over SLOT nodes; narrow floats stay in float32 throughout.

    round_narrow: they are rounded after each operation, as code does that keeps them so.
    """
    values: dict[Node, Array] = {}
    for node in toposort(*outputs):
        if node.op is Ops.SLOT:
            values[node] = np.asarray(slots[node.arg])
        elif node.op is Ops.CONST:
            values[node] = constant(node)
        else:
            operands = [values[child] for child in node.src]
            kinds = [child.dtype for child in node.src]
            values[node] = apply(node.op, node.dtype, kinds, operands, round_narrow=round_narrow)
    return tuple(values[output] for output in outputs)


def combine(
    monoid: Monoid, left: States, right: States, *, round_narrow: bool = False
) -> States:
    """The combination of two state tuples of one shape, element by element."""
    combined = run_slots(monoid.combine, (*left, *right), round_narrow=round_narrow)
    shape = np.broadcast_shapes(*(state.shape for state in left))
    return tuple(np.broadcast_to(state, shape) for state in combined)


def lift(monoid: Monoid, values: Sequence[Array]) -> States:
    """The states of single elements, all of one shape."""
    shape = np.broadcast_shapes(*(value.shape for value in values))
    lifted = run_slots(monoid.lift, values)
    return tuple(
        np.broadcast_to(state, shape).astype(working_dtype(dtype), copy=False)
        for state, dtype in zip(lifted, monoid.states, strict=True)
    )


def identity(monoid: Monoid, shape: tuple[int, ...]) -> States:
    """The identity, at every point of `shape`."""
    return tuple(np.broadcast_to(constant(part), shape) for part in monoid.identity)


def finish(monoid: Monoid, states: States) -> States:
    """States rounded from the accumulators' precision to the monoid's dtypes."""
    return tuple(round_to(state, dtype) for state, dtype in zip(states, monoid.states, strict=True))


def _wide(monoid: Monoid) -> Any:
    dtype = monoid.states[0]
    if dtype.kind == "float" and monoid.primitive in (Ops.ADD, Ops.MUL):
        return np.dtype(np.float64)
    return working_dtype(dtype)


def fold(monoid: Monoid, values: Sequence[Array], axes: Sequence[int]) -> States:
    """The reduction of `values` over `axes`, which vanish; no axes still lifts each element."""
    states = lift(monoid, values)
    axes = tuple(sorted(axis % states[0].ndim for axis in axes))
    ufunc = REDUCED_BY.get(monoid.primitive)
    with np.errstate(all="ignore"):
        if ufunc is not None and monoid.arity == 1:
            wide = _wide(monoid)
            start = constant(monoid.identity[0]).astype(wide)
            whole = ufunc.reduce(states[0], axis=axes, dtype=wide, initial=start)
            return finish(monoid, (np.asarray(whole),))
        # The axes that are folded, in order, become one that comes last.
        kept = [axis for axis in range(states[0].ndim) if axis not in axes]
        shape = tuple(states[0].shape[axis] for axis in kept)
        count = int(np.prod([states[0].shape[axis] for axis in axes], dtype=np.int64))
        flat = tuple(state.transpose(*kept, *axes).reshape(*shape, count) for state in states)
        if not count:
            return finish(monoid, identity(monoid, shape))
        folded = fold_axis(monoid, flat, len(shape), as_code=False)
        return finish(monoid, tuple(state[..., 0] for state in folded))


def fold_axis(monoid: Monoid, states: States, axis: int, *, as_code: bool = True) -> States:
    """Fold an axis of one point or more to one point.

    as_code: in the order that `loop_level.py` states, and rounded as there; otherwise neighbours
    are combined in the accumulators' precision.
    """
    while (count := states[0].shape[axis]) > 1:
        if as_code and monoid.commutative:
            half = next_power_of_two(count) // 2
            parts = slice(count - half), slice(half, count), slice(count - half, half)
        else:
            even = count - count % 2
            parts = slice(0, even, 2), slice(1, even, 2), slice(even, count)
        left, right, rest = (
            tuple(state[(slice(None),) * axis + (part,)] for state in states) for part in parts
        )
        joined = combine(monoid, left, right, round_narrow=as_code)
        states = tuple(np.concatenate(p, axis=axis) for p in zip(joined, rest, strict=True))
    return states


def scan(monoid: Monoid, values: Sequence[Array], axis: int) -> States:
    """The inclusive running fold of `values` along `axis`."""
    states = lift(monoid, values)
    ufunc = REDUCED_BY.get(monoid.primitive)
    with np.errstate(all="ignore"):
        if ufunc is not None and monoid.arity == 1:
            running = ufunc.accumulate(states[0], axis=axis, dtype=_wide(monoid))
            return finish(monoid, (running,))
        moved = tuple(np.moveaxis(state, axis, -1) for state in states)
        step = 1
        while step < moved[0].shape[-1]:
            left = tuple(state[..., :-step] for state in moved)
            right = tuple(state[..., step:] for state in moved)
            joined = combine(monoid, left, right)
            head = tuple(state[..., :step] for state in moved)
            moved = tuple(np.concatenate(p, axis=-1) for p in zip(head, joined, strict=True))
            step *= 2
        return finish(monoid, tuple(np.moveaxis(state, -1, axis) for state in moved))


def scan_threads(monoid: Monoid, states: States, warp: int = 32) -> States:
    """The inclusive running fold of states (..., threads, elements of each), in code's order.

    Each thread folds its own elements one after the other; `loop_level.py` says in which order it
    comes by what is before them.
    """
    def after(left: States, right: States) -> States:
        return combine(monoid, left, right, round_narrow=True)

    def chosen(condition: Array, left: States, right: States) -> States:
        return tuple(np.where(condition, a, b) for a, b in zip(left, right, strict=True))

    own = [tuple(state[..., 0] for state in states)]
    for place in range(1, states[0].shape[-1]):
        own.append(after(own[-1], tuple(state[..., place] for state in states)))
    threads = states[0].shape[-2]
    if threads > 1:
        before = identity(monoid, own[-1][0].shape)
        total, lane = own[-1], np.arange(threads)
        bit = 1
        while bit < min(warp, threads):
            other = tuple(state[..., lane ^ bit] for state in total)
            grown = other if bit == 1 else after(other, before)
            before = chosen((lane & bit) != 0, grown, before)
            total = after(total, other)
            bit *= 2
        prior = identity(monoid, total[0].shape)
        for place in range(threads // warp - 1):
            one = tuple(state[..., place * warp, None] for state in total)
            prior = chosen(lane // warp > place, after(prior, one), prior)
        before = after(prior, before) if threads > warp else before
        own = [after(before, one) for one in own]
    return tuple(np.stack(parts, axis=-1) for parts in zip(*own, strict=True))


def check_indices(indices: Sequence[Array], shape: Sequence[int], what: str) -> None:
    """Raise IndexOutOfRange unless every index lies in its axis."""
    for axis, (index, extent) in enumerate(zip(indices, shape, strict=True)):
        if index.size and (index.min() < 0 or index.max() >= extent):
            raise IndexOutOfRange(
                f"{what} leaves axis {axis} of an array of shape {list(shape)}",
                found=f"indices from {index.min()} to {index.max()}",
                wanted=f"0 to {extent - 1}",
            )


def are_inside(indices: Sequence[Array], shape: Sequence[int]) -> Array:
    """Where all indices, of one shape, lie in their axes."""
    found = np.ones(indices[0].shape, bool)
    for index, extent in zip(indices, shape, strict=True):
        found &= (index >= 0) & (index < extent)
    return found


def scatter(
    monoid: Monoid | None, target: Array, indices: Sequence[Array], values: Array,
    lossy: bool = False,
) -> None:
    """Write `values` into `target` in place, in row-major order of the points.

    indices: one integer array per axis of `target`, which broadcast to the shape of `values` or
    beyond. monoid: None overwrites (the last point wins), a monoid of one state accumulates.
    lossy: what lies outside of the target is lost, not an error.
    """
    shape = np.broadcast_shapes(values.shape, *(index.shape for index in indices))
    places = tuple(np.broadcast_to(index, shape).reshape(-1) for index in indices)
    flat = np.broadcast_to(values, shape).reshape(-1)
    if lossy and indices:
        inside = are_inside(places, target.shape)
        places, flat = tuple(place[inside] for place in places), flat[inside]
    check_indices(places, target.shape, "a scattered write")
    if not flat.size:
        return
    if not indices:
        places = (np.zeros(flat.size, np.int64),)
    view = target if indices else target.reshape(1)
    if monoid is None:
        view[places] = flat
        return
    ufunc = REDUCED_BY.get(monoid.primitive)
    with np.errstate(all="ignore"):
        if ufunc is not None:
            ufunc.at(view, places, flat)
            return
        _accumulate(monoid, view, places, flat)


def _accumulate(monoid: Monoid, view: Array, places: tuple[Array, ...], flat: Array) -> None:
    """Round k combines the k-th write to each place, so that order is kept."""
    offsets = np.ravel_multi_index(places, view.shape)
    order = np.argsort(offsets, kind="stable")
    ranked = offsets[order]
    first = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])
    turn = np.empty(flat.size, np.int64)
    turn[order] = np.arange(flat.size) - np.repeat(first, np.diff(np.r_[first, flat.size]))
    lifted = lift(monoid, (flat,))[0]
    for number in range(int(turn.max()) + 1):
        chosen = turn == number
        where = tuple(place[chosen] for place in places)
        (view[where],) = combine(monoid, (view[where],), (lifted[chosen],))
