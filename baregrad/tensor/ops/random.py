"""Random numbers: a counter and a key through Threefry-2x32-20, the same on every device.

Each call takes as many counter values as it needs from the session's state; element i uses the
first of them plus i, or where 32 bits do, pair i. The state, (key, counter), is itself an array, so
that a captured function reads and advances it and each replay draws fresh numbers.
Elsewhere a draw is a call that is put off as others are, with the state as it was for an operand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.dtypes import DType, array_dtype, as_dtype, default_float, dtypes, part_of
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Slice
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.axes import own_axis, plain
from baregrad.tensor.array.core import check_float
from baregrad.tensor.array.link import session
from baregrad.tensor.array.random_state import RandomSource, state
from baregrad.tensor.array.tensor_like import Extents, Tensor
from baregrad.tensor.ops.creation import as_shape, choose_device, complex_class
from baregrad.tensor.ops.sorting import order, topk

# Bits of randomness in a uniform number: no more than the dtype holds exactly.
# Numbers of 32 bits, of which as many are dropped as a probability says.
_WORDS = 1 << 32
_INTEGERS = frozenset((int,))
_UNIFORM_BITS = (
    (dtypes.float64, 53),
    (dtypes.float32, 24),
    (dtypes.float16, 11),
    (dtypes.bfloat16, 8),
)


# --- bits ---------------------------------------------------------------------------------------


def _bits(seed: Tensor, shape: tuple[Any, ...], draws: int = 1) -> list[Node]:
    """`draws` arrays of the random uint64 that follow a state."""
    state = seed.node
    key, counter = (nodes.reshape(nodes.cut(state, 0, i, i + 1), ()) for i in (0, 1))
    count = index.product(shape)
    line = nodes.iota(count, dtypes.uint64)
    arrays = []
    for draw in range(draws):
        offset = nodes.size_as(index.as_dim(index.mul(count, draw)), dtypes.uint64)
        places = nodes.add(nodes.add(counter, offset), line) if draw else nodes.add(counter, line)
        arrays.append(nodes.reshape(nodes.alu(Ops.THREEFRY, places, key), shape))
    return arrays


def _paired(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """The shape of the draws that neighbours along the last axis share, two of them each."""
    *others, last = shape or (1,)
    if last.__class__ is int:
        return (*others, (last + 1) // 2)
    return (*others, index.floordiv(index.add(last, 1), 2))


def _words(seed: Tensor, shape: tuple[Any, ...]) -> Node:
    """Random uint32, two of each draw for neighbours along the last axis."""
    *others, half = _paired(shape)
    (bits,) = _bits(seed, (*others, half, 1))
    pairs = nodes.expand(bits, (*others, half, 2))
    place = nodes.mul(nodes.iota(2, dtypes.uint64), const(32, dtypes.uint64))
    place = nodes.expand(nodes.reshape(place, (*[1] * max(len(shape), 1), 2)), pairs.shape)
    words = nodes.cast(nodes.alu(Ops.SHR, pairs, place), dtypes.uint32)
    words = nodes.reshape(words, (*others, index.mul(half, 2)))
    last = (shape or (1,))[-1]
    if words.shape[-1] != last:
        words = nodes.shrink(words, (*nodes.whole(tuple(others)), Slice(0, last)))
    return nodes.reshape(words, shape)


def _uniform(bits: Node, dtype: DType) -> Node:
    """Numbers in [0, 1), multiples of 2**-n where n bits fit the dtype."""
    count = next((n for row, n in _UNIFORM_BITS if row is dtype), 24)
    wide = dtype if dtype.bits >= 32 else dtypes.float32
    high = nodes.alu(Ops.SHR, bits, const(64 - count, dtypes.uint64))
    return nodes.cast(nodes.mul(nodes.cast(high, wide), const(2.0**-count, wide)), dtype)


def _normal(seed: Tensor, shape: tuple[Any, ...], dtype: DType) -> Node:
    """Numbers of the standard normal distribution, by Box and Muller's transform."""
    wide = dtypes.float64 if dtype is dtypes.float64 else dtypes.float32
    if wide is dtypes.float64:
        first, second = _bits(seed, shape, 2)
        turn = _uniform(second, wide)
        # In (0, 1], so that the logarithm is finite.
        radius = nodes.sub(const(1.0, wide), _uniform(first, wide))
    else:
        (bits,) = _bits(seed, shape)
        low = nodes.alu(Ops.AND, bits, const((1 << 32) - 1, dtypes.uint64))
        turn = _uniform(nodes.alu(Ops.SHL, low, const(32, dtypes.uint64)), wide)
        high = nodes.alu(Ops.SHR, bits, const(32, dtypes.uint64))
        count = nodes.add(nodes.cast(high, wide), const(1.0, wide))
        # 2**32 - 1 + 1 rounds to 2**32, whose share is 1.
        radius = nodes.mul(count, const(2.0**-32, wide))
    angle = nodes.mul(turn, const(2 * math.pi, wide))
    logarithm = Node(Ops.LOG, wide, (radius,))
    distance = Node(Ops.SQRT, wide, (nodes.mul(logarithm, const(-2.0, wide)),))
    return nodes.cast(nodes.mul(distance, Node(Ops.COS, wide, (angle,))), dtype)


