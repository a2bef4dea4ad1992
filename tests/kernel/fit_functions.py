"""Fits the polynomials of baregrad/kernel/legalise/transcendental_tables.py: run it to print them.

Each is a minimax polynomial by Remez's exchange in 45 digits of precision, for the error that the
function's code multiplies it into; then coefficients are rounded to the dtype one by one, highest
precision first, refitting the others after each, so that rounding costs next to nothing.
"""

from __future__ import annotations

import struct
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from mpmath import mp, mpf

from baregrad.kernel.legalise import transcendental_tables as tables

mp.dps = 45
Function = Callable[[Any], Any]


def remez(
    f: Function, weight: Function, lo: Any, hi: Any, terms: Sequence[Function]
) -> tuple[list[Any], Any]:
    """Coefficients c with sum(c_i term_i(x)) near f, minimising max |weight * error|; that max."""
    count = len(terms) + 1
    centre, half = (mpf(lo) + mpf(hi)) / 2, (mpf(hi) - mpf(lo)) / 2
    points = [centre - half * mp.cos(mp.pi * i / (count - 1)) for i in range(count)]
    # The error's weight may vanish in the middle, where no extreme can lie.
    points = [x if weight(x) else x + half / 50 for x in points]
    dense = [centre - half * mp.cos(mp.pi * i / 300) for i in range(301)]
    values = [(f(x), weight(x), [term(x) for term in terms]) for x in dense]
    best = None
    for _ in range(12):
        rows = mp.matrix(count, count)
        right = mp.matrix(count, 1)
        for row, x in enumerate(points):
            for column, term in enumerate(terms):
                rows[row, column] = term(x) * weight(x)
            rows[row, count - 1] = (-1) ** row
            right[row] = f(x) * weight(x)
        solution = mp.lu_solve(rows, right)
        coefficients = [solution[i] for i in range(count - 1)]
        errors = [
            (sum(c * t for c, t in zip(coefficients, row, strict=True)) - y) * w
            for y, w, row in values
        ]
        worst = max(abs(e) for e in errors)
        if best is None or worst < best[1]:
            best = (coefficients, worst)
        if worst < abs(solution[count - 1]) * mpf("1.001"):
            break
        points = extremes(dense, errors, count) or points
    assert best is not None
    return best


def extremes(dense: list[Any], errors: list[Any], count: int) -> list[Any] | None:
    """The `count` alternating extremes of the error, the smallest dropped from the ends."""
    found: list[tuple[Any, Any]] = []
    for x, e in zip(dense, errors, strict=True):
        if found and (found[-1][1] > 0) == (e > 0):
            if abs(e) > abs(found[-1][1]):
                found[-1] = (x, e)
        else:
            found.append((x, e))
    while len(found) > count:
        found.pop(0 if abs(found[0][1]) < abs(found[-1][1]) else -1)
    return [x for x, _ in found] if len(found) == count else None


def to_float(value: Any, bits: int) -> float:
    """The nearest float of 32 or 64 bits."""
    if bits == 64:
        return float(value)
    return float(struct.unpack("<f", struct.pack("<f", float(value)))[0])


def powers(count: int) -> list[Function]:
    """1, x, x**2, ..."""
    return [lambda x, power=power: x**power for power in range(count)]


def fit(
    f: Function, lo: Any, hi: Any, terms: Sequence[Function], bits: int, weight: Function
) -> tuple[list[float], float]:
    """Coefficients of the terms in `bits`, and log2 of the largest weighted error."""
    held: list[float] = []
    known: dict[Any, Any] = {}

    def remembered(x: Any) -> Any:
        if x not in known:
            known[x] = f(x)
        return known[x]

    def held_part(x: Any) -> Any:
        return sum(mpf(c) * term(x) for c, term in zip(held, terms, strict=False))

    while len(held) < len(terms):
        coefficients, _ = remez(
            lambda x: remembered(x) - held_part(x), weight, lo, hi, terms[len(held) :]
        )
        held.append(to_float(coefficients[0], bits))
    points = [mpf(lo) + (mpf(hi) - mpf(lo)) * i / 1000 for i in range(1001)]
    worst = max(abs((held_part(x) - f(x)) * weight(x)) for x in points)
    return held, float(mp.log(worst, 2))


