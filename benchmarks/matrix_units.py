"""Which contractions of 16-bit floats the training steps of six models leave to other units.

    python benchmarks/matrix_units.py [--target sm_90a] [--models GPT-2,LSTM] [--dtype bfloat16]
        [--deep] [--kernels] [--compile]

The models are those of `baregrad/apps/models.py`, with two layers where layers are alike unless
`--deep` asks for all. Their second step is planned for a GPU, which need not be there, and each
kernel is given its schedule; nothing is computed. Listed is each kernel that sums products of two
16-bit floats, LEAST or more of them a side and a sum, more often than its schedule has a tensor
step. A float32 array that holds 16-bit floats, widened, counts as one of these. `--kernels` lists
all kernels, in order, with the bytes that each reads and writes. `--compile` makes the text of each
and lists those that cannot be made. The exit status says whether anything was listed.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from baregrad import render
from baregrad.apps.models import train, training_steps
from baregrad.base.errors import BaregradError
from baregrad.base.options import options
from baregrad.engine.compiler import Compiler
from baregrad.graph import canonicalise
from baregrad.ir.core.node import Node, extent_of, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose, cost_of
from baregrad.kernel.language.schedule import StreamTiles, Tensorize
from baregrad.schedule import make_plan
from baregrad.schedule.plan import Launch, Plan
from baregrad.target import gpu_row
from benchmarks.kernel_digests import listening

# Rows, columns and steps of a contraction that counts.
LEAST = 16
# A value of these is one of its operands, or what both of them can be.
_CHOOSING = (Ops.GUARD, Ops.WHERE, Ops.MAX, Ops.MIN)
_EXACT = (Ops.NEG, Ops.CAST, Ops.STAGE)


class Contraction(NamedTuple):
    """Rows, columns and steps of a sum of products, how many such there are, what it multiplies."""

    m: int
    n: int
    k: int
    count: int
    narrow: tuple[bool, bool]

    @property
    def counts(self) -> bool:
        """Whether a matrix unit is to sum it: it is large enough, and of two 16-bit floats."""
        return min(self.m, self.n, self.k) >= LEAST and all(self.narrow)


class Finding(NamedTuple):
    """A kernel with contractions outside the matrix units: which, how often it runs, and why."""

    kernel: Node
    contractions: tuple[Contraction, ...]
    runs: int
    why: tuple[str, ...]


def plans(name: str, target: Any, dtype: str = "bfloat16", deep: bool = False) -> list[Plan]:
    """The plans of one model's second training step for a target."""
    step = training_steps(few=not deep)[name]
    sinks: dict[Node, None] = {}
    with listening(sinks), options.override(device="NULL", cache=False):
        model = step.model().to(dtype)
        optimiser = step.optimiser(list(model.parameters()))
        batch = step.batch(np.random.default_rng(0), dtype)
        train(model, optimiser, *batch).realize()
        first = dict(sinks)
        sinks.clear()
        train(model, optimiser, *batch).realize()
    # Where the second step is the first one's program, it was planned there.
    sinks = sinks or first
    return [make_plan(canonicalise(sink, target=target), target=target) for sink in sinks]


def is_narrow(value: Node, widened: frozenset[int]) -> bool:
    """Whether all that a value can be is what 16-bit floats can be.

    widened: the slots of the arrays of wider dtypes that hold nothing else.
    """
    pending = [value]
    for node in pending:
        if node.dtype.kind == "float" and node.dtype.bits == 16:
            continue
        if node.op in _EXACT and node.src[0].dtype.kind == "float":
            pending.append(node.src[0])
        elif node.op in _CHOOSING:
            pending.extend(node.src if node.op in _CHOOSING[2:] else node.src[1:])
        elif node.op is Ops.INDEX and node.src[0].op is Ops.PARAM:
            if node.src[0].arg.slot not in widened:
                return False
        elif node.op is not Ops.CONST:
            return False
    return True


def contractions(kernel: Node, widened: frozenset[int] = frozenset()) -> Iterator[Contraction]:
    """The sums of products of a kernel, of factors with axes of their own."""
    for node in toposort(*kernel.src):
        if node.op is not Ops.REDUCE or node.arg.monoid.primitive is not Ops.ADD:
            continue
        own = frozenset(child for child in node.src if child.op is Ops.RANGE)
        for product in _products(node.src[0], own):
            left, right = product.src
            both = left.ranges & right.ranges
            sides = left.ranges - both - own, right.ranges - both - own, own & both, both - own
            sizes = [prod(int(extent_of(axis)) for axis in axes) for axes in sides]
            narrow = (is_narrow(left, widened), is_narrow(right, widened))
            yield Contraction(sizes[0], sizes[1], sizes[2], sizes[3], narrow)


