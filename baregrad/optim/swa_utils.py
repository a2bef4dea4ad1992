"""Averages of a model's weights over its training: of equal weights, or exponential ones.

Sources: P. Izmailov and others, "Averaging weights leads to wider optima", UAI 2018; B. Polyak and
A. Juditsky, SIAM Journal on Control and Optimization 1992.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from baregrad.base.errors import ArgumentError
from baregrad.base.namespaces import unknown_name
from baregrad.dtypes import dtypes
from baregrad.nn.module import Module
from baregrad.nn.normalisation import BatchNorm
from baregrad.optim.optimizer import Optimizer
from baregrad.optim.scheduler import Following, LRScheduler
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import explained
from baregrad.tensor.array.link import session

__all__ = [
    "SWALR",
    "AveragedModel",
    "get_ema_avg_fn",
    "get_ema_multi_avg_fn",
    "get_swa_avg_fn",
    "get_swa_multi_avg_fn",
    "update_bn",
]

# From an average, what is to be part of it, and how many are, to the next average.
Averaging = Callable[[Tensor, Tensor, Tensor], Tensor]
# The same of several at once, in place.
AveragingAll = Callable[[Sequence[Tensor], Sequence[Tensor], Tensor], None]


def _share(decay: float) -> float:
    if not 0.0 <= decay <= 1.0:
        raise ArgumentError("a decay is from 0 to 1", found=decay)
    return 1 - decay


@explained
def get_ema_avg_fn(decay: float = 0.999) -> Averaging:
    """Return decay * average + (1 - decay) * value, as a function. Raises ArgumentError."""
    share = _share(decay)

    def average(averaged: Tensor, current: Tensor, num_averaged: Tensor) -> Tensor:
        return averaged.lerp(current, share)

    return average


def get_swa_avg_fn() -> Averaging:
    """Return the average of one more value, all of one weight, as a function."""

    def average(averaged: Tensor, current: Tensor, num_averaged: Tensor) -> Tensor:
        return averaged + (current - averaged) / (num_averaged + 1).cast(averaged.dtype)

    return average


def _of_several(average: Averaging) -> AveragingAll:
    def averages(averaged: Sequence[Tensor], current: Sequence[Tensor], count: Tensor) -> None:
        for one, value in zip(averaged, current, strict=True):
            made = average(one, value, count) if one.dtype.is_float else value
            one.copy_(made)

    return averages


@explained
def get_ema_multi_avg_fn(decay: float = 0.999) -> AveragingAll:
    """Return `get_ema_avg_fn` of several tensors at once, written in place."""
    return _of_several(get_ema_avg_fn(decay))


def get_swa_multi_avg_fn() -> AveragingAll:
    """Return `get_swa_avg_fn` of several tensors at once, written in place."""
    return _of_several(get_swa_avg_fn())


class AveragedModel(Module):
    """A copy of a model whose weights are averages of the model's, which `update_parameters` adds.

    avg_fn, multi_avg_fn: how they are averaged, all with one weight by default, as functions
    (average, value, how many) of a tensor, or in place of all; one of both. use_buffers: buffers
    are averaged as well, not copied. The state is PyTorch's: `n_averaged` and the model's below
    `module`. Raises ArgumentError for both functions.
    """

    def __init__(
        self, model: Module, device: str | None = None, avg_fn: Averaging | None = None,
        multi_avg_fn: AveragingAll | None = None, use_buffers: bool = False,
    ) -> None:
        if avg_fn is not None and multi_avg_fn is not None:
            raise ArgumentError("avg_fn or multi_avg_fn says how weights are averaged",
                                found="both")  # fmt: skip
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module.to(device=device)
        like = next(self.module.parameters(), None)
        where = device if like is None else like.device
        self.register_buffer("n_averaged", Tensor(0, dtype=dtypes.int64, device=where))
        self.avg_fn = avg_fn
        self.multi_avg_fn = multi_avg_fn
        self.use_buffers = use_buffers
        self.realize()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model of averages returns."""
        return self.module(*args, **kwargs)

    def _averaged(self, model: Module) -> Iterator[Tensor]:
        return chain(model.parameters(), model.buffers()) if self.use_buffers \
            else model.parameters()

    def update_parameters(self, model: Module) -> None:
        """Add a model's weights to the averages; the first ones are taken as they are.

        Nothing is read, so that a captured step may do so too.
        """
        mine = list(self._averaged(self.module))
        given = [one.detach() for one in self._averaged(model)]
        count: Tensor = vars(self)["n_averaged"]
        with Tensor.no_grad():
            given = [value.to(one.device) for one, value in zip(mine, given, strict=True)]
            first = count == 0
            if self.avg_fn is None:
                (self.multi_avg_fn or get_swa_multi_avg_fn())(mine, given, count)
                for one, value in zip(mine, given, strict=True):
                    one.copy_(first.where(value, one))
            else:
                for one, value in zip(mine, given, strict=True):
                    made = self.avg_fn(one.detach(), value, count)
                    one.copy_(first.where(value, made).cast(one.dtype))
            if not self.use_buffers:
                for kept, buffer in zip(self.module.buffers(), model.buffers(), strict=True):
                    kept.copy_(buffer.detach())
            count.add_(1)
        # Computed with what is computed next: averages would grow a chain.
        held = [*mine, *self.module.buffers(), count]
        session().watching.companions.extend(weakref.ref(one._storage) for one in held)


