"""What a benchmark's row is: the same work in ours and in the peers, a bar and a reference.

Peers are imported when a row is made ready, never before.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from baregrad.apps.bench_measure import Array, Effort, Subject
from baregrad.base.errors import MissingDependency
from baregrad.dtypes import dtypes
from baregrad.runtime.cpu.host import HostProcessor
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

# What a peer is installed by.
PEERS = MappingProxyType({
    "torch": "pip install torch==2.13.0",
    "numpy": "pip install numpy",
})
Inputs = tuple[Array, ...]
Make = Callable[[Inputs], Subject]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A row made ready: its inputs, who does the work, and the exact result where it is cheap."""

    inputs: Inputs
    subjects: Mapping[str, Make]
    reference: Callable[[], Array] | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a suite.

    `bar`: the peer's time by ours that must be reached, None where nothing is asked. `tolerance`:
    of the largest difference by the largest magnitude. `traffic`: for work limited by memory, the
    bytes of float32 arrays of 2^24 elements that one call has to read and write; its rate by the
    machine's copy rate then has a bar of its own. `unfit` says why the row cannot hold the bar on
    a machine ("" where it can): it is measured all the same.
    """

    name: str
    bar: float | None
    prepare: Callable[[bool], Prepared]
    tolerance: float = 1e-5
    traffic: int = 0
    unfit: Callable[[HostProcessor], str] = lambda host: ""


def generator() -> np.random.Generator:
    """Return the random numbers of a row's inputs, the same each time."""
    return np.random.default_rng(0)


def peer_module(name: str) -> Any:
    """Import a peer; raise MissingDependency, saying what to install, where it is absent."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        hint = f"install it with: {PEERS[name]}; or leave it out of --against"
        raise MissingDependency(package=name, hint=hint) from error


# --- operations: a function of arrays -------------------------------------------------------------

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Operation:
    """A function of arrays, written once for each framework; the peers' take the module first.

    `numpy` is the reference too, over inputs in float64, unless `reference` is given. `dtype` is
    what float32 inputs are converted to before anything is timed.
    """

    shapes: tuple[tuple[int, ...], ...]
    quick_shapes: tuple[tuple[int, ...], ...]
    ours: Function
    torch: Function
    numpy: Function | None = None
    reference: Function | None = None
    draw: Callable[[np.random.Generator, tuple[int, ...]], Array] = (
        lambda random, shape: random.standard_normal(shape, np.float32)
    )
    dtype: str = ""

    def prepare(self, is_quick: bool) -> Prepared:
        """Draw the inputs."""
        random = generator()
        shapes = self.quick_shapes if is_quick else self.shapes
        inputs = tuple(self.draw(random, shape) for shape in shapes)
        subjects: dict[str, Make] = {"ours": self._ours, "torch": self._torch}
        plain = self.numpy
        if plain is not None:
            subjects["numpy"] = lambda inputs: Subject(
                lambda: plain(np, *inputs), lambda: np.asarray(plain(np, *inputs))
            )
        exact = self.reference or self.numpy
        if exact is None:
            return Prepared(inputs, subjects)

        def reference() -> Array:
            return np.asarray(exact(np, *(array.astype(np.float64) for array in inputs)))

        return Prepared(inputs, subjects, reference)

    def _ours(self, inputs: Inputs) -> Subject:
        tensors = [Tensor(array) for array in inputs]
        if self.dtype:
            tensors = [tensor.cast(self.dtype) for tensor in tensors]
        for tensor in tensors:
            tensor.realize()
        function = jit(self.ours)

        def outputs() -> Array:
            found: Tensor = function(*tensors)
            return found.cast(dtypes.float32).numpy() if self.dtype else found.numpy()

        return Subject(lambda: function(*tensors), outputs)

    def _torch(self, inputs: Inputs) -> Subject:
        torch = peer_module("torch")
        tensors = [torch.from_numpy(array) for array in inputs]
        if self.dtype:
            tensors = [tensor.to(getattr(torch, self.dtype)) for tensor in tensors]
        function = self.torch

        def run() -> Any:
            with torch.no_grad():
                return function(torch, *tensors)

        def outputs() -> Array:
            found = run()
            return np.asarray((found.float() if self.dtype else found).numpy())

        return Subject(run, outputs)


@dataclass(frozen=True, slots=True)
class Suite:
    """Named rows, and the option values that they run under."""

    name: str
    help: str
    device: str
    rows: tuple[Row, ...]


def effort_of(is_quick: bool) -> Effort:
    """Return how long each row is measured."""
    from baregrad.apps.bench_measure import QUICK

    return QUICK if is_quick else Effort()