# --- the functions ------------------------------------------------------------------------------


def series(coefficient: Function, count: int = 60) -> Function:
    """A power series as a function."""
    values = [coefficient(k) for k in range(count)]
    return lambda x: mp.polyval(values[::-1], x)


LN2 = mp.log(2)
HALF_LN2 = LN2 / 2 * mpf("1.005")
HALF = mpf("0.5025")
LOG_LOW, LOG_HIGH = mp.sqrt(mpf("0.5")) - 1, mp.sqrt(mpf(2)) - 1
QUARTER_PI_SQUARED = (mp.pi / 4) ** 2 * mpf("1.002")

exponential = series(lambda k: 1 / mp.factorial(k + 2))
power_of_two = series(lambda k: LN2 ** (k + 1) / mp.factorial(k + 1))
sine = series(lambda k: (-1) ** (k + 1) / mp.factorial(2 * k + 3))
cosine = series(lambda k: (-1) ** k / mp.factorial(2 * k + 4))


def logarithm(f: Any) -> Any:
    """(log(1 + f) - f + f**2/2) / f**3."""
    if abs(f) < mpf("0.05"):
        return mp.fsum((-1) ** k * f**k / (k + 3) for k in range(40))
    return (mp.log1p(f) - f + f * f / 2) / f**3


def logarithm_of_ratio(z: Any) -> Any:
    """(log((1 + s) / (1 - s)) / s - 2) / z with s**2 = z."""
    if z < mpf("1e-12"):
        return mp.fsum(2 * z**k / (2 * k + 3) for k in range(8))
    root = mp.sqrt(z)
    return (mp.atanh(root) * 2 / root - 2) / z


def atanh_tail(z: Any) -> Any:
    """(atanh(s) / s - 1 - z/3) / z**2 with s**2 = z."""
    if z < mpf("1e-4"):
        return mp.fsum(z**k / (2 * k + 5) for k in range(10))
    root = mp.sqrt(z)
    return (mp.atanh(root) / root - 1 - z / 3) / z**2


def arctangent(z: Any) -> Any:
    """(atan(t) - t) / t**3 with t**2 = z."""
    if z < mpf("0.01"):
        return mp.fsum((-1) ** (k + 1) * z**k / (2 * k + 3) for k in range(30))
    root = mp.sqrt(z)
    return (mp.atan(root) - root) / root**3


def error_function(z: Any) -> Any:
    """erf(x) / x - 1 with x**2 = z."""
    if z < mpf("1e-10"):
        return 2 / mp.sqrt(mp.pi) * (1 - z / 3) - 1
    root = mp.sqrt(z)
    return mp.erf(root) / root - 1


ERFC_SLOPE = to_float(2 / mp.sqrt(mp.pi), 32)
ERFC_END = mpf("3.95")


def erfc_root(x: Any) -> Any:
    """4 * (1 - (1 - erf(x))**(1/4)) / x less `ERFC_SLOPE`."""
    exact = -4 * mp.expm1(mp.log(mp.erfc(x)) / 4) / x if x else 2 / mp.sqrt(mp.pi)
    return exact - ERFC_SLOPE


def by_erfc_root(x: Any) -> Any:
    """How an error of `erfc_root` shows in erf(x); more towards the end, which is to round to 1."""
    shown = x * mp.erfc(x) ** mpf("0.75") / mp.erf(x) if x else mp.sqrt(mp.pi) / 2
    return shown * (1 + 3 * (x / ERFC_END) ** 24)


# --- the negative half of GELU ------------------------------------------------------------------

GELU_END, GELU_SHIFT = mpf(tables.GELU_END_F32), mpf(tables.GELU_SHIFT_F32)
GELU_TURNS = [mpf(turn) for turn in tables.GELU_TURNS_F32]


