"""The GPUs that there are, and ours on them."""

from __future__ import annotations

from collections.abc import Iterator

from baregrad.base.errors import ArgumentError, DriverError, IndexOutOfRange
from baregrad.engine.session import current_session, opened_devices
from baregrad.runtime.cuda.driver import Driver
from baregrad.runtime.interface import Device


def device_count() -> int:
    """Return how many GPUs CUDA's driver shows, 0 where there is no driver."""
    try:
        return Driver().device_count()
    except DriverError:
        return 0


def is_available() -> bool:
    """Return whether CUDA's driver shows a GPU."""
    return device_count() > 0


def ordinal(device: int | str | None) -> int:
    """Return the number of a GPU. Raises IndexOutOfRange, ArgumentError."""
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


def opened(device: int | str | None, every: bool = False) -> Iterator[Device]:
    """Our devices on a GPU, or on every one, that something was put on; none without GPUs."""
    place = None if every or (device is None and not is_available()) else ordinal(device)
    session = current_session()
    for name in opened_devices(session):
        kind, _, number = name.partition(":")
        if kind in ("CUDA", "NV") and place in (None, int(number or 0)):
            yield session.backend(name).device


def synchronize(device: int | str | None = None) -> None:
    """Wait until a GPU, every one unless told, has done what was submitted.

    What nobody has asked for yet is not submitted. Raises IndexOutOfRange where there is none.
    """
    ordinal(device)
    for one in opened(device, every=device is None):
        one.synchronize()
