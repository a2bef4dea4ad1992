"""Keys and values of one layer in pages of 16 tokens, and attention over them.

Every sum over a sequence's tokens adds pages one after the other, lane by lane, so that pages that
are masked add zeros at the end: the bits of a token's result depend neither on how many pages were
gathered nor on how many other tokens are computed beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from baregrad.base.errors import ArgumentError
from baregrad.dtypes import dtypes
from baregrad.llm.models.traits import CacheRow
from baregrad.tensor import Tensor
from baregrad.tensor.ops.creation import stored_zeros

PAGE = 16  # tokens of a page
BLOCK = 32  # elements that share a scale in a page of q8_0
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0")
_STORED = MappingProxyType({
    "f32": dtypes.float32, "f16": dtypes.float16, "bf16": dtypes.bfloat16,
})  # fmt: skip


def row_nbytes(row: CacheRow, kind: str) -> int:
    """Return the bytes that one token takes in a layer's pages of a type."""
    if kind == "q8_0":
        return row.count + row.count // BLOCK * 2
    return row.count * _STORED[kind].bits // 8


class StoredPages:
    """An array of pages (pages, 16, heads, width), as floats or as bytes with scales (q8_0)."""

    def __init__(
        self, pages: int, heads: int, width: int, kind: str, device: str | None = None,
        *, is_touched: bool = False,
    ) -> None:
        if kind not in CACHE_TYPES:
            raise ArgumentError("no such type of cache", found=kind, wanted=", ".join(CACHE_TYPES))
        if kind == "q8_0" and width % BLOCK:
            raise ArgumentError(
                "a cache of q8_0 has blocks of 32", found=f"heads of width {width}",
                hint="choose f16 or bf16",
            )
        self.kind = kind
        stored = dtypes.int8 if kind == "q8_0" else _STORED[kind]
        made = [(width, stored)]
        if kind == "q8_0":
            made.append((width // BLOCK, dtypes.float16))
        self.arrays = [
            stored_zeros(Tensor, (pages, PAGE, heads, last), dtype, device, is_touched=is_touched)
            for last, dtype in made
        ]

    def write(self, page: Tensor, place: Tensor, rows: Tensor) -> None:
        """Write rows (T, heads, width) at places (T,) of pages (T,), in place."""
        if self.kind != "q8_0":
            self.arrays[0][page, place] = rows.cast(self.arrays[0].dtype)
            return
        blocks = rows.cast(dtypes.float32).unflatten(-1, (-1, BLOCK))
        scale = (blocks.abs().amax(-1) * (1 / 127)).cast(dtypes.float16)
        wide = scale.cast(dtypes.float32)
        inverse = (wide == 0).where(0, 1 / wide)
        numbers = (blocks * inverse[..., None]).round().clamp(-127, 127).cast(dtypes.int8)
        self.arrays[0][page, place] = numbers.flatten(-2)
        self.arrays[1][page, place] = scale

    def gathered(self, table: Tensor) -> Tensor:
        """Return the rows (..., pages, 16, heads, width) of the pages that a table names."""
        rows = self.arrays[0][table]
        if self.kind != "q8_0":
            return rows
        scales = self.arrays[1][table].cast(dtypes.float32)
        blocks = rows.cast(dtypes.float32).unflatten(-1, (-1, BLOCK))
        return (blocks * scales[..., None]).flatten(-2)


class LayerPages:
    """One layer's keys and values, as `row` says it: perhaps values are a part of the keys."""

    def __init__(
        self, pages: int, row: CacheRow, kind: str, device: str | None = None,
        *, is_touched: bool = False,
    ) -> None:
        def stored(width: int) -> StoredPages:
            return StoredPages(pages, row.heads, width, kind, device, is_touched=is_touched)

        self.row = row
        self.keys = stored(row.key_width)
        self.values = None if row.is_shared else stored(row.value_width)

    @property
    def arrays(self) -> Sequence[Tensor]:
        """Return all arrays, whose first axis is that of pages."""
        return (*self.keys.arrays, *(() if self.values is None else self.values.arrays))

    def write(self, page: Tensor, place: Tensor, key: Tensor, value: Tensor | None) -> None:
        """Write keys and values (T, heads, width) at places (T,) of pages (T,), in place."""
        self.keys.write(page, place, key)
        if self.values is not None and value is not None:
            self.values.write(page, place, value)

    def gathered(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values (..., pages, 16, heads, width) of the pages that a table names."""
        keys = self.keys.gathered(table)
        if self.values is None:
            return keys, keys[..., : self.row.value_width]
        return keys, self.values.gathered(table)


@dataclass(frozen=True)
class StepPlaces:
    """Where the tokens of one step stand: T tokens, of one sequence or each of its own.

    table: (P,) the pages of the one sequence, or (T, P) those of each token's. positions: (T,).
    """

    table: Tensor
    positions: Tensor

    @classmethod
    def of_chunk(cls, table: Tensor, first: Any, count: Any) -> StepPlaces:
        """Return the places of `count` tokens of one sequence, the first of them at `first`.

        They are numbers that kernels compute, so that attention leaves out keys that none sees.
        """
        return cls(table, Tensor.arange(first, first + count, dtype=dtypes.int32,
                                        device=table.device))  # fmt: skip

    @property
    def is_one_sequence(self) -> bool:
        """Whether all tokens are of one sequence."""
        return self.table.ndim == 1

    def pages(self) -> Tensor:
        """Return the page (T,) into which each token's key and value go."""
        number = (self.positions // PAGE).long()
        if self.is_one_sequence:
            return self.table.index_select(0, number)
        return self.table.take_along_dim(number[:, None], 1)[:, 0]


class PagedLayer:
    """A layer of the cache, as a decoder sees it during one step (the protocol `LayerCache`)."""

    def __init__(self, pages: LayerPages, places: StepPlaces) -> None:
        self.pages = pages
        self.places = places

    @property
    def arrays(self) -> Sequence[Tensor]:
        """All arrays that a step changes."""
        return self.pages.arrays

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
        """Keep keys and values of the new tokens, then attend to all up to each of them.

        query (T, heads, width), key (T, key heads, width), value (T, key heads, value width),
        or None where it is a part of the key -> (T, heads, value width), of query's dtype. window:
        the tokens that one sees, itself among them, 0 for all. soft_cap: scores are
        cap * tanh(score / cap), 0 for no cap.
        """
        page, place = self.places.pages(), self.places.positions % PAGE
        self.pages.write(page, place, key, value)
        keys, values = self.pages.gathered(self.places.table)
        mask = self._mask(keys.shape[-4], window)
        if self._is_narrow(query, keys, soft_cap):
            return _streamed(query, keys, values, mask, scale)
        mixed = _attend(query, keys, values, mask, scale, soft_cap)
        return mixed.cast(query.dtype)

    def _mask(self, pages: Any, window: int) -> Tensor:
        """Which tokens (T, pages, 16) each token sees."""
        positions = self.places.positions[:, None]
        there = Tensor.arange(pages * PAGE, dtype=dtypes.int32, device=positions.device)[None]
        seen = there <= positions
        if window:
            seen = seen & (there > positions - window)
        return seen.unflatten(-1, (pages, PAGE))

    @staticmethod
    def _is_narrow(query: Tensor, keys: Tensor, soft_cap: float) -> bool:
        """Whether matrix units attend: 16-bit floats on a GPU, whose tiles add up in one order."""
        if query.dtype.bits != 16 or keys.dtype is not query.dtype or query.device == "CPU":
            return False
        return not soft_cap


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    scale: float,
    soft_cap: float,
) -> Tensor:
    """Attention in float32: keys (P, 16, K, E) of one sequence, or (T, P, 16, K, E)."""
    wide = dtypes.float32
    count, heads, width = query.shape
    pages, _, groups, _ = keys.shape[-4:]
    each = "" if keys.ndim == 4 else "t"
    grouped = query.cast(wide).reshape(count, groups, heads // groups, width)
    flat = (*keys.shape[:-4], pages * PAGE, groups)
    keys = keys.cast(wide).reshape(*flat, keys.shape[-1])
    values = values.cast(wide).reshape(*flat, values.shape[-1])
    # The scores are (K, G, T, tokens) or (T, K, G, tokens): what is shared is a matrix product.
    form = "kgtn" if not each else "tkgn"
    scores = Tensor.einsum(f"tkgd,{each}nkd->{form}", grouped, keys) * scale
    if soft_cap:
        scores = (scores * (1 / soft_cap)).tanh() * soft_cap
    seen = mask.flatten(-2)
    if each:
        seen = seen[:, None, None]
    scores = seen.where(scores, float("-inf"))
    high = scores.amax(-1, True)
    powers = (scores - high).exp()
    total = powers.unflatten(-1, (pages, PAGE)).sum(-2).sum(-1, True)
    mixed = Tensor.einsum(f"{form},{each}nkd->{form[:-1]}d", powers, values) / total
    if not each:
        # Stored by token: what is multiplied next reads whole rows.
        mixed = mixed.permute(2, 0, 1, 3).contiguous()
    return mixed.reshape(count, heads, values.shape[-1])


def _streamed(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float
) -> Tensor:
    """Attention of 16-bit floats over gathered pages, one tile of keys after the other."""
    seen = mask.flatten(-2)
    keys, values = (x.flatten(-4, -3) for x in (keys, values))
    if keys.ndim == 3:  # one sequence: (heads, T, width) beside (key heads, tokens, width)
        mixed = query.transpose(0, 1).scaled_dot_product_attention(
            keys.transpose(0, 1), values.transpose(0, 1), seen, scale=scale, enable_gqa=True
        )
        return mixed.transpose(0, 1)
    count, heads, width = query.shape
    groups = keys.shape[-2]
    # Heads that share keys are rows of one product.
    grouped = query.reshape(count, groups, heads // groups, width)
    mixed = grouped.scaled_dot_product_attention(
        keys.transpose(1, 2), values.transpose(1, 2), seen[:, None, None], scale=scale
    )
    return mixed.reshape(count, heads, values.shape[-1])
