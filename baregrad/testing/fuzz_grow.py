"""Programs from seeds: which statements follow each other, and what is returned."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from baregrad.dtypes import DType, dtypes
from baregrad.testing import fuzz_elementwise as elementwise
from baregrad.testing import fuzz_structure as structure
from baregrad.testing.fuzz_kinds import axes, draws, foreign, images, resets, scans, symbolic
from baregrad.testing.fuzz_program import FuzzProgram, Maker
from baregrad.testing.fuzz_values import Data, Known, added, draw_shape, multiplied, summed

Rows = Sequence[tuple[Callable[[Maker], bool], int]]
MIXED: Rows = (
    (elementwise.binary, 10), (elementwise.scalar, 6), (elementwise.unary, 4),
    (elementwise.smooth, 5), (elementwise.compare, 3), (elementwise.choose, 4),
    (elementwise.cast, 4), (elementwise.integer, 3), (elementwise.stepwise, 3),
    (elementwise.logic, 2), (structure.view, 16), (structure.reduce, 9), (structure.join, 4),
    (structure.contract, 5), (structure.gather, 4), (structure.one_hot, 2),
    (structure.scatter, 2), (structure.write, 8), (axes.fold, 4), (axes.turn, 4), (axes.part, 5),
    (axes.write, 1), (draws.draw, 2), (foreign.argument, 4), (foreign.write, 1),
)  # fmt: skip
# Of numbers of very different magnitudes: what folds them, and what only moves and chooses them.
STEEP: Rows = (
    (scans.scan, 30), (structure.view, 8), (axes.turn, 4), (axes.part, 4), (structure.join, 2),
    (elementwise.scalar, 2),
)  # fmt: skip
# What gradients pass through, and what has none but stands beside it.
SMOOTH = (
    (elementwise.binary, 10), (elementwise.scalar, 4), (elementwise.unary, 4),
    (elementwise.smooth, 8), (elementwise.choose, 3), (elementwise.compare, 1),
    (structure.view, 14), (structure.reduce, 8), (structure.join, 4), (structure.contract, 5),
    (structure.gather, 3), (structure.write, 3),
)  # fmt: skip
# Of images.
IMAGES: Rows = (
    (images.resample, 12), (images.pool, 10), (images.surround, 8), (images.convolve, 6),
    (elementwise.scalar, 3), (elementwise.cast, 3), (structure.view, 2),
)  # fmt: skip
# Beside either of them, in a program with sizes.
SIZED = (
    (symbolic.cut, 24), (symbolic.reshape, 16), (symbolic.widen, 16), (symbolic.made, 5),
    (symbolic.number, 6), (symbolic.product, 6), (symbolic.write, 8), (draws.draw, 3),
)  # fmt: skip
# Beside SIZED, in a program that moves elements about and does little else.
MOVING = (
    (structure.view, 30), (structure.join, 8), (structure.reduce, 6), (elementwise.binary, 6),
    (elementwise.scalar, 3), (elementwise.choose, 2), (structure.gather, 3), (structure.write, 6),
)  # fmt: skip
DTYPES = (
    dtypes.float32, dtypes.float32, dtypes.float32, dtypes.float64, dtypes.float16,
    dtypes.bfloat16, dtypes.int32, dtypes.int32, dtypes.int64, dtypes.int8, dtypes.int16,
    dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64, dtypes.bool,
)  # fmt: skip
LONGEST = 9
# Kinds of programs, and how many are of each kind.
SHARES = (("mixed", 56), ("sized", 16), ("state", 12), ("steep", 8), ("images", 8))
# Those of kind "chain" run on guarded memory, see fuzz_guarded.
KINDS = (*(kind for kind, _ in SHARES), "chain")


def _data(rng: random.Random, dtype: DType | None = None) -> Data:
    chosen = dtype or rng.choice(DTYPES)
    return Data(draw_shape(rng), chosen, rng.random() < 0.3, rng.random() < 0.15)


def grow(seed: int, kind: str | None = None) -> FuzzProgram:
    """The program of a seed: the same on every machine.

    kind: one of KINDS; if None, the seed says which.
    """
    rng = random.Random(seed)
    gradients = rng.random() < 0.2
    drawn = rng.choices([name for name, _ in SHARES], [share for _, share in SHARES])[0]
    kind = kind or drawn
    gradients = gradients and kind not in ("chain", "steep", "images")
    maker = Maker(rng, dtypes.float64 if gradients else None)
    if kind in ("sized", "chain"):
        symbolic.start(maker)
    setup = resets.start(maker) if kind == "state" else ()
    _start(maker, kind)
    leaves = _leaves(maker) if gradients else []
    if maker.sizes:
        _extend(maker, ((symbolic.cut, 3), (symbolic.widen, 1)), 2 + len(maker.statements))
    _extend(maker, _rows(kind, gradients), rng.randint(2, LONGEST) + 2 * len(leaves))
    if kind == "state":
        resets.finish(maker)
    elif maker.state:
        _settle_state(maker)
    results, loose = _results(maker)
    if leaves:
        _differentiate(maker, leaves, results, loose)
    return FuzzProgram(
        seed, maker.arguments, maker.state, (*maker.statements, *maker.broken[:1]), tuple(results),
        dict(maker.known), tuple(loose), maker.sizes, setup,
        resets.between(maker) if kind == "state" else (),
    )  # fmt: skip


def _rows(kind: str, gradients: bool) -> Rows:
    """Statements by how often they are tried."""
    if kind == "chain":
        return (*MOVING, *SIZED, *SIZED)
    if kind in ("steep", "images"):
        return STEEP if kind == "steep" else IMAGES
    rows: Rows = SMOOTH if gradients else MIXED
    if kind == "sized":
        return (*rows, *SIZED)
    return (*rows, *resets.STEPS) if kind == "state" else rows


def _settle_state(maker: Maker) -> None:
    """State changes at each call, and stays small."""
    if "s0" not in maker.written:
        maker.write("s0.add_(1)", "s0", maker.known["s0"])
    if maker.state["s0"].dtype.kind == "float":
        maker.write("s0.clamp_(-4, 4)", "s0", maker.known["s0"])


def _start(maker: Maker, kind: str) -> None:
    """Arguments, and state now and then."""
    rng = maker.rng
    if kind in ("steep", "images"):
        (scans if kind == "steep" else images).start(maker)
        return
    for _ in range(rng.randint(1, 3)):
        maker.argument(_data(rng, maker.only))
    if maker.only is not None:
        maker.argument(Data(draw_shape(rng), dtypes.int32))
    if rng.random() < 0.35 and kind != "state":
        maker.start("s0", replace(_data(rng, maker.only), wide=True), maker.state)


def _extend(maker: Maker, rows: Rows, wanted: int) -> None:
    """Statements up to a number, as long as enough of what is tried is taken."""
    steps = [row[0] for row in rows]
    weights = [row[1] for row in rows]
    for _ in range(60):
        if len(maker.statements) >= wanted:
            break
        (step,) = maker.rng.choices(steps, weights)
        step(maker)


def _always(known: Known, dtype: DType) -> Known:
    return known


def _leaves(maker: Maker) -> list[str]:
    """Leaves that gradients are asked for, made from the floating arguments."""
    found: list[str] = []
    for name, data in list(maker.arguments.items()):
        if data.dtype.kind == "float":
            leaf = f"p{len(found)}"
            known = data.known()
            maker.run(f"{leaf} = {name}.clone().detach()", partial(_always, known))
            maker.run(f"{leaf} = {leaf}.requires_grad_()", partial(_always, known))
            found.append(leaf)
            maker.recent = [r for r in maker.recent if r not in (name, leaf)] + [leaf]
    return found


def _results(maker: Maker) -> tuple[list[str], list[str]]:
    defined = [name for name in maker.recent if name.startswith("v")]
    if maker.sizes:
        # What nothing reads is not computed, and sizes that do not fit are not seen.
        read = {n for s in maker.statements if s.defines for n in s.reads if s.uses(n)}
        read -= {s.target for s in maker.statements if not s.defines}
        return [name for name in dict.fromkeys(defined) if name not in read], []
    last = defined[-1:]
    others = maker.rng.sample(defined[:-1], min(len(defined[:-1]), maker.rng.randint(0, 2)))
    return [*others, *last], []


def _total(maker: Maker, names: list[str], dtype: DType) -> Known:
    """What is known of the sum of x * x / 8 + x over all elements of some values."""
    eighth, found = Known(0.125, 0.0, 0.125), Known(0.0, 0.0, 1.0)
    for name in names:
        known = maker.known[name]
        each = added(multiplied(multiplied(known, known), eighth), known)
        found = added(found, summed(each, math.prod(maker.most(name)), dtype))
    return found


def _differentiate(maker: Maker, leaves: list[str], results: list[str], loose: list[str]) -> None:
    """Add first and sometimes second gradients of a weighted sum of the results."""
    floats = [r for r in results if maker.values[r].requires_grad and maker.values[r].numel()]
    if not floats:
        return
    asked = ", ".join(leaves)
    terms = " + ".join(f"({name} * {name} * 0.125 + {name}).sum()" for name in floats)
    known = maker.known[floats[0]]
    if not maker.run("total = " + terms, lambda dtype: _total(maker, floats, dtype), loose=True):
        return
    for position, leaf in enumerate(leaves):
        name = f"g{position}"
        text = f"{name} = total.gradient({asked}, allow_unused=True)[{position}]"
        if maker.run(text, lambda dtype: known, loose=True):
            results.append(name)
            loose.append(name)
        if maker.rng.random() < 0.3 and maker.values[name].requires_grad:
            text = f"h{position} = ({name} * 0.5).sum().gradient({leaf}, allow_unused=True)[0]"
            if maker.run(text, lambda dtype: known, loose=True):
                results.append(f"h{position}")
                loose.append(f"h{position}")
