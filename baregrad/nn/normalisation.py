"""Normalisation layers. Scales begin as ones and shifts as zeros."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from baregrad.base.errors import ShapeError
from baregrad.dtypes import default_float, dtypes
from baregrad.nn.init import begin, refill
from baregrad.nn.module import Module
from baregrad.tensor import Tensor
from baregrad.tensor.array.link import session
from baregrad.tensor.ops.creation import as_shape


def _ones(shape: Sequence[int], device: str | None, dtype: object) -> Tensor:
    found = default_float() if dtype is None else dtype
    return Tensor.ones(*shape, device=device, dtype=found, requires_grad=True)


def _zeros(shape: Sequence[int], device: str | None, dtype: object) -> Tensor:
    found = default_float() if dtype is None else dtype
    return Tensor.zeros(*shape, device=device, dtype=found, requires_grad=True)


class BatchNorm(Module):
    """What batch normalisations of any number of axes share.

    momentum: the share of each batch in running statistics; None for that of all batches alike.
    """

    _NDIMS: tuple[int, ...] = ()

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.weight = _ones((num_features,), device, dtype) if affine else None
        self.bias = _zeros((num_features,), device, dtype) if affine else None
        self.running_mean: Tensor | None
        self.running_var: Tensor | None
        self.num_batches_tracked: Tensor | None
        mean = variance = count = None
        if track_running_stats:
            mean = _zeros((num_features,), device, dtype).detach()
            variance = _ones((num_features,), device, dtype).detach()
            count = Tensor.zeros(dtype=dtypes.int64, device=device)
        self.register_buffer("running_mean", mean)
        self.register_buffer("running_var", variance)
        self.register_buffer("num_batches_tracked", count)
        begin(self, BatchNorm)

    def reset_parameters(self) -> None:
        """Begin anew: weights of 1, biases of 0, no batches."""
        self.reset_running_stats()
        refill(self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` normalised. Raises ShapeError for another number of axes or channels."""
        if x.ndim not in self._NDIMS:
            raise ShapeError(
                f"{type(self).__name__} wants another number of axes",
                found=list(x.shape),
                wanted=" or ".join(f"{count} axes" for count in self._NDIMS),
            )
        by_batch = self.training or self.running_mean is None
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        y = x.batch_norm(
            self.running_mean, self.running_var, self.weight, self.bias, by_batch, self._share(),
            self.eps,
        )
        if self.training:
            self._accompany()
        return y

    def _share(self) -> Any:
        """What the next batch is of the running statistics."""
        count = self.num_batches_tracked
        if self.momentum is not None or count is None or self.running_mean is None:
            return 0.0 if self.momentum is None else self.momentum
        return count.cast(self.running_mean.dtype).reciprocal()

    def reset_running_stats(self) -> None:
        """Forget the batches that there were: a mean of 0, a variance of 1."""
        with Tensor.no_grad():
            for held, value in ((self.running_mean, 0), (self.running_var, 1),
                                (self.num_batches_tracked, 0)):  # fmt: skip
                if held is not None:
                    held.fill_(value)

    def _accompany(self) -> None:
        """Have the statistics computed along with the step, or they would hold its whole graph."""
        for _, buffer in self._own(buffers=True):
            session().watching.companions.append(weakref.ref(buffer._storage))

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"


class BatchNorm1d(BatchNorm):
    """Each channel of (N, C) or (N, C, L) normalised by batch statistics, later by running ones."""

    _NDIMS = (2, 3)


class BatchNorm2d(BatchNorm):
    """Each channel of (N, C, H, W) normalised by batch statistics, later by running ones."""

    _NDIMS = (4,)


class BatchNorm3d(BatchNorm):
    """Each channel of (N, C, D, H, W) normalised by batch statistics, later by running ones."""

    _NDIMS = (5,)


class SyncBatchNorm(BatchNorm):
    """Each channel of (N, C, ...) normalised by the statistics of the batch of this one process."""

    _NDIMS = (2, 3, 4, 5)

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: None = None) -> Module:
        """Return a module with all its batch normalisations replaced, themselves if it is one."""
        found = module
        if isinstance(module, BatchNorm1d | BatchNorm2d | BatchNorm3d):
            found = cls(module.num_features, module.eps, module.momentum)
            vars(found).update(vars(module))
        for name, child in list(module.named_children()):
            setattr(found, name, cls.convert_sync_batchnorm(child))
        return found


class _InstanceNorm(BatchNorm):
    """What instance normalisations share: statistics of each channel of each sample."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` normalised. Raises ShapeError for another number of axes or channels."""
        single = x.ndim + 1 in self._NDIMS
        y = x.unsqueeze(0) if single else x
        if y.ndim not in self._NDIMS or y.shape[1] != self.num_features:
            raise ShapeError(
                f"{type(self).__name__} wants another shape",
                found=list(x.shape),
                wanted=f"{self._NDIMS[0]} axes, {self.num_features} channels along axis 1",
            )
        y = y.instance_norm(
            self.running_mean, self.running_var, self.weight, self.bias,
            self.training or self.running_mean is None, self.momentum or 0.0, self.eps,
        )
        if self.training and self.running_mean is not None:
            self._accompany()
        return y.squeeze(0) if single else y


class InstanceNorm1d(_InstanceNorm):
    """Each channel of each sample of (N, C, L) normalised."""

    _NDIMS = (3,)


class InstanceNorm2d(_InstanceNorm):
    """Each channel of each sample of (N, C, H, W) normalised."""

    _NDIMS = (4,)


class InstanceNorm3d(_InstanceNorm):
    """Each channel of each sample of (N, C, D, H, W) normalised."""

    _NDIMS = (5,)


class _LastAxes(Module):
    """What is normalised over the last axes, of `normalized_shape`, and scaled."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None,
        elementwise_affine: bool,
        device: str | None,
        dtype: object,
    ) -> None:
        given: object = normalized_shape
        self.normalized_shape = as_shape(tuple(given) if isinstance(given, Sequence) else (given,))
        self.eps = eps
        self.weight = _ones(self.normalized_shape, device, dtype) if elementwise_affine else None

    def reset_parameters(self) -> None:
        """Begin anew: weights of 1, biases of 0."""
        refill(self.weight, getattr(self, "bias", None))

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"{self.normalized_shape}, eps={self.eps}"


class LayerNorm(_LastAxes):
    """The last axes normalised to mean 0 and variance 1, then scaled and shifted."""

    eps: float

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        has_bias = elementwise_affine and bias
        self.bias = _zeros(self.normalized_shape, device, dtype) if has_bias else None
        begin(self, LayerNorm)

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` normalised. Raises ShapeError unless it ends in normalized_shape."""
        return x.layer_norm(self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(_LastAxes):
    """The last axes divided by their root mean square, then scaled."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        begin(self, RMSNorm)

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` normalised. Raises ShapeError unless it ends in normalized_shape."""
        return x.rms_norm(self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"{self.normalized_shape}, eps={self.eps}"


class GroupNorm(Module):
    """Groups of channels of (N, C, ...) normalised for each sample, then scaled by channel."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        if num_groups < 1 or num_channels % num_groups:
            raise ShapeError(
                "channels divide into groups", found=f"{num_channels} by {num_groups}"
            )
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.weight = _ones((num_channels,), device, dtype) if affine else None
        self.bias = _zeros((num_channels,), device, dtype) if affine else None
        begin(self, GroupNorm)

    def reset_parameters(self) -> None:
        """Begin anew: weights of 1, biases of 0."""
        refill(self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` normalised. Raises ShapeError for other channels."""
        return x.group_norm(self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}"
