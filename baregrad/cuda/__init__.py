"""`torch.cuda`, as far as programs ask it about GPUs: how many there are, and their names.

What PyTorch does by streams and caches of its own is done by sessions here.
"""

from __future__ import annotations

from baregrad.base.errors import ArgumentError, DriverError, IndexOutOfRange
from baregrad.base.namespaces import unknown_name
from baregrad.cuda import amp
from baregrad.runtime.cuda.driver import Driver
from baregrad.tensor.array.random_state import manual_seed

__all__ = [
    "amp",
    "device_count",
    "empty_cache",
    "get_device_capability",
    "get_device_name",
    "is_available",
    "manual_seed",
    "manual_seed_all",
]

manual_seed_all = manual_seed


def device_count() -> int:
    """Return how many GPUs CUDA's driver shows, 0 where there is no driver."""
    try:
        return Driver().device_count()
    except DriverError:
        return 0


def is_available() -> bool:
    """Return whether CUDA's driver shows a GPU."""
    return device_count() > 0


def _ordinal(device: int | str | None) -> int:
    place = 0 if device is None else device
    if isinstance(place, str):
        name, _, number = place.partition(":")
        if name.lower() not in ("cuda", "nv") or not (number or "0").isdecimal():
            raise ArgumentError("a GPU, by its number or as in cuda:1", found=repr(place))
        place = int(number or "0")
    count = device_count()
    if not 0 <= place < count:
        raise IndexOutOfRange(f"there is no GPU {place}", found=f"{count} of them")
    return place


def get_device_name(device: int | str | None = None) -> str:
    """Return what the driver calls a GPU. Raises IndexOutOfRange, ArgumentError."""
    driver, place = Driver(), _ordinal(device)
    return driver.device_name(driver.device(place))


def get_device_capability(device: int | str | None = None) -> tuple[int, int]:
    """Return a GPU's compute capability, (9, 0) for Hopper.

    Raises IndexOutOfRange, ArgumentError.
    """
    driver, place = Driver(), _ordinal(device)
    digits = "".join(one for one in driver.architecture(driver.device(place)) if one.isdigit())
    return int(digits[:-1]), int(digits[-1])


def empty_cache() -> None:
    """Do nothing: memory that nothing holds is given to what asks next."""


def __getattr__(name: str) -> object:
    raise unknown_name("baregrad.cuda", name, __all__)
