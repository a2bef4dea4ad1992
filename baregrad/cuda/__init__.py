"""`torch.cuda`, as far as programs ask it about GPUs: how many there are, and their names.

What PyTorch does by streams and caches of its own is done by sessions here.
"""

from __future__ import annotations

from typing import NamedTuple

from baregrad.base.errors import OutOfMemory, UnsupportedDevice
from baregrad.base.namespaces import unknown_name
from baregrad.cuda import amp
from baregrad.cuda.devices import device_count, is_available, opened, ordinal, synchronize
from baregrad.cuda.streams import Event, Stream, current_stream, default_stream, stream
from baregrad.runtime.cuda import abi
from baregrad.runtime.cuda.driver import Driver
from baregrad.tensor import Tensor, generators
from baregrad.tensor.array.random_state import manual_seed

__all__ = [
    "Event",
    "OutOfMemoryError",
    "Stream",
    "amp",
    "current_device",
    "current_stream",
    "default_stream",
    "device_count",
    "empty_cache",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "stream",
    "synchronize",
]

manual_seed_all = manual_seed
seed = seed_all = generators.seed
initial_seed = generators.initial_seed
OutOfMemoryError = OutOfMemory


def get_device_name(device: int | str | None = None) -> str:
    """Return what the driver calls a GPU. Raises IndexOutOfRange, ArgumentError."""
    driver, place = Driver(), ordinal(device)
    return driver.device_name(driver.device(place))


def get_device_capability(device: int | str | None = None) -> tuple[int, int]:
    """Return a GPU's compute capability, (9, 0) for Hopper.

    Raises IndexOutOfRange, ArgumentError.
    """
    driver, place = Driver(), ordinal(device)
    digits = "".join(one for one in driver.architecture(driver.device(place)) if one.isdigit())
    return int(digits[:-1]), int(digits[-1])


class DeviceProperties(NamedTuple):
    """What the driver says of a GPU; total_memory is in bytes."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int


def get_device_properties(device: int | str | None = None) -> DeviceProperties:
    """Return what a GPU is. Raises IndexOutOfRange, ArgumentError."""
    place = ordinal(device)
    driver = Driver()
    number = driver.device(place)
    return DeviceProperties(
        driver.device_name(number), *get_device_capability(place), driver.total_nbytes(number),
        driver.attribute(number, abi.MULTIPROCESSOR_COUNT),
    )


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Return whether a GPU is there that multiplies bfloat16, as those from Ampere on do."""
    return is_available() and get_device_capability() >= (8, 0)


def current_device() -> int:
    """Return 0, the GPU that "cuda" names. Raises IndexOutOfRange where there is none."""
    return ordinal(None)


def set_device(device: int | str) -> None:
    """Do nothing for GPU 0, which "cuda" names. Raises UnsupportedDevice for others."""
    if (place := ordinal(device)) != 0:
        raise UnsupportedDevice(
            "'cuda' names the first GPU", found=f"set_device({place})",
            hint=f"name the other one, 'cuda:{place}', or set CUDA_VISIBLE_DEVICES",
        )


def init() -> None:
    """Do nothing: a GPU is opened when something is put on it."""


def is_initialized() -> bool:
    """Return whether something was put on a GPU."""
    return any(True for _ in opened(None, every=True))


def memory_allocated(device: int | str | None = None) -> int:
    """Return the bytes that live arrays hold on a GPU now, 0 where there is none."""
    return sum(one.memory_stats().in_use_nbytes for one in opened(device))


def max_memory_allocated(device: int | str | None = None) -> int:
    """Return the most bytes that arrays held at once since `reset_peak_memory_stats`."""
    return sum(one.memory_stats().peak_nbytes for one in opened(device))


def memory_reserved(device: int | str | None = None) -> int:
    """Return the bytes that were taken from a GPU's driver."""
    return sum(one.memory_stats().reserved_nbytes for one in opened(device))


# Memory that nothing holds any more is given back at the driver's limit alone.
max_memory_reserved = memory_reserved


def reset_peak_memory_stats(device: int | str | None = None) -> None:
    """Begin anew what `max_memory_allocated` tells."""
    for one in opened(device):
        one.forget_peak()


reset_max_memory_allocated = reset_peak_memory_stats


def mem_get_info(device: int | str | None = None) -> tuple[int, int]:
    """Return how many bytes of a GPU this process has not taken, and how many it has in all.

    What other processes took of it is not known. Raises IndexOutOfRange, ArgumentError.
    """
    total = get_device_properties(device).total_memory
    return total - memory_reserved(device), total


def get_rng_state(device: int | str | None = "cuda") -> Tensor:
    """Return the state of a GPU's random numbers, for `set_rng_state`: 16 bytes (uint8)."""
    place = ordinal(device)
    return generators.state_on(f"CUDA:{place}" if place else "CUDA")


def set_rng_state(new_state: Tensor, device: int | str | None = "cuda") -> None:
    """Let a GPU's random numbers go on from a state."""
    place = ordinal(device)
    generators.go_on_from(new_state, f"CUDA:{place}" if place else "CUDA")


def get_rng_state_all() -> list[Tensor]:
    """Return the states of the random numbers of all GPUs."""
    return [get_rng_state(place) for place in range(device_count())]


def set_rng_state_all(new_states: list[Tensor]) -> None:
    """Let the random numbers of all GPUs go on from states."""
    for place, state in enumerate(new_states):
        set_rng_state(state, place)


def empty_cache() -> None:
    """Do nothing: memory that nothing holds is given to what asks next."""


ipc_collect = empty_cache


def __getattr__(name: str) -> object:
    raise unknown_name("baregrad.cuda", name, __all__)
