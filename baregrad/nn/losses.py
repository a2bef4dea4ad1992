"""Losses as modules. reduction: "mean", "sum" or "none"."""

from __future__ import annotations

from baregrad.base.errors import ArgumentError
from baregrad.nn.module import Module
from baregrad.tensor import Tensor


class _Loss(Module):
    def __init__(self, reduction: str = "mean") -> None:
        if reduction not in ("mean", "sum", "none"):
            raise ArgumentError(f"reduction is 'mean', 'sum' or 'none', not {reduction!r}")
        self.reduction = reduction

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"reduction={self.reduction!r}"


class MSELoss(_Loss):
    """The squared difference."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the loss. Raises ShapeError for different shapes."""
        return x.mse_loss(target, self.reduction)


class L1Loss(_Loss):
    """The absolute difference."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the loss. Raises ShapeError for different shapes."""
        return x.l1_loss(target, self.reduction)


class SmoothL1Loss(_Loss):
    """Quadratic below a difference of beta, linear beyond."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = beta

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the loss. Raises ShapeError for different shapes."""
        return x.smooth_l1_loss(target, self.reduction, self.beta)


class HuberLoss(_Loss):
    """Quadratic up to a difference of delta, linear beyond."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = delta

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the loss. Raises ShapeError for different shapes."""
        return x.huber_loss(target, self.reduction, self.delta)


class _WeightedLoss(_Loss):
    """A loss with a weight for each class, which is a buffer of the state, as in PyTorch."""

    weight: Tensor | None

    def __init__(self, weight: Tensor | None, reduction: str) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)


class CrossEntropyLoss(_WeightedLoss):
    """Minus the log of softmax at each target: scores (N, C, ...), class ids (N, ...)."""

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight, reduction)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the loss; the target may be probabilities (N, C, ...) instead."""
        return x.cross_entropy(
            target, self.weight, self.ignore_index, self.reduction, self.label_smoothing
        )


class NLLLoss(_WeightedLoss):
    """Minus the log-probability at each target: (N, C, ...), class ids (N, ...)."""

    def __init__(
        self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        super().__init__(weight, reduction)
        self.ignore_index = ignore_index

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the loss. Raises ShapeError for shapes that do not fit."""
        return x.nll_loss(target, self.weight, self.ignore_index, self.reduction)


class BCELoss(_WeightedLoss):
    """Binary cross-entropy of probabilities."""

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(weight, reduction)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the loss. Raises ShapeError for different shapes."""
        return x.binary_cross_entropy(target, self.weight, self.reduction)


class BCEWithLogitsLoss(_WeightedLoss):
    """Binary cross-entropy of sigmoid(x)."""

    def __init__(
        self,
        weight: Tensor | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ) -> None:
        super().__init__(weight, reduction)
        self.pos_weight: Tensor | None
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the loss. Raises ShapeError for different shapes."""
        return x.binary_cross_entropy_with_logits(
            target, self.weight, self.reduction, self.pos_weight
        )


class KLDivLoss(Module):
    """target*(log(target) - x), where x is a logarithm; reduction may be "batchmean" too."""

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        self.reduction = reduction
        self.log_target = log_target

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the loss. Raises ShapeError for shapes that do not fit."""
        return x.kl_div(target, self.reduction, self.log_target)
