"""`scan`: a loop over tensors whose body is planned once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.dtypes import dtypes
from baregrad.engine.canonical import bind
from baregrad.engine.capture import run_again
from baregrad.engine.session import Run, current_session
from baregrad.func.regions import (
    ProgramRegion,
    are_there,
    computed,
    marked,
    refuse_writes,
    stored,
    traced_region,
)
from baregrad.func.stand_ins import (
    carries,
    check_callable,
    check_randomness,
    drawing,
    results_of,
    stand_in,
    tensors_of,
    with_tensors,
)
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Slice
from baregrad.ir.core.index import variable
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import ELEMENTWISE, Ops, mask_of
from baregrad.tensor.array import nodes, views
from baregrad.tensor.array.grad_mode import grad_enabled
from baregrad.tensor.array.storage import buffer_node
from baregrad.tensor.tensor import Tensor

F32 = dtypes.float32
_COMPUTED = mask_of(ELEMENTWISE) | Ops.REDUCE.bit


class Loop:
    """A region that runs once a step: its first results are the next step's first inputs.

    The region's inputs are `carried` values, then `read` ones, of which each step has its own, and
    what all steps share; its results are the values carried on, then those of the step.
    """

    def __init__(
        self, region: ProgramRegion, carried: int, read: int, length: int, backwards: bool
    ) -> None:
        self.region = region
        self.carried = carried
        self.read = read
        self.length = length
        self.backwards = backwards
        self._backward: dict[tuple[int, ...], tuple[Loop, tuple[int, ...]]] = {}

    @property
    def order(self) -> list[int]:
        """The steps in the order in which they run."""
        steps = list(range(self.length))
        return steps[::-1] if self.backwards else steps

    def run(
        self, carry: Sequence[Node], read: Sequence[Node], shared: Sequence[Node]
    ) -> tuple[list[Node], list[Node]]:
        """What is carried in the end, and the results of all steps, stacked."""
        values = [*carry, *read, *shared]
        if not are_there(values):
            return self._unrolled(carry, read, shared)
        held = stored(values, self.region.device)
        loop = self._keeping if any(map(carries, values)) else self
        ends, stacks = loop._steps(held)

        results = marked([*ends, *stacks], values, held, loop._pull)
        return results[: self.carried], results[self.carried :][: self._count]

    @property
    def _count(self) -> int:
        """The number of results of a step."""
        return len(self.region.roots) - self.carried

    @cached_property
    def _keeping(self) -> Loop:
        """The loop whose steps give what they began with as well, for gradients."""
        region = self.region
        roots = [*region.roots, *region.inputs[: self.carried]]
        kept = ProgramRegion(region.inputs, roots, region.device)
        return Loop(kept, self.carried, self.read, self.length, self.backwards)

    def _unrolled(
        self, carry: Sequence[Node], read: Sequence[Node], shared: Sequence[Node]
    ) -> tuple[list[Node], list[Node]]:
        """The same as part of a graph, where values are not there yet."""
        results: dict[int, list[Node]] = {}
        for step in self.order:
            found = self.region.over([*carry, *[_row(x, step) for x in read], *shared])
            carry, results[step] = found[: self.carried], found[self.carried :]
        stacks = []
        for place, root in enumerate(self.region.roots[self.carried :]):
            rows = [nodes.unsqueeze(results[step][place], 0) for step in range(self.length)]
            empty = nodes.full(0, (0, *root.shape), root.dtype)
            stacks.append(nodes.concatenate(tuple(rows), 0) if rows else empty)
        return list(carry), stacks

    def _steps(self, held: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        """Run every step over arrays."""
        device, session = self.region.device, current_session()
        first, last = self.carried, self.carried + self.read
        carry, fixed = list(held[:first]), list(held[first:])
        stacks = self._stacks(held)
        place = variable("step", 0, max(self.length - 1, 0))
        # The second step is the first whose carried values are this loop's own, as all later ones'.
        runs: list[Run] = []
        places: list[int] = []
        for number, step in enumerate(self.order):
            at, arrays = bind(place, step), [*carry, *fixed, *stacks]
            if runs:
                sources = [arrays[i].arg for i in places]
                refs = run_again(session, runs[0], sources, {"step": step})
            else:
                rows = [_row(x, at) for x in held[first:last]]
                found = self.region.over([*carry, *rows, *held[last:]])
                pairs = zip(stacks, found[first:], strict=True)
                roots = [*found[:first], *[_with_row(stack, at, row) for stack, row in pairs]]
                # Nobody else knows of the stacks, and of what this loop made and carries on.
                given = {i: stack.arg.handle for i, stack in enumerate(stacks, first)}
                if number:
                    given |= {i: one.arg.handle for i, one in enumerate(carry)
                              if _is_computed(roots[i], one)}
                with session.watching.observing((runs if number else []).append):
                    refs = session.realize(roots, device, given, list(given))
                if runs:
                    places = _places(runs, arrays, roots[:first])
            made = [buffer_node(ref, one.dtype)
                    for ref, one in zip(refs, self.region.roots, strict=True)]
            carry, stacks = made[:first], made[first:]
        return carry, stacks

    def _stacks(self, values: Sequence[Node]) -> list[Node]:
        """Memory for the results of all steps, each an array of its own."""
        made = []
        like = next((value for value in values if 0 not in value.shape), const(0.0, F32))
        corner = nodes.reshape(nodes.shrink(like, tuple([Slice(0, 1) for _ in like.shape])), ())
        for root in self.region.roots[self.carried :]:
            whole = nodes.broadcast(nodes.cast(corner, root.dtype), (self.length, *root.shape))
            # Marked, so that no two of them are one.
            made += computed([views.twin(whole)], self.region.device)
        return made

    def _pull(
        self, values: Sequence[Node], results: Sequence[Node], seeds: Mapping[int, Node]
    ) -> list[Node | None]:
        """The gradient by each value: the loop the other way round, over what steps began with."""
        kept = results[len(results) - self.carried :]
        first, last = self.carried, self.carried + self.read
        loop, reached = self.backward(tuple(sorted(place for place in seeds if place >= first)))
        carried = [i for i in range(first) if self.region.inputs[i].dtype.is_float]
        summed = [i for i in reached if i >= last]
        begin = [seeds.get(i, nodes.zeros_like(values[i])) for i in carried]
        begin += [nodes.zeros_like(values[i]) for i in summed]
        rows = [seeds[place] for place in sorted(seeds) if place >= first]
        ends, stacks = loop.run(begin, [*kept, *values[first:last], *rows], values[last:])
        parts: list[Node | None] = [None] * len(values)
        for i, part in zip([*carried, *summed], ends, strict=True):
            parts[i] = part
        for i, part in zip([i for i in reached if first <= i < last], stacks, strict=True):
            parts[i] = part
        return parts

    def backward(self, seeded: tuple[int, ...]) -> tuple[Loop, tuple[int, ...]]:
        """The loop of gradients, given those of some results of the steps; which inputs it reaches.

        Carried on are the gradients of what is carried, and the sums of those of what all share.
        """
        found = self._backward.get(seeded)
        if found is not None:
            return found
        region, first, last = self.region, self.carried, self.carried + self.read
        carried = [i for i in range(first) if region.roots[i].dtype.is_float]
        back = region.backward((*carried, *seeded))
        inputs, count = back.region.inputs, len(region.inputs)
        by = dict(zip(back.reached, back.region.roots, strict=True))
        totals = {
            i: stand_in(region.inputs[i].shape, region.inputs[i].dtype, region.device)
            for i in by if i >= last
        }
        seeds = inputs[count:]
        roots = [by.get(i, nodes.zeros_like(region.inputs[i])) for i in carried]
        roots += [nodes.add(totals[i], by[i]) for i in totals]
        roots += [by[i] for i in by if first <= i < last]
        inner = ProgramRegion(
            [*seeds[: len(carried)], *totals.values(), *inputs[:last], *seeds[len(carried) :],
             *inputs[last:count]],
            roots, region.device,
        )
        loop = Loop(
            inner, len(carried) + len(totals), last + len(seeded), self.length, not self.backwards
        )
        self._backward[seeded] = loop, back.reached
        return loop, back.reached


def _row(x: Node, at: int | Node) -> Node:
    """One row of a stack."""
    end = index.as_dim(index.add(at, 1))
    return nodes.reshape(nodes.cut(x, 0, at, end), x.shape[1:])


def _with_row(stack: Node, at: Node, row: Node) -> Node:
    """A stack with another row."""
    slices = nodes.whole(stack.shape)
    slices[0] = Slice(at, index.as_dim(index.add(at, 1)))
    return views.write(stack, ((Ops.SHRINK, tuple(slices)),), nodes.unsqueeze(row, 0))


def _places(runs: list[Run], arrays: Sequence[Node], carried: Sequence[Node]) -> list[int]:
    """Which array each input of a run is; the run is forgotten where later ones may differ.

    That is where two arrays are one, or where a value that is carried on is passed on as it is.
    """
    handles = [id(array.arg.handle) for array in arrays]
    inputs = [id(ref.handle) for ref in runs[0].program.inputs]
    alike = len(set(handles)) == len(handles) and len(set(carried)) == len(carried)
    if len(runs) > 1 or not alike or not set(inputs) <= set(handles) or not all(
        root.op.bit & _COMPUTED for root in carried
    ):
        runs.clear()
        return []
    return [handles.index(one) for one in inputs]


def _is_computed(root: Node, old: Node) -> bool:
    """Whether a value is computed, and may take the memory of one of its shape."""
    return bool(root.op.bit & _COMPUTED) and (root.shape, root.dtype) == (old.shape, old.dtype)


def scan(
    func: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any = None,
    length: int | None = None, reverse: bool = False, randomness: str = "error",
) -> tuple[Any, Any]:
    """Return (carry, ys) of a loop over the rows of `xs`: carry, y = func(carry, x) for each.

    The function is called once; its steps are computed now, by one program for all of them, which
    takes time to compile once. xs: tensors of one leading extent, which each step reads its row of,
    or a tree of such; None for `length` steps without. init, and what is carried on, are a tensor
    or a tree of one kind. ys: the second results, stacked. reverse: from the last row to the first.
    For gradients what each step began with is kept, and all else of it computed again. randomness:
    "error" refuses functions that draw, "same" gives each step the same draws. Raises
    ArgumentError, ShapeError or DTypeError.
    """
    check_callable(func, "scan")
    check_randomness(randomness, "scan")
    carry, read = tensors_of(init), tensors_of(xs)
    steps = _length(read, length)
    given = (*carry, *read)
    if not given:
        raise ArgumentError("scan carries a tensor on, or reads one", found="no tensor")
    device = given[0].device
    likes = [x.node for x in carry]
    likes += [nodes.full(0, x.shape[1:], x.dtype) for x in read]

    def call(tensors: list[Tensor]) -> tuple[Any, list[Tensor]]:
        first = with_tensors(init, tensors[: len(carry)])
        result = func(first, with_tensors(xs, tensors[len(carry) :]))
        if not isinstance(result, tuple) or len(result) != 2:
            raise ArgumentError(
                "the function of scan returns a pair", found=f"{type(result).__name__}",
                wanted="(what is carried on, what is stacked)",
            )
        check_carry(first, result[0], "scan")
        rows = [] if result[1] is None else results_of(result[1], "scan")
        return result, [*results_of(result[0], "scan"), *rows]

    with drawing(randomness, "scan", "step"):
        traced = traced_region(call, likes, device)
    refuse_writes(traced.written, "scan")
    loop = Loop(traced.region, len(carry), len(read), steps, reverse)
    ends, stacks = loop.run(
        [x.node for x in carry], [x.node for x in read], traced.captured
    )
    grad = grad_enabled()
    made = [Tensor._make(value, device, grad and carries(value)) for value in (*ends, *stacks)]
    end = with_tensors(traced.result[0], made[: len(carry)])
    rows = traced.result[1]
    return end, None if rows is None else with_tensors(rows, made[len(carry) :])


def _length(read: Sequence[Tensor], length: int | None) -> int:
    """The number of a loop's steps."""
    found = {} if length is None else {length: None}
    for x in read:
        if not x.ndim or not isinstance(x.shape[0], int):
            raise ShapeError(
                "scan reads tensors with a leading axis of known extent", found=list(x.shape)
            )
        found[x.shape[0]] = None
    if len(found) != 1:
        raise ShapeError(
            "scan takes as many steps as its inputs have rows, or `length`",
            found=", ".join(map(str, found)) or "neither",
        )
    (steps,) = found
    if not isinstance(steps, int) or steps < 0:
        raise ArgumentError("the length of a scan is a count", found=repr(steps))
    return steps


def check_carry(first: Any, then: Any, what: str) -> None:
    """Raise ShapeError or DTypeError where what a step gives is not like what it took."""
    old, new = results_of(first, what), results_of(then, what)
    kinds = [[(list(x.shape), x.dtype) for x in each] for each in (old, new)]
    if kinds[0] == kinds[1]:
        return
    error = ShapeError if [s for s, _ in kinds[0]] != [s for s, _ in kinds[1]] else DTypeError
    raise error(
        f"both sides of a step of {what} have the same shapes and dtypes",
        found=", ".join(f"{shape} {dtype}" for shape, dtype in kinds[1]),
        wanted=", ".join(f"{shape} {dtype}" for shape, dtype in kinds[0]),
    )
