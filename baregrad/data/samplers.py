"""Orders of a data set's elements: in turn, by chance, by weights, and in batches.

What is drawn follows `manual_seed`, or a generator's own seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

import numpy as np

from baregrad.base.errors import ArgumentError
from baregrad.data.shuffle import permutation
from baregrad.tensor import Tensor
from baregrad.tensor.array.random_state import RandomSource


def drawn_order(count: int, generator: RandomSource | None) -> list[int]:
    """The numbers below `count` in an order by chance."""
    where = None if generator is None else generator.device
    order: list[int] = Tensor.randperm(count, device=where, generator=generator).tolist()
    return order


class Sampler:
    """The base of orders: a subclass writes `__iter__`, which yields places, and `__len__`."""

    def __init__(self, data_source: Any = None) -> None:
        self.data_source = data_source

    def __class_getitem__(cls, item: Any) -> type[Sampler]:
        return cls

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__()")


class SequentialSampler(Sampler):
    """All places in turn."""

    def __init__(self, data_source: Sized) -> None:
        super().__init__(data_source)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler):
    """Places by chance: each once, or `num_samples` of them, with `replacement` any again."""

    def __init__(
        self, data_source: Sized, replacement: bool = False, num_samples: int | None = None,
        generator: RandomSource | None = None,
    ) -> None:
        super().__init__(data_source)
        if num_samples is not None and (not isinstance(num_samples, int) or num_samples < 1):
            raise ArgumentError("num_samples is an integer from 1 on", found=repr(num_samples))
        self.replacement, self.generator = replacement, generator
        self.num_samples = len(data_source) if num_samples is None else num_samples

    def __iter__(self) -> Iterator[int]:
        size = len(self.data_source)
        if self.num_samples and not size:
            raise ArgumentError("places of a data set", found="one without elements")
        if self.replacement:
            source = self.generator
            yield from Tensor.randint(
                0, size, (self.num_samples,), device=None if source is None else source.device,
                generator=source,
            ).tolist()
            return
        left = self.num_samples
        while left > 0:
            yield from drawn_order(size, self.generator)[:left]
            left -= size

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler):
    """Given places in an order by chance."""

    def __init__(self, indices: Sequence[int], generator: RandomSource | None = None) -> None:
        super().__init__()
        self.indices, self.generator = indices, generator

    def __iter__(self) -> Iterator[int]:
        for place in drawn_order(len(self.indices), self.generator):
            yield self.indices[place]

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler):
    """`num_samples` places, as likely as their weights say.

    Weights are read at once. Raises ArgumentError for too many places, and for weights below 0,
    without an end, or of too few that are above 0.
    """

    def __init__(
        self, weights: Sequence[float] | Tensor, num_samples: int, replacement: bool = True,
        generator: RandomSource | None = None,
    ) -> None:
        super().__init__()
        self.weights = (weights if isinstance(weights, Tensor)
                        else Tensor(list(weights), dtype="float64"))  # fmt: skip
        most = math.inf if replacement else len(self.weights)
        if not isinstance(num_samples, int) or not 1 <= num_samples <= most:
            raise ArgumentError("as many samples as there are weights, or fewer",
                                found=num_samples, wanted=f"1 to {len(self.weights)}")  # fmt: skip
        raw = self.weights.numpy()
        least = 1 if replacement else num_samples
        if not (np.isfinite(raw) & (raw >= 0)).all() or (raw > 0).sum() < least:
            raise ArgumentError("weights from 0 on, of which enough are above it",
                                found=raw.tolist()[:8], wanted=f"{least} above 0")  # fmt: skip
        self.num_samples = num_samples
        self.replacement, self.generator = replacement, generator

    def __iter__(self) -> Iterator[int]:
        source = self.generator
        weights = self.weights if source is None else self.weights.to(source.device)
        drawn = weights.multinomial(self.num_samples, self.replacement, generator=source)
        return iter(drawn.tolist())

    def __len__(self) -> int:
        return self.num_samples


class DistributedSampler(Sampler):
    """The places that one of `num_replicas` processes takes: every num_replicas-th from `rank` on.

    Each epoch, which `set_epoch` names, has an order of its own by `seed`, the same in all
    processes. All take as many: the first places are taken again where they are too few, or with
    `drop_last` the last ones left out. Raises ArgumentError for a rank that there is not.
    """

    def __init__(
        self, dataset: Sized, num_replicas: int | None = None, rank: int | None = None,
        shuffle: bool = True, seed: int = 0, drop_last: bool = False,
    ) -> None:
        super().__init__(dataset)
        self.num_replicas = 1 if num_replicas is None else num_replicas
        self.rank = 0 if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            raise ArgumentError("one of the processes", found=f"{rank} of {num_replicas}",
                                wanted=f"0 to {self.num_replicas - 1}")  # fmt: skip
        self.shuffle, self.seed, self.drop_last, self.epoch = shuffle, seed, drop_last, 0
        share = len(dataset) / self.num_replicas
        self.num_samples = math.floor(share) if drop_last else math.ceil(share)
        self.total_size = self.num_samples * self.num_replicas

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be in the order of an epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        size = len(self.data_source)
        places: list[int] = (
            permutation(size, seed=self.seed, epoch=self.epoch).tolist() if self.shuffle
            else list(range(size))
        )
        whole = [places[at % size] for at in range(self.total_size)]
        return iter(whole[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler):
    """Lists of the places that another order gives."""

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        super().__init__()
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ArgumentError("batch_size is an integer from 1 on", found=repr(batch_size))
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for place in self.sampler:
            batch.append(place)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        count: int = len(self.sampler)  # type: ignore[arg-type]
        return (count if self.drop_last else count + self.batch_size - 1) // self.batch_size
