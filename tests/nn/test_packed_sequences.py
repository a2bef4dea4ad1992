"""Sequences of different lengths, packed or padded, and recurrent layers over them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils import rnn as theirs

from baregrad import jit, nn
from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.nn.utils import rnn as ours
from baregrad.tensor import Tensor

LENGTHS = [2, 4, 1, 4]


def draw(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def agree(mine: Any, other: Any) -> None:
    if mine is None or other is None:
        assert mine is other
        return
    np.testing.assert_allclose(mine.numpy(), other.detach().numpy(), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize(("lengths", "enforce_sorted"), [(LENGTHS, False), ([4, 4, 2, 1], True)])
def test_packing_and_padding(lengths: list[int], enforce_sorted: bool, batch_first: bool) -> None:
    data = draw(4, 5, 3)
    if not batch_first:
        data = data.swapaxes(0, 1).copy()
    x = Tensor(data)
    mine = ours.pack_padded_sequence(x, lengths, batch_first, enforce_sorted)
    other = theirs.pack_padded_sequence(torch.tensor(data), torch.tensor(lengths), batch_first,
                                        enforce_sorted)
    for one, two in zip(mine, other, strict=True):
        agree(one, two)
    words: dict[str, Any] = {"batch_first": batch_first, "padding_value": -2.0, "total_length": 6}
    found = ours.pad_packed_sequence(mine, **words)
    for one, two in zip(found, theirs.pad_packed_sequence(other, **words), strict=True):
        agree(one, two)
    parts = zip(ours.unpack_sequence(mine), theirs.unpack_sequence(other), strict=True)
    for one, two in parts:
        agree(one, two)
    again = zip(ours.unpad_sequence(x, lengths, batch_first),
                theirs.unpad_sequence(torch.tensor(data), torch.tensor(lengths), batch_first),
                strict=True)  # fmt: skip
    for one, two in again:
        agree(one, two)


def test_lists_of_sequences_and_fields_alone() -> None:
    rows = [draw(n, 2, seed=n) for n in (3, 1, 2)]
    mine = ours.pack_sequence([Tensor(row) for row in rows], enforce_sorted=False)
    other = theirs.pack_sequence([torch.tensor(row) for row in rows], enforce_sorted=False)
    for one, two in zip(mine, other, strict=True):
        agree(one, two)
    agree(ours.pad_sequence([Tensor(row) for row in rows], True, 1.5, "left"),
          theirs.pad_sequence([torch.tensor(row) for row in rows], True, 1.5, "left"))
    made = ours.PackedSequence(*mine[:3])
    agree(made.unsorted_indices, other.unsorted_indices)
    agree(ours.pad_packed_sequence(made.double())[0], theirs.pad_packed_sequence(other.double())[0])
    assert made.half().data.dtype.name == "float16" and not made.is_cuda


@pytest.mark.parametrize(("kind", "words"), [
    ("LSTM", {"bidirectional": True}),
    pytest.param("LSTM", {"proj_size": 2, "num_layers": 2, "bidirectional": True},
                 marks=pytest.mark.slow),
    pytest.param("GRU", {"num_layers": 2, "bidirectional": True}, marks=pytest.mark.slow),
    pytest.param("RNN", {"batch_first": True}, marks=pytest.mark.slow),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("given", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_layers_over_packed_sequences(kind: str, words: dict[str, Any], given: bool) -> None:
    torch.manual_seed(0)
    other = getattr(torch.nn, kind)(3, 4, **words)
    mine = getattr(nn, kind)(3, 4, **words)
    assert list(mine.state_dict()) == list(other.state_dict())
    mine.load_state_dict({name: Tensor(t) for name, t in other.state_dict().items()})
    assert [[w.shape for w in row] for row in mine.all_weights] == [
        [tuple(w.shape) for w in row] for row in other.all_weights]
    mine.flatten_parameters()
    data = draw(4, 5, 3)
    x, t = Tensor(data, requires_grad=True), torch.tensor(data, requires_grad=True)
    packed = ours.pack_padded_sequence(x, LENGTHS, True, False)
    packed_t = theirs.pack_padded_sequence(t, torch.tensor(LENGTHS), True, False)
    count = words.get("num_layers", 1) * (2 if words.get("bidirectional") else 1)
    widths = [words.get("proj_size", 4), 4][: 2 if kind == "LSTM" else 1]
    firsts = [draw(count, 4, width, seed=width) for width in widths]
    hx: Any = tuple(map(Tensor, firsts)) if kind == "LSTM" else Tensor(firsts[0])
    hz: Any = tuple(map(torch.tensor, firsts)) if kind == "LSTM" else torch.tensor(firsts[0])
    out, state = mine(packed, hx) if given else mine(packed)
    wanted, state_t = other(packed_t, hz) if given else other(packed_t)
    found = [out.data, *(state if kind == "LSTM" else (state,))]
    aims = [wanted.data, *(state_t if kind == "LSTM" else (state_t,))]
    for one, two in zip(found, aims, strict=True):
        agree(one, two)
    sum((one * one).sum() for one in found).backward()
    sum((two * two).sum() for two in aims).backward()
    agree(x.grad, t.grad)
    for p, q in zip(mine.parameters(), other.parameters(), strict=True):
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.differential
@pytest.mark.parametrize("words", [{}, {"num_layers": 2, "bidirectional": True}], ids=str)
def test_projections_equal_pytorchs(words: dict[str, Any]) -> None:
    other = torch.nn.LSTM(3, 5, proj_size=2, **words)
    mine = nn.LSTM(3, 5, proj_size=2, **words)
    mine.load_state_dict({name: Tensor(t) for name, t in other.state_dict().items()})
    data = draw(4, 2, 3)
    found, wanted = mine(Tensor(data)), other(torch.tensor(data))
    agree(found[0], wanted[0])
    for one, two in zip(found[1], wanted[1], strict=True):
        agree(one, two)


@pytest.mark.slow
def test_a_captured_function_packs_by_lengths_that_are_known() -> None:
    layer = nn.GRU(3, 4, batch_first=True)

    @jit
    def outputs(x: Tensor) -> Tensor:
        packed = ours.pack_padded_sequence(x, LENGTHS, True, False)
        return ours.pad_packed_sequence(layer(packed)[0], True)[0]

    for seed in range(3):
        x = Tensor(draw(4, 5, 3, seed=seed))
        packed = ours.pack_padded_sequence(x, LENGTHS, True, False)
        wanted = ours.pad_packed_sequence(layer(packed)[0], True)[0]
        np.testing.assert_allclose(outputs(x).numpy(), wanted.numpy(), rtol=1e-5, atol=1e-6)


def test_what_is_refused() -> None:
    x = Tensor(draw(5, 3, 2))
    with pytest.raises(ArgumentError, match="do not fall.*enforce_sorted=False"):
        ours.pack_padded_sequence(x, [1, 2, 3])
    with pytest.raises(ArgumentError, match="have elements"):
        ours.pack_padded_sequence(x, [2, 1, 0])
    with pytest.raises(ShapeError, match="a length, an integer, for each"):
        ours.pack_padded_sequence(x, [2, 1])
    with pytest.raises(ShapeError, match="beyond the padded one"):
        ours.pack_padded_sequence(x, [6, 1, 1])
    packed = ours.pack_padded_sequence(x, [3, 2, 1])
    with pytest.raises(ArgumentError, match="below that of the longest"):
        ours.pad_packed_sequence(packed, total_length=2)
    with pytest.raises(ShapeError, match="another shape"):
        nn.GRU(3, 4)(packed)
    with pytest.raises(DTypeError, match="PackedSequence"):
        nn.GRU(2, 4)([1.0])
    with pytest.raises(ArgumentError, match="both tensors"):
        ours.PackedSequence(x)
    with pytest.raises(ArgumentError, match="padding_side"):
        ours.pad_sequence([x], padding_side="top")
    with pytest.raises(ArgumentError, match="below hidden_size"):
        nn.LSTM(2, 4, proj_size=4)
    with pytest.raises(AttributeError, match="'pad_sequence'"):
        _ = ours.pad_sequences


@pytest.mark.parametrize("sizes", [[1, 2], [0, 0], [1, 1], [3, 0], []])
def test_sizes_that_are_none_of_the_data(sizes: list[int]) -> None:
    made = ours.PackedSequence(Tensor([1.0, 2.0, 3.0]), Tensor(sizes, dtype="int64"))
    with pytest.raises(ShapeError, match="batch_sizes fall"):
        ours.pad_packed_sequence(made)


def test_only_an_lstm_projects() -> None:
    with pytest.raises(ArgumentError, match="LSTM"):
        nn.GRU(2, 4, proj_size=2)
