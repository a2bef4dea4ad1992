"""Views, elements by place, and writes in place."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from baregrad.dtypes import dtypes
from baregrad.testing.twin.array import TwinArray

_PADDING: Any = MappingProxyType({"reflect": "reflect", "replicate": "edge", "circular": "wrap"})


class MovementTwin(TwinArray):
    """What moves elements and computes nothing."""

    def clone(self) -> Self:
        """A copy."""
        return self._moved(self.array)

    detach = contiguous = requires_grad_ = clone

    def reshape(self, *shape: Any) -> Self:
        """The elements in row-major order in another shape."""
        return self._moved(self.array.reshape(flat(shape)))

    def permute(self, *axes: Any) -> Self:
        """The axes in another order."""
        return self._moved(self.array.transpose(flat(axes)))

    @property
    def mT(self) -> Self:  # noqa: N802 - it is called so
        """The last two axes swapped."""
        return self._moved(np.swapaxes(self.array, -1, -2))

    def expand(self, *shape: Any) -> Self:
        """Axes of extent 1 repeated; -1 leaves an extent as it is."""
        wanted = list(flat(shape))
        for back in range(1, self.array.ndim + 1):
            if wanted[-back] == -1:
                wanted[-back] = self.shape[-back]
        return self._moved(np.broadcast_to(self.array, wanted))

    def unsqueeze(self, dim: Any) -> Self:
        """A new axis of extent 1."""
        return self._moved(np.expand_dims(self.array, dim))

    def flip(self, *axes: Any) -> Self:
        """Axes backwards."""
        return self._moved(np.flip(self.array, flat(axes)))

    def roll(self, shift: Any, dim: Any) -> Self:
        """Elements moved along an axis, around its end."""
        return self._moved(np.roll(self.array, shift, dim))

    def repeat(self, *counts: Any) -> Self:
        """The whole repeated along each axis."""
        return self._moved(np.tile(self.array, flat(counts)))

    def pad(self, pads: Sequence[Any], mode: str = "constant", value: Any = 0) -> Self:
        """Elements added, or cut, at the ends of the last axes, last axis first."""
        array = self.array
        for at in range(0, len(pads), 2):
            axis = array.ndim - 1 - at // 2
            low, high = pads[at], pads[at + 1]
            cut: list[Any] = [slice(None)] * array.ndim
            cut[axis] = slice(max(0, -low), array.shape[axis] - max(0, -high))
            widths = [(0, 0)] * array.ndim
            widths[axis] = (max(0, low), max(0, high))
            if mode == "constant":
                array = np.pad(array[tuple(cut)], widths, constant_values=value)
            else:
                array = np.pad(array[tuple(cut)], widths, _PADDING[mode])
        return self._moved(array)

    def unfold(self, dim: Any, size: Any, step: Any) -> Self:
        """Windows along an axis, in a last axis of their own."""
        dim %= self.array.ndim
        windows = np.lib.stride_tricks.sliding_window_view(self.array, size, dim)
        return self._moved(np.moveaxis(np.moveaxis(windows, dim, 0)[::step], 0, dim))

    def narrow(self, dim: Any, start: Any, count: Any) -> Self:
        """`count` elements of an axis from one on."""
        start = start + self.shape[dim] if start < 0 else start
        return self._moved(np.take(self.array, range(start, start + count), dim))

    def split(self, size: Any, dim: Any) -> list[Self]:
        """Parts of `size` elements of an axis, the last of what is left."""
        ends = range(size, max(self.shape[dim], 1), size)
        return [self._moved(part) for part in np.split(self.array, ends, dim)]

    def tril(self, diagonal: Any = 0) -> Self:
        """Zeros above a diagonal."""
        return self._moved(np.tril(self.array, diagonal))

    def triu(self, diagonal: Any = 0) -> Self:
        """Zeros below a diagonal."""
        return self._moved(np.triu(self.array, diagonal))

    def diagonal(self, offset: Any = 0) -> Self:
        """The diagonal of the first two axes, last."""
        return self._moved(np.diagonal(self.array, offset))

    def __getitem__(self, key: Any) -> Self:
        return self._moved(self.array[_key(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        found = _key(key)
        if all(isinstance(entry, int) for entry in found):
            # Of one element an array, which takes another with axes of extent 1.
            found = (*found, ...)
        self.array[found] = self._own(value)

    def gather(self, dim: Any, index: TwinArray) -> Self:
        """Elements by place along an axis."""
        # As many of the other axes as the index has: `take_along_axis` would repeat the index.
        cuts = [slice(extent) for extent in index.shape]
        cuts[dim] = slice(None)
        part = self.array[tuple(cuts)]
        return self._moved(np.take_along_axis(part, index.array.astype(np.int64), dim))

    def index_select(self, dim: Any, index: TwinArray) -> Self:
        """Parts of an axis by place."""
        return self._moved(np.take(self.array, index.array.astype(np.int64), dim))

    def one_hot(self, classes: Any) -> Self:
        """A 1 at the place that each element names."""
        return self._like(self.array[..., None] == np.arange(classes), dtypes.int64)


def flat(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments, or the items of a sequence that is the only one."""
    return tuple(values[0]) if len(values) == 1 and isinstance(values[0], (tuple, list)) else values


def _key(key: Any) -> Any:
    entries = key if isinstance(key, tuple) else (key,)
    arrays = [entry.array if isinstance(entry, TwinArray) else entry for entry in entries]
    return tuple(arrays)
