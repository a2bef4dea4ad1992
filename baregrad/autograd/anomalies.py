"""PyTorch's anomaly mode: what asks for gradients raises where one has a NaN."""

from __future__ import annotations

from typing import Self

from baregrad.tensor.autograd.backward import Anomalies


class set_detect_anomaly:  # noqa: N801 - PyTorch's name
    """Look at gradients from now on, or not; as a `with` block until its end.

    Each `backward()` and `grad()` computes what it gives then. check_nan: false switches the look
    off. Inside `jit` nothing is looked at. A NaN raises GradientError.
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = Anomalies.detected, Anomalies.nan_checked
        Anomalies.detected, Anomalies.nan_checked = mode, check_nan

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Put the mode back."""
        Anomalies.detected, Anomalies.nan_checked = self._before


class detect_anomaly:  # noqa: N801 - PyTorch's name
    """A `with` block in which gradients are looked at; see `set_detect_anomaly`."""

    def __init__(self, check_nan: bool = True) -> None:
        self._nan_checked = check_nan

    def __enter__(self) -> Self:
        self._mode = set_detect_anomaly(True, self._nan_checked)
        return self

    def __exit__(self, *_: object) -> None:
        """Put the mode back."""
        self._mode.__exit__()


def set_anomaly_enabled(mode: bool, check_nan: bool = True) -> None:
    """Look at gradients from now on, or not; see `set_detect_anomaly`."""
    set_detect_anomaly(mode, check_nan)


def is_anomaly_enabled() -> bool:
    """Return whether gradients are looked at."""
    return Anomalies.detected


def is_anomaly_check_nan_enabled() -> bool:
    """Return whether a NaN raises where gradients are looked at."""
    return Anomalies.nan_checked