# --- drawing ------------------------------------------------------------------------------------
#
# What a draw computes of a state; the state puts the call off.


def _drawn(
    cls: type[Tensor], device: str, drawing: Callable[..., Tensor], shape: tuple[Any, ...],
    *others: Any, draws: int = 1, source: RandomSource | None = None,
) -> Tensor:
    """`drawing` of a source's or device's state, from which values for a shape are taken."""
    if _INTEGERS.issuperset(map(type, shape)):
        count = math.prod(shape) * draws
    else:
        count = index.as_dim(index.mul(index.product(shape), draws))
    return state(device, source).draw(cls, count, drawing, *others)


def _draw_uniform(seed: Tensor, shape: tuple[Any, ...], dtype: DType) -> Tensor:
    (bits,) = _bits(seed, shape)
    return seed._make(_uniform(bits, dtype), seed.device)


def _draw_normal(seed: Tensor, shape: tuple[Any, ...], dtype: DType) -> Tensor:
    return seed._make(_normal(seed, shape, dtype), seed.device)


def _draw_integers(
    seed: Tensor, shape: tuple[Any, ...], low: int, high: int, dtype: DType
) -> Tensor:
    (bits,) = _bits(seed, shape)
    rest = nodes.alu(Ops.MOD, bits, const(high - low, dtypes.uint64))
    node = nodes.add(nodes.cast(rest, dtypes.int64), const(low, dtypes.int64))
    return seed._make(nodes.cast(node, dtype), seed.device)


def _draw_order(seed: Tensor, shape: tuple[Any, ...], dtype: DType) -> Tensor:
    (bits,) = _bits(seed, shape)
    # Drawn once: the sort reads the bits more than once.
    fixed = Node(Ops.CONTIGUOUS, bits.dtype, (bits,))
    return seed._make(nodes.cast(order(fixed, False), dtype), seed.device)


def _keep(seed: Tensor, x: Tensor, p: float) -> Tensor:
    return seed._make(_words(seed, x.shape), x.device) >= min(round(p * _WORDS), _WORDS - 1)


def _drop(seed: Tensor, x: Tensor, p: float) -> Tensor:
    return _keep(seed, x, p).where(x * (1 / (1 - p)), 0)


# --- making -------------------------------------------------------------------------------------


def _float_shape(shape: tuple[Extents, ...], dtype: object, what: str) -> tuple[Any, DType]:
    found = default_float() if dtype is None else array_dtype(dtype)
    check_float(found, what)
    return as_shape(shape), found


def _is_complex(dtype: object) -> bool:
    return dtype is not None and as_dtype(dtype).is_complex


def _paired_up(
    draw: Callable[..., Tensor], cls: type[Tensor], shape: tuple[Extents, ...], dtype: object,
    device: str | None, requires_grad: bool, scale: float, generator: RandomSource | None,
) -> Tensor:
    """Complex numbers of drawn parts, times a scale."""
    drawn = draw(
        cls, *as_shape(shape), 2, dtype=part_of(as_dtype(dtype)), device=device, generator=generator
    )
    parts = drawn * scale
    made = complex_class(cls)._on(parts._storage, parts._steps)
    return made.requires_grad_() if requires_grad else made


