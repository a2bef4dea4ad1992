"""Programs find data sets, checkpoints, scalers and GPUs where PyTorch has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import baregrad
from baregrad import Tensor, amp, cuda, nn, optim
from baregrad.base.errors import ArgumentError, DriverError, IndexOutOfRange
from baregrad.base.options import options
from baregrad.utils import data
from baregrad.utils.checkpoint import checkpoint, checkpoint_sequential


class Squares(data.Dataset):
    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, float(index * index)

    def __len__(self) -> int:
        return 7


def test_data_sets_of_others() -> None:
    joined = Squares() + Squares()
    theirs = torch.utils.data.ConcatDataset([Squares(), Squares()])  # type: ignore[list-item]
    assert [joined[n] for n in range(-14, 14)] == [theirs[n] for n in range(-14, 14)]
    some = data.Subset(joined, [1, 8])
    assert len(some) == 2 and some[1] == (1, 1.0)
    x, y = Tensor(np.arange(6.0).reshape(3, 2)), Tensor([1, 2, 3])
    rows = data.TensorDataset(x, y)
    assert len(rows) == 3 and rows[1][0].tolist() == [2.0, 3.0]
    batches = list(data.DataLoader(rows, batch_size=2, pin_memory=True))
    assert [batch[0].shape for batch in batches] == [(2, 2), (1, 2)]
    numbers = next(iter(data.DataLoader(Squares(), batch_size=7)))
    assert isinstance(numbers[0], Tensor) and numbers[1].tolist() == [n * n for n in range(7)]
    passed = data.ChainDataset([range(2), range(3)])
    assert list(passed) == [0, 1, 0, 1, 2]


@pytest.mark.parametrize("lengths", [[10, 4], [0.5, 0.3, 0.2], [0.33, 0.33, 0.34]])
def test_splits_by_chance(lengths: list[Any]) -> None:
    whole = Squares() + Squares()
    parts = data.random_split(whole, lengths)
    theirs = torch.utils.data.random_split(whole, lengths)  # type: ignore[arg-type]
    assert [len(part) for part in parts] == [len(part) for part in theirs]
    assert sorted(place for part in parts for place in part.indices) == list(range(14))


def test_orders() -> None:
    assert list(data.SequentialSampler(range(3))) == [0, 1, 2]
    whole = data.RandomSampler(range(5))
    assert sorted(whole) == list(range(5)) and len(whole) == 5
    drawn = list(data.RandomSampler(range(3), replacement=True, num_samples=50))
    assert len(drawn) == 50 and set(drawn) <= {0, 1, 2}
    assert sorted(data.RandomSampler(range(3), num_samples=6)) == [0, 0, 1, 1, 2, 2]
    assert sorted(data.SubsetRandomSampler([4, 7, 9])) == [4, 7, 9]
    assert set(data.WeightedRandomSampler([0.0, 1.0, 0.0, 2.0], 20)) == {1, 3}
    for drop in (True, False):
        mine = data.BatchSampler(range(7), 3, drop)
        theirs = torch.utils.data.BatchSampler(range(7), 3, drop)
        assert list(mine) == list(theirs) and len(mine) == len(theirs)
    rows = data.DataLoader(Squares(), batch_sampler=data.BatchSampler(range(7), 3, True))
    assert [batch[0].tolist() for batch in rows] == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ArgumentError, match="from 1 on"):
        data.BatchSampler(range(2), 0, True)
    with pytest.raises(ArgumentError, match="or fewer"):
        data.WeightedRandomSampler([1.0], 2, replacement=False)


class Counted(data.IterableDataset):
    def __iter__(self) -> Any:
        return iter(range(5))


def test_what_is_passed_through() -> None:
    batches = data.DataLoader(Counted(), 2, shuffle=None, num_workers=0, collate_fn=None,
                              timeout=0, prefetch_factor=None, multiprocessing_context=None)
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3], [4]]
    assert list(Counted() + Counted()) == [*range(5), *range(5)]
    assert data.DataLoader[int] is data.DataLoader
    made = data.default_collate([(1, 2.5), (3, 4.0)])
    assert isinstance(made[0], Tensor) and made[1].tolist() == [2.5, 4.0]
    with pytest.raises(ArgumentError, match="ChainDataset"):
        data.ConcatDataset([Counted()])
    with pytest.raises(ArgumentError, match="without end"):
        data.DataLoader(Squares(), timeout=3)
    with pytest.raises(ArgumentError, match="sum to the data set"):
        data.random_split(Squares(), [float("nan"), 3])


@pytest.mark.parametrize("replacement", [True, False])
def test_orders_of_nothing_end(replacement: bool) -> None:
    with pytest.raises(ArgumentError, match="without elements"):
        list(data.RandomSampler([], replacement, num_samples=3))
    for weights in ([-1.0, 2.0], [0.0, 0.0], [float("inf"), 1.0]):
        with pytest.raises(ArgumentError, match="above 0"):
            data.WeightedRandomSampler(weights, 2, replacement)


def test_checkpoints_have_the_gradients() -> None:
    x = Tensor(np.linspace(-1, 1, 4), requires_grad=True)
    checkpoint(lambda v: (v.sin() * v).sum(), x, use_reentrant=False).backward()
    again = Tensor(np.linspace(-1, 1, 4), requires_grad=True)
    steps = [Tensor.sin, Tensor.exp, Tensor.sum]
    checkpoint_sequential(steps, 2, again).backward()
    v = x.detach().numpy()
    np.testing.assert_allclose(x.grad.numpy(), np.cos(v) * v + np.sin(v), rtol=1e-6)
    np.testing.assert_allclose(again.grad.numpy(), np.exp(np.sin(v)) * np.cos(v), rtol=1e-6)


def test_scaled_steps() -> None:
    layer = nn.Linear(2, 1)
    sgd = optim.SGD(layer.parameters(), lr=0.1)
    scaler = amp.GradScaler("cpu", init_scale=8.0)
    with amp.autocast("cpu", dtype=baregrad.bfloat16):
        loss = layer(Tensor.ones(1, 2)).sum()
    before = layer.weight.numpy().copy()
    scaler.scale(loss).backward()
    scaler.step(sgd)
    scaler.update()
    np.testing.assert_allclose(layer.weight.numpy(), before - 0.1, rtol=1e-3)


def test_gpus_casts_take_no_device() -> None:
    from baregrad.cuda.amp import GradScaler, autocast

    x = Tensor.ones(2, 2)
    with autocast(False):
        assert (x @ x).dtype is baregrad.float32
    with autocast(dtype=baregrad.float16):
        assert (x @ x).dtype is baregrad.float16
    assert GradScaler(4.0).get_scale() == 4.0
    assert not amp.GradScaler("cuda", enabled=False).is_enabled()


def test_gpus_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise DriverError("the CUDA driver was not found")

    monkeypatch.setattr(cuda, "Driver", absent)
    assert not cuda.is_available() and cuda.device_count() == 0
    cuda.empty_cache()
    device = baregrad.device("cuda" if baregrad.cuda.is_available() else "cpu")
    assert Tensor([1.0]).to(device).device == "CPU"


def test_gpus_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    class Two:
        def device_count(self) -> int:
            return 2

        def device(self, ordinal: int) -> int:
            return 40 + ordinal

        def device_name(self, device: int) -> str:
            return f"GPU {device}"

        def architecture(self, device: int) -> str:
            return "sm_90a"

    monkeypatch.setattr(cuda, "Driver", Two)
    monkeypatch.setattr(cuda.devices, "Driver", Two)
    assert cuda.is_available() and cuda.get_device_name("cuda:1") == "GPU 41"
    assert cuda.get_device_capability() == (9, 0)
    with pytest.raises(IndexOutOfRange, match="no GPU 2"):
        cuda.get_device_name(2)
    for odd in ("cuda:x", "cpu"):
        with pytest.raises(ArgumentError, match="cuda:1"):
            cuda.get_device_name(odd)


def test_what_is_refused() -> None:
    with pytest.raises(ArgumentError, match="as many rows"):
        data.TensorDataset(Tensor([1]), Tensor([1, 2]))
    with pytest.raises(ArgumentError, match="sum to the data set"):
        data.random_split(Squares(), [3, 3])
    with pytest.raises(ArgumentError, match="to join"):
        data.ConcatDataset([])
    with pytest.raises(IndexOutOfRange):
        _ = (Squares() + Squares())[14]
    with pytest.raises(ArgumentError, match="draws are the same"):
        checkpoint(Tensor.sin, Tensor([1.0]), preserve_rng_state=False)
    with pytest.raises(ArgumentError, match="segments"):
        checkpoint_sequential([Tensor.sin], 2, Tensor([1.0]))
    for room, name in (("utils", "dataa"), ("utils.data", "DataLoder"), ("amp", "autocats"),
                       ("cuda", "is_avaliable"), ("utils.checkpoint", "check")):  # fmt: skip
        place: Any = baregrad
        for part in room.split("."):
            place = getattr(place, part)
        with pytest.raises(AttributeError, match="the nearest"):
            getattr(place, name)


def test_settings_of_backends() -> None:
    baregrad.backends.cudnn.benchmark = True
    baregrad.backends.cudnn.deterministic = False
    baregrad.backends.cuda.enable_flash_sdp(False)
    assert baregrad.backends.cudnn.benchmark
    assert not baregrad.backends.mps.is_available()
    with options.override():
        before = baregrad.get_float32_matmul_precision()
        baregrad.backends.cuda.matmul.allow_tf32 = True
        assert baregrad.get_float32_matmul_precision() == "high"
        assert baregrad.backends.cuda.matmul.allow_tf32
        baregrad.backends.cuda.matmul.allow_tf32 = False
        baregrad.set_float32_matmul_precision(before)
    with pytest.raises(AttributeError, match="'benchmark'"):
        baregrad.backends.cudnn.bench_mark = True