def gelu_tail(x: Any) -> Any:
    """The normal distribution's integral from x on, led below 0 shortly before the end."""
    tail = mp.erfc(x * mp.sqrt(mpf("0.5"))) / 2
    close = max(1 - 2 * (GELU_END - x), mpf(0)) ** 3
    return tail - close * (mp.erfc(GELU_END * mp.sqrt(mpf("0.5"))) / 2 + mpf("1e-8"))


def gelu_inner(x: Any) -> tuple[Any, Any]:
    """What the turns make 1/2 less the tail, and how an error of it shows in that."""
    value, shown = mpf("0.5") - gelu_tail(x), mpf(1)
    for turn in reversed(GELU_TURNS):
        # The smaller s with s * (turn - s) = value.
        value = turn / 2 - mp.sqrt(max(turn * turn / 4 - value, mpf(0)))
        shown *= turn - 2 * value
    return value, shown


def gelu_quotient(x: Any) -> Any:
    """That, divided by x."""
    return gelu_inner(x)[0] / x if x else 1 / mp.sqrt(2 * mp.pi) / mp.fprod(GELU_TURNS)


def by_gelu_quotient(x: Any) -> Any:
    """How an error of `gelu_quotient` shows in units in the last place of x times the tail.

    Less of it is wanted where rounding adds more, which is up to 2.
    """
    if not x:
        return mpf(0)
    unit = mpf(2) ** mp.floor(mp.log(x, 2)) * (1 + (x / 2) ** 2)
    return (gelu_inner(x)[1] + mpf("1e-9")) * x * x / unit


def gelu_offsets() -> list[float]:
    """What is added to x * (x + shift) in the two steps: the second one to the first's sum.

    In powers of y = x + shift/2 the quotient's polynomial of degree 6 has an even part e(y**2) and
    an odd one y * o(y**2). Divided by y**2 - r, for a root r of o, it leaves the constant e(r), and
    so does what is divided by the factor of the other root then: steps of a product and a constant.
    """
    coefficients, _ = remez(gelu_quotient, by_gelu_quotient, mpf(0), GELU_END, powers(7))
    moved = [mpf(0)] * 7
    for power, c in enumerate(coefficients):
        for k in range(power + 1):
            moved[k] += c * mp.binomial(power, k) * (-GELU_SHIFT / 2) ** (power - k)
    roots = sorted(mp.re(root) for root in mp.polyroots(moved[5::-2]))
    first = to_float(GELU_SHIFT**2 / 4 - roots[1], 32)
    return [first, to_float(GELU_SHIFT**2 / 4 - roots[0] - first, 32)]


def gelu_text() -> str:
    """The tables of GELU: the quotient's first three coefficients and the steps."""
    offsets = gelu_offsets()

    def later(x: Any) -> Any:
        return x * (x + GELU_SHIFT) + offsets[0] + offsets[1]

    def both(x: Any) -> Any:
        return (x * (x + GELU_SHIFT) + offsets[0]) * later(x)

    terms = [lambda x: mpf(1), later]
    terms += [lambda x, power=power: x**power * both(x) for power in range(3)]
    found, error = fit(gelu_quotient, mpf(0), GELU_END, terms, 32, by_gelu_quotient)
    what = "The polynomial of `gelu` / x: one of degree 2, and steps of (offset, constant)"
    lines = [f"# {what}: {error:.2f}", "GELU_BASE_F32: Final = ("]
    lines += [numbers_text(found[2:], "    "), ")", "GELU_STEPS_F32: Final = ("]
    steps = zip(offsets, reversed(found[:2]), strict=True)
    return "\n".join([*lines, *(f"    {step!r}," for step in steps), ")"])


GELU_WIDTH = mpf(tables.GELU_WIDTH_F32)
GELU_COUNT = 16
GELU_NEAR_END = mpf(tables.GELU_NEAR_END_F32)


def normal_tail(x: Any) -> Any:
    """The normal distribution's integral from x on."""
    return mp.erfc(x * mp.sqrt(mpf("0.5"))) / 2


def log_of_tail(x: Any) -> Any:
    """log2 of `normal_tail`."""
    return mp.log(normal_tail(x), 2)