def rand(
    cls: type[Tensor],
    *shape: Extents,
    dtype: object = None,
    device: str | None = None,
    requires_grad: bool = False,
    generator: RandomSource | None = None,
) -> Tensor:
    """Return numbers uniform in [0, 1); the shape is given as (2, 3) or as 2, 3.

    Of complex ones both parts are.
    """
    if _is_complex(dtype):
        return _paired_up(rand, cls, shape, dtype, device, requires_grad, 1.0, generator)
    extents, found = _float_shape(shape, dtype, "rand")
    made = _drawn(
        cls, choose_device(device), _draw_uniform, extents, extents, found, source=generator
    )
    return made.requires_grad_() if requires_grad else made


def randn(
    cls: type[Tensor],
    *shape: Extents,
    dtype: object = None,
    device: str | None = None,
    requires_grad: bool = False,
    generator: RandomSource | None = None,
) -> Tensor:
    """Return standard normal numbers; the shape is given as (2, 3) or as 2, 3.

    Of complex ones the parts have half of the variance each.
    """
    if _is_complex(dtype):
        return _paired_up(
            randn, cls, shape, dtype, device, requires_grad, math.sqrt(0.5), generator
        )
    extents, found = _float_shape(shape, dtype, "randn")
    draws = 2 if found is dtypes.float64 else 1
    made = _drawn(
        cls, choose_device(device), _draw_normal, extents, extents, found, draws=draws,
        source=generator,
    )
    return made.requires_grad_() if requires_grad else made


def uniform(
    cls: type[Tensor],
    *shape: Extents,
    low: float = 0.0,
    high: float = 1.0,
    dtype: object = None,
    device: str | None = None,
    requires_grad: bool = False,
    generator: RandomSource | None = None,
) -> Tensor:
    """Return numbers uniform in [low, high). Raises ArgumentError where low is not below high."""
    if not -math.inf < low <= high < math.inf:
        raise ArgumentError(
            "numbers are drawn between two finite ones, the lower first",
            found=f"{low} to {high}", hint="exchange low and high",
        )
    drawn = rand(cls, *shape, dtype=dtype, device=device, generator=generator)
    made = drawn * (high - low) + low
    return made.requires_grad_() if requires_grad else made


def normal(
    cls: type[Tensor],
    mean: float = 0.0,
    std: float = 1.0,
    size: Extents = (),
    *,
    dtype: object = None,
    device: str | None = None,
    requires_grad: bool = False,
    generator: RandomSource | None = None,
) -> Tensor:
    """Return numbers of a normal distribution of the given mean and standard deviation."""
    if not std >= 0:
        raise ArgumentError("a standard deviation is not negative", found=std, wanted="0 or more")
    drawn = randn(cls, as_shape((size,)), dtype=dtype, device=device, generator=generator)
    made = drawn * std + mean
    return made.requires_grad_() if requires_grad else made


def randint(
    cls: type[Tensor],
    low: int,
    high: int | Sequence[int],
    size: Extents | None = None,
    *,
    dtype: object = dtypes.int64,
    device: str | None = None,
    generator: RandomSource | None = None,
) -> Tensor:
    """Return integers uniform in [low, high) of a size; two arguments are (high, size)."""
    if size is None:
        low, high, size = 0, low, high
    low, high = plain(low), plain(high)
    for bound in (low, high):
        if not isinstance(bound, int) or isinstance(bound, bool):
            raise ArgumentError(
                "randint is of integers between two", found=f"{type(bound).__name__} {bound!r:.40}",
                wanted="integers", hint="for other numbers see uniform()",
            )
    assert isinstance(high, int)
    if not -(1 << 63) <= low <= (1 << 63) or not -(1 << 63) <= high <= 1 << 63:
        raise ArgumentError("bounds that int64 has not", found=f"{low} to {high}")
    if high <= low:
        raise ArgumentError(f"randint from {low} to {high}: there is no integer in between")
    shape, where = as_shape((size,)), choose_device(device)
    return _drawn(
        cls, where, _draw_integers, shape, shape, low, high, array_dtype(dtype), source=generator
    )


