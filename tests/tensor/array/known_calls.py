"""What tests of known calls share: arrays that lie in memory, and counts of work."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from baregrad.engine.session import Session
from baregrad.ir.core import node as nodes
from baregrad.tensor import Tensor

RNG = np.random.default_rng(5)


def drawn(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def held(array: np.ndarray[Any, Any]) -> Tensor:
    """An array whose value lies in memory, of which the host knows nothing."""
    return Tensor(array).clone().realize()


class Work:
    """Counts nodes made, graphs put in canonical form, and lists submitted, inside `with`."""

    def __init__(self, session: Session, patch: pytest.MonkeyPatch) -> None:
        self.session = session
        self.patch = patch
        self.nodes = self.graphs = self.submits = 0

    def __enter__(self) -> Work:
        gc.collect()
        self._before = set(nodes._interned.table)
        device = self.session.backend("CPU").device
        submit = device.submit

        def submitted(*args: Any, **kwargs: Any) -> Any:
            self.submits += 1
            return submit(*args, **kwargs)

        def canonicalised(*args: Any) -> Any:
            self.graphs += 1
            return canonicalise(*args)

        from baregrad.engine import session as module

        canonicalise = module.canonicalise
        self.patch.setattr(device, "submit", submitted)
        self.patch.setattr(module, "canonicalise", canonicalised)
        return self

    def __exit__(self, *error: object) -> None:
        self.nodes = len(set(nodes._interned.table) - self._before)
        self.patch.undo()
