"""Losses of several classes and of several labels, and distances between all rows."""

from __future__ import annotations

from collections.abc import Callable

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import explained
from baregrad.tensor.ops.losses import check_same_shape, reduced


def _as_rows(x: Tensor) -> Tensor:
    if x.ndim not in (1, 2):
        raise ShapeError("scores are (N, C), or (C,) of one sample", found=list(x.shape))
    return x if x.ndim == 2 else x.unsqueeze(0)


@explained
def multi_margin_loss(
    x: Tensor, target: Tensor, p: int = 1, margin: float = 1.0, weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return by how much other classes come within `margin` of the target's score, to the power p.

    Scores (N, C) and class ids (N,); `weight` (C,) scales each class. Raises ArgumentError for p
    other than 1 and 2.
    """
    if p not in (1, 2):
        raise ArgumentError("the power is 1 or 2", found=p)
    rows, aim = _as_rows(x), target.reshape(-1, 1)
    if aim.shape[0] != rows.shape[0]:
        raise ShapeError("a class for each sample", found=list(target.shape), wanted=rows.shape[0])
    short = (margin - rows.take_along_dim(aim, 1) + rows).relu()
    short = short if p == 1 else short * short
    if weight is not None:
        short = short * weight[aim.squeeze(1)].unsqueeze(1)
    others = Tensor.arange(rows.shape[1], device=x.device).unsqueeze(0) != aim
    loss = others.where(short, 0.0).sum(1) / rows.shape[1]
    return reduced(loss if x.ndim == 2 else loss.squeeze(0), reduction)


@explained
def multilabel_margin_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return by how much labels are not 1 above the other classes: scores and labels (N, C).

    A row's labels end at the first -1.
    """
    check_same_shape(x, target)
    rows, aims = _as_rows(x), _as_rows(target)
    count = rows.shape[1]
    listed = (aims < 0).cast("int64").cumsum(1).eq(0)
    aims = listed.where(aims, 0)
    # (N, labels, classes): whether the label is that class.
    same = aims.unsqueeze(2).eq(Tensor.arange(count, device=x.device)) & listed.unsqueeze(2)
    others = ~same.any(1, True) & listed.unsqueeze(2)
    short = (1 - rows.take_along_dim(aims, 1).unsqueeze(2) + rows.unsqueeze(1)).relu()
    loss = others.where(short, 0.0).sum((1, 2)) / count
    return reduced(loss if x.ndim == 2 else loss.squeeze(0), reduction)


@explained
def multilabel_soft_margin_loss(
    x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Return the mean over classes of the binary cross-entropy of sigmoid(x): (..., C)."""
    check_same_shape(x, target)
    loss = -(target * x.logsigmoid() + (1 - target) * (-x).logsigmoid())
    loss = loss if weight is None else loss * weight
    return reduced(loss.mean(-1), reduction)


@explained
def triplet_margin_with_distance_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None, margin: float = 1.0,
    swap: bool = False, reduction: str = "mean",
) -> Tensor:
    """Return by how much the negative is not farther than the positive, by any distance."""
    measure = distance_function or Tensor.pairwise_distance
    near, far = measure(anchor, positive), measure(anchor, negative)
    if swap:
        far = far.minimum(measure(positive, negative))
    return reduced((margin + near - far).relu(), reduction)


@explained
def pdist(x: Tensor, p: float = 2.0) -> Tensor:
    """Return the distances of all pairs of rows, (N, M) -> (N (N - 1) / 2,), in row-major order."""
    if x.ndim != 2:
        raise ShapeError("distances are of the rows of a matrix", found=list(x.shape))
    if not p >= 0:
        raise ArgumentError("a norm's power is not negative", found=p)
    first = [i for i in range(x.shape[0]) for _ in range(i + 1, x.shape[0])]
    second = [j for i in range(x.shape[0]) for j in range(i + 1, x.shape[0])]
    if not first:
        return x.new_zeros(0)
    return (x[first] - x[second]).norm(p, 1)
