"""Random running folds and normalisations of numbers of very different magnitudes."""

from __future__ import annotations

from baregrad.dtypes import DType, dtypes
from baregrad.testing.fuzz_program import Maker
from baregrad.testing.fuzz_values import Data, Known, draw_shape, round_off, summed

PEAK = 1000.0


def start(maker: Maker) -> None:
    """Arguments of steep data, and one of small integers to turn it about with."""
    rng = maker.rng
    for _ in range(rng.randint(1, 2)):
        dtype = maker.only or rng.choice(
            (dtypes.float32, dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16)
        )
        maker.argument(Data(draw_shape(rng), dtype, rough=rng.random() < 0.3, steep=True))


def scan(maker: Maker) -> bool:
    """A running fold, a sum of exponentials, or shares."""
    name = maker.pick(lambda x, known: x.ndim > 0 and x.dtype.kind == "float")
    if name is None:
        return False
    x, known, rng = maker.values[name], maker.known[name], maker.rng
    axis = rng.randrange(x.ndim)
    count = max(x.shape[axis], 1)
    shown = axis if rng.random() < 0.7 else axis - x.ndim
    kind = rng.choice((
        "cumsum({})", "cumsum({})", "cummax({})[0]", "cummin({})[0]", "cummax({})[1]",
        "cummin({})[1]", "cumprod({})", "logcumsumexp({})", "logcumsumexp({})", "logsumexp({})",
        "softmax({})", "log_softmax({})", "var({}, correction=0)", "mean({})", "sort({})[0]",
        "logsumexp({}, keepdim=True)",
    ))  # fmt: skip
    if "[1]" in kind and known.error:
        return False
    text = f"{name}.{kind.format(shown)}"
    if kind == "cumprod({})":
        # Factors of 1 at most, of which no product overflows. No infinities: whether one meets a
        # product that has underflowed to 0 hangs on the order.
        scale = 0.001 if known.peak <= PEAK else 1 / known.peak
        text = f"({name} * {scale!r}).clamp(-1, 1).cumprod({shown})"
        known = Known(known.peak * scale, known.error * scale)
    if not x.numel() and not kind.startswith("cum"):
        return False
    return maker.run(f"{maker.fresh()} = {text}", lambda dtype: _bound(kind, known, count, dtype))


def _bound(kind: str, known: Known, count: int, dtype: DType) -> Known:
    unit = round_off(dtype) if dtype.kind == "float" else 0.0
    if kind.startswith("cumsum"):
        return summed(known, count, dtype)
    if kind.startswith(("cummax", "cummin", "sort")):
        return known if "[0]" in kind else Known(float(count), 0.0, 1.0)
    if kind.startswith("cumprod"):
        return Known(max(known.peak, 1.0) ** count, 4 * count * (unit + known.error + 2.0**-24))
    if kind.startswith("softmax"):
        return Known(1.0, 4 * known.error + 16 * count * (unit + 2.0**-24 * known.peak / 100))
    if kind.startswith("var"):
        wide = min(unit, 2.0**-24) * count * 8
        return Known(known.peak**2, known.peak**2 * (wide + unit) + known.peak * known.error)
    if kind.startswith("mean"):
        return Known(known.peak, known.error + known.peak * (unit + 2.0**-24 * count))
    peak = known.peak * (2 if kind.startswith("log_softmax") else 1) + count
    return Known(peak, 2 * known.error + 8 * peak * max(unit, 2.0**-52) * (1 + count / 8))
