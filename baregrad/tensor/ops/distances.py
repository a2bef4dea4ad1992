"""Distances and angles between vectors, and the losses made of them, with PyTorch's arguments.

reduction: "mean", "sum" or "none".
"""

from __future__ import annotations

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.tensor.array.tensor_like import Tensor
from baregrad.tensor.ops.losses import check_same_shape, reduced


def cosine_similarity(x: Tensor, other: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Return the cosine of the angle between vectors along an axis, of tensors that broadcast."""
    # The axis is counted in the shape that they have beside each other.
    shape = (x * other).shape
    # Each by its own length: products of large numbers may be infinite.
    units = [y / y.norm(dim=dim, keepdim=True).clamp(min=eps)
             for y in (x.expand(shape), other.expand(shape))]
    return (units[0] * units[1]).sum(dim)


def pairwise_distance(
    x: Tensor, other: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """Return the p-norm of x - other + eps along the last axis: (..., D) -> (...)."""
    return (x - other + eps).norm(p, -1, keepdim)


def cdist(
    x: Tensor, other: Tensor, p: float = 2.0,
    compute_mode: str = "use_mm_for_euclid_dist_if_necessary",
) -> Tensor:
    """Return the distance of each row from each other one: (..., P, M), (..., R, M) -> (..., P, R).

    p: of the norm, from 0 to infinity. The axes in front broadcast. Differences are taken before
    they are summed whatever `compute_mode` says, so near rows keep their distance; at a distance of
    0 the gradient is 0. Raises
    ShapeError for rows of different lengths, ArgumentError for a negative p.
    """
    if x.ndim < 2 or other.ndim < 2 or x.shape[-1] != other.shape[-1]:
        raise ShapeError(
            "distances are between rows of one length",
            found=f"{list(x.shape)} and {list(other.shape)}",
            wanted="two axes or more, the last ones alike",
        )
    if p < 0:
        raise ArgumentError("distances have a norm of 0 or more", found=f"p={p}")
    return (x.unsqueeze(-2) - other.unsqueeze(-3)).norm(p, -1)


def cosine_embedding_loss(
    x: Tensor, other: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Return 1 - cos for targets of 1, and cos - margin held above 0 for targets of -1.

    x and other (N, D) with a target (N,), or (D,) with a scalar. Raises ShapeError.
    """
    check_same_shape(x, other)
    if x.ndim not in (1, 2) or target.shape != x.shape[:-1]:
        raise ShapeError(
            "there is a target for each pair of vectors",
            found=f"{list(target.shape)} for {list(x.shape)}",
            wanted="(N,) for (N, D), or a scalar for (D,)",
        )
    # As PyTorch has it: squares are held away from 0, not norms.
    held = 1e-12
    squares = ((x * x).sum(-1) + held) * ((other * other).sum(-1) + held)
    cosine = (x * other).sum(-1) / squares.sqrt()
    apart = (cosine - margin).clamp(min=0)
    loss = (target == 1).where(1 - cosine, (target == -1).where(apart, 0))
    return reduced(loss, reduction)


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """Return by how much `negative` is not farther from `anchor` than `positive`, by a margin.

    All three (N, D) or (D,). swap: the negative's distance from `positive` counts where that is
    less. Source: V. Balntas and others, BMVC 2016.
    """
    near = pairwise_distance(anchor, positive, p, eps)
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = far.minimum(pairwise_distance(positive, negative, p, eps))
    return reduced((near - far + margin).clamp(min=0), reduction)


def margin_ranking_loss(
    x: Tensor, other: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Return margin - target * (x - other) held above 0: x is to be larger for targets of 1."""
    return reduced((-target * (x - other) + margin).clamp(min=0), reduction)


def hinge_embedding_loss(
    x: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """Return x for targets of 1, and margin - x held above 0 for targets of -1."""
    apart = (target == 1).where(0, (margin - x).clamp(min=0))
    near = (target == -1).where(0, x)
    return reduced(apart + near, reduction)