def by_tail(x: Any) -> Any:
    """How an error of `log_of_tail` shows: less where GELU is below float16's normal numbers."""
    return LN2 * mpf(2) ** (mpf("1.5") * min(mpf("4.3") - x, mpf(0)))


def gelu_part(number: int) -> tuple[list[float], float]:
    """The polynomial of `normal_tail` near a multiple of the width, and log2 of its error.

    The first has 1/2 at 0, exactly. Coefficients are of x itself, and the highest power's is
    rounded first, for which the others make up.
    """
    low, high = max(number - mpf("0.5"), mpf(0)) * GELU_WIDTH, (number + mpf("0.5")) * GELU_WIDTH
    terms, held = powers(5)[::-1], [] if number else [0.5]

    def rest(x: Any) -> Any:
        return normal_tail(x) - sum(held)

    found, error = fit(rest, low, high, terms[: 5 - len(held)], 32, lambda x: mpf(1))
    return [*held, *found[::-1]], error


def gelu_parts_text() -> str:
    """The table of GELU by lookup: for each power, the parts' coefficients, 0 for the last."""
    parts = [gelu_part(number) for number in range(GELU_COUNT - 1)]
    what = "The normal distribution's integral from |x| on in parts, by powers of |x|"
    lines = [f"# {what}: {max(error for _, error in parts):.2f}", f"{GELU_PARTS}: Final = ("]
    for row in zip(*(coefficients for coefficients, _ in parts), strict=True):
        lines += ["    (", numbers_text((*row, 0.0), "        "), "    ),"]
    return "\n".join([*lines, ")"])


def unfolded(t: Any) -> Any:
    """The x of t = (x - 2) / (x + 2)."""
    return 2 * (1 + t) / (1 - t)


def scaled_complement(t: Any) -> Any:
    """(1 - erf(x)) * e**(x**2)."""
    x = unfolded(t)
    return mp.erfc(x) * mp.exp(x * x)


def by_expm1(x: Any) -> Any:
    """How an error of `exponential` shows in e**x - 1."""
    return abs(x * x / mp.expm1(x)) if x else mpf(0)


def by_log(f: Any) -> Any:
    """How an error of `logarithm` shows in log(1 + f)."""
    return abs(f**3 / mp.log1p(f)) if f else mpf(0)


def by_sine(z: Any) -> Any:
    """How an error of `sine` shows in sin(r)."""
    return z / (1 + z * sine(z))


def by_cosine(z: Any) -> Any:
    """How an error of `cosine` shows in cos(r)."""
    return z * z / (1 - z / 2 + z * z * cosine(z))


def by_arctangent(z: Any) -> Any:
    """How an error of `arctangent` shows in atan(t)."""
    return z / (1 + z * arctangent(z))


def by_erf(z: Any) -> Any:
    """How an error of `error_function` shows in erf(x)."""
    return 1 / (1 + error_function(z))


RATIO = (LOG_HIGH / (2 + LOG_HIGH)) ** 2 * mpf("1.001")
TURN = mpf("0.4142135623731") ** 2 * mpf("1.002")
ERF_LOW, ERF_HIGH = -mpf(1) / 3 * mpf("1.001"), mpf(4) / 8

