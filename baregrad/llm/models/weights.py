"""Where a model's weights come from, by the names that GGUF files give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from baregrad.dtypes import dtypes
from baregrad.engine.backends import GPU_NAMES
from baregrad.io.gguf import GgmlType, GgufFile, PackedWeight
from baregrad.tensor import Tensor


class WeightSource(Protocol):
    """Weights by name, read when they are asked for."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each."""

    @property
    def types(self) -> Mapping[str, GgmlType]:
        """The type of each."""

    def weight(self, name: str) -> PackedWeight:
        """Return a matrix, or a stack of them, as it is stored."""

    def vector(self, name: str) -> Tensor:
        """Return a tensor in float32, in memory: a norm's weight, a bias, factors."""


class DeviceWeights:
    """The weights of a source in the form that their device reads best.

    GPUs read words of neighbours: there the fields of packed blocks lie apart. `is_exact`: products
    take activations as they are, where processors would round them to bytes.
    """

    def __init__(self, source: WeightSource, *, is_exact: bool = False) -> None:
        self._source = source
        self._is_exact = is_exact

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each."""
        return self._source.shapes

    @property
    def types(self) -> Mapping[str, GgmlType]:
        """The type of each."""
        return self._source.types

    def weight(self, name: str) -> PackedWeight:
        """Return a matrix, or a stack of them."""
        found = self._source.weight(name)
        if self._is_exact:
            found = found.exactly()
        return found.in_planes() if found.device.partition(":")[0] in GPU_NAMES else found

    def vector(self, name: str) -> Tensor:
        """Return a tensor in float32, in memory."""
        return self._source.vector(name)


class GgufWeights:
    """The weights of a GGUF file, mapped: read when they are used, never widened."""

    def __init__(self, file: GgufFile, device: str | None = None) -> None:
        self._file = file
        self._device = device
        self._grids: dict[str, Tensor | None] = {}

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each tensor of the file."""
        return {name: tensor.shape for name, tensor in self._file.tensors.items()}

    @property
    def types(self) -> Mapping[str, GgmlType]:
        """The type of each tensor of the file."""
        return {name: tensor.type for name, tensor in self._file.tensors.items()}

    def weight(self, name: str) -> PackedWeight:
        """Return a matrix, or a stack of them, packed as in the file."""
        tensor = self._file.tensor(name)
        grid = self._grids.get(tensor.type.name)
        found = PackedWeight.from_file(tensor, self._device, grid)
        self._grids[tensor.type.name] = found.grid
        return found

    def vector(self, name: str) -> Tensor:
        """Return a tensor in float32, in memory."""
        return self.weight(name).dense(dtypes.float32).contiguous().realize()
