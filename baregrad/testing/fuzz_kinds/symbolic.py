"""Random statements in which extents, places and numbers are sizes, other ones at each call."""

from __future__ import annotations

from baregrad.testing.fuzz_elementwise import mate
from baregrad.testing.fuzz_program import Maker
from baregrad.testing.fuzz_values import Known, added, either, multiplied, summed

# The largest value of a size; few different ones, so that sizes often fit extents and each other.
LARGEST = (2, 3, 4, 4, 5, 8, 9)


def start(maker: Maker) -> None:
    """Give a program its sizes, before its arguments."""
    for _ in range(maker.rng.randint(1, 2)):
        largest = maker.rng.choice(LARGEST)
        maker.size(maker.rng.choice((0, 1, 1, 1, 2)), largest)


def _size(maker: Maker, room: int | None = None) -> str | None:
    """A size, or arithmetic of one; no larger than `room`, if that is possible and mostly."""
    rng = maker.rng
    fitting = [n for n, s in maker.sizes.items() if room is None or s.largest <= room]
    if not fitting:
        if rng.random() < 0.9:
            return None
        fitting = list(maker.sizes)
    name = rng.choice(fitting)
    return name if rng.random() < 0.75 else rng.choice(
        (f"{name} // 2", f"{name} - 1", f"{name} + 1", f"{name} * 2", f"{name} % 3")
    )


def cut(maker: Maker) -> bool:
    """A part of an axis from or to a symbolic place, or one place."""
    name = maker.pick(lambda x, known: x.ndim > 0)
    if name is None:
        return False
    x, rng = maker.values[name], maker.rng
    axis = rng.randrange(x.ndim)
    n = _size(maker, x.shape[axis])
    if n is None:
        return False
    m = _size(maker, x.shape[axis]) or "1"
    whole = maker.extent(name, axis)
    entry = rng.choice((
        f":{n}", f":{n}", f":{n}", f"{n}:", f"{n} - 1", f"({n}) // 2:{n}", f"{n}:{m}",
        f"{n}:{n} + 1", f"{whole} - ({n}):", f":{whole} - ({n})", f"-({n}):", "1:", ":-1", "-1",
        f"{whole} - 1", f"1:{n}", f"{n}:{n} + 2",
    ))  # fmt: skip
    key = ", ".join([*[":"] * axis, entry])
    form = rng.random()
    text = f"{name}[{key}]"
    if form < 0.15:
        text = f"{name}.narrow({axis}, 0, {n})"
    elif form < 0.25:
        text = f"{name}.narrow({axis}, {n}, {rng.randint(1, 2)})"
    elif form < 0.3:
        text = f"{name}.split({n}, {axis})[0]"
    known = maker.known[name]
    return maker.run(f"{maker.fresh()} = {text}", lambda dtype: known)


def reshape(maker: Maker) -> bool:
    """The same elements in another shape: extents merged, split, made known or symbolic."""
    name = maker.pick()
    if name is None:
        return False
    x, rng, known = maker.values[name], maker.rng, maker.known[name]
    extents = [maker.extent(name, axis) for axis in range(x.ndim)]
    kind = rng.randrange(7)
    if kind == 0 and x.ndim > 1:
        at = rng.randrange(x.ndim - 1)
        extents[at : at + 2] = [f"{extents[at]} * {extents[at + 1]}"]
    elif kind == 1:
        rng.shuffle(extents)
    elif kind == 2:
        extents.insert(rng.randint(0, x.ndim), "1")
    elif kind == 3 and x.ndim:
        at = rng.randrange(x.ndim)
        extents[at : at + 1] = rng.choice((["-1", "2"], ["2", "-1"], [f"{extents[at]} // 2", "2"]))
    elif kind == 4 and x.ndim:
        extents[rng.randrange(x.ndim)] = _size(maker) or "-1"
    elif kind == 5 and x.ndim:
        extents = [str(extent) for extent in x.shape]
    else:
        extents = ["-1"]
    text = f"{name}.reshape({', '.join(extents) or '()'})"
    return maker.run(f"{maker.fresh()} = {text}", lambda dtype: known)


