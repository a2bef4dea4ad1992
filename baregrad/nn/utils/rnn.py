"""Sequences of different lengths: padded to the longest, or packed without padding.

A packed batch has the first steps of all sequences, then the second steps, and so on, the longest
sequence first, as in PyTorch; how many sequences have each step is `batch_sizes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.base.namespaces import unknown_name
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import explained

__all__ = [
    "PackedSequence",
    "invert_permutation",
    "pack_padded_sequence",
    "pack_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "unpack_sequence",
    "unpad_sequence",
]

Integers = npt.NDArray[np.int64]
_HOST = "CPU"


class _Parts(NamedTuple):
    """What a packed batch is made of."""

    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class PackedSequence(_Parts):
    """Sequences without padding, as `pack_padded_sequence` makes them and recurrent layers take.

    data: (sum of lengths, ...), step by step. batch_sizes: how many sequences have each step, on
    the host. sorted_indices: which sequences stand there in order, the longest first;
    unsorted_indices: where each is found; None for both where they were in that order.
    """

    def __new__(
        cls, data: Tensor, batch_sizes: Tensor | None = None,
        sorted_indices: Tensor | None = None, unsorted_indices: Tensor | None = None,
    ) -> PackedSequence:
        """Return a batch. Raises ArgumentError without `batch_sizes`."""
        if not isinstance(data, Tensor) or not isinstance(batch_sizes, Tensor):
            raise ArgumentError(
                "a packed batch is data and its batch sizes, both tensors",
                found=f"{type(data).__name__} and {type(batch_sizes).__name__}",
                hint="pack_padded_sequence() and pack_sequence() make one",
            )
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def sizes_of_steps(self) -> Integers:
        """Return `batch_sizes` as an array: what they were made of, or else they are read.

        Raises ShapeError where they are no sizes of steps of the data.
        """
        known: Integers | None = vars(self).get("_sizes")
        if known is not None:
            return known
        sizes = np.asarray(self.batch_sizes.numpy(), np.int64)
        has_steps = sizes.ndim == 1 and sizes.size and sizes[-1] > 0
        if not has_steps or (np.diff(sizes) > 0).any() or sizes.sum() != self.data.shape[0]:
            raise ShapeError(
                "batch_sizes fall from step to step, none is 0, and their sum is the data's rows",
                found=sizes.tolist(), wanted=f"a sum of {self.data.shape[0]}",
            )
        return sizes

    def with_data(self, data: Tensor) -> PackedSequence:
        """Return a batch of sequences of the same lengths with other elements."""
        made = PackedSequence(data, *self[1:])
        vars(made).update(vars(self))
        return made

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """Return the data on a device, in a dtype, or both; see `Tensor.to`."""
        moved = self.with_data(self.data.to(*args, **kwargs))
        if self.sorted_indices is None or moved.data.device == self.data.device:
            return moved
        where = moved.data.device
        both = [one if one is None else one.to(where) for one in self[2:]]
        made = PackedSequence(moved.data, self.batch_sizes, *both)
        vars(made).update(vars(self))
        return made

    def cpu(self) -> PackedSequence:
        """Return the data on the CPU."""
        return self.to(_HOST)

    def cuda(self, device: int = 0) -> PackedSequence:
        """Return the data on a GPU of the device CUDA."""
        return self.to(f"CUDA:{device}" if device else "CUDA")

    @property
    def is_cuda(self) -> bool:
        """Whether the data is on a GPU."""
        return bool(self.data.is_cuda)

    def float(self) -> PackedSequence:
        """Return the data as float32."""
        return self.with_data(self.data.float())

    def double(self) -> PackedSequence:
        """Return the data as float64."""
        return self.with_data(self.data.double())

    def half(self) -> PackedSequence:
        """Return the data as float16."""
        return self.with_data(self.data.half())

    def long(self) -> PackedSequence:
        """Return the data as int64."""
        return self.with_data(self.data.long())

    def int(self) -> PackedSequence:
        """Return the data as int32."""
        return self.with_data(self.data.int())


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """Return where each place of a permutation is found, None for None."""
    return None if permutation is None else permutation.argsort()


def _lengths(lengths: Any, count: int | None) -> Integers:
    """Lengths as an array. Raises ArgumentError and ShapeError."""
    raw = lengths.numpy() if isinstance(lengths, Tensor) else np.asarray(lengths)
    if raw.ndim != 1 or raw.dtype.kind not in "iu" or (count is not None and len(raw) != count):
        raise ShapeError(
            "a length, an integer, for each sequence", found=f"{raw.dtype} {list(raw.shape)}",
            wanted="a list" if count is None else f"{count} of them",
        )
    if not len(raw) or raw.min() < 1:
        raise ArgumentError("sequences are packed that have elements", found=raw.tolist())
    return raw.astype(np.int64)


def _places(sizes: Integers) -> Integers:
    """Where in a padded (steps * sequences) array the elements of a packed one are found."""
    return np.concatenate([step * sizes[0] + np.arange(n) for step, n in enumerate(sizes)])


def _index(places: npt.NDArray[Any], data: Tensor) -> Tensor:
    return Tensor(places, device=data.device)


@explained
def pack_padded_sequence(
    input: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False,
    enforce_sorted: bool = True,
) -> PackedSequence:
    """Return the elements of padded sequences (L, N, ...), or (N, L, ...), without the padding.

    lengths: of each sequence, read now if they are a tensor. Raises ArgumentError for lengths of 0,
    or that do not fall while `enforce_sorted`, and ShapeError for others than N, or beyond L.
    """
    if input.ndim < 2:
        raise ShapeError("steps and sequences are two axes", found=list(input.shape))
    padded = input.transpose(0, 1) if batch_first else input
    counts = _lengths(lengths, padded.shape[1])
    if counts.max() > padded.shape[0]:
        raise ShapeError(
            "a length beyond the padded one", found=int(counts.max()),
            wanted=f"at most {padded.shape[0]}",
        )
    order = np.argsort(-counts, kind="stable")
    is_sorted = bool((np.diff(counts) <= 0).all())
    if enforce_sorted and not is_sorted:
        raise ArgumentError(
            "the lengths do not fall", found=counts.tolist(),
            hint="enforce_sorted=False sorts the sequences, and puts results back in order",
        )
    indices = None if enforce_sorted else _index(order, padded)
    counts = counts[order]
    sizes = (counts[None, :] > np.arange(counts[0])[:, None]).sum(1)
    steps, column = np.divmod(_places(sizes), sizes[0])
    flat = _index(steps * len(order) + order[column], padded)
    data = padded.flatten(0, 1).index_select(0, flat)
    back = None if indices is None else _index(np.argsort(order), padded)
    made = PackedSequence(data, Tensor(sizes, device=_HOST), indices, back)
    vars(made)["_sizes"] = sizes
    return made


def _laid_out(sizes: Integers, length: int) -> Integers:
    """For each place of a padded (length, sequences) array its packed one, -1 for padding."""
    found = np.full(length * sizes[0], -1, np.int64)
    places = _places(sizes)
    found[places] = np.arange(len(places))
    return found


def padded_steps(packed: PackedSequence) -> tuple[Tensor, Tensor]:
    """The elements as (L, N, ...), zeros behind each sequence, in the packed order; and where.

    The second is (L, N, 1), true where there are elements.
    """
    sizes = packed.sizes_of_steps()
    found = _laid_out(sizes, len(sizes))
    data = packed.data
    shape = (len(sizes), int(sizes[0]))
    rest = (1,) * (data.ndim - 1)
    is_there = _index(found >= 0, data)
    rows = data.index_select(0, _index(np.maximum(found, 0), data))
    padded = is_there.reshape(-1, *rest).where(rows, rows.zeros_like())
    return padded.reshape(*shape, *data.shape[1:]), is_there.reshape(*shape, 1)


def packed_like(padded: Tensor, packed: PackedSequence) -> PackedSequence:
    """Return (L, N, ...) in the packed order as a batch of the lengths of another."""
    places = _index(_places(packed.sizes_of_steps()), padded)
    return packed.with_data(padded.flatten(0, 1).index_select(0, places))


@explained
def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return sequences padded to the longest, (L, N, ...) or (N, L, ...), and their lengths (N,).

    total_length: what they are padded to instead. They are in the order in which they were given.
    Raises ArgumentError for a `total_length` below the longest.
    """
    sizes = sequence.sizes_of_steps()
    length = len(sizes) if total_length is None else total_length
    if length < len(sizes):
        raise ArgumentError(
            "total_length is below that of the longest sequence", found=total_length,
            wanted=f"at least {len(sizes)}",
        )
    padded, is_there = padded_steps(sequence)
    if padding_value:
        rest = (1,) * (padded.ndim - 2)
        padded = is_there.reshape(*is_there.shape[:2], *rest).where(padded, padding_value)
    if length > len(sizes):
        behind = [0, 0] * (padded.ndim - 1) + [0, length - len(sizes)]
        padded = padded.pad(behind, value=padding_value)
    lengths = Tensor((sizes[:, None] > np.arange(sizes[0])[None, :]).sum(0), device=_HOST)
    if sequence.unsorted_indices is not None:
        padded = padded.index_select(1, sequence.unsorted_indices)
        lengths = lengths.index_select(0, sequence.unsorted_indices.to(_HOST))
    return (padded.transpose(0, 1) if batch_first else padded), lengths


