"""What a program is compared with: another device, PyTorch, or a recording of another run."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from baregrad.apps.diff.judging import Array, candidates, difference, values_of
from baregrad.apps.diff.torch_reference import torch_rules
from baregrad.base.errors import FileFormatError
from baregrad.dtypes import dtypes
from baregrad.engine.canonical import Canonical
from baregrad.engine.control.loops import ControlExecutable
from baregrad.engine.reference import evaluate_program
from baregrad.io.files import write_atomically
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import CONTROL_MASK, Ops
from baregrad.ir.text.dump import dump

FORMAT = 2
# Of a larger array so many elements are recorded, from all over it.
_RECORDED = 4096
# What a computation is given may be results of earlier ones, rounded otherwise on another machine:
# by so much of its largest magnitude.
_GIVEN_APART = 1 / 16


class Reference(Protocol):
    """Gives the values that are right. `computes`: of any program, and not of some alone."""

    computes: bool

    def begin(self, program: Canonical, raw: Sequence[Array]) -> str:
        """Take note that a program runs over some inputs; say what is wrong, "" for nothing."""

    def wanted(self, program: Canonical, raw: Sequence[Array]) -> list[Array]:
        """Return the values of a program's results over its inputs."""

    def picked(self, values: Array) -> Array:
        """Return those of an array's values that `wanted` has of it."""

    def close(self) -> None:
        """Free what it holds."""


def asking(program: Canonical, nodes: Sequence[Node]) -> Canonical:
    """Return a program whose results are some nodes of another's graph."""
    return replace(program, sink=Node(Ops.SINK, dtypes.token, tuple(nodes)), whole=False)


def run(backend: Any, execute: Any, program: Canonical, raw: Sequence[Array]) -> list[Array]:
    """Compute a program on a backend over copies of its inputs."""
    refs = []
    for ref, data in zip(program.inputs, raw, strict=True):
        buffer = backend.device.allocate(data.nbytes)
        if data.nbytes:
            backend.device.copy_in(buffer, data)
        refs.append(ref._replace(handle=buffer, device=backend.name))
    made = replace(program, inputs=tuple(refs))
    loops = made.sink.mask & CONTROL_MASK
    executable = ControlExecutable(made, backend) if loops else backend.prepare(made, {})
    return [one.contents() for one in execute(executable, made, None)]


def _decoded(program: Canonical, results: Sequence[Array]) -> list[Array]:
    return [values_of(one, node) for one, node in zip(results, program.sink.src, strict=True)]


class _AllValues:
    """A reference that computes anew whatever it is asked for."""

    computes = True

    def begin(self, program: Canonical, raw: Sequence[Array]) -> str:
        """Nothing is wrong with any program."""
        return ""

    def picked(self, values: Array) -> Array:
        """All values are looked at."""
        return values