def widen(maker: Maker) -> bool:
    """Repeated, padded or moved by symbolic amounts."""
    name = maker.pick()
    if name is None:
        return False
    x, rng = maker.values[name], maker.rng
    n = _size(maker) or "n0"
    rest = ", -1" * x.ndim
    forms = [f"{name}.expand({n}, *{name}.shape)", f"{name}.unsqueeze(0).expand({n}{rest})"]
    if x.ndim:
        axis = rng.randrange(x.ndim)
        fill = rng.choice((0, 1))
        forms += [
            f"{name}.pad(({n}, 0), value={fill})", f"{name}.pad((1, {n}), value={fill})",
            f"{name}.pad((0, {n}))", f"{name}.unfold({axis}, 2, {rng.choice((1, 1, 2))})",
            f"{name}.flip({axis})", f"Tensor.cat([{name}, {name}], dim={axis})",
            f"{name}.repeat({', '.join([n, *['1'] * (x.ndim - 1)])})",
            f"{name}.pad((0, {maker.extent(name, x.ndim - 1)}))",
            f"{name}.roll({n}, {axis})",
            f"{name}.tril({n})" if x.ndim > 1 else f"{name}[None]",
        ]
    known = either(maker.known[name], Known(1.0, 0.0, 0.25))
    return maker.run(f"{maker.fresh()} = {rng.choice(forms)}", lambda dtype: known)


def made(maker: Maker) -> bool:
    """A tensor made with a symbolic shape."""
    n, m = _size(maker) or "n0", _size(maker) or "n0"
    form = maker.rng.choice((
        f"Tensor.arange({n})", f"Tensor.zeros({n}, 2)", f"Tensor.full(({n}, {m}), 2)",
        f"Tensor.ones(3, {n}, dtype='int32')", f"Tensor.arange({n}, dtype='float32')",
        f"Tensor.eye({n})", f"Tensor.arange(1, {n})",
    ))  # fmt: skip
    return maker.run(f"{maker.fresh()} = {form}", lambda dtype: Known(20.0, 0.0, 1.0))


def number(maker: Maker) -> bool:
    """A size as a number among elements: added, multiplied, compared with places."""
    name = maker.pick(lambda x, known: x.dtype.name != "bool")
    n = _size(maker)
    if name is None or n is None:
        return False
    x, known, rng = maker.values[name], maker.known[name], maker.rng
    twenty = Known(20.0, 0.0, 1.0)
    if rng.random() < 0.5 or not x.ndim:
        form, given = f"{name} + ({n})", added(known, twenty)
        if rng.random() < 0.5:
            form, given = f"{name} * ({n})", multiplied(known, twenty)
        return maker.run(f"{maker.fresh()} = {form}", lambda dtype: given)
    last = maker.extent(name, x.ndim - 1)
    mask = f"Tensor.arange({last}) {rng.choice(('<', '>=', '=='))} {n}"
    form = rng.choice((f"{name}.masked_fill({mask}, 1)", f"({mask}).where({name}, 0)", mask))
    given = either(known, Known(1.0, 0.0, 1.0))
    return maker.run(f"{maker.fresh()} = {form}", lambda dtype: given)


def product(maker: Maker) -> bool:
    """A matrix product over or beside symbolic axes, or a softmax over one."""
    name = maker.pick(lambda x, known: x.ndim >= 2 and x.dtype.name != "bool")
    if name is None:
        return False
    known, most = maker.known[name], maker.most(name)
    square = multiplied(known, known)
    inner, form = maker.rng.choice(
        ((most[-1], f"{name} @ {name}.mT"), (most[-2], f"{name}.mT @ {name}"))
    )
    return maker.run(f"{maker.fresh()} = {form}", lambda d: summed(square, inner, d))


def write(maker: Maker) -> bool:
    """A change in place of a part with symbolic ends."""
    target = maker.pick(lambda x, known: x.ndim > 0)
    if target is None:
        return False
    x, rng = maker.values[target], maker.rng
    axis = rng.randrange(x.ndim)
    n = _size(maker, x.shape[axis])
    if n is None:
        return False
    entry = rng.choice((f":{n}", f"{n}:", f"{n} - 1", f"({n}) // 2:{n}", f"{n}:{n} + 1"))
    key = ", ".join([*[":"] * axis, entry])
    value = mate(maker, target) if rng.random() < 0.5 else None
    if value in (None, target) or maker.values[value].dtype is not x.dtype:
        return maker.write(f"{target}[{key}] = 2", target, Known(2.0, 0.0, 1.0))
    shown = f"{value}[{key}]" if maker.values[value].shape == x.shape else value
    return maker.write(f"{target}[{key}] = {shown}", target, maker.known[value])
