"""Random statements whose arguments are of other types that mean the same.

`given` names what turns a number into NumPy's, and a row of numbers into an array, a range or a
list. With plain arguments these do nothing, which is what the others are compared with.
"""

from __future__ import annotations

from baregrad.testing.fuzz_program import FOREIGN_NUMBERS, FOREIGN_ROWS, Maker
from baregrad.testing.fuzz_values import Known, added, summed


def argument(maker: Maker) -> bool:
    """An axis, an extent, a place or an amount of another type."""
    name = maker.pick(lambda x, known: x.ndim > 0 and x.numel() > 0)
    if name is None or _is_symbolic(maker, name):
        return False
    x, rng, known = maker.values[name], maker.rng, maker.known[name]
    axis = rng.randint(-x.ndim, x.ndim - 1)
    extent = x.shape[axis]

    def n(value: int) -> str:
        return f"{rng.choice(FOREIGN_NUMBERS)}({value})"

    def row(values: tuple[int, ...]) -> str:
        return f"{rng.choice(FOREIGN_ROWS)}({values})"

    order = tuple(rng.sample(range(x.ndim), x.ndim))
    lead = ":, " * (axis % x.ndim)
    places = tuple(rng.randint(-extent, extent - 1) for _ in range(rng.randint(1, 3)))
    form = rng.choice((
        f"{name}.sum({n(axis)})", f"{name}.amax({n(axis)})", f"{name}.sum({row(order)})",
        f"{name}.permute({row(order)})", f"{name}.flip({n(axis)})", f"{name}.flip({row(order)})",
        f"{name}.reshape({row((x.numel(),))})", f"{name}.reshape({n(x.numel())})",
        f"{name}.expand({row((2, *x.shape))})", f"{name}.unsqueeze({n(axis)})",
        f"{name}.roll({n(1)}, {n(axis)})", f"{name}.repeat({row((2,) * x.ndim)})",
        f"{name}.narrow({n(axis)}, as_int64(0), {n(extent)})", f"{name}.pad({row((1, 2))})",
        f"{name}[{lead}as_int64({places[0]})]", f"{name}[{lead}{row(places)}]",
        f"{name}[{lead}as_tensor({places})]", f"{name}[{lead}as_bytes({places})]",
        f"{name}[{lead}{n(0)}:{n(extent)}:{n(2)}]", f"{name}.unfold({n(axis)}, {n(1)}, {n(1)})",
        f"{name}.softmax({n(axis)})" if x.dtype.kind == "float" else f"{name}.argmax({n(axis)})",
        f"{name} + {n(2)}" if x.dtype.name != "bool" else f"{name}.any({n(axis)})",
        f"Tensor.cat([{name}, {name}], dim={n(axis)})", f"Tensor.stack([{name}], dim={n(axis)})",
        f"{name}.split({n(1)}, {n(axis)})[0]", f"{name}.cumsum({n(axis)})",
        f"Tensor.full({row(x.shape)}, {n(2)})", f"Tensor.arange({n(extent)})",
    ))  # fmt: skip
    if known.error and (".softmax" in form or ".argmax" in form):
        return False
    given = known
    if "sum(" in form:
        return maker.run(f"{maker.fresh()} = {form}", lambda d: summed(known, x.numel(), d))
    if "softmax" in form:
        given = Known(1.0, 1e-5 if x.dtype.bits >= 32 else 0.02)
    elif "+" in form or "arange" in form or "full" in form:
        given = added(known, Known(max(2.0, extent), 0.0, 1.0))
    elif "argmax" in form:
        given = Known(float(extent), 0.0, 1.0)
    return maker.run(f"{maker.fresh()} = {form}", lambda d: given)


def _is_symbolic(maker: Maker, name: str) -> bool:
    """Whether places on an axis, which are numbers, may lie outside for some sizes."""
    return any(maker.is_symbolic(name, axis) for axis in range(maker.values[name].ndim))


def write(maker: Maker) -> bool:
    """A change in place where place and value are of other types."""
    target = maker.pick(lambda x, known: x.ndim > 0 and x.shape[0] > 0)
    if target is None or _is_symbolic(maker, target):
        return False
    x, rng = maker.values[target], maker.rng
    at = rng.randrange(x.shape[0])
    place = rng.choice((f"as_int64({at})", f"as_array(({at},))", f"as_tensor(({at},))", f"{at}"))
    value = rng.choice(("as_int64(1)", "as_scalar(1)", "as_int16(1)", "1"))
    return maker.write(f"{target}[{place}] = {value}", target, Known(1.0, 0.0, 1.0))
