"""Losses, with PyTorch's arguments. reduction: "mean", "sum" or "none"."""

from __future__ import annotations

import math

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.dtypes import dtypes
from baregrad.ir.core.op import Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.operands import accumulator, result
from baregrad.tensor.array.tensor_like import Operand, Tensor
from baregrad.tensor.ops.functions import log1p
from baregrad.tensor.ops.indexing import check_class_ids
from baregrad.tensor.ops.reductions import check_integer, log_parts, log_softmax


def reduced(loss: Tensor, reduction: str) -> Tensor:
    """A loss's mean, sum or elements. Raises ArgumentError for another word."""
    if reduction == "mean":
        return loss.mean()
    if reduction == "sum":
        return loss.sum()
    if reduction == "none":
        return loss
    raise ArgumentError(f"reduction is 'mean', 'sum' or 'none', not {reduction!r}")


def check_same_shape(x: Tensor, target: Tensor) -> None:
    """Raise ShapeError unless prediction and target have one shape."""
    if x.shape != target.shape:
        raise ShapeError(
            "prediction and target have one shape",
            found=f"{list(x.shape)} and {list(target.shape)}",
            hint="reshape one of them; losses do not broadcast",
        )


def mse_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the squared difference."""
    check_same_shape(x, target)
    return reduced((x - target).square(), reduction)


def l1_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the absolute difference."""
    check_same_shape(x, target)
    return reduced((x - target).abs(), reduction)


