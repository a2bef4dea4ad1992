"""Generators: their seed says their numbers, and neither moves others' nor is moved by them."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from threading import Thread

import numpy as np
import pytest

import baregrad as torch
from baregrad import Tensor, jit, nn
from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.tensor.array.link import session
from baregrad.utils import data

DRAWS: dict[str, Callable[[torch.Generator], Tensor]] = {
    "rand": lambda g: torch.rand(3, generator=g),
    "complex": lambda g: torch.randn(3, dtype=torch.complex64, generator=g),
    "randn_like": lambda g: torch.randn_like(torch.zeros(3), generator=g),
    "randint": lambda g: torch.randint(0, 1 << 40, (3,), generator=g),
    "randperm": lambda g: torch.randperm(50, generator=g),
    "bernoulli": lambda g: torch.bernoulli(torch.full((64,), 0.5), generator=g),
    "multinomial": lambda g: torch.multinomial(torch.ones(64), 9, generator=g),
    "normal": lambda g: torch.normal(torch.zeros(3), 1.0, generator=g),
    "normal_": lambda g: torch.zeros(3).normal_(generator=g),
    "exponential_": lambda g: torch.zeros(3).exponential_(generator=g),
    "random_": lambda g: torch.zeros(3).random_(0, 1 << 20, generator=g),
    "kaiming_uniform_": lambda g: nn.init.kaiming_uniform_(torch.zeros(3, 3), generator=g),
    "orthogonal_": lambda g: nn.init.orthogonal_(torch.zeros(3, 3), generator=g),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_follow_the_generator_alone(name: str) -> None:
    own, others = torch.Generator().manual_seed(5), torch.get_rng_state()
    first, second = (DRAWS[name](own).numpy() for _ in range(2))
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(torch.get_rng_state().numpy(), others.numpy())
    torch.manual_seed(1)
    again = torch.Generator().manual_seed(5)
    np.testing.assert_array_equal(DRAWS[name](again).numpy(), first)
    np.testing.assert_array_equal(DRAWS[name](again).numpy(), second)


def test_states_are_kept_and_begun_from_again() -> None:
    own = torch.Generator().manual_seed(7)
    torch.rand(3, generator=own)
    state, other = own.get_state(), own.clone_state()
    wanted = torch.rand(3, generator=own).numpy()
    assert own.initial_seed() == 7
    np.testing.assert_array_equal(torch.rand(3, generator=other).numpy(), wanted)
    np.testing.assert_array_equal(torch.rand(3, generator=own.set_state(state)).numpy(), wanted)
    torch.manual_seed(7)
    state = torch.get_rng_state()
    assert torch.initial_seed() == torch.default_generator.initial_seed() == 7
    wanted = torch.rand(3).numpy()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.rand(3)
    after = torch.rand(3).numpy()
    torch.set_rng_state(state)
    np.testing.assert_array_equal(torch.rand(3, generator=torch.default_generator).numpy(), wanted)
    np.testing.assert_array_equal(torch.rand(3).numpy(), after)


def test_copies_of_a_generator_go_on_from_where_it_is() -> None:
    own = torch.Generator().manual_seed(-1)
    assert own.initial_seed() == (1 << 64) - 1
    torch.rand(3, generator=own)
    copies = [copy.deepcopy(own), pickle.loads(pickle.dumps(own))]
    wanted = torch.rand(3, generator=own).numpy()
    for each in copies:
        assert each.initial_seed() == own.initial_seed()
        np.testing.assert_array_equal(torch.rand(3, generator=each).numpy(), wanted)
    assert copy.deepcopy(torch.default_generator) is torch.default_generator


def test_a_block_of_draws_holds_neither_generators_nor_threads_back() -> None:
    own, found = torch.Generator().manual_seed(2), []
    thread = Thread(target=lambda: found.append(torch.rand(3).numpy()), daemon=True)
    with torch.random.fork_rng():
        first = torch.rand(3, generator=own).numpy()
        began = torch.Generator().set_state(own.get_state())
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    second = torch.rand(3, generator=own).numpy()
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(torch.rand(3, generator=began).numpy(), second)


def test_the_default_generators_state_is_of_its_device_alone() -> None:
    torch.manual_seed(9)
    state = torch.default_generator.get_state()
    torch.manual_seed(5)
    torch.default_generator.set_state(state)
    assert (session().seed, torch.initial_seed()) == (5, 9)


def test_captured_functions_advance_a_generator() -> None:
    own = torch.Generator()
    step = jit(lambda x: x + torch.rand(4, generator=own))
    own.manual_seed(3)
    found = [step(torch.zeros(4)).numpy() for _ in range(4)]
    own.manual_seed(3)
    for each in found:
        np.testing.assert_array_equal(torch.rand(4, generator=own).numpy(), each)


def test_orders_of_data() -> None:
    def orders(seed: int) -> list[list[int]]:
        own = torch.Generator().manual_seed(seed)
        loader = data.DataLoader(list(range(20)), batch_size=20, shuffle=True, generator=own)
        part = data.random_split(range(20), [0.5, 0.5], generator=own)[0]
        drawn = data.WeightedRandomSampler([1.0] * 20, 20, generator=own)
        return [*(next(iter(loader)).tolist() for _ in range(2)), [*part.indices], list(drawn)]

    assert orders(1) == orders(1)
    first = orders(1)
    assert first[0] != first[1]
    assert all(one != other for one, other in zip(first, orders(2), strict=True))


def test_what_is_no_generator_is_refused_and_what_is_gone_is_forgotten() -> None:
    own = torch.Generator()
    with pytest.raises(ArgumentError, match="its own device"):
        torch.rand(3, device="REF", generator=torch.Generator("cpu"))
    with pytest.raises(ArgumentError, match="seed is an integer"):
        own.manual_seed(1.5)
    with pytest.raises(DTypeError, match="bytes"):
        own.set_state(torch.zeros(16))
    with pytest.raises(ShapeError, match="16"):
        own.set_state(torch.zeros(3, dtype=torch.uint8))
    torch.rand(3, generator=own)
    count = len(session().random_states)
    del own
    gc.collect()
    assert len(session().random_states) < count


@pytest.mark.parametrize("weights", [
    [-1.0, 2], [float("nan"), 1], [float("inf"), 1], [0, 0.0], [3e38, 3e38],
])
def test_multinomial_refuses_weights_that_nothing_is_drawn_by(weights: list[float]) -> None:
    for replacement in (False, True):
        with pytest.raises(ArgumentError, match="weights"):
            Tensor(weights).multinomial(1, replacement)
