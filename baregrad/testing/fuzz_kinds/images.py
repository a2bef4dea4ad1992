"""Random statements about images, of integers more often than of floats."""

from __future__ import annotations

from baregrad.dtypes import dtypes
from baregrad.testing.fuzz_program import Maker
from baregrad.testing.fuzz_values import Data, Known, either, multiplied, round_off, summed

SHAPES = ((1, 3, 5, 5), (2, 2, 6, 5), (1, 1, 8, 7), (2, 1, 3, 9), (1, 2, 1, 4), (1, 4, 4, 4))
DTYPES = (
    dtypes.uint8, dtypes.uint8, dtypes.uint8, dtypes.int8, dtypes.int16, dtypes.int32,
    dtypes.int64, dtypes.uint16, dtypes.float32, dtypes.float32, dtypes.float16, dtypes.bool,
)  # fmt: skip

_MODES = ("nearest", "nearest", "nearest-exact", "bilinear", "bilinear", "bicubic", "area")


def start(maker: Maker) -> None:
    """Arguments that are images: bytes of all values, other integers small ones."""
    rng = maker.rng
    for _ in range(rng.randint(1, 2)):
        dtype = maker.only or rng.choice(DTYPES)
        maker.argument(Data(rng.choice(SHAPES), dtype, wide=dtype is dtypes.uint8))


def resample(maker: Maker) -> bool:
    """An image of another size."""
    name = maker.pick(lambda x, known: x.ndim == 4 and x.numel() > 0)
    if name is None:
        return False
    x, rng, known = maker.values[name], maker.rng, maker.known[name]
    mode = rng.choice(_MODES)
    size = (rng.randint(1, 9), rng.randint(1, 9))
    form = f"size={size}" if rng.random() < 0.7 else f"scale_factor={rng.choice((2, 0.5, 1.5, 3))}"
    more = f", align_corners={rng.random() < 0.5}" if mode in ("bilinear", "bicubic") else ""
    peak = known.peak * (2 if mode == "bicubic" else 1)
    is_exact = x.dtype.kind != "float" or mode.startswith("nearest")
    rough = 0.0 if is_exact else 64 * round_off(x.dtype)
    given = Known(peak, 4 * known.error + peak * rough, known.grain if not rough else 0.0)
    text = f"{name}.interpolate({form}, mode={mode!r}{more})"
    return maker.run(f"{maker.fresh()} = {text}", lambda d: given)


def pool(maker: Maker) -> bool:
    """The largest or the mean of windows, or of parts of equal size."""
    name = maker.pick(lambda x, known: x.ndim == 4 and x.numel() > 0)
    if name is None:
        return False
    x, rng, known = maker.values[name], maker.rng, maker.known[name]
    size, pads = rng.randint(1, 3), 0
    if size > 1:
        pads = rng.randint(0, 1)
    window = f"{size}, stride={rng.randint(1, 3)}, padding={pads}, ceil_mode={rng.random() < 0.3}"
    total = summed(Known(known.peak, known.error + 1e-12), x.shape[2] * x.shape[3], x.dtype)
    mean = Known(known.peak, 2 * total.error + known.peak * 2.0**-20)
    if rng.random() < 0.5:
        dilation = f", dilation={rng.randint(1, 2)}"
        text = f"{maker.fresh()} = {name}.max_pool2d({window}{dilation})"
        return maker.run(text, lambda d: known)
    if x.dtype.kind == "float" and rng.random() < 0.5:
        sizes = (rng.randint(1, 4), rng.randint(1, 4))
        text = f"{maker.fresh()} = {name}.adaptive_avg_pool2d({sizes})"
        return maker.run(text, lambda d: mean)
    inside = f", count_include_pad={rng.random() < 0.5}"
    text = f"{maker.fresh()} = {name}.avg_pool2d({window}{inside})"
    return maker.run(text, lambda d: mean)


def surround(maker: Maker) -> bool:
    """An image with its own edges, or a number, around it."""
    name = maker.pick(lambda x, known: x.ndim == 4 and x.numel() > 0)
    if name is None:
        return False
    rng, known = maker.rng, maker.known[name]
    mode = rng.choice(("reflect", "replicate", "circular", "constant"))
    pads = tuple(rng.randint(0 if mode != "constant" else -1, 2) for _ in range(4))
    given = either(known, Known(1.0, 0.0, 1.0))
    text = f"{name}.pad({pads}, mode={mode!r})"
    return maker.run(f"{maker.fresh()} = {text}", lambda d: given)


def convolve(maker: Maker) -> bool:
    """A convolution with a small kernel of the same dtype."""
    name = maker.pick(lambda x, k: x.ndim == 4 and x.numel() > 0 and x.dtype.name != "bool")
    if name is None:
        return False
    x, rng = maker.values[name], maker.rng
    side = rng.randint(1, 3)
    kernel = Data((rng.choice((1, 2, 4)), x.shape[1], side, side), x.dtype)
    other = maker.argument(kernel)
    product = multiplied(maker.known[name], kernel.known())
    count = x.shape[1] * side * side
    more = f"stride={rng.randint(1, 2)}, padding={rng.randint(0, 2)}, dilation={rng.randint(1, 2)}"
    text = f"{maker.fresh()} = {name}.conv2d({other}, {more})"
    return maker.run(text, lambda d: summed(product, count, d))
