"""Random statements without axes: arithmetic, functions, comparisons, casts, choices."""

from __future__ import annotations

import math

from baregrad.dtypes import DType
from baregrad.tensor import Tensor
from baregrad.testing.fuzz_program import Maker
from baregrad.testing.fuzz_values import Known, added, either, multiplied, round_off, wrapped

CASTS = (
    "float32", "float32", "float64", "float16", "bfloat16", "int32", "int64", "int8", "int16",
    "uint8", "uint16", "uint32", "bool",
)  # fmt: skip


def is_float(x: Tensor, known: Known) -> bool:
    """Whether the elements are floats."""
    return x.dtype.kind == "float"


def is_integer(x: Tensor, known: Known) -> bool:
    """Whether the elements are integers, not bools."""
    return x.dtype.kind in ("int", "uint")


def is_certain(x: Tensor, known: Known) -> bool:
    """Whether every device has the same bits."""
    return not known.error


def mate(maker: Maker, name: str) -> str | None:
    """Another value that broadcasts with `name`; sometimes a new argument made to fit."""
    x = maker.values[name]

    def fits(y: Tensor, known: Known) -> bool:
        pairs = zip(reversed(x.shape), reversed(y.shape), strict=False)
        return all(a == b or 1 in (a, b) for a, b in pairs)

    return maker.pick(fits)


def binary(maker: Maker) -> bool:
    """Arithmetic of two values."""
    a = maker.pick()
    b = mate(maker, a) if a else None
    if a is None or b is None:
        return False
    ka, kb = maker.known[a], maker.known[b]
    form = maker.rng.choice(("{} + {}", "{} - {}", "{} * {}", "{}.maximum({})", "{}.minimum({})"))
    known = {"*": multiplied(ka, kb), "+": added(ka, kb), "-": added(ka, kb)}
    given = known.get(form[3], either(ka, kb))
    if form[3] == "-" and "bool" in (maker.values[a].dtype.name, maker.values[b].dtype.name):
        return False
    return maker.run(
        f"{maker.fresh()} = {form.format(a, b)}",
        lambda dtype: wrapped(given, dtype) if form[3] == "-" else given,
    )


def scalar(maker: Maker) -> bool:
    """Arithmetic of a value and a Python number."""
    a = maker.pick()
    if a is None:
        return False
    known, rng = maker.known[a], maker.rng
    number: float = rng.choice((0.5, 2.0, -1.0, 0.25, 1.5) if rng.random() < 0.5 else (2, 3, -1, 0))
    one = Known(abs(number), 0.0, 0.25)
    form, given = rng.choice(
        (
            ("{a} + {n}", added(known, one)),
            ("{n} - {a}", added(known, one)),
            ("{a} * {n}", multiplied(known, one)),
            ("{a}.maximum({n})", either(known, one)),
            ("{a}.clamp(-2, {n})", either(Known(2.0, known.error, known.grain), one)),
            ("{a} / 2", Known(known.peak / 2, known.error / 2, known.grain / 2)),
            ("{a} / 3", Known(known.peak / 3, known.error / 3)),
        )
    )
    text = form.format(a=a, n=number)
    return maker.run(f"{maker.fresh()} = {text}", lambda dtype: wrapped(given, dtype))


def unary(maker: Maker) -> bool:
    """Functions that no error makes worse."""
    a = maker.pick()
    if a is None:
        return False
    form = maker.rng.choice(("-{}", "{}.abs()", "{}.relu()", "{}.square()", "{}.clone()"))
    known = maker.known[a]
    given = multiplied(known, known) if "square" in form else known
    return maker.run(
        f"{maker.fresh()} = {form.format(a)}",
        lambda dtype: wrapped(given, dtype) if form == "-{}" else given,
    )


