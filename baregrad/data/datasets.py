"""Data sets of other data sets, and of arrays: joined, chosen from, split by chance."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any

from baregrad.base.errors import ArgumentError, IndexOutOfRange
from baregrad.data.samplers import drawn_order
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import explained
from baregrad.tensor.array.random_state import RandomSource


class Dataset:
    """The base of data sets: a subclass writes `__getitem__`, and `__len__` to be shuffled."""

    def __class_getitem__(cls, item: Any) -> type[Dataset]:
        return cls

    def __add__(self, other: Dataset) -> ConcatDataset:
        return ConcatDataset([self, other])


class IterableDataset(Dataset):
    """A data set that is only passed through: a subclass writes `__iter__`."""

    def __add__(self, other: Dataset) -> ChainDataset:  # type: ignore[override]
        return ChainDataset([self, other])

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__()")


class TensorDataset(Dataset):
    """Rows of tensors: element i has row i of each. Raises ArgumentError for unlike numbers."""

    def __init__(self, *tensors: Tensor) -> None:
        if len({len(one) for one in tensors}) > 1:
            raise ArgumentError("tensors of as many rows", found=[len(one) for one in tensors])
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        return tuple(one[index] for one in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0]) if self.tensors else 0


class ConcatDataset(Dataset):
    """Data sets one after another. Raises ArgumentError for none, and for those without length."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ArgumentError("data sets to join", found="none")
        for one in self.datasets:
            if not hasattr(one, "__len__"):
                raise ArgumentError("data sets of a known length", found=type(one).__name__,
                                    hint="ChainDataset joins those that have none")  # fmt: skip
        self.cumulative_sizes = list(accumulate(len(one) for one in self.datasets))

    def __getitem__(self, index: int) -> Any:
        size = len(self)
        if not -size <= index < size:
            raise IndexOutOfRange(f"element {index}", found=f"{size} of them")
        index %= size
        which = bisect_right(self.cumulative_sizes, index)
        before = self.cumulative_sizes[which - 1] if which else 0
        return self.datasets[which][index - before]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


class ChainDataset(IterableDataset):
    """Data sets that are passed through, one after another."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self.datasets)


class Subset(Dataset):
    """Some elements of a data set, by their places."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)


class StackDataset(Dataset):
    """Elements of several data sets beside each other: tuples, or dicts by the names given.

    Raises ArgumentError for none, for both forms, and for data sets of several lengths.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        held = list(kwargs.values()) if kwargs else list(args)
        if not held or (args and kwargs) or len({len(one) for one in held}) > 1:
            raise ArgumentError(
                "data sets of one length, by position or by name",
                found=f"{len(args)} and {len(kwargs)}, of {sorted({len(one) for one in held})}",
            )
        self.datasets: Any = kwargs or args

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.datasets, dict):
            return {name: one[index] for name, one in self.datasets.items()}
        return tuple([one[index] for one in self.datasets])

    def __len__(self) -> int:
        held = self.datasets.values() if isinstance(self.datasets, dict) else self.datasets
        return len(next(iter(held)))


@explained
def random_split(
    dataset: Any, lengths: Sequence[float], generator: RandomSource | None = None
) -> list[Subset]:
    """Return parts of a data set, of lengths, or shares that sum to 1, drawn by chance.

    What shares leave over goes to the first parts, one each. Raises ArgumentError for others.
    """
    size = len(dataset)
    counts = list(lengths)
    if math.isclose(sum(counts), 1) and all(0 <= share <= 1 for share in counts):
        counts = [math.floor(size * share) for share in counts]
        for place in range(size - int(sum(counts))):
            counts[place % len(counts)] += 1
    if any(not float(count).is_integer() or count < 0 for count in counts) or sum(counts) != size:
        raise ArgumentError(
            "lengths that sum to the data set's, or shares that sum to 1", found=list(lengths),
            wanted=size,
        )
    order = drawn_order(size, generator)
    ends = list(accumulate(int(count) for count in counts))
    starts = [0, *ends[:-1]]
    return [Subset(dataset, order[start:end]) for start, end in zip(starts, ends, strict=True)]
