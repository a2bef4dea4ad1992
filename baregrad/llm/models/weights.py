"""Where a model's weights come from, by the names that GGUF files give them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from baregrad.base.errors import FileFormatError
from baregrad.base.options import is_gpu
from baregrad.dtypes import dtypes
from baregrad.io.gguf import GgmlType, GgufFile, PackedWeight
from baregrad.llm.models.scaled_weight import ScaledWeight
from baregrad.tensor import Tensor

# An expert by itself, as files of Mixtral's first months have them.
_EXPERT = re.compile(r"(?P<part>blk\.\d{1,6}\.ffn_(?:gate|down|up))\.(?P<number>\d{1,6})\.weight")


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


class WrappedWeights:
    """The weights of another source, for those who change how one of its methods gives them."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source

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
        return self._source.weight(name)

    def vector(self, name: str) -> Tensor:
        """Return a tensor in float32, in memory."""
        return self._source.vector(name)


class DeviceWeights(WrappedWeights):
    """The weights of a source in the form that their device reads best.

    GPUs read words of neighbours: there the fields of packed blocks lie apart. `is_exact`: products
    take activations as they are, where they would be rounded to integers.
    """

    def __init__(self, source: WeightSource, *, is_exact: bool = False) -> None:
        super().__init__(source)
        self._is_exact = is_exact

    def weight(self, name: str) -> PackedWeight:
        """Return a matrix, or a stack of them."""
        found = super().weight(name)
        if self._is_exact:
            found = found.exactly()
        return found.in_planes() if is_gpu(found.device) else found


class GgufWeights:
    """The weights of a GGUF file, mapped: read when they are used, never widened.

    Experts that older files keep one by one are told, and joined, as the stack that they are, and a
    scale that stands beside a weight is a part of it.
    """

    def __init__(self, file: GgufFile, device: str | None = None) -> None:
        self._file = file
        self._device = device
        self._grids: dict[str, Tensor | None] = {}
        self._stacks = _stacks(file)
        self._scales = _scales(file, self._stacks)
        parts = {name for names in self._stacks.values() for name in names}
        hidden = parts.union(self._scales.values())
        alone = {name: (each.shape, each.type)
                 for name, each in file.tensors.items() if name not in hidden}  # fmt: skip
        self._forms = alone | {
            name: ((len(names), *file.tensors[names[0]].shape), file.tensors[names[0]].type)
            for name, names in self._stacks.items()
        }

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each tensor."""
        return {name: shape for name, (shape, _) in self._forms.items()}

    @property
    def types(self) -> Mapping[str, GgmlType]:
        """The type of each tensor."""
        return {name: kind for name, (_, kind) in self._forms.items()}

    def weight(self, name: str) -> PackedWeight:
        """Return a matrix, or a stack of them, packed as in the file."""
        found = self._stack(name) if name in self._stacks else self._mapped(name)
        if name not in self._scales:
            return found
        scale = self.vector(self._scales[name])
        return ScaledWeight(found, scale if len(found.shape) > 2 else scale.reshape(()))

    def vector(self, name: str) -> Tensor:
        """Return a tensor in float32, in memory."""
        return self._mapped(name).dense(dtypes.float32).contiguous().realize()

    def _mapped(self, name: str) -> PackedWeight:
        tensor = self._file.tensor(name)
        grid = self._grids.get(tensor.type.name)
        found = PackedWeight.from_file(tensor, self._device, grid)
        self._grids[tensor.type.name] = found.grid
        return found

    def _stack(self, name: str) -> PackedWeight:
        """Experts that lie apart in the file, joined in memory."""
        parts = [self._mapped(part) for part in self._stacks[name]]
        joined = Tensor.stack([part.bytes for part in parts]).contiguous().realize()
        return PackedWeight(parts[0].type, (len(parts), *parts[0].shape), joined, parts[0].grid)


def _stacks(file: GgufFile) -> dict[str, list[str]]:
    """For each stack of experts that a file keeps one by one, their names in order.

    Raises FileFormatError where one is missing, or is of another shape or type.
    """
    found: dict[str, dict[int, str]] = {}
    for name in file.tensors:
        if (expert := _EXPERT.fullmatch(name)) is not None:
            stack = f"{expert['part']}_exps.weight"
            found.setdefault(stack, {})[int(expert["number"])] = name
    for stack, names in found.items():
        forms = {(file.tensors[name].shape, file.tensors[name].type) for name in names.values()}
        if sorted(names) != list(range(len(names))) or len(forms) != 1:
            raise FileFormatError(
                f"the experts of {stack} are no stack", found=f"numbers {sorted(names)}",
                wanted="each from 0 on, of one shape and type",
            )  # fmt: skip
    return {stack: [names[number] for number in sorted(names)] for stack, names in found.items()}


def _scales(file: GgufFile, stacks: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """For each weight beside which a scale stands, the scale's name.

    Raises FileFormatError for a scale that is neither one number nor one for each expert.
    """
    found = {}
    for name, tensor in file.tensors.items():
        weight = name.removesuffix(".scale") + ".weight"
        if not name.endswith(".scale") or (weight not in file.tensors and weight not in stacks):
            continue
        wanted: tuple[int, ...] = (1,)
        if weight in stacks:
            wanted = (len(stacks[weight]),)
        elif len(file.tensors[weight].shape) == 3:
            wanted = file.tensors[weight].shape[:1]
        if tensor.shape != wanted:
            raise FileFormatError(
                f"the tensor {name} is no scale of {weight}", found=list(tensor.shape),
                wanted=list(wanted),
            )  # fmt: skip
        found[weight] = name
    return found
