"""The cache of a decoder: pages of every layer, copied to the host and back without a change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from baregrad.dtypes import dtypes
from baregrad.engine.canonical import bind
from baregrad.ir.core.index import variable
from baregrad.llm.generation.layer_pages import (
    PAGE,
    LayerPages,
    PagedLayer,
    StepPlaces,
    row_nbytes,
)
from baregrad.llm.generation.page_pool import PagePool
from baregrad.llm.models.traits import CacheRow
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

_AT_ONCE = 8  # pages that are copied, or emptied, by one submission

Saved = list[list[Any]]
"""Pages on the host: for each copy, an array of each of the cache's arrays."""


def pages_of(tokens: int) -> int:
    """Return how many pages so many tokens take."""
    return -(-tokens // PAGE)


def cache_nbytes(rows: Sequence[CacheRow], tokens: int, kind: str) -> int:
    """Return the bytes of a cache for so many tokens, in whole pages."""
    return sum(row_nbytes(row, kind) for row in rows) * PAGE * pages_of(tokens)


def views(layers: Sequence[LayerPages], places: StepPlaces) -> list[PagedLayer]:
    """Return what each layer of a decoder sees of a cache's layers during a step."""
    return [PagedLayer(layer, places) for layer in layers]


class PagedCache:
    """Pages of all layers, each of 16 tokens; page 0 is empty and stays so.

    is_touched: a host gives the memory of all pages at once, not that of each when it is used.
    """

    def __init__(
        self, rows: Sequence[CacheRow], pages: int, kind: str = "f16", device: str | None = None,
        *, is_touched: bool = False,
    ) -> None:
        self.pool = PagePool(pages)
        self.kind = kind
        self.layers = [
            LayerPages(pages, row, kind, device, is_touched=is_touched) for row in rows
        ]
        self._device = device
        self._count = variable("copied", 1, _AT_ONCE)
        arrays = [array for layer in self.layers for array in layer.arrays]

        def read(index: Tensor, count: Any) -> list[Tensor]:
            return [_as_words(array[index[:count]]) for array in arrays]

        def write(index: Tensor, values: list[Tensor], count: Any) -> None:
            for array, value in zip(arrays, values, strict=True):
                array[index[:count]] = value[:count].bitcast(array.dtype)

        def empty(index: Tensor, count: Any) -> None:
            for array in arrays:
                array[index[:count]] = 0

        self._read, self._write, self._empty = jit(read), jit(write), jit(empty)

    def copy_out(self, pages: Sequence[int]) -> Saved:
        """Return pages as they are, on the host."""
        return [
            [array.numpy() for array in self._read(index, count)]
            for index, count in self._groups(pages)
        ]

    def copy_in(self, pages: Sequence[int], saved: Saved) -> None:
        """Write what `copy_out` returned into as many pages."""
        for (index, count), arrays in zip(self._groups(pages), saved, strict=True):
            values = []
            for array in arrays:
                whole = np.zeros((_AT_ONCE, *array.shape[1:]), array.dtype)
                whole[: len(array)] = array
                values.append(whole)
            tensors = [Tensor(value, device=self._device) for value in values]
            self._write(index, tensors, count)

    def clear(self, pages: Sequence[int]) -> None:
        """Write zeros into pages, which may hold what is no number."""
        for index, count in self._groups(pages):
            self._empty(index, count)

    def _groups(self, pages: Sequence[int]) -> list[tuple[Tensor, Any]]:
        found = []
        for begin in range(0, len(pages), _AT_ONCE):
            part = list(pages[begin : begin + _AT_ONCE])
            index = np.zeros(_AT_ONCE, np.int32)
            index[: len(part)] = part
            found.append((Tensor(index, device=self._device), bind(self._count, len(part))))
        return found


def _as_words(array: Tensor) -> Tensor:
    """The array, or its bits where NumPy has no such floats."""
    return array.bitcast(dtypes.int16) if array.dtype is dtypes.bfloat16 else array