class DeviceReference(_AllValues):
    """Another device."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def wanted(self, program: Canonical, raw: Sequence[Array]) -> list[Array]:
        """Return what the device computes."""
        return _decoded(program, run(self._backend, self._backend.execute, program, raw))

    def close(self) -> None:
        """Close the device."""
        self._backend.close()


class TorchReference(_AllValues):
    """PyTorch, operation by operation. Raises MissingDependency where it is not installed."""

    def __init__(self) -> None:
        self._rules = torch_rules()

    def wanted(self, program: Canonical, raw: Sequence[Array]) -> list[Array]:
        """Return what PyTorch computes."""
        bytes_ = [one.view(np.uint8) for one in raw]
        found = evaluate_program(program, bytes_, self._rules)
        return _decoded(program, [np.ascontiguousarray(one).reshape(-1) for one in found])

    def close(self) -> None:
        """Hold nothing."""


def _sampled(values: Array) -> Array:
    flat = values.reshape(-1)
    if flat.size <= _RECORDED:
        return flat
    return flat[np.linspace(0, flat.size - 1, _RECORDED).astype(np.int64)]


def digest_of(program: Canonical) -> str:
    """Return what a program is known by in a recording."""
    text = dump(program.sink) + json.dumps(dict(program.variables), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class RunRecorder:
    """Notes the values of every operation of a run; `save` writes them."""

    def __init__(self) -> None:
        self._digests: list[str] = []
        self._arrays: dict[str, Array] = {}

    @property
    def computations(self) -> int:
        """How many were noted."""
        return len(self._digests)

    def take(
        self, program: Canonical, raw: Sequence[Array], values: Mapping[Node, Array]
    ) -> None:
        """Note inputs and values, as raw codes, of what `recorded_nodes` names of a program."""
        number = len(self._digests)
        self._digests.append(digest_of(program))
        for place, node in enumerate(recorded_nodes(program)):
            self._arrays[f"{number}/{place}"] = _sampled(values_of(values[node], node))
        for node in _params(program):
            data = _sampled(values_of(raw[node.arg.slot], node))
            self._arrays[f"{number}/given{node.arg.slot}"] = data

    def save(self, path: Path) -> None:
        """Write it, whole or not at all."""
        head = json.dumps({"format": FORMAT, "computations": self._digests})
        whole = io.BytesIO()
        np.savez_compressed(whole, head=np.array(head), **self._arrays)  # type: ignore[arg-type]
        write_atomically(path, [whole.getbuffer()])


def _params(program: Canonical) -> list[Node]:
    return [one for one in toposort(program.sink) if one.op is Ops.PARAM]


def recorded_nodes(program: Canonical) -> list[Node]:
    """Return the operations and results of a program whose values a recording holds."""
    return list(dict.fromkeys([*candidates(program.sink), *program.sink.src]))


class RecordedReference:
    """A recording of another run, of the same program on another machine or in another version.

    Of large arrays it has a part, and that is what is compared. Raises FileFormatError.
    """

    computes = False

    def __init__(self, path: Path) -> None:
        try:
            if not zipfile.is_zipfile(path):
                raise ValueError("it is no archive")
            with np.load(path, allow_pickle=False) as found:
                head = json.loads(str(found["head"]))
                self._arrays = MappingProxyType({name: found[name] for name in found.files})
            self._digests, form = list(head["computations"]), head["format"]
            if any(one.dtype.kind not in "biuf" for name, one in self._arrays.items()
                   if name != "head"):  # fmt: skip
                raise ValueError("an array is not of numbers")
        except (
            OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, ValueError, KeyError,
            TypeError,
        ) as error:  # fmt: skip
            raise FileFormatError(
                "this is no recording of a run", found=f"{path}: {error}",
                wanted="what `baregrad diff --record FILE SCRIPT` wrote",
            ) from error
        if form != FORMAT:
            raise FileFormatError("the recording is of another format", found=form, wanted=FORMAT)
        self._number = -1
        self._places: dict[Node, int] = {}

    def begin(self, program: Canonical, raw: Sequence[Array]) -> str:
        """Take the next computation of the recording; it must be of the same operations.

        What it is given must be as there: what earlier ones computed was compared, so that only
        what a program reads or draws by itself is told here.
        """
        self._number += 1
        if self._number >= len(self._digests):
            return f"the recording ends after {len(self._digests)} computations"
        if self._digests[self._number] != digest_of(program):
            return "it computes something else there than in the recording"
        for node in _params(program):
            name, data = f"{self._number}/given{node.arg.slot}", raw[node.arg.slot]
            here, there = _sampled(values_of(data, node)), self._array(name)
            if told := difference(node.dtype, here, there, _GIVEN_APART):
                return f"it is given other values than there (is a seed missing?): {told}"
        self._places = {node: place for place, node in enumerate(recorded_nodes(program))}
        return ""

    def wanted(self, program: Canonical, raw: Sequence[Array]) -> list[Array]:
        """Return the recorded values."""
        return [self._array(f"{self._number}/{self._places[node]}") for node in program.sink.src]

    def _array(self, name: str) -> Array:
        if name not in self._arrays:
            raise FileFormatError("the recording lacks an array", found=f"none called {name}")
        found: Array = self._arrays[name]
        return found

    def picked(self, values: Array) -> Array:
        """Return those elements that are recorded of an array."""
        return _sampled(values)

    def close(self) -> None:
        """Hold nothing."""
