"""What a kernel is tried on: arrays with random contents, and what it should make of them.

The reference is the evaluator of the kernel level, in NumPy, which knows nothing of schedules. It
is asked for some of the elements, chosen at random, where all of them would take too long; a
candidate is compared with the first schedule's results in every element besides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from baregrad.dtypes import DType, dtypes
from baregrad.engine.launch import launch_expr
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Param
from baregrad.ir.core.node import Node, const, extent_of, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.ir.evaluate.kernel_level import evaluate_kernel, evaluate_value
from baregrad.kernel import facts_of
from baregrad.kernel.facts.analysis import iterations, out_axes
from baregrad.program import evaluate

Array = np.ndarray[Any, Any]

# Elements that the reference computes at most, counting each one of a sum.
MOST_COMPUTED = 1 << 21
MOST_SAMPLES = 512
# Whole numbers up to this: sums and products of them are exact in any order.
LARGEST = 2
_EXACT = frozenset(
    (Ops.ADD, Ops.SUB, Ops.MUL, Ops.MAX, Ops.MIN, Ops.NEG, Ops.WHERE, Ops.CAST, Ops.CMPLT,
     Ops.CMPEQ, Ops.CMPNE, Ops.AND, Ops.OR, Ops.XOR)
)
# Of an array with more elements a random stretch of about so many is repeated, a prime number of
# them, so that its period meets no other.
STRETCH = (1 << 22) - 3
_SAMPLE_ID = 1 << 19


@dataclass(frozen=True, slots=True)
class Samples:
    """Some elements of one output: flat places, and what should stand there (working values)."""

    slot: int
    places: Array
    values: Array


@dataclass(frozen=True, slots=True)
class Problem:
    """A kernel with arguments: raw arrays by slot, values of variables, and which slots it writes.

    exact: whether every right result has the same bits on these arrays. terms: the longest sum.
    """

    kernel: Node
    arrays: tuple[Array, ...]
    dtypes: tuple[DType, ...]
    variables: dict[str, int]
    written: frozenset[int]
    exact: bool
    terms: int


def make_problem(kernel: Node) -> Problem:
    """Random arguments for a kernel. Symbolic integers are at their upper bounds."""
    order = toposort(kernel)
    variables = {node.arg.name: node.arg.hi for node in order if node.op is Ops.VAR}
    params = {node.arg.slot: node for node in order if node.op is Ops.PARAM}
    limits = _limits(order, variables)
    facts = facts_of(kernel)
    terms = max((iterations(each.own) for each in facts.reductions), default=1)
    exact = is_exact(order) and terms * LARGEST**4 < 1 << 24
    generator = np.random.default_rng(0)
    arrays, kinds = [], []
    for slot in range(len(params)):
        param = params[slot]
        count = prod(shape_of(param, variables))
        arrays.append(_random(generator, param.dtype, count, limits.get(slot), exact))
        kinds.append(param.dtype)
    written = frozenset(out.src[0].arg.slot for out in kernel.src)
    return Problem(kernel, tuple(arrays), tuple(kinds), variables, written, exact, terms)


def shape_of(param: Node, variables: dict[str, int]) -> tuple[int, ...]:
    """The shape of an argument."""
    return tuple(
        extent if isinstance(extent, int) else int(evaluate(launch_expr(extent), variables))
        for extent in param.arg.shape
    )


def is_exact(order: Any) -> bool:
    """Whether a kernel does nothing to whole numbers that rounds."""
    for node in order:
        if node.dtype.kind != "float" or node.op in (Ops.PARAM, Ops.INDEX, Ops.GUARD, Ops.RANGE):
            continue
        if node.op is Ops.CONST:
            if not (math.isfinite(node.arg) and float(node.arg).is_integer()):
                return False
        elif node.op is Ops.REDUCE:
            if node.arg.monoid.primitive not in (Ops.ADD, Ops.MAX, Ops.MIN):
                return False
        elif node.op not in _EXACT or node.dtype.bits < 32:
            return False
    return True


def _limits(order: Any, variables: dict[str, int]) -> dict[int, int]:
    """For arrays of which elements are looked up elsewhere: what the elements have to be below."""
    found: dict[int, int] = {}
    for node in order:
        if node.op is Ops.INDEX and node.src[0].op is Ops.PARAM:
            shape, indices = shape_of(node.src[0], variables), node.src[1:]
        elif node.op is Ops.OUT:
            shape, indices = shape_of(node.src[0], variables), node.src[2:]
        else:
            continue
        for extent, place in zip(shape, indices, strict=True):
            for below in toposort(place):
                if below.op is Ops.PARAM:
                    slot = below.arg.slot
                    found[slot] = min(found.get(slot, extent), max(extent, 1))
    return found


def _random(
    generator: np.random.Generator, dtype: DType, count: int, limit: int | None, exact: bool
) -> Array:
    """Raw contents of an array: whole numbers where results are to be exact, else of order one."""
    from baregrad.ir.evaluate.alu import to_raw

    if count > STRETCH:
        return np.resize(_random(generator, dtype, STRETCH, limit, exact), count)
    if dtype is dtypes.bool:
        return to_raw(generator.integers(0, 2, count).astype(np.bool_), dtype)
    if dtype.kind == "float":
        if exact:
            values = generator.integers(-LARGEST, LARGEST + 1, count).astype(np.float32)
        else:
            values = generator.standard_normal(count, dtype=np.float32)
        return to_raw(values, dtype)
    high = limit if limit is not None else 100
    high = min(high, 1 << (dtype.bits - (dtype.kind == "int"))) if dtype.bits < 32 else high
    return to_raw(generator.integers(0, max(high, 1), count), dtype)


def samples(problem: Problem, seed: int = 1) -> list[Samples]:
    """What the reference makes of some elements of every output; none where it cannot say.

    Outputs that depend on an order (scatters, scans) are computed whole where they are small, and
    left to the comparison with the first schedule where they are large.
    """
    facts = facts_of(problem.kernel)
    if facts.ordered or facts.scanned:
        return _whole(problem)
    found = []
    for out in problem.kernel.src:
        found.append(_sampled(problem, out, np.random.default_rng(seed)))
    return found


def _whole(problem: Problem) -> list[Samples]:
    facts = facts_of(problem.kernel)
    if iterations(frozenset(facts.data) | frozenset(facts.reduced)) > MOST_COMPUTED:
        return []
    arrays = {}
    nodes = {n.arg.slot: n for n in toposort(problem.kernel) if n.op is Ops.PARAM}
    for slot, array in enumerate(problem.arrays):
        arrays[slot] = np.array(array).reshape(shape_of(nodes[slot], problem.variables))
    evaluate_kernel(problem.kernel, arrays, problem.variables)
    return [
        Samples(slot, np.arange(arrays[slot].size), arrays[slot].reshape(-1))
        for slot in sorted(problem.written)
    ]


def _sampled(problem: Problem, out: Node, generator: np.random.Generator) -> Samples:
    """Elements of an output whose places are computed from random points of its axes."""
    variables = problem.variables
    axes = sorted(out_axes(out), key=lambda axis: axis.arg.id)
    each = max(
        (iterations(r.own) for r in facts_of(problem.kernel).reductions), default=1
    )
    count = max(min(MOST_SAMPLES, MOST_COMPUTED // max(each, 1)), 1)
    sample = range_node(count, _SAMPLE_ID)
    params: dict[int, Array] = {}
    nodes = {n.arg.slot: n for n in toposort(problem.kernel) if n.op is Ops.PARAM}
    for slot, array in enumerate(problem.arrays):
        params[slot] = array.reshape(shape_of(nodes[slot], variables))
    mapping: dict[Node, Node] = {}
    for number, axis in enumerate(axes):
        extent = extent_of(axis)
        size = extent if isinstance(extent, int) else evaluate(launch_expr(extent), variables)
        slot = len(problem.arrays) + number
        picked = generator.integers(0, max(size, 1), count)
        # The corners are where tiles end.
        picked[: min(2, count)] = (0, max(size - 1, 0))[: min(2, count)]
        params[slot] = picked.astype(np.int64)
        table = Node(Ops.PARAM, dtypes.int64, (), Param(slot, (count,), ""))
        place = Node(Ops.INDEX, dtypes.int64, (table, sample))
        mapping[axis] = Node(Ops.CAST, dtypes.index, (place,))
    value, *indices = (substitute(node, mapping) for node in out.src[1:])
    flat: Any = const(0, dtypes.index)
    for place, extent in zip(indices, out.src[0].arg.shape, strict=True):
        flat = index.add(index.mul(flat, extent), place)
    places = np.broadcast_to(evaluate_value(index.as_node(flat), params, variables), (count,))
    found = np.broadcast_to(evaluate_value(value, params, variables), (count,))
    return Samples(out.src[0].arg.slot, np.array(places), np.array(found))


def differs(found: Array, wanted: Array, dtype: DType, exact: bool, terms: int) -> str:
    """How working values differ more than another order of sums would explain; "" if not at all."""
    if found.shape != wanted.shape:
        return f"{found.shape} elements instead of {wanted.shape}"
    if not found.size:
        return ""
    if dtype.kind != "float" or exact:
        wrong = int(np.count_nonzero(~_same(found, wanted)))
        return f"{wrong} of {found.size} elements differ" if wrong else ""
    nans = np.isnan(found) != np.isnan(wanted)
    if nans.any():
        return f"{int(np.count_nonzero(nans))} elements are NaN in one alone"
    infinite = ~np.isfinite(wanted) | ~np.isfinite(found)
    if not _same(found[infinite], wanted[infinite]).all():
        return "infinities differ"
    left, right = found[~infinite].astype(np.float64), wanted[~infinite].astype(np.float64)
    if not left.size:
        return ""
    scale = float(np.max(np.abs(right)))
    error = float(np.max(np.abs(left - right)))
    # Of order one at least: what cancels has the errors of what was cancelled.
    allowed = tolerance(dtype, terms) * max(scale, 1.0)
    return "" if error <= allowed else f"an error of {error:.3g} where {allowed:.3g} is allowed"


def tolerance(dtype: DType, terms: int) -> float:
    """The relative error that another order of a sum of `terms` terms may make."""
    bits = {16: 10, 32: 23, 64: 52}.get(dtype.bits, 3)
    if dtype is dtypes.bfloat16:
        bits = 7
    here = 2.0**-bits
    return 4 * here + (16 + 4 * math.sqrt(terms)) * min(2.0**-23, here)


def _same(left: Array, right: Array) -> Array:
    with np.errstate(invalid="ignore"):
        equal = left == right
        if left.dtype.kind == "f":
            equal = equal | (np.isnan(left) & np.isnan(right))
    return np.asarray(equal)
