"""`torch.utils.data`: data sets, and the loader whose batches are tensors on the CPU."""

from __future__ import annotations

from typing import Any

from baregrad.base.errors import ArgumentError
from baregrad.base.namespaces import unknown_name
from baregrad.data import loading
from baregrad.data.datasets import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from baregrad.data.samplers import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from baregrad.tensor.array.random_state import RandomSource

__all__ = [
    "BatchSampler",
    "ChainDataset",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "IterableDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "StackDataset",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "default_collate",
    "default_convert",
    "get_worker_info",
    "random_split",
]

# PyTorch has modules below it: see `places`.
__path__: tuple[str, ...] = ()


def default_collate(batch: list[Any]) -> Any:
    """Return samples as one value of tensors on the CPU; see `baregrad.data.loading.collate`."""
    return loading.with_tensors(loading.collate(batch), "CPU")


def default_convert(data: Any) -> Any:
    """Return a sample with its arrays as tensors on the CPU, and all else as it is."""
    return loading.with_tensors(data, "CPU")


def get_worker_info() -> loading.WorkerInfo | None:
    """Return which process of a loader's this is, None where it is none."""
    return loading.worker_info()


class _Loader(loading.DataLoader):
    """`baregrad.data.DataLoader` with tensors for arrays: on the CPU unless `device` says.

    pin_memory is taken for PyTorch's sake: what is copied to a GPU goes through pinned memory; what
    else is None there is as if it were not given. generator: draws the order. Raises ArgumentError
    for a `timeout`.
    """

    def __init__(
        self, dataset: Any, batch_size: int = 1, shuffle: bool | None = None, *,
        pin_memory: bool = False, timeout: float = 0, device: str | None = "CPU",
        generator: RandomSource | None = None, **settings: Any,
    ) -> None:
        if timeout:
            raise ArgumentError("workers are waited for without end", found=f"timeout={timeout}")
        given = {name: value for name, value in settings.items() if value is not None}
        if generator is not None and shuffle and "sampler" not in given:
            given["sampler"], shuffle = RandomSampler(dataset, generator=generator), False
        super().__init__(dataset, batch_size, bool(shuffle), device=device, **given)

    def __class_getitem__(cls, item: Any) -> type[_Loader]:
        return cls


DataLoader = _Loader


def __getattr__(name: str) -> object:
    raise unknown_name("baregrad.utils.data", name, __all__)
