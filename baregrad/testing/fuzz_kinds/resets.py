"""Random ways to put state back between the calls of a program that changes it."""

from __future__ import annotations

from collections.abc import Callable

from baregrad.dtypes import DType, dtypes
from baregrad.testing.fuzz_elementwise import mate
from baregrad.testing.fuzz_program import Maker, Statement
from baregrad.testing.fuzz_values import Data, Known, draw_shape, settle

CALLS = 6
# {t}: the state; {u}: another of its shape and dtype; {s}: its shape; {d}: its dtype;
# {z}, {n}: zeros, and a number, of that shape and dtype; {m}: the number.
_WRITES = (
    "{t}.zero_()", "{t}.fill_({m})", "{t}[...] = {m}", "{t}.mul_(0)", "{t}.data.zero_()",
    "{t}.detach().fill_({m})", "{t}.detach()[...] = {m}", "{t}.assign({z})", "{t}.copy_({n})",
    "{t}.assign({n} + 0)", "{t}.copy_({u} * 0)", "{t}.copy_({u})", "{t}.assign({u}.clone())",
    "{t}.assign({t} * 1)", "{t}.assign(Tensor(np.full({s}, {m})).cast({d}))",
    "{t}.copy_(Tensor.ones({s}).cast({d}) * {m})", "{t}.data.copy_({u})",
    "{t}.assign({z}.contiguous())",
)  # fmt: skip
_REPLACEMENTS = (
    "{t} = {z}", "{t} = {n}", "{t} = {t}.detach()", "{t} = {t}.clone()", "{t} = {u}.clone()",
    "{t} = ({t} * 1).cast({d})", "{t} = {z}.contiguous()",
    "{t} = Tensor(np.full({s}, {m})).cast({d})",
    "{t} = {n}.realize()", "{t} = {t}[...]", "{t} = {u}", "{t} = {t}.detach().clone()",
    "{t} = {u}.expand({s})", "{t}.realize()",
)  # fmt: skip
_VIEWS = ("{t}[...]", "{t}.detach()", "{t}.reshape({s})", "{t}[::-1]", "{t}[:]", "{t}.flip(0)")


def start(maker: Maker) -> tuple[Statement, ...]:
    """Give a program several pieces of state of one shape, some of them views; what makes those."""
    rng = maker.rng
    dtype = rng.choice((dtypes.float32, dtypes.float32, dtypes.int32, dtypes.float64, dtypes.bool))
    data = Data(draw_shape(rng), dtype)
    for position in range(rng.randint(2, 4)):
        maker.start(f"s{position}", data, maker.state)
    names = list(maker.state)
    for _ in range(rng.choice((0, 0, 1, 2))):
        form = rng.choice((*_VIEWS, "{t} = {z}"))
        if "=" in form:
            text = _filled(maker, form, rng.choice(names))
        else:
            text = f"s{len(maker.known)} = " + _filled(maker, form, rng.choice(names))
        maker.run(text, _known)
    setup = tuple(maker.statements)
    maker.statements.clear()
    return setup


def _known(dtype: DType) -> Known:
    return Known(4.0)


def _filled(maker: Maker, form: str, target: str) -> str:
    x, rng = maker.values[target], maker.rng
    others = [
        name
        for name, y in maker.values.items()
        if name.startswith("s") and y.shape == x.shape and y.dtype is x.dtype
    ]
    shape, dtype, number = tuple(x.shape), repr(x.dtype.name), rng.randint(0, 2)
    return form.format(
        t=target,
        u=rng.choice(others),
        s=shape,
        d=dtype,
        m=number,
        n=f"Tensor.full({shape}, {number}, dtype={dtype})",
        z=f"Tensor.zeros({shape}, dtype={dtype})",
    )


def change(maker: Maker) -> bool:
    """State changed in place by the program itself."""
    names = [name for name in maker.values if name.startswith("s")]
    target = maker.rng.choice(names)
    x, known = maker.values[target], maker.known[target]
    value = mate(maker, target)
    if value is None or maker.known[value].error or maker.values[value].dtype is not x.dtype:
        value = "1" if x.dtype.name != "bool" else "True"
    forms = ["{t}.copy_({v})", "{t}[...] = {v}", "{t}[:1] = {v}", "{t}.assign({t} + {v})"]
    if x.dtype.name != "bool":
        forms += ["{t} += {v}", "{t}.add_({v})", "{t}.sub_({v})", "{t}.add_({v} * 2)"] * 2
    form = maker.rng.choice(forms)
    if value.isalpha() or value == "1":
        form = form.replace("copy_(", "fill_(")
    other = maker.known.get(value, Known(1.0, 0.0, 1.0))
    given = Known(known.peak + 2 * other.peak, 0.0, min(known.grain, other.grain))
    if settle(given, x.dtype) is None:
        return False
    text = form.format(t=target, v=value)
    # A program must not make the name its own by assigning to it.
    text = text.replace(f"{target} += {value}", f"{target}.add_({value})")
    return maker.write(text, target, given)


def finish(maker: Maker) -> None:
    """Keep state small, since it comes back at the next call."""
    for name in [n for n in maker.values if n.startswith("s")]:
        if maker.values[name].dtype.kind == "float":
            maker.write(f"{name}.clamp_(-4, 4)", name, maker.known[name])


def between(maker: Maker) -> tuple[tuple[Statement, ...], ...]:
    """What happens between the calls."""
    return tuple(_reset(maker) for _ in range(CALLS - 1))


def _reset(maker: Maker) -> tuple[Statement, ...]:
    rng = maker.rng
    names = [name for name in maker.values if name.startswith("s")]
    found: list[str] = []
    drawn = rng.random()
    if drawn < 0.25:
        return ()
    forms = _WRITES if rng.random() < 0.7 else (*_WRITES, *_REPLACEMENTS)
    if drawn < 0.65:
        # All of them in one way, so that they are equal.
        form = rng.choice(forms)
        found = [_filled(maker, form, name) for name in names]
    elif drawn < 0.8:
        shape, dtype = maker.values[names[0]].shape, maker.values[names[0]].dtype.name
        found = [f"z = Tensor.full({tuple(shape)}, {rng.randint(0, 2)}, dtype={dtype!r})"]
        found += [rng.choice((f"{name}.assign(z)", f"{name}.copy_(z)")) for name in names]
    else:
        found = [_filled(maker, rng.choice(forms), rng.choice(names)) for _ in range(3)]
    return tuple(Statement.parse(text) for text in found if maker.tried(text) is not None)


STEPS: tuple[tuple[Callable[[Maker], bool], int], ...] = ((change, 30),)
