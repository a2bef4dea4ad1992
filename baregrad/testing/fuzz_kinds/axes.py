"""Random statements at the corners of what names axes and parts of them.

No axes, one, all, negative ones; axes of extent 0 and 1; slices backwards; windows of odd sizes;
negative amounts of padding.
"""

from __future__ import annotations

import math
import random

from baregrad.testing.fuzz_elementwise import is_certain
from baregrad.testing.fuzz_program import Maker
from baregrad.testing.fuzz_values import Known, summed


def _axes(rng: random.Random, ndim: int) -> str:
    """Some axes, none, one or all, from either end, in any order: a tuple, list or number."""
    found = [a for a in range(ndim) if rng.random() < 0.5]
    if rng.random() < 0.2:
        found = rng.choice(([], list(range(ndim))))
    rng.shuffle(found)
    shown = [a - ndim if rng.random() < 0.4 else a for a in found]
    if len(shown) == 1 and rng.random() < 0.5:
        return str(shown[0])
    return str(shown if rng.random() < 0.2 else tuple(shown))


def fold(maker: Maker) -> bool:
    """A reduction over axes however named."""
    name = maker.pick()
    if name is None:
        return False
    x, rng, known = maker.values[name], maker.rng, maker.known[name]
    axes = _axes(rng, x.ndim)
    keep = f", keepdim={rng.random() < 0.5}" if rng.random() < 0.5 else ""
    fresh, count = maker.fresh(), max(math.prod(maker.most(name)), 1)
    kind = rng.choice(("sum", "sum", "amax", "amin", "mean", "any", "all", "prod"))
    text = f"{fresh} = {name}.{kind}({axes}{keep})"
    if kind == "sum":
        return maker.run(text, lambda d: summed(known, count, d))
    if kind in ("amax", "amin"):
        return maker.run(text, lambda d: known)
    if kind in ("any", "all") and is_certain(x, known) and axes not in ("()", "[]"):
        return maker.run(text, lambda d: Known(1.0, 0.0, 1.0))
    if kind == "mean" and x.dtype.kind == "float" and x.numel():
        total = Known(known.peak, known.error + 1e-12)
        return maker.run(text, lambda d: Known(known.peak, 2 * summed(total, count, d).error))
    return False


def turn(maker: Maker) -> bool:
    """Axes turned about, in whatever way they are named."""
    name = maker.pick()
    if name is None:
        return False
    x, rng, known = maker.values[name], maker.rng, maker.known[name]
    ndim = x.ndim
    order = [a - ndim if rng.random() < 0.4 else a for a in rng.sample(range(ndim), ndim)]
    forms = [
        f"{name}.flip({_axes(rng, ndim)})", f"{name}.permute({tuple(order)})",
        f"{name}.unsqueeze({rng.randint(-ndim - 1, ndim)})", f"{name}.reshape({name}.shape)",
        f"{name}.expand({(-1,) * ndim})", f"{name}.repeat({(rng.randint(0, 2),) * ndim})",
        f"{name}[...]", f"{name}[()]", f"{name}[None, ..., None]",
    ]  # fmt: skip
    if not any(maker.is_symbolic(name, axis) for axis in range(ndim)):
        # Of extents that are symbolic none goes, of plain ones those that happen to be 1.
        axis = rng.randint(-ndim, ndim - 1) if ndim else 0
        forms += [f"{name}.squeeze()", f"{name}.squeeze({axis})"]
    if ndim:
        axis = rng.randint(-ndim, ndim - 1)
        forms += [
            f"{name}.transpose({axis}, {rng.randint(-ndim, ndim - 1)})",
            f"{name}.flip({axis})", f"{name}.movedim({axis}, {rng.randint(-ndim, ndim - 1)})",
            f"{name}.roll({rng.randint(-20, 20)}, {axis})", f"{name}.flatten({axis})",
        ]  # fmt: skip
    return maker.run(f"{maker.fresh()} = {rng.choice(forms)}", lambda d: known)


def part(maker: Maker) -> bool:
    """A part of axes: slices with odd ends and steps, windows, padding that cuts."""
    name = maker.pick(lambda x, known: x.ndim > 0)
    if name is None:
        return False
    x, rng, known = maker.values[name], maker.rng, maker.known[name]
    axis = rng.randint(-x.ndim, x.ndim - 1)
    extent = x.shape[axis]
    if rng.random() < 0.5:
        keys = [_slice(rng, e) for e in x.shape[: rng.randint(1, x.ndim)]]
        text = f"{name}[{', '.join(keys)}]"
    else:
        size, step = rng.randint(0, extent + 1), rng.randint(1, 4)
        pads = tuple(rng.randint(-2, 2) for _ in range(2 * rng.randint(1, x.ndim)))
        text = rng.choice((
            f"{name}.unfold({axis}, {size}, {step})", f"{name}.pad({pads})",
            f"{name}.pad({pads}, value=1)", f"{name}.narrow({axis}, {-size}, {min(size, 2)})",
            f"{name}.split({step}, {axis})[-1]", f"{name}.narrow({axis}, {size}, 0)",
        ))  # fmt: skip
    given = Known(max(known.peak, 1.0), known.error, min(known.grain, 1.0))
    return maker.run(f"{maker.fresh()} = {text}", lambda d: given)


def _slice(rng: random.Random, extent: int) -> str:
    """A slice whose ends may lie outside the axis."""
    ends = [str(rng.randint(-extent - 2, extent + 2)) if rng.random() < 0.6 else "" for _ in "ab"]
    step = rng.choice((1, 1, 2, 3, 5, -1, -1, -2, -3, -7))
    return f"{ends[0]}:{ends[1]}:{step}"


def write(maker: Maker) -> bool:
    """A change in place of a part that is named oddly, also an empty one."""
    target = maker.pick(lambda x, known: x.ndim > 0)
    if target is None:
        return False
    x, rng = maker.values[target], maker.rng
    keys = [_slice(rng, e) for e in x.shape[: rng.randint(1, x.ndim)]]
    number = rng.randint(0, 2)
    incoming = Known(2.0, 0.0, 1.0)
    return maker.write(f"{target}[{', '.join(keys)}] = {number}", target, incoming)
