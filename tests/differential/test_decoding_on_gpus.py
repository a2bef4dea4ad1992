"""Attention of one query to many keys through the GPU's compiler, against PyTorch.

Keys in a cache of a symbolic length, and in pages that a table names, masked by each sequence's
length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from baregrad.engine.canonical import bind
from baregrad.ir.core.index import variable
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit
from baregrad.testing.ptx_device import ptx_session
from tests.tensor.oracle import to_numpy

pytestmark = pytest.mark.differential
HEADS, KEY_HEADS, WIDTH, PAGE, ROOM = 4, 2, 32, 64, 24
PAGES = 9


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.tensor(np.random.default_rng(seed).standard_normal(shape)).bfloat16()


def check(found: Any, wanted: torch.Tensor) -> None:
    error = np.abs(found.astype(np.float64) - wanted.numpy()).max()
    assert error < 2.0**-7 * np.abs(wanted.numpy()).max()


def attended(query: Any, key: Any, value: Any, mask: Any = None) -> Any:
    """In PyTorch's float64."""
    return torch.nn.functional.scaled_dot_product_attention(
        query.double(), key.double(), value.double(), mask, enable_gqa=True
    )


def test_a_cache_of_a_symbolic_length() -> None:
    """Its parts end before, at and behind the last key; one program serves all lengths."""
    query = drawn(1, 1, HEADS, 1, WIDTH)
    keys, values = (drawn(seed, 1, KEY_HEADS, 600, WIDTH) for seed in (2, 3))
    with ptx_session():

        @jit
        def step(query: Tensor, keys: Tensor, values: Tensor, at: Any) -> Tensor:
            seen = keys[:, :, : at + 1], values[:, :, : at + 1]
            return query.scaled_dot_product_attention(*seen, enable_gqa=True)

        ours = [Tensor(x).realize() for x in (query, keys, values)]
        for at in (0, 255, 256, 599):
            found = to_numpy(step(*ours, bind(variable("at", 0, 599), at)))
            check(found, attended(query, keys[:, :, : at + 1], values[:, :, : at + 1]))


def through_pages(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, table: Any, lengths: Any,
    window: int | None = None,
) -> Any:  # fmt: skip
    """Ours, of sequences with one query each."""
    count, pages = table.shape
    place = Tensor(np.asarray(table, np.int32))
    length = Tensor(np.asarray(lengths, np.int32))[:, None]
    key, value = (
        Tensor(x)[place].reshape(count, pages * PAGE, KEY_HEADS, WIDTH).transpose(1, 2)
        for x in (keys, values)
    )
    at = Tensor.arange(pages * PAGE)[None, :]
    seen = at < length
    if window is not None:
        seen = seen & (at >= length - window)
    return to_numpy(Tensor(query).scaled_dot_product_attention(
        key, value, seen[:, None, None], enable_gqa=True
    ))  # fmt: skip


@pytest.mark.parametrize("window", (None, 270))
def test_pages_that_a_table_names(window: int | None) -> None:
    rng = np.random.default_rng(5)
    lengths = np.array([1, 256, 300, PAGES * PAGE])
    query = drawn(1, len(lengths), HEADS, 1, WIDTH)
    keys, values = (drawn(seed, ROOM, PAGE, KEY_HEADS, WIDTH) for seed in (2, 3))
    table = np.array([rng.permutation(ROOM)[:PAGES] for _ in lengths])
    at = np.arange(PAGES * PAGE)
    seen = at < lengths[:, None]
    if window is not None:
        seen &= at >= lengths[:, None] - window
    with ptx_session():
        found = through_pages(query, keys, values, table, lengths, window)
    key, value = (x[table].flatten(1, 2).transpose(1, 2) for x in (keys, values))
    check(found, attended(query, key, value, torch.tensor(seen)[:, None, None]))


def test_a_sequence_does_not_depend_on_others() -> None:
    """Bit for bit: neither on how many there are, nor on their lengths."""
    rng = np.random.default_rng(6)
    lengths = np.array([400, 3, 576])
    query = drawn(1, len(lengths), HEADS, 1, WIDTH)
    keys, values = (drawn(seed, ROOM, PAGE, KEY_HEADS, WIDTH) for seed in (2, 3))
    table = np.array([rng.permutation(ROOM)[:PAGES] for _ in lengths])
    with ptx_session():
        every = through_pages(query, keys, values, table, lengths)
        alone = through_pages(query[:1], keys, values, table[:1], lengths[:1])
        others = through_pages(query, keys, values, table, [400, 50, 576])
    assert (every[0] == alone[0]).all() and (every[0] == others[0]).all()
    assert not (every[1] == others[1]).all()


def test_a_symbolic_number_of_sequences() -> None:
    rng = np.random.default_rng(7)
    lengths = np.array([400, 3, 576])
    query = drawn(1, len(lengths), HEADS, 1, WIDTH)
    keys, values = (drawn(seed, ROOM, PAGE, KEY_HEADS, WIDTH) for seed in (2, 3))
    table = np.array([rng.permutation(ROOM)[:PAGES] for _ in lengths])
    with ptx_session():
        every = through_pages(query, keys, values, table, lengths)

        @jit
        def step(query: Tensor, table: Tensor, lengths: Tensor, n: Any) -> Tensor:
            place, length = table[:n], lengths[:n]
            key, value = (
                Tensor(x)[place].reshape(n, PAGES * PAGE, KEY_HEADS, WIDTH).transpose(1, 2)
                for x in (keys, values)
            )
            seen = Tensor.arange(PAGES * PAGE)[None, :] < length[:, None]
            return query[:n].scaled_dot_product_attention(
                key, value, seen[:, None, None], enable_gqa=True
            )

        ours = [Tensor(query), Tensor(table.astype(np.int32)), Tensor(lengths.astype(np.int32))]
        for count in (3, 1):
            found = to_numpy(step(*ours, bind(variable("n", 1, 3), count)))
            assert (found == every[:count]).all()