def smooth(maker: Maker) -> bool:
    """Transcendental functions, where they are tame."""
    a = maker.pick(lambda x, known: known.peak < 40 and x.dtype.kind == "float")
    if a is None:
        return False
    known = maker.known[a]
    rise = math.exp(min(known.peak, 5.0))
    form, peak, slope = maker.rng.choice(
        (
            ("{a}.clamp(-5, 5).exp()", rise, rise),
            ("({a}.abs() + 1).log()", math.log(known.peak + 1), 1.0),
            ("({a}.abs() + 0.25).sqrt()", math.sqrt(known.peak + 0.25), 1.0),
            ("({a}.abs() + 0.5).rsqrt()", 1.5, 1.5),
            ("{a}.sin()", 1.0, 1.0),
            ("{a}.cos()", 1.0, 1.0),
            ("{a}.tanh()", 1.0, 1.0),
            ("{a}.sigmoid()", 1.0, 0.25),
            ("{a}.erf()", 1.0, 1.2),
            ("{a}.gelu()", known.peak, 1.2),
            ("{a}.silu()", known.peak, 1.2),
            ("1 / ({a}.abs() + 1)", 1.0, 1.0),
            ("{a} / ({a} * {a} + 1)", 0.5, 1.0),
        )
    )

    def give(dtype: DType) -> Known:
        # Steps inside are rounded at the size of the argument, and a few at that of the result.
        slack = 8 * round_off(dtype) * (max(peak, 1.0) + slope * max(known.peak, 1.0))
        return Known(peak, known.error * slope + slack)

    return maker.run(f"{maker.fresh()} = {form.format(a=a)}", give)


def compare(maker: Maker) -> bool:
    """Comparisons of values that are certain."""
    a = maker.pick(is_certain)
    if a is None:
        return False
    operator = maker.rng.choice(("<", "<=", ">", ">=", "==", "!="))
    b = mate(maker, a) if maker.rng.random() < 0.5 else None
    if b is not None and maker.known[b].error:
        b = None
    other = b or str(maker.rng.choice((0, 1, -1, 0.25)))
    return maker.run(f"{maker.fresh()} = {a} {operator} {other}", lambda dtype: Known(1.0))


def choose(maker: Maker) -> bool:
    """`where` over a mask."""
    condition = maker.pick(lambda x, known: x.dtype.name == "bool")
    a = mate(maker, condition) if condition else None
    b = mate(maker, a) if a else None
    if condition is None or a is None or b is None:
        return False
    given = either(maker.known[a], maker.known[b])
    form = maker.rng.choice(("{c}.where({a}, {b})", "{a}.masked_fill({c}, 1)"))
    return maker.run(f"{maker.fresh()} = {form.format(c=condition, a=a, b=b)}", lambda dtype: given)


def cast(maker: Maker) -> bool:
    """A cast; to integers from certain values alone."""
    a = maker.pick()
    if a is None:
        return False
    target = maker.rng.choice(CASTS)
    known = maker.known[a]
    if known.error and not target.startswith(("float", "bfloat")):
        return False
    negative = maker.values[a].dtype.kind in ("int", "float")

    return maker.run(
        f"{maker.fresh()} = {a}.cast({target!r})",
        lambda dtype: wrapped(known, dtype) if negative else known,
    )


def integer(maker: Maker) -> bool:
    """Integer arithmetic with its corners: division by zero, wide shifts, wrap."""
    a = maker.pick(is_integer)
    b = mate(maker, a) if a else None
    if a is None or b is None or not is_integer(maker.values[b], maker.known[b]):
        return False
    operator = maker.rng.choice(("//", "%", "&", "|", "^", "<<", ">>", "*", "-"))
    if operator in ("<<", ">>"):
        text = f"{a} {operator} ({b} & 7)"
    else:
        text = f"{a} {operator} {maker.rng.choice((b, b, '3', '-2', '0'))}"
    return maker.run(f"{maker.fresh()} = {text}", lambda dtype: Known(2.0 ** (dtype.bits - 1)))


def stepwise(maker: Maker) -> bool:
    """Functions with jumps, of values that are certain."""
    a = maker.pick(is_certain)
    if a is None:
        return False
    known = maker.known[a]
    forms = (
        "{}.floor()",
        "{}.round()",
        "{}.trunc()",
        "{}.sign()",
        "{} // 2",
        "{} % 3",
        "{}.isnan()",
    )
    given = Known(known.peak + 3, 0.0, 1.0)
    form = maker.rng.choice(forms)
    if form == "{} % 3":
        given = Known(3.0, 0.0, known.grain)
    return maker.run(f"{maker.fresh()} = {form.format(a)}", lambda dtype: given)


def logic(maker: Maker) -> bool:
    """Logic of masks."""
    a = maker.pick(lambda x, known: x.dtype.name == "bool")
    b = mate(maker, a) if a else None
    if a is None or b is None or maker.values[b].dtype.name != "bool":
        return False
    form = maker.rng.choice(("{} & {}", "{} | {}", "{} ^ {}", "{} == {}", "~{}"))
    return maker.run(f"{maker.fresh()} = {form.format(a, b)}", lambda dtype: Known(1.0))