def randperm(
    cls: type[Tensor], n: int, *, dtype: object = dtypes.int64, device: str | None = None,
    generator: RandomSource | None = None,
) -> Tensor:
    """Return the numbers from 0 to n - 1 in random order."""
    shape = as_shape((n,))
    return _drawn(
        cls, choose_device(device), _draw_order, shape, shape, array_dtype(dtype), source=generator
    )


def rand_like(
    x: Tensor, *, dtype: object = None, generator: RandomSource | None = None
) -> Tensor:
    """Return numbers uniform in [0, 1) with the shape, device and (unless given) dtype of `x`."""
    found = x.dtype if dtype is None else dtype
    made: Tensor = rand(type(x), x.shape, dtype=found, device=x.device, generator=generator)
    return made


def randn_like(
    x: Tensor, *, dtype: object = None, generator: RandomSource | None = None
) -> Tensor:
    """Return standard normal numbers with the shape, device and (unless given) dtype of `x`."""
    found = x.dtype if dtype is None else dtype
    made: Tensor = randn(type(x), x.shape, dtype=found, device=x.device, generator=generator)
    return made


# --- drawing by probabilities -------------------------------------------------------------------


def bernoulli(
    x: Tensor, p: float | None = None, *, generator: RandomSource | None = None
) -> Tensor:
    """Return 1 with the probability that each element, or `p`, says, else 0.

    Raises DTypeError for elements that are no floats, ArgumentError for a `p` outside 0 to 1.
    """
    if p is None:
        check_float(x.dtype, "drawing by elements")
    elif not 0 <= p <= 1:
        raise ArgumentError(f"a probability is from 0 to 1, not {p}")
    dtype = x.dtype if x.dtype.kind == "float" and x.dtype.bits >= 32 else dtypes.float32
    drawn = rand(type(x), x.shape, dtype=dtype, device=x.device, generator=generator)
    return (drawn < (x.detach() if p is None else p)).cast(x.dtype)


def multinomial(
    x: Tensor, num_samples: int, replacement: bool = False, *,
    generator: RandomSource | None = None,
) -> Tensor:
    """Return indices drawn by the weights of the last axis: (..., N) -> (..., num_samples).

    Without replacement no index is drawn twice; then at most N can be drawn. Raises ArgumentError
    for weights below 0, without an end or none above 0, where somebody can look: the weights are
    awaited, but in a captured function.
    """
    check_float(x.dtype, "multinomial")
    own_axis(-1, x.ndim)
    weights = x.detach().float()
    extent, num_samples = x.shape[-1], plain(num_samples)
    if num_samples < 1 or extent == 0:
        raise ShapeError(
            "multinomial draws some of some", found=f"{num_samples} of {list(x.shape)}",
            wanted="1 or more, of an axis that is not empty",
        )
    if not replacement and num_samples > extent:
        raise ShapeError(
            "more samples than there are to draw", found=num_samples, wanted=f"at most {extent}"
        )
    _check_weights(weights)
    if replacement:
        edges = weights.cumsum(-1)
        drawn = rand(
            type(x), (*x.shape[:-1], num_samples), device=x.device, generator=generator
        )
        aim = (drawn * edges[..., -1:]).unsqueeze(-1)
        return (edges.unsqueeze(-2) <= aim).sum(-1).clamp(max=extent - 1)
    # Arrival times of independent processes of these rates: the first arrivals are the sample.
    waits = -(1 - rand(type(x), x.shape, device=x.device, generator=generator)).log()
    return topk((weights / waits.clamp(min=1e-30)).contiguous(), num_samples, -1).indices


def _check_weights(weights: Tensor) -> None:
    """Raise ArgumentError for weights by which nothing can be drawn, if they can be looked at."""
    watching = session().watching
    if watching.downloads or watching.transforming:
        return
    total = weights.sum(-1)
    # Asked for together: each wait for a device takes its time.
    if not ((weights >= 0).all() & ((total > 0) & (total < math.inf)).all()).item():
        raise ArgumentError(
            "weights from 0 on, whose sum is above 0 and finite in float32",
            found="some that are not", hint="of logarithms take softmax(-1)",
        )


def dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Return `x` with elements zeroed with probability p and the rest times 1/(1 - p)."""
    if not 0 <= p <= 1:
        raise ArgumentError(f"a probability is from 0 to 1, not {p}")
    if not training or p == 0:
        return x
    if p == 1:
        return x * 0
    return _drawn(type(x), x.device, _drop, _paired(x.shape), x, p)


def kept_of(x: Tensor, p: float) -> Tensor:
    """Return which elements of `x` a `dropout` of 0 < p < 1 would leave, drawn as it draws."""
    return _drawn(type(x), x.device, _keep, _paired(x.shape), x, p)


# --- in place -----------------------------------------------------------------------------------


def uniform_(
    x: Tensor, low: float = 0.0, high: float = 1.0, *, generator: RandomSource | None = None
) -> Tensor:
    """Write numbers uniform in [low, high) over `x`; return `x`."""
    x.copy_(uniform(
        type(x), x.shape, low=low, high=high, dtype=x.dtype, device=x.device, generator=generator
    ))
    return x


def normal_(
    x: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: RandomSource | None = None
) -> Tensor:
    """Write normally distributed numbers over `x`; return `x`."""
    x.copy_(normal(
        type(x), mean, std, x.shape, dtype=x.dtype, device=x.device, generator=generator
    ))
    return x


def bernoulli_(
    x: Tensor, p: float = 0.5, *, generator: RandomSource | None = None
) -> Tensor:
    """Write 1 with probability p, else 0, over `x`; return `x`."""
    x.copy_(bernoulli(x, p, generator=generator))
    return x


def _over(
    x: Tensor, make: Callable[[Any], Any], generator: RandomSource | None
) -> Tensor:
    """Write what is made of numbers uniform in (0, 1] over `x`; return `x`."""
    wide = x.dtype if x.dtype.is_float else default_float()
    drawn = 1 - rand(type(x), x.shape, dtype=wide, device=x.device, generator=generator)
    x.copy_(make(drawn).cast(x.dtype))
    return x


def exponential_(
    x: Tensor, lambd: float = 1.0, *, generator: RandomSource | None = None
) -> Tensor:
    """Write exponentially distributed numbers of a rate over `x`; return `x`."""
    if not lambd > 0:
        raise ArgumentError("a rate is above 0", found=lambd)
    return _over(x, lambda u: -u.log() / lambd, generator)


def geometric_(x: Tensor, p: float, *, generator: RandomSource | None = None) -> Tensor:
    """Write how many trials of probability p the first success takes over `x`; return `x`."""
    if not 0 < p < 1:
        raise ArgumentError(f"a probability between 0 and 1, not {p}")
    return _over(x, lambda u: (u.log() / math.log1p(-p)).ceil().clamp(min=1), generator)


def cauchy_(
    x: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: RandomSource | None = None
) -> Tensor:
    """Write numbers of a Cauchy distribution over `x`; return `x`."""
    return _over(x, lambda u: (math.pi * (u - 0.5)).tan() * sigma + median, generator)


def log_normal_(
    x: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: RandomSource | None = None
) -> Tensor:
    """Write numbers whose logarithms are normally distributed over `x`; return `x`."""
    drawn = normal(
        type(x), mean, std, x.shape, dtype=x.dtype, device=x.device, generator=generator
    )
    x.copy_(drawn.exp())
    return x


def random_(
    x: Tensor, low: int = 0, high: int | None = None, *, generator: RandomSource | None = None
) -> Tensor:
    """Write integers uniform in [low, high) over `x`; `low` alone is the end, from 0 on.

    Without both they are all that the dtype holds from 0 on; of floats, those that it has exactly.
    """
    if high is None and low == 0:
        if x.dtype.is_float and x.dtype.bits < 16:
            raise DTypeError(
                "integers of floats of few bits need an end", found=x.dtype,
                hint="give it: x.random_(4)",
            )
        bits = {16: 12 if x.dtype.name == "float16" else 9, 32: 25, 64: 54}
        top = 1 << (bits[x.dtype.bits] - 1) if x.dtype.is_float else int(x.dtype.max)
        low, high = 0, min(top, (1 << 63) - 1)
    first, last = (0, low) if high is None else (low, high)
    drawn = randint(type(x), first, last, x.shape, device=x.device, generator=generator)
    x.copy_(drawn.cast(x.dtype))
    return x
