"""A softmax of very many classes, of which rare ones are in groups with narrower layers.

Source: E. Grave and others, "Efficient softmax approximation for GPUs", ICML 2017.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.nn.containers import ModuleList, Sequential
from baregrad.nn.layers import Linear
from baregrad.nn.module import Module
from baregrad.tensor import Tensor


class AdaptiveLoss(NamedTuple):
    """The log-probability of each target, and the mean loss."""

    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """Log-probabilities of classes, the frequent ones first, in groups from `cutoffs` on.

    The frequent ones have scores of `head` beside one for each group, and those of group i are
    made from in_features // div_value**(i + 1) numbers. All groups are computed of each row, since
    nothing is read. Raises ArgumentError for cutoffs that do not rise from 1 to below n_classes.
    """

    def __init__(
        self, in_features: int, n_classes: int, cutoffs: Sequence[int], div_value: float = 4.0,
        head_bias: bool = False, device: str | None = None, dtype: object = None,
    ) -> None:
        ends = list(cutoffs)
        if (not ends or any(not isinstance(end, int) for end in ends) or ends != sorted(set(ends))
                or ends[0] < 1 or ends[-1] >= n_classes):  # fmt: skip
            raise ArgumentError("cutoffs rise from 1 to below the number of classes",
                                found=f"{ends}", wanted=f"integers below {n_classes}")  # fmt: skip
        self.in_features = in_features
        self.n_classes = n_classes
        self.cutoffs = [*ends, n_classes]
        self.div_value = div_value
        self.head_bias = head_bias
        self.shortlist_size = ends[0]
        self.n_clusters = len(ends)
        self.head_size = ends[0] + len(ends)
        self.head = Linear(in_features, self.head_size, head_bias, device, dtype)
        self.tail = ModuleList()
        for place in range(self.n_clusters):
            width = int(in_features // div_value ** (place + 1))
            size = self.cutoffs[place + 1] - self.cutoffs[place]
            self.tail.append(Sequential(Linear(in_features, width, False, device, dtype),
                                        Linear(width, size, False, device, dtype)))  # fmt: skip

    def _groups(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The head's log-probabilities, and those of all classes of each group."""
        head = self.head(x).log_softmax(1)
        groups = []
        for place, layers in enumerate(self.tail):
            whole = head[:, self.shortlist_size + place]
            groups.append(layers(x).log_softmax(1) + whole.unsqueeze(1))
        return head, groups

    def forward(self, x: Tensor, target: Tensor) -> AdaptiveLoss:
        """Return the log-probability of each target, and the mean of minus these.

        Rows (N, in_features) and class ids (N,), or one of each; NaN of ids that are none, since
        nothing is read. Raises ShapeError.
        """
        single = target.ndim == 0
        if x.ndim != (1 if single else 2) or x.shape[:-1] != target.shape \
                or x.shape[-1] != self.in_features:
            raise ShapeError("rows and a class of each", found=f"{list(x.shape)}, "
                             f"{list(target.shape)}", wanted=f"(N, {self.in_features}), (N,)")
        if single:
            x, target = x.unsqueeze(0), target.unsqueeze(0)
        head, groups = self._groups(x)
        output = self._picked(head, target, 0, self.shortlist_size)
        for first, end, group in zip(self.cutoffs, self.cutoffs[1:], groups, strict=False):
            found = self._picked(group, target - first, 0, end - first)
            output = (target >= first).where(found, output)
        output = ((target >= 0) & (target < self.n_classes)).where(output, math.nan)
        loss = -output.mean()
        return AdaptiveLoss(output.squeeze(0) if single else output, loss)

    def _picked(self, scores: Tensor, places: Tensor, first: int, end: int) -> Tensor:
        kept = places.clamp(first, end - 1).unsqueeze(1)
        return scores.gather(1, kept).squeeze(1)

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log-probabilities of all classes: (N, n_classes)."""
        head, groups = self._groups(x)
        return Tensor.cat([head[:, : self.shortlist_size], *groups], dim=1)

    def predict(self, x: Tensor) -> Tensor:
        """Return the most likely class of each row."""
        if x.ndim != 2:
            raise ShapeError("rows", found=list(x.shape), wanted=f"(N, {self.in_features})")
        likeliest: Tensor = self.head(x).argmax(1)
        return (likeliest < self.shortlist_size).where(likeliest, self.log_prob(x).argmax(1))

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"{self.in_features}, {self.n_classes}, cutoffs={self.cutoffs[:-1]}"