@explained
def update_bn(loader: Iterable[Any], model: Module, device: str | None = None) -> None:
    """Compute running statistics of batch normalisations anew, from all batches of a loader alike.

    A batch is a tensor, or a list or tuple whose first element is.
    """
    layers = [m for m in model.modules() if isinstance(m, BatchNorm)]
    if not layers:
        return
    was_training = model.training
    momenta = [layer.momentum for layer in layers]
    model.train()
    try:
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None
        with Tensor.no_grad():
            for batch in loader:
                given = batch[0] if isinstance(batch, list | tuple) else batch
                model(given if device is None else given.to(device))
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        model.train(was_training)


def _along_cosine(t: Tensor) -> Tensor:
    return (1 - (t * math.pi).cos()) / 2


class SWALR(LRScheduler):
    """From the rate that there is at its first step to `swa_lr`, over `anneal_epochs` steps.

    swa_lr: of all groups, or one for each. anneal_strategy: "cos" or "linear". Raises
    ArgumentError.
    """

    def __init__(
        self, optimizer: Optimizer, swa_lr: float | Sequence[float], anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
    ) -> None:
        rates: list[Any] = list(swa_lr) if isinstance(swa_lr, list | tuple) \
            else [swa_lr] * len(optimizer.param_groups)
        if len(rates) != len(optimizer.param_groups):
            raise ArgumentError("a rate for each group", found=len(rates),
                                wanted=len(optimizer.param_groups))  # fmt: skip
        if anneal_strategy not in ("cos", "linear"):
            raise ArgumentError("anneal_strategy is 'cos' or 'linear'", found=anneal_strategy)
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ArgumentError("anneal_epochs is an integer from 0 on", found=anneal_epochs)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["swa_lr"] = float(rate)
        self.anneal_epochs = anneal_epochs
        self.anneal_strategy = anneal_strategy
        super().__init__(optimizer)

    def _share(self, steps: Tensor) -> Tensor:
        """How much of the way to `swa_lr` is gone after some steps."""
        t = (steps / max(1, self.anneal_epochs)).clamp(0, 1)
        return _along_cosine(t) if self.anneal_strategy == "cos" else t

    def _set(self, following: Following) -> None:
        steps = self.steps if self.anneal_epochs else self.steps.clamp(min=1)
        before, now = self._share(steps - 1), self._share(steps)
        with Tensor.no_grad():
            for group in self.optimizer.param_groups:
                aim, held = group["swa_lr"], group.lr
                # What it came from, by the rate that there is: others may have set that.
                is_there = before == 1
                start = (held - before * aim) / is_there.where(1.0, 1 - before)
                start = is_there.where(aim, start)
                held.copy_((now * aim + (1 - now) * start).contiguous())
        session().watching.companions.append(weakref.ref(self.steps._storage))


def __getattr__(name: str) -> object:
    raise unknown_name("baregrad.optim.swa_utils", name, __all__)
