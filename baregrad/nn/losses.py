"""Losses as modules. reduction: "mean", "sum" or "none"."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from baregrad.base.errors import ArgumentError
from baregrad.nn import functional
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


class GaussianNLLLoss(_Loss):
    """(log(var) + (x - target)**2 / var) / 2, of a normal distribution of mean x."""

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.full = full
        self.eps = eps

    def forward(self, x: Tensor, target: Tensor, var: Tensor) -> Tensor:
        """Return the loss. Raises ShapeError for shapes that do not fit."""
        return x.gaussian_nll_loss(target, var, self.full, self.eps, self.reduction)


class PoissonNLLLoss(_Loss):
    """exp(x) - target*x, or x - target*log(x) where x is no logarithm."""

    def __init__(
        self, log_input: bool = True, full: bool = False, eps: float = 1e-8,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.log_input = log_input
        self.full = full
        self.eps = eps

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the loss. Raises ShapeError for shapes that do not fit."""
        return x.poisson_nll_loss(target, self.log_input, self.full, self.eps, self.reduction)


class SoftMarginLoss(_Loss):
    """log(1 + exp(-target * x)), for targets of 1 and -1."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the loss. Raises ShapeError for different shapes."""
        return x.soft_margin_loss(target, self.reduction)


class _MarginLoss(_Loss):
    def __init__(self, margin: float, reduction: str) -> None:
        super().__init__(reduction)
        self.margin = margin


class CosineEmbeddingLoss(_MarginLoss):
    """1 - cos for targets of 1, and cos - margin held above 0 for targets of -1."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(margin, reduction)

    def forward(self, x: Tensor, other: Tensor, target: Tensor) -> Tensor:
        """Return the loss of vectors (N, D) and targets (N,). Raises ShapeError."""
        return x.cosine_embedding_loss(other, target, self.margin, self.reduction)


class MarginRankingLoss(_MarginLoss):
    """margin - target * (x - other) held above 0: x is to be larger for targets of 1."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(margin, reduction)

    def forward(self, x: Tensor, other: Tensor, target: Tensor) -> Tensor:
        """Return the loss. Raises ShapeError for shapes that do not fit."""
        return x.margin_ranking_loss(other, target, self.margin, self.reduction)


class HingeEmbeddingLoss(_MarginLoss):
    """x for targets of 1, and margin - x held above 0 for targets of -1."""

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(margin, reduction)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the loss. Raises ShapeError for shapes that do not fit."""
        return x.hinge_embedding_loss(target, self.margin, self.reduction)


class TripletMarginLoss(_MarginLoss):
    """By how much the negative is not farther from the anchor than the positive, by a margin."""

    def __init__(
        self, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6, swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(margin, reduction)
        self.p = p
        self.eps = eps
        self.swap = swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Return the loss of vectors (N, D). Raises ShapeError for shapes that do not fit."""
        return anchor.triplet_margin_loss(
            positive, negative, self.margin, self.p, self.eps, self.swap, self.reduction
        )


class CosineSimilarity(Module):
    """The cosine of the angle between vectors along an axis."""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        self.dim = dim
        self.eps = eps

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        """Return the cosines."""
        return x.cosine_similarity(other, self.dim, self.eps)


class PairwiseDistance(Module):
    """The p-norm of the difference of vectors along the last axis."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        self.p = p
        self.eps = eps
        self.keepdim = keepdim

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        """Return the distances."""
        return x.pairwise_distance(other, self.p, self.eps, self.keepdim)


class CTCLoss(_Loss):
    """Minus the log of the likelihood of labels whose places are not known: `ctc_loss`."""

    def __init__(
        self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False
    ) -> None:
        super().__init__(reduction)
        self.blank = blank
        self.zero_infinity = zero_infinity

    def forward(
        self, log_probs: Tensor, targets: Tensor, input_lengths: Tensor | Sequence[int],
        target_lengths: Tensor | Sequence[int],
    ) -> Tensor:
        """Return the loss of (T, N, C). Raises ShapeError for shapes that do not fit."""
        return functional.ctc_loss(
            log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction,
            self.zero_infinity,
        )


class MultiMarginLoss(_WeightedLoss):
    """By how much other classes come within a margin of the target's score, to the power p."""

    def __init__(
        self, p: int = 1, margin: float = 1.0, weight: Tensor | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight, reduction)
        self.p = p
        self.margin = margin

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the loss of scores (N, C) and class ids (N,). Raises ShapeError."""
        return functional.multi_margin_loss(
            x, target, self.p, self.margin, self.weight, self.reduction
        )


class MultiLabelMarginLoss(_Loss):
    """By how much labels are not 1 above the other classes; a row's labels end at -1."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the loss of scores and labels (N, C). Raises ShapeError."""
        return functional.multilabel_margin_loss(x, target, self.reduction)


class MultiLabelSoftMarginLoss(_WeightedLoss):
    """The mean over classes of the binary cross-entropy of sigmoid(x)."""

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(weight, reduction)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the loss. Raises ShapeError for different shapes."""
        return functional.multilabel_soft_margin_loss(x, target, self.weight, self.reduction)


class TripletMarginWithDistanceLoss(_MarginLoss):
    """By how much the negative is not farther than the positive, by any distance."""

    def __init__(
        self, *, distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
        margin: float = 1.0, swap: bool = False, reduction: str = "mean",
    ) -> None:
        super().__init__(margin, reduction)
        self.distance_function = distance_function
        self.swap = swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Return the loss. Raises ShapeError for shapes that do not fit."""
        return functional.triplet_margin_with_distance_loss(
            anchor, positive, negative, distance_function=self.distance_function,
            margin=self.margin, swap=self.swap, reduction=self.reduction,
        )
