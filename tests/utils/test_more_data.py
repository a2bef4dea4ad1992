"""Parts of data sets for processes, and what processes that read are told, against PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import baregrad
from baregrad.base.errors import ArgumentError
from baregrad.utils import data


class Named:
    """Each element says which worker read it."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[int, int, int]:
        told = data.get_worker_info()
        assert told is not None
        assert isinstance(told.dataset, Named)
        return told.id, told.num_workers, told.seed


def test_workers_know_which_they_are() -> None:
    assert data.get_worker_info() is None
    for ids, counts, seeds in data.DataLoader(Named(), batch_size=2, num_workers=2, seed=5):
        assert set(ids.tolist()) <= {0, 1}
        assert [seed - 5 for seed in seeds.tolist()] == ids.tolist()
        assert counts.tolist() == [2, 2]


@pytest.mark.parametrize("drop_last", [False, True])
def test_processes_share_places_out(drop_last: bool) -> None:
    for count, parts in ((10, 3), (2, 4), (8, 2)):
        for rank in range(parts):
            words: Any = {"num_replicas": parts, "rank": rank, "drop_last": drop_last}
            ours = data.DistributedSampler(range(count), shuffle=False, **words)
            theirs = torch.utils.data.DistributedSampler(range(count), shuffle=False, **words)
            assert list(ours) == list(theirs)
            assert len(ours) == len(theirs)
        mixed = [data.DistributedSampler(range(count), parts, rank) for rank in range(parts)]
        assert set().union(*mixed) == set(range(count))
        first = [list(one) for one in mixed]
        mixed[0].set_epoch(1)
        assert len(list(mixed[0])) == len(first[0])
    with pytest.raises(ArgumentError, match="0 to 1"):
        data.DistributedSampler(range(3), 2, 2)
    with pytest.raises(ArgumentError, match="of 0"):
        data.DistributedSampler(range(3), 0, 0)


def test_an_order_is_given_once_beside_a_generator_too() -> None:
    with pytest.raises(ArgumentError, match="given once"):
        data.DataLoader(
            range(3), shuffle=True, sampler=[0],  # type: ignore[arg-type]
            generator=baregrad.Generator(),
        )


def test_data_sets_beside_each_other() -> None:
    pairs = data.StackDataset(range(3), [4, 5, 6])
    named = data.StackDataset(a=range(3), b=[4, 5, 6])
    assert isinstance(pairs, data.StackDataset)
    assert (len(pairs), pairs[1], named[2]) == (3, (1, 5), {"a": 2, "b": 6})
    with pytest.raises(ArgumentError, match="one length"):
        data.StackDataset(range(3), range(4))
    found = data.default_convert({"x": np.ones(2), "y": ("text", 3)})
    assert isinstance(found["x"], baregrad.Tensor)
    assert found["y"] == ("text", 3)
