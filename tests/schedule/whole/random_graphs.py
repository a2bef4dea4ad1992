"""Random tensor-level graphs: views, arithmetic, reductions, windows, gathers, scans, scatters."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from baregrad.dtypes import dtypes
from baregrad.ir.core.attrs import Pad
from baregrad.ir.core.op import Ops
from tests.schedule.graphs import F32, I64, A, iota, iota_along, param

BF16 = dtypes.bfloat16
SHAPES = ((4,), (2, 3), (3, 4), (1, 6), (2, 3, 4), (2, 1, 5), (6, 4))


Step = Callable[["Maker", A], A | None]


class Maker:
    """Grows a pool of values; every choice comes from one seed."""

    def __init__(self, seed: int, steps: Sequence[Step]) -> None:
        self.random = random.Random(seed)
        self.steps = steps
        self.params: list[A] = []
        self.pool: list[A] = []
        for _ in range(self.random.randint(1, 3)):
            self.pool.append(self.param(self.random.choice(SHAPES)))

    def param(self, shape: tuple[int, ...], dtype: object = F32) -> A:
        made = param(len(self.params), *shape, dtype=dtype)
        self.params.append(made)
        return made

    def pick(self) -> A:
        return self.random.choice(self.pool[-6:])

    def grow(self) -> None:
        step = self.random.choice(self.steps)
        value = self.pick()
        if not value.shape and step not in (_unary, _binary, _broadcast, _contiguous, _narrowed):
            value = value.reshape(1)
        found = step(self, value)
        if found is not None and len(found.shape) <= 5:
            size = 1
            for extent in found.shape:
                size *= extent
            if size <= 2000:
                self.pool.append(found)

    def outputs(self) -> list[A]:
        for _ in range(self.random.randint(2, 14)):
            self.grow()
        count = self.random.randint(1, 3)
        return [self.random.choice(self.pool[-5:]) for _ in range(count)]


def _unary(maker: Maker, x: A) -> A:
    kind = maker.random.randrange(6)
    if kind == 0:
        return (x * 0.5).exp().maximum(0.1) if maker.random.random() < 0.3 else x * 0.5
    if kind == 1:
        return x.relu()
    if kind == 2:
        return x + 1.5
    if kind == 3:
        return x.alu(Ops.MIN, 1.0)
    if kind == 4:
        return (x * x + 1).sqrt()
    return (x < 0.3).where(x, 0.25)


def _binary(maker: Maker, x: A) -> A | None:
    y = maker.pick()
    if x.shape != y.shape:
        if len(y.shape) < len(x.shape) and all(
            b in (1, a) for a, b in zip(x.shape[::-1], y.shape[::-1], strict=False)
        ):
            return x + y
        y = maker.param(x.shape)
    op = maker.random.choice((Ops.ADD, Ops.SUB, Ops.MUL, Ops.MAX))
    return x.alu(op, y)


def _broadcast(maker: Maker, x: A) -> A:
    axis = maker.random.randint(0, len(x.shape))
    shape = [*x.shape]
    shape.insert(axis, 1)
    wide = [*x.shape]
    wide.insert(axis, maker.random.randint(1, 3))
    return x.reshape(*shape).expand(*wide)


def _reshape(maker: Maker, x: A) -> A:
    size = 1
    for extent in x.shape:
        size *= extent
    factors = []
    for prime in (2, 2, 3, 2, 5, 3):
        if size % prime == 0 and maker.random.random() < 0.7:
            factors.append(prime)
            size //= prime
    factors.append(size)
    maker.random.shuffle(factors)
    return x.reshape(*factors[:4], *([] if len(factors) <= 4 else [_product(factors[4:])]))


def _product(factors: list[int]) -> int:
    result = 1
    for factor in factors:
        result *= factor
    return result


def _permute(maker: Maker, x: A) -> A:
    axes = list(range(len(x.shape)))
    maker.random.shuffle(axes)
    return x.permute(*axes)


def _pad(maker: Maker, x: A) -> A:
    pads = []
    for _ in x.shape:
        one = maker.random.choice((Pad(), Pad(1, 0), Pad(0, 2), Pad(1, 1), Pad(0, 0, 1)))
        pads.append(one)
    return x.pad(*pads)


def _shrink(maker: Maker, x: A) -> A:
    cuts = []
    for extent in x.shape:
        start = maker.random.randint(0, extent - 1)
        stop = maker.random.randint(start + 1, extent)
        cuts.append((start, stop, maker.random.choice((1, 1, 2))))
    return x.shrink(*cuts)


def _flip(maker: Maker, x: A) -> A | None:
    axes = tuple(a for a in range(len(x.shape)) if maker.random.random() < 0.5)
    return x.flip(*axes) if axes else None


def _window(maker: Maker, x: A) -> A | None:
    axis = maker.random.randrange(len(x.shape))
    taps = maker.random.randint(1, 3)
    dilation = maker.random.choice((1, 1, 2))
    if x.shape[axis] < dilation * (taps - 1) + 1:
        return None
    return x.window(axis, taps, maker.random.choice((1, 2)), dilation)


def _fold(maker: Maker, x: A) -> A | None:
    if len(x.shape) < 2:
        return None
    axis = maker.random.randrange(len(x.shape) - 1)
    stride, dilation = maker.random.choice((1, 2)), maker.random.choice((1, 2))
    extent = (x.shape[axis] - 1) * stride + dilation * (x.shape[-1] - 1) + 1
    return x.fold(axis, extent + maker.random.choice((0, 0, 1)), stride, dilation)


def _reduce(maker: Maker, x: A) -> A | None:
    axes = tuple(a for a in range(len(x.shape)) if maker.random.random() < 0.5)
    op = maker.random.choice((Ops.ADD, Ops.ADD, Ops.MAX, Ops.MIN))
    found = x.reduce(op, *axes, keep=maker.random.random() < 0.5) if axes else None
    return found * 0.5 if found is not None else None


def _normalise(maker: Maker, x: A) -> A:
    axis = maker.random.randrange(len(x.shape))
    return (
        x - x.max(axis, keep=True) if maker.random.random() < 0.5 else x - x.mean(axis, keep=True)
    )


def _softmax(maker: Maker, x: A) -> A:
    return x.softmax()


def _scan(maker: Maker, x: A) -> A:
    op = maker.random.choice((Ops.ADD, Ops.MAX))
    return x.scan(maker.random.randrange(len(x.shape)), op) * 0.3


def _argmax(maker: Maker, x: A) -> A:
    best, place = x.argmax(maker.random.randrange(len(x.shape)))
    return best if maker.random.random() < 0.5 else place.cast(F32)


def _gather(maker: Maker, x: A) -> A:
    shape = maker.random.choice(((3,), (2, 2)))
    places = []
    for extent in x.shape:
        if maker.random.random() < 0.3 and len(shape) == 1:
            places.append((iota(3) * 2).alu(Ops.MOD, extent))
        else:
            places.append(maker.param(shape, I64).alu(Ops.MOD, extent))
    return x.gather(*places)


def _scatter(maker: Maker, x: A) -> A:
    places = [maker.param((5,), I64).alu(Ops.MOD, extent) for extent in x.shape]
    op = maker.random.choice((None, Ops.ADD, Ops.MAX))
    return x.scatter(maker.param((5,)), *places, op=op)


def _matmul(maker: Maker, x: A) -> A | None:
    if len(x.shape) != 2:
        return None
    return (x @ maker.param((x.shape[1], 3))) * 0.5


def _one_hot(maker: Maker, x: A) -> A | None:
    if len(x.shape) != 2:
        return None
    labels = maker.param((x.shape[0],), I64)
    hot = labels.reshape(x.shape[0], 1).eq(iota_along(x.shape, 1))
    return hot.where(x, 0).sum(1)


def _contiguous(maker: Maker, x: A) -> A:
    return x.contiguous()


# --- with exact results ---------------------------------------------------------------------------


def _narrowed(maker: Maker, x: A) -> A:
    rounded = x.cast(BF16)
    if maker.random.random() < 0.3:
        rounded = rounded.relu()
    return rounded.cast(F32) if maker.random.random() < 0.8 else rounded.cast(F32) + x


def _exact_unary(maker: Maker, x: A) -> A:
    return maker.random.choice((x.relu(), x + 1.0, x * -1.0, x.alu(Ops.MIN, 3.0)))


def _exact_binary(maker: Maker, x: A) -> A:
    y = maker.pick()
    if x.shape != y.shape:
        y = maker.param(x.shape)
    return x.alu(maker.random.choice((Ops.ADD, Ops.SUB, Ops.MAX)), y)


def _exact_sum(maker: Maker, x: A) -> A:
    op = maker.random.choice((Ops.ADD, Ops.ADD, Ops.MAX))
    return x.reduce(op, maker.random.randrange(len(x.shape)), keep=maker.random.random() < 0.5)


def _exact_matmul(maker: Maker, x: A) -> A | None:
    if len(x.shape) != 2:
        return None
    narrow = x.alu(Ops.MIN, 3.0).maximum(-3.0).cast(BF16).cast(F32)
    other = maker.param((x.shape[1], 4), BF16).cast(F32)
    found = narrow @ other
    return found.cast(BF16).cast(F32) if maker.random.random() < 0.7 else found


STEPS = (
    *(_unary, _unary, _binary, _binary, _broadcast, _reshape, _reshape, _permute, _pad, _shrink),
    *(_flip, _window, _fold, _reduce, _reduce, _normalise, _softmax, _scan, _argmax, _gather),
    *(_scatter, _matmul, _one_hot, _contiguous),
)


# Of integers these give integers: the same bits in whatever order they are added, and so the same
# after they are rounded to few.
EXACT_STEPS = (
    *(_exact_unary, _exact_binary, _broadcast, _reshape, _permute, _pad, _shrink, _flip, _window),
    *(_fold, _exact_sum, _exact_sum, _exact_matmul, _exact_matmul, _contiguous),
    *(_narrowed, _narrowed, _narrowed, _narrowed),
)


def random_outputs(seed: int) -> list[A]:
    """The outputs of a random graph."""
    return Maker(seed, STEPS).outputs()


def exact_outputs(seed: int) -> list[A]:
    """The outputs of a random graph of values that are rounded to bfloat16 here and there.

    They are exact where all arrays hold small integers.
    """
    return Maker(seed, EXACT_STEPS).outputs()