# name, what it approximates, function, from, to, number of coefficients, bits, weight
TABLES: tuple[tuple[str, str, Function, Any, Any, int, int, Function], ...] = (
    ("EXPM1_F32", "(e**r - 1 - r) / r**2 for |r| <= ln(2)/2", exponential, -HALF_LN2, HALF_LN2,
     6, 32, by_expm1),
    ("EXP_F64", "(e**r - 1 - r) / r**2 for |r| <= ln(2)/2", exponential, -HALF_LN2, HALF_LN2,
     11, 64, by_expm1),
    ("EXP2_F32", "(2**r - 1) / r for |r| <= 1/2", power_of_two, -HALF, HALF, 6, 32,
     lambda x: abs(x) / mpf(2) ** x),
    ("EXP2_F64", "(2**r - 1) / r for |r| <= 1/2", power_of_two, -HALF, HALF, 12, 64,
     lambda x: abs(x) / mpf(2) ** x),
    ("LOG_F32", "(log(1 + f) - f + f**2/2) / f**3 for sqrt(1/2) <= 1 + f <= sqrt(2)", logarithm,
     LOG_LOW, LOG_HIGH, 8, 32, by_log),
    ("LOG_F64", "(log((1 + s) / (1 - s)) / s - 2) / z in z = s**2 for |s| <= 0.1716",
     logarithm_of_ratio, mpf(0), RATIO, 7, 64, lambda z: z / 2),
    ("ATANH_F64", "(atanh(s) / s - 1 - z/3) / z**2 in z = s**2 for |s| <= 0.1716", atanh_tail,
     mpf(0), mpf("0.02945"), 8, 64, lambda z: z * z / (1 + z / 3)),
    ("SIN_F32", "(sin(r) - r) / r**3 in r**2 for |r| <= pi/4", sine, mpf(0), QUARTER_PI_SQUARED,
     3, 32, by_sine),
    ("COS_F32", "(cos(r) - 1 + r**2/2) / r**4 in r**2 for |r| <= pi/4", cosine, mpf(0),
     QUARTER_PI_SQUARED, 3, 32, by_cosine),
    ("SIN_F64", "(sin(r) - r) / r**3 in r**2 for |r| <= pi/4", sine, mpf(0), QUARTER_PI_SQUARED,
     6, 64, by_sine),
    ("COS_F64", "(cos(r) - 1 + r**2/2) / r**4 in r**2 for |r| <= pi/4", cosine, mpf(0),
     QUARTER_PI_SQUARED, 6, 64, by_cosine),
    ("ATAN_F32", "(atan(t) - t) / t**3 in t**2 for |t| <= 1", arctangent, mpf(0), mpf(1), 9, 32,
     by_arctangent),
    ("ATAN_F64", "(atan(t) - t) / t**3 in t**2 for |t| <= 0.4145", arctangent, mpf(0), TURN, 11,
     64, by_arctangent),
    ("ERFC_ROOT_F32", "4 * (1 - (1 - erf(x))**(1/4)) / x - ERFC_SLOPE_F32 for 0 <= x <= 3.95",
     erfc_root, mpf(0), ERFC_END, 10, 32, by_erfc_root),
    ("GELU_NEAR_F32", "log2 of the normal distribution's integral from x on for 0 <= x <= 14.5",
     log_of_tail, mpf(0), GELU_NEAR_END, 8, 32, by_tail),
    ("ERF_F64", "erf(x) / x - 1 in x**2 for |x| <= 1", error_function, mpf(0), mpf(1), 12, 64,
     by_erf),
    ("ERFCX_F64", "(1 - erf(x)) * e**(x**2) in (x - 2) / (x + 2) for 1 <= x <= 6",
     scaled_complement, ERF_LOW, ERF_HIGH, 13, 64,
     lambda t: mp.exp(-(unfolded(t) ** 2)) / mp.erf(unfolded(t))),
)

GELU, GELU_PARTS = "GELU_STEPS_F32", "GELU_PARTS_F32"
NAMES = (*(row[0] for row in TABLES), GELU, GELU_PARTS)


def numbers_text(numbers: Sequence[float], indent: str) -> str:
    """Numbers side by side in lines of 100 columns."""
    text = ", ".join(map(repr, numbers)) + ","
    return textwrap.fill(
        text, 100, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


def table_text(name: str) -> str:
    """One table, or those of a way of GELU, as they stand in the package."""
    if name == GELU:
        return gelu_text()
    if name == GELU_PARTS:
        return gelu_parts_text()
    row = next(row for row in TABLES if row[0] == name)
    _, what, function, low, high, count, bits, weight = row
    coefficients, error = fit(function, low, high, powers(count), bits, weight)
    lines = [f"# {what}: {error:.2f}", f"{name}: Final = ("]
    return "\n".join([*lines, numbers_text(coefficients, "    "), ")"])


if __name__ == "__main__":
    for name in NAMES:
        print(table_text(name), flush=True)
