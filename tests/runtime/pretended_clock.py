"""A clock for tests of deadlines: what is told in time is so on a busy machine as well."""

from __future__ import annotations

from types import ModuleType

import pytest


class PretendedClock:
    """Stands for the module `time` in others; each look moves it on, as does each sleep."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
        self.now_s = 0.0
        self.look_s = 1e-3
        for module in modules:
            monkeypatch.setattr(module, "time", self)

    def perf_counter(self) -> float:
        self.now_s += self.look_s
        return self.now_s

    def perf_counter_ns(self) -> int:
        return int(self.perf_counter() * 1e9)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
