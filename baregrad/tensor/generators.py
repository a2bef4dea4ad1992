"""`torch.random`: sequences of random numbers with seeds of their own, and the session's.

A state is shown as PyTorch shows one, as bytes (uint8): 16 of them, key and counter.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Self

import numpy as np

from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.base.namespaces import unknown_name
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.tensor.array.link import session
from baregrad.tensor.array.random_state import (
    RandomSource,
    RandomState,
    manual_seed,
    place_now,
    state,
)
from baregrad.tensor.tensor import Tensor

__all__ = [
    "Generator",
    "default_generator",
    "fork_rng",
    "get_rng_state",
    "initial_seed",
    "manual_seed",
    "seed",
    "set_rng_state",
]


def _shown(held: RandomState) -> Tensor:
    return Tensor(np.array(held.read(), "<u8").view(np.uint8), device="CPU")


def _read(shown: Tensor) -> tuple[int, int]:
    """The key and the counter of a state that `get_state` gave."""
    if not isinstance(shown, Tensor) or shown.dtype is not dtypes.uint8:
        raise DTypeError("a state is of bytes, as get_state gives it", found=repr(shown)[:60])
    if shown.shape != (16,):
        raise ShapeError("a state is of 16 bytes", found=list(shown.shape), wanted="[16]")
    key, counter = shown.numpy().view("<u8")
    return int(key), int(counter)


class Generator(RandomSource):
    """Random numbers with a seed of their own, for what takes `generator=`.

    device: where they are drawn, the session's default unless told. Others' draws and
    `baregrad.manual_seed` do not move them; a captured function reads and advances them as it does
    the session's.
    """

    def manual_seed(self, seed: int) -> Self:
        """Start anew from a seed, any integer, taken modulo 2**64."""
        self.restart(seed)
        return self

    def seed(self) -> int:
        """Start anew from a seed that nobody knows; return it."""
        self.restart(made := secrets.randbits(63))
        return made

    def initial_seed(self) -> int:
        """Return the seed."""
        return self._seed

    def get_state(self) -> Tensor:
        """Return the state, for `set_state`: 16 bytes (uint8)."""
        return _shown(self.state(self.device))

    def set_state(self, new_state: Tensor) -> Self:
        """Go on from a state. Raises DTypeError and ShapeError for what is none."""
        self.restart(*_read(new_state))
        return self

    def clone_state(self) -> Generator:
        """Return another one that goes on from here."""
        return Generator(self.device).set_state(self.get_state())

    def __reduce__(self) -> str | tuple[object, tuple[object, ...]]:
        """A copy, and what another process reads, goes on from here."""
        return _going_on, (type(self), self.device, *self.state(self.device).read())

    def __repr__(self) -> str:
        return f"<baregrad.Generator on {self.device}, seed {self._seed}>"


def _going_on(kind: type[Generator], device: str, seed: int, counter: int) -> Generator:
    """Another generator behind so many numbers of a seed."""
    made = kind(device)
    made.restart(seed, counter)
    return made


class _Default(Generator):
    """The session's own numbers on its default device."""

    def __init__(self) -> None:
        # It is of no session, so of no device.
        pass

    @property
    def device(self) -> str:
        return session().default_device()

    def state(self, device: str) -> RandomState:
        return state(device)

    def restart(self, seed: int, counter: int = 0) -> None:
        manual_seed(seed)

    def initial_seed(self) -> int:
        return initial_seed()

    def set_state(self, new_state: Tensor) -> Self:
        set_rng_state(new_state)
        return self

    def __reduce__(self) -> str:
        """Be the one of whoever reads it."""
        return "default_generator"

    def __repr__(self) -> str:
        return "<baregrad.default_generator>"


default_generator = _Default()


def seed() -> int:
    """Start random numbers anew from a seed that nobody knows; return it."""
    manual_seed(made := secrets.randbits(63))
    return made


def initial_seed() -> int:
    """Return the seed that the session's random numbers started from."""
    owner = session()
    held = owner.random_states.get(owner.default_device())
    key: int = (options.seed if owner.seed is None else owner.seed) if held is None else held.key
    return key


def state_on(device: str) -> Tensor:
    """Return the state of a device's random numbers: 16 bytes (uint8)."""
    return _shown(state(device))


def go_on_from(new_state: Tensor, device: str) -> None:
    """Let a device's random numbers go on from a state."""
    state(device).restart(*_read(new_state))


def get_rng_state() -> Tensor:
    """Return the state of the default device's random numbers: 16 bytes (uint8)."""
    return state_on(session().default_device())


def set_rng_state(new_state: Tensor) -> None:
    """Let the default device's random numbers go on from a state that `get_rng_state` gave."""
    go_on_from(new_state, session().default_device())


@contextmanager
def fork_rng(
    devices: Iterable[object] | None = None, enabled: bool = True, *, device_type: str = "cpu"
) -> Iterator[None]:
    """The session's numbers after the block go on as if nobody had drawn in it, on any device."""
    if not isinstance(enabled, bool):
        raise ArgumentError("fork_rng is enabled or not", found=repr(enabled))
    if not enabled:
        yield
        return
    back = place_now()
    try:
        yield
    finally:
        back()


def __getattr__(name: str) -> object:
    raise unknown_name("baregrad.random", name, __all__)