def smooth_l1_loss(x: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """Return d*d/(2*beta) for differences |d| below beta, |d| - beta/2 beyond."""
    check_same_shape(x, target)
    distance = (x - target).abs()
    if beta == 0:
        return reduced(distance, reduction)
    beyond = distance >= beta
    near = beyond.where(0, distance)
    loss = beyond.where(distance - 0.5 * beta, near * near * (0.5 / beta))
    return reduced(loss, reduction)


def huber_loss(x: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """Return d*d/2 for differences |d| up to delta, delta*(|d| - delta/2) beyond."""
    check_same_shape(x, target)
    distance = (x - target).abs()
    beyond = distance > delta
    near = beyond.where(0, distance)
    loss = beyond.where(delta * (distance - 0.5 * delta), near * near * 0.5)
    return reduced(loss, reduction)


def binary_cross_entropy(
    x: Tensor, target: Tensor, weight: Operand | None = None, reduction: str = "mean"
) -> Tensor:
    """Return -(t*log(x) + (1 - t)*log(1 - x)) of probabilities, logarithms held above -100."""
    check_same_shape(x, target)
    gain = x.log().clamp(min=-100.0)
    rest = log1p(-x).clamp(min=-100.0)
    loss = (target - 1) * rest - target * gain
    return reduced(loss if weight is None else loss * weight, reduction)


def binary_cross_entropy_with_logits(
    x: Tensor,
    target: Tensor,
    weight: Operand | None = None,
    reduction: str = "mean",
    pos_weight: Operand | None = None,
) -> Tensor:
    """Return `binary_cross_entropy` of sigmoid(x), computed without leaving logarithms."""
    check_same_shape(x, target)
    positive = x.logsigmoid()
    negative = (-x).logsigmoid()
    gain = target * positive if pos_weight is None else target * positive * pos_weight
    loss = -(gain + (1 - target) * negative)
    return reduced(loss if weight is None else loss * weight, reduction)


def kl_div(x: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """Return target*(log(target) - x), where x is a logarithm; target too with log_target.

    reduction "batchmean" divides the sum by the extent of the first axis.
    """
    if log_target:
        loss = target.exp() * (target - x)
    else:
        positive = target > 0
        loss = positive.where(target * positive.where(target, 1).log(), 0) - target * x
        loss = target.isnan().where(target, loss)
    if reduction == "batchmean":
        return loss.sum() / (x.shape[0] if x.ndim else 1)
    return reduced(loss, reduction)


def gaussian_nll_loss(
    x: Tensor, target: Tensor, var: Tensor, full: bool = False, eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Return (log(var) + (x - target)**2 / var) / 2, of a normal distribution of mean x.

    var: the variance, of the shape of `x`, of 1 along an axis, or without the last one; held above
    eps without that showing in its gradient. full: add the constant log(2*pi) / 2. Raises
    ShapeError for a variance of another shape.
    """
    if var.ndim and var.shape == x.shape[:-1]:
        var = var.unsqueeze(-1)
    apart = [(a, b) for a, b in zip(x.shape, var.shape, strict=False) if a != b]
    if var.ndim and (var.ndim != x.ndim or any(b != 1 for _, b in apart)):
        raise ShapeError(
            "there is a variance for each element, or for each but along an axis",
            found=f"{list(var.shape)} for {list(x.shape)}",
        )
    held = var + (var.clamp(min=eps) - var).detach()
    loss = (held.log() + (x - target).square() / held) * 0.5
    return reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


def poisson_nll_loss(
    x: Tensor, target: Tensor, log_input: bool = True, full: bool = False, eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """Return exp(x) - target*x, or x - target*log(x + eps) where x is no logarithm.

    full: add Stirling's approximation of log(target!) for targets above 1.
    """
    loss = x.exp() - target * x if log_input else x - target * (x + eps).log()
    if full:
        many = target > 1
        count = many.where(target, 1)
        stirling = count * count.log() - count + 0.5 * (2 * math.pi * count).log()
        loss = loss + many.where(stirling, 0)
    return reduced(loss, reduction)


def soft_margin_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return log(1 + exp(-target * x)), for targets of 1 and -1."""
    check_same_shape(x, target)
    return reduced(-(target * x).logsigmoid(), reduction)


def _class_axis(x: Tensor) -> int:
    if not x.ndim:
        raise ShapeError("class scores want an axis of classes", found="a scalar")
    return 0 if x.ndim == 1 else 1


def nll_loss(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Return minus the log-probability of each target: (N, C, ...) and class ids (N, ...).

    weight: one number per class; the mean is weighted by it. Targets equal to `ignore_index`
    count for nothing. Raises ShapeError or DTypeError.
    """
    picked, share = _pick(x, target, weight, ignore_index)
    return _weighted(-picked * share, share, reduction)


def _pick(
    x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """The score of each target, and how much each counts."""
    axis = _class_axis(x)
    check_integer(target, "class ids")
    wanted = (*x.shape[:axis], *x.shape[axis + 1 :])
    if target.shape != wanted:
        raise ShapeError(
            "there is a class id for each row of scores",
            found=f"{list(target.shape)} for scores {list(x.shape)}",
            wanted=str(list(wanted)),
        )
    counted = target != ignore_index
    safe = counted.where(target, 0)
    check_class_ids(target, x.shape[axis], ignore_index)
    # A sum over classes in which one counts: it joins the passes over the scores that are made
    # anyway, and its gradient scatters nothing.
    places = nodes.alu(
        Ops.CMPEQ,
        nodes.iota_along(x.shape, axis),
        nodes.cast(nodes.unsqueeze(safe.node, axis), dtypes.int64),
    )
    picked = result(places, x.detach()).where(x, 0).sum(axis)
    share = counted.cast(x.dtype)
    if weight is not None:
        if weight.shape != (x.shape[axis],):
            raise ShapeError(
                "there is a weight for each class", found=list(weight.shape), wanted=[x.shape[axis]]
            )
        share = share * weight[safe].cast(x.dtype)
    return counted.where(picked, 0), share


def _weighted(loss: Tensor, share: Tensor, reduction: str) -> Tensor:
    if reduction == "mean":
        return loss.sum() / share.sum()
    return reduced(loss, reduction)


def cross_entropy(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return minus the log of softmax(x) at each target: (N, C, ...) and class ids (N, ...).

    The target may also be probabilities of the shape of `x`. label_smoothing mixes the target
    with the uniform distribution. See `nll_loss` for the rest.
    """
    axis = _class_axis(x)
    wide = x.cast(accumulator(x.dtype))
    scores = log_softmax(wide, axis)
    if target.dtype.kind == "float":
        return _against_probabilities(x, scores, target, weight, reduction, label_smoothing)
    picked, share = _pick(scores, target, weight, ignore_index)
    loss = -picked * share
    if not label_smoothing:
        return _weighted(loss, share, reduction).cast(x.dtype)
    # A choice, not a factor: a row that is not counted may have infinite scores.
    spread = (target != ignore_index).where(-_over_classes(wide, weight, axis), 0)
    part = label_smoothing / x.shape[axis]
    mixed = loss * (1 - label_smoothing) + spread * part
    return _weighted(mixed, share, reduction).cast(x.dtype)


def _over_classes(x: Tensor, weight: Tensor | None, axis: int) -> Tensor:
    """The sum of `log_softmax` over the classes, each times its weight.

    What all classes share is multiplied, not summed: so is its gradient, which equals, but for the
    sign, what one class with all the probability has.
    """
    if 0 in x.shape:
        return x.sum(axis)
    shifted, total = log_parts(x, axis)
    if weight is None:
        return shifted.sum(axis) - total.squeeze(axis) * x.shape[axis]
    beside = _beside(weight.cast(x.dtype), x, axis)
    return (shifted * beside).sum(axis) - total.squeeze(axis) * beside.sum()


def _beside(weight: Tensor, x: Tensor, axis: int) -> Tensor:
    return weight.reshape(tuple(-1 if i == axis else 1 for i in range(x.ndim)))


def _against_probabilities(
    x: Tensor,
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: str,
    label_smoothing: float,
) -> Tensor:
    check_same_shape(x, target)
    axis = _class_axis(x)
    aim = target
    if label_smoothing:
        aim = target * (1 - label_smoothing) + label_smoothing / x.shape[axis]
    if weight is not None:
        aim = aim * _beside(weight, x, axis)
    loss = -(scores * aim).sum(axis)
    if reduction == "mean":
        rows = loss.numel() if loss.ndim else 1
        return (loss.sum() / rows).cast(x.dtype)
    return reduced(loss, reduction).cast(x.dtype)
