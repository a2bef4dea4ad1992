"""Where a model's weights come from, by the names that GGUF files give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from baregrad.dtypes import dtypes
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