@explained
def pad_sequence(
    sequences: Sequence[Tensor], batch_first: bool = False, padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Return sequences (L, ...) filled up to the longest, and stacked: (L, N, ...) or (N, L, ...).

    padding_side: "right" fills behind them, "left" before. Raises ShapeError where axes beside the
    first differ, ArgumentError for another side.
    """
    if padding_side not in ("left", "right"):
        raise ArgumentError("padding_side is 'left' or 'right'", found=repr(padding_side))
    longest = max([x.shape[0] for x in sequences], default=0)
    rows = []
    for x in sequences:
        short = longest - x.shape[0]
        ends = [short, 0] if padding_side == "left" else [0, short]
        rows.append(x.pad([0, 0] * (x.ndim - 1) + ends, value=padding_value))
    return Tensor.stack(rows, dim=0 if batch_first else 1)


@explained
def unpad_sequence(
    padded_sequences: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False
) -> list[Tensor]:
    """Return padded sequences (L, N, ...), or (N, L, ...), as a list without the padding."""
    rows = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    counts = _lengths(lengths, rows.shape[0])
    return [rows[place, : int(count)] for place, count in enumerate(counts)]


@explained
def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Return sequences (L, ...) packed; see `pack_padded_sequence`."""
    lengths = [x.shape[0] for x in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, False, enforce_sorted)


@explained
def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """Return the sequences of a packed batch, in the order in which they were given."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    sizes = packed_sequences.sizes_of_steps()
    counts = (sizes[:, None] > np.arange(sizes[0])[None, :]).sum(0)
    if packed_sequences.unsorted_indices is not None:
        counts = lengths.numpy()
    return [padded[place, : int(count)] for place, count in enumerate(counts)]


def __getattr__(name: str) -> object:
    raise unknown_name("baregrad.nn.utils.rnn", name, __all__)
