"""A sum has the same bits whether what it sums, or anything made of that, is computed beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

import numpy as np
import pytest

from baregrad import Tensor
from baregrad.base.options import options
from baregrad.engine.session import Session, use_session

Step = Callable[[Tensor, Tensor], Tensor]
STEPS: dict[str, Step] = {
    "product": lambda x, y: x * y,
    "square": lambda x, y: x * x,
    "affine": lambda x, y: x * 1.7 + 0.3,
    "sum of product": lambda x, y: x * y + y,
    "quotient": lambda x, y: x / (y.abs() + 1.3),
    "exp": lambda x, y: (x * 0.3).exp(),
    "tanh": lambda x, y: x.tanh(),
    "sigmoid": lambda x, y: x.sigmoid(),
    "chosen": lambda x, y: (x > y).where(x, y),
    "narrow": lambda x, y: x.cast("bfloat16"),
}
SUMS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(),
    "largest": lambda x: x.amax(-1),
}
# Whole vectors, masked ones, one step of a loop, and rows longer than any tile.
SHAPES = ((16, 16), (7, 97), (33, 300), (3, 4097), (1, 768))


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with options.override(device="CPU"), use_session(Session()) as session:
        yield
        session.close()


def computed(given: list[np.ndarray], steps: list[str], sums: list[str]) -> list[Tensor]:
    """The values of a chain of steps, then the sums of the last one."""
    x, y = [Tensor(one).realize() for one in given]
    made: list[Tensor] = []
    for name in steps:
        made.append(STEPS[name](made[-1] if made else x, y))
    return made + [SUMS[name](made[-1]) for name in sums]


def bits(value: Tensor) -> bytes:
    return value.cast("float32").numpy().tobytes()


def check(shape: tuple[int, int], steps: list[str], sums: list[str], seed: int, most: int) -> None:
    """Compare each value alone with the same one beside up to `most` choices of others."""
    rng = np.random.default_rng(seed)
    given = [rng.standard_normal(shape).astype(np.float32) for _ in range(2)]
    count = len(steps) + len(sums)
    alone = []
    for place in range(count):
        value = computed(given, steps, sums)[place]
        alone.append(bits(value))
    choices = [c for size in range(2, count + 1) for c in combinations(range(count), size)]
    if len(choices) > most:
        choices = [choices[i] for i in rng.choice(len(choices), most, replace=False)]
    for choice in choices:
        values = computed(given, steps, sums)
        values[choice[0]].realize(*[values[place] for place in choice[1:]])
        for place in choice:
            assert bits(values[place]) == alone[place], (steps, sums, place, choice)


@pytest.mark.parametrize(
    ("shape", "steps", "sums"),
    [
        ((7, 97), ["exp"], ["sum", "largest"]),
        ((33, 300), ["tanh", "product"], ["sum"]),
        ((3, 4097), ["sum of product", "sigmoid"], ["mean"]),
    ],
    ids=str,
)
def test_a_sum_has_the_bits_that_it_has_alone(
    shape: tuple[int, int], steps: list[str], sums: list[str]
) -> None:
    check(shape, steps, sums, 1, 4)


def short_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    made = x * 1.5 + x.abs()
    return made, made.mean(-1)


def across(x: Tensor) -> tuple[Tensor, Tensor]:
    made = x.permute(1, 0).tanh()
    return made, made.logsumexp(-1)


def dear_columns(x: Tensor) -> tuple[Tensor, Tensor]:
    made = x.tanh()
    return made, made.var(0)


def numbers(x: Tensor) -> tuple[Tensor, Tensor]:
    """Places are of eight bytes, and the sum is not."""
    return x.argmax(-1), (x * 0.3).exp().sum(-1)


@pytest.mark.parametrize(("shape", "make"), [
    ((3, 8), short_rows), ((8, 10), short_rows), ((8, 48), across), ((33, 2), dear_columns),
    ((17, 100), dear_columns), ((5, 300), numbers),
], ids=lambda each: each.__name__ if callable(each) else str(each))  # fmt: skip
def test_a_sum_has_one_order_however_its_elements_lie(
    shape: tuple[int, int], make: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> None:
    given = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    alone = bits(make(Tensor(given).realize())[1])
    beside, value = make(Tensor(given).realize())
    beside.realize(value)
    assert bits(value) == alone


@pytest.mark.parametrize("extent", [2, 7, 8, 15])
def test_a_short_sum_of_negative_zeros_is_zero(extent: int) -> None:
    """As on the reference device: a sum begins with 0, though 0 is added to the sum of all last."""
    given = np.full((3, extent), -0.0, np.float32)
    for device in ("REF", "CPU"):
        for rows in (Tensor(given, device=device), Tensor(given.T.copy(), device=device).T):
            value = rows.realize().sum(-1)
            assert value.tolist() == [0.0] * 3
            assert not np.signbit(value.numpy()).any()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_random_chains_have_the_bits_that_they_have_alone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps = [str(each) for each in rng.choice(list(STEPS), int(rng.integers(1, 5)))]
    sums = [str(each) for each in rng.choice(list(SUMS), int(rng.integers(1, 3)))]
    check(SHAPES[int(rng.integers(len(SHAPES)))], steps, sums, seed, 12)