def _products(value: Node, own: frozenset[Node]) -> Iterator[Node]:
    """The products that a sum over its `own` axes adds up, each of two factors that lie along them.

    They may be parts of a sum, and multiplied by what is the same for all steps.
    """
    pending = [value]
    for term in pending:
        if term.op in (Ops.CAST, Ops.GUARD):
            pending.append(term.src[-1])
        elif term.op in (Ops.ADD, Ops.SUB, Ops.NEG):
            pending.extend(term.src)
        elif term.op is Ops.MUL:
            scaled = [factor for factor in term.src if not factor.ranges.isdisjoint(own)]
            if len(scaled) == 1:
                pending.extend(scaled)
            else:
                yield term


def kernels_with_contractions(plan: Plan) -> Iterator[tuple[Launch, tuple[Contraction, ...]]]:
    """Each launch of a plan, with its contractions."""
    holding: dict[int, bool] = {}
    for step in plan.steps:
        widened = frozenset(slot for slot, one in enumerate(step.buffers) if holding.get(one))
        yield step, tuple(contractions(step.kernel, widened))
        for out in step.kernel.src:
            buffer = step.buffers[out.src[0].arg.slot]
            holding[buffer] = holding.get(buffer, True) and is_narrow(out.src[1], widened)


def outside(plan: Plan, target: Any) -> list[Finding]:
    """The kernels of a plan that contract 16-bit floats outside the target's matrix units."""
    found: dict[Node, Finding] = {}
    for step, every in kernels_with_contractions(plan):
        counting = tuple(one for one in every if one.counts)
        if not counting:
            continue
        known = found.get(step.kernel)
        if known is not None:
            found[step.kernel] = known._replace(runs=known.runs + 1)
            continue
        choice = choose(step.kernel, target)
        steps = choice.schedule.steps
        # A stream's step makes all products of its kernel.
        is_stream = any(isinstance(one, StreamTiles) for one in steps)
        tensor = [one for one in steps if isinstance(one, Tensorize)]
        if not is_stream and len(tensor) < len(counting):
            found[step.kernel] = Finding(step.kernel, counting, 1, choice.why())
    return list(found.values())


def not_compiled(plan: Plan, target: Any) -> list[tuple[Node, BaregradError]]:
    """The kernels of a plan that cannot be compiled down to their text, each with the reason."""
    compiler = Compiler(target, render.get("ptx"), None, None)
    found = []
    for kernel in dict.fromkeys(plan.kernels):
        try:
            deque(compiler.stages(kernel), 0)
        except BaregradError as error:
            found.append((kernel, error))
    return found


def _told(one: Contraction) -> str:
    times = f"{one.count} x " if one.count > 1 else ""
    kinds = "" if all(one.narrow) else " wide" if not any(one.narrow) else " mixed"
    return f"{times}{one.m}x{one.n}x{one.k}{kinds}"


def _list_kernels(plan: Plan) -> None:
    for step, every in kernels_with_contractions(plan):
        cost = cost_of(step.kernel)
        read, written = float(cost.bytes_read) / 1e6, float(cost.bytes_written) / 1e6
        dtypes = ", ".join(out.src[0].dtype.name for out in step.kernel.src)
        told = "; ".join(_told(one) for one in every if min(one[:3]) >= LEAST)
        name = step.kernel.arg.name
        print(f"  {read:9.1f} MB read, {written:9.1f} written  {name} -> {dtypes}  {told}")


def main() -> int:
    """List the contractions outside the matrix units, by model."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--target", default="sm_90a", help="a GPU's row of `target`")
    parser.add_argument("--models", default=",".join(training_steps()), help="which models")
    parser.add_argument("--dtype", default="bfloat16", help="of parameters and activations")
    parser.add_argument("--deep", action="store_true", help="all layers, not two")
    parser.add_argument("--kernels", action="store_true", help="list all kernels")
    parser.add_argument("--compile", action="store_true", help="make the text of each kernel")
    chosen = parser.parse_args()
    target = gpu_row(chosen.target)
    count = 0
    for name in chosen.models.split(","):
        for plan in plans(name, target, chosen.dtype, chosen.deep):
            findings = outside(plan, target)
            count += len(findings)
            launches = [len(every) for _, every in kernels_with_contractions(plan)]
            costs = [cost_of(kernel) for kernel in plan.kernels]
            nbytes = sum(float(cost.bytes_read) + float(cost.bytes_written) for cost in costs)
            print(
                f"{name}: {len(launches)} kernels, {len(set(plan.kernels))} of them distinct, "
                f"{nbytes / 1e9:.2f} GB moved; {len(findings)} contract outside the matrix units"
            )
            if chosen.kernels:
                _list_kernels(plan)
            for kernel, error in not_compiled(plan, target) if chosen.compile else ():
                count += 1
                print(f"  {kernel.arg.name} is not compiled: {error}")
            for one in findings:
                told = "; ".join(_told(each) for each in one.contractions)
                print(f"  {one.runs} x {one.kernel.arg.name}: {told}: {'; '.join(one.why)}")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
