"""What layers keep of the tokens they have seen: the protocol, and a cache of one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from baregrad.base.errors import ShapeError
from baregrad.dtypes import dtypes
from baregrad.llm.models.attention import attention
from baregrad.llm.models.traits import CacheRow, DecoderTraits
from baregrad.tensor import Tensor


class LayerCache(Protocol):
    """One layer's part of a cache, of one sequence or of many."""

    @property
    def arrays(self) -> Sequence[Tensor]:
        """All that it keeps of tokens, which `attend` changes in place."""

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None,
        *,
        scale: float,
        window: int = 0,
        soft_cap: float = 0.0,
    ) -> Tensor:
        """Keep keys and values of new tokens; return what the tokens' queries find: (T, heads, V).

        query (T, heads, E), key (T, key heads, E), value (T, key heads, V), or None where values
        are the first V numbers of the keys. Each token sees what its sequence holds up to itself,
        of that the latest `window` (0 for all). See `attention` for `scale` and `soft_cap`.
        """


class ContiguousCache:
    """A cache of one sequence, in one array a layer; new tokens are placed at `at`.

    `length`: how many tokens fit. `place` says where the next call's tokens go: an int, or a
    symbolic integer bound to one, whose bounds with the number of tokens must lie within `length`.
    """

    def __init__(
        self,
        traits: DecoderTraits,
        length: int,
        dtype: object = dtypes.float32,
        device: str | None = None,
    ) -> None:
        if length < 1:
            raise ShapeError("a cache's length", found=length, wanted="1 token or more")
        self.length = length
        self.at: Any = 0
        layers = [
            _ContiguousLayer(self, layer.cache_row, dtype, device) for layer in traits.layers
        ]
        self.layers: Sequence[LayerCache] = layers
        self.arrays = [array for one in layers for array in one.arrays]
        self.realize()

    def place(self, at: Any) -> None:
        """Say where the next tokens go; what earlier calls wrote is computed by then."""
        self.realize()
        self.at = at

    def realize(self, *results: Tensor) -> None:
        """Compute results together with what their tokens wrote, so that nothing is done twice."""
        self.arrays[0].realize(*self.arrays[1:], *results)


class _ContiguousLayer:
    def __init__(
        self, owner: ContiguousCache, row: CacheRow, dtype: object, device: str | None
    ) -> None:
        self.owner = owner
        self.row = row

        def empty(width: int) -> Tensor:
            shape = (owner.length, row.heads, width)
            return Tensor.zeros(*shape, dtype=dtype, device=device).contiguous()

        self.keys = empty(row.key_width)
        self.values = None if row.is_shared else empty(row.value_width)

    @property
    def arrays(self) -> Sequence[Tensor]:
        """Keys and values."""
        return (self.keys,) if self.values is None else (self.keys, self.values)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None,
        *,
        scale: float,
        window: int = 0,
        soft_cap: float = 0.0,
    ) -> Tensor:
        at, count = self.owner.at, query.shape[0]
        end = at + count
        self.keys[at:end] = key.cast(self.keys.dtype)
        keys = self.keys[:end]
        if self.values is None or value is None:
            values = keys[..., : self.row.value_width]
        else:
            self.values[at:end] = value.cast(self.values.dtype)
            values = self.values[:end]
        is_one = isinstance(count, int) and count == 1
        places = None if is_one else Tensor.arange(at, end, device=query.device)
        return attention(
            query, keys.cast(query.dtype), values.cast(query.dtype), places,
            scale=scale, window=window, soft_cap=soft_cap,
        )
