"""The tensors of a model as they will be in a smaller file, each made when it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from baregrad.io.gguf import GgmlType, PackedWeight, TensorToWrite, quantise

# Elements that are widened at once.
PART = 1 << 22
Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A tensor where it is now: `load` maps it, `heads` are those whose rows are to be paired.

    A folder has the two halves of a head's rows one after the other, and files of some
    architectures take turns; 0 for rows that stay in their order.
    """

    type: GgmlType
    shape: tuple[int, ...]
    load: Callable[[], PackedWeight]
    heads: int = 0

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape))

    def rounded(self, chosen: GgmlType, advance: Advance) -> TensorToWrite:
        """Return it as a tensor of another type; `advance` is told of elements that are done."""

        def make() -> npt.NDArray[np.generic]:
            weight = self.load()
            if chosen is self.type and not self.heads:
                advance(self.size)
                raw: npt.NDArray[Any] = weight.raw()
                return raw
            parts = []
            for values in self._rows(weight):
                parts.append(quantise(values, chosen))
                advance(values.size)
            return np.concatenate(parts)

        return TensorToWrite(chosen, self.shape, make)

    def _rows(self, weight: PackedWeight) -> Iterator[npt.NDArray[np.float32]]:
        """The rows in float32, some at a time."""
        width = self.shape[-1]
        if self.heads:
            # A vector's elements are rows of one.
            whole = weight.dense().numpy().reshape(self.shape[0], -1)
            yield paired(whole, self.heads)
            return
        matrix = weight.as_rows()
        count = self.size // width
        step = max(PART // width, 1)
        for start in range(0, count, step):
            yield matrix.at(slice(start, min(start + step, count))).dense().numpy()


def paired(rows: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows of heads whose two halves stand one after the other, with the halves taking turns."""
    halves = rows.reshape(heads, 2, -1, rows.shape[-1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)
