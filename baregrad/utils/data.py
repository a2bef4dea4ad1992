"""`torch.utils.data`: data sets, and the loader whose batches are tensors on the CPU."""

from __future__ import annotations

from typing import Any

from baregrad.base.namespaces import unknown_name
from baregrad.data import loading
from baregrad.data.datasets import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    random_split,
)
from baregrad.data.loading import collate as default_collate
from baregrad.data.samplers import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

__all__ = [
    "BatchSampler",
    "ChainDataset",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "IterableDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "default_collate",
    "random_split",
]


class _Loader(loading.DataLoader):
    """`baregrad.data.DataLoader` with tensors for arrays: on the CPU unless `device` says.

    pin_memory is taken for PyTorch's sake: what is copied to a GPU goes through pinned memory.
    """

    def __init__(
        self, dataset: Any, batch_size: int = 1, shuffle: bool = False, *,
        pin_memory: bool = False, device: str | None = "CPU", **settings: Any,
    ) -> None:
        super().__init__(dataset, batch_size, shuffle, device=device, **settings)


DataLoader = _Loader


def __getattr__(name: str) -> object:
    raise unknown_name("baregrad.utils.data", name, __all__)
