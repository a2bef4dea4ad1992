"""Connectionist temporal classification: the likelihood of labels whose places are not known.

Source: A. Graves and others, "Connectionist Temporal Classification", ICML 2006.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from baregrad.base.errors import IndexOutOfRange, ShapeError
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import explained
from baregrad.tensor.ops.losses import reduced

# The logarithm of what is impossible, small enough that no sum of steps reaches it and finite, so
# that differences of two of them are numbers.
_NEVER = -1e30
_IMPOSSIBLE = 1e29


@explained
def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int], blank: int = 0, reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Return minus the logarithm of the likelihood of labels.

    log_probs (T, N, C), or (T, C) alone, of which each sample's first `input_lengths` count;
    targets (N, S), or the labels of all samples one after another. "mean" divides each by its
    number of labels first. An impossible target gives infinity, or 0 with `zero_infinity`. Raises
    ShapeError, IndexOutOfRange.
    """
    alone = log_probs.ndim == 2
    if alone:
        log_probs = log_probs.unsqueeze(1)
    if log_probs.ndim != 3:
        raise ShapeError("ctc_loss is of (T, N, C)", found=list(log_probs.shape))
    steps, batch, classes = log_probs.shape
    if not 0 <= blank < classes:
        raise IndexOutOfRange("the blank is a class", found=blank, wanted=f"below {classes}")
    taken = _lengths(input_lengths, batch, log_probs, "input_lengths")
    labelled = _lengths(target_lengths, batch, log_probs, "target_lengths")
    labels = _rows(targets, labelled, target_lengths, batch)
    states = _between_blanks(labels, blank)
    scores = log_probs.take_along_dim(states.unsqueeze(0).expand(steps, *states.shape), 2)
    loss = -_likelihood(scores, states, taken, labelled, blank)
    possible = loss < _IMPOSSIBLE
    loss = possible.where(loss, 0.0 if zero_infinity else float("inf"))
    if alone:
        loss = loss.squeeze(0)
        labelled = labelled.squeeze(0)
    if reduction == "mean":
        return (loss / labelled.clamp(min=1).cast(loss.dtype)).mean()
    return reduced(loss, reduction)


def _lengths(given: Any, batch: int, beside: Tensor, name: str) -> Tensor:
    made = given if isinstance(given, Tensor) else Tensor(given, device=beside.device)
    made = made.reshape(-1).cast("int64")
    if made.shape != (batch,):
        raise ShapeError(f"{name} are a number for each sample", found=list(made.shape),
                         wanted=[batch])
    return made


def _rows(targets: Tensor, labelled: Tensor, given: Any, batch: int) -> Tensor:
    """Labels (N, S), what is past the end of a row being any class."""
    if targets.ndim == 2 and targets.shape[0] == batch:
        return targets
    if targets.ndim != 1:
        raise ShapeError("targets are (N, S), or one after another", found=list(targets.shape))
    if batch == 1:
        return targets.unsqueeze(0)
    counts = given.tolist() if isinstance(given, Tensor) else list(given)
    starts = labelled.cumsum(0) - labelled
    places = Tensor.arange(max(counts, default=0), device=targets.device)
    at = (starts.unsqueeze(1) + places).clamp(max=max(targets.shape[0] - 1, 0))
    return targets[at]


def _between_blanks(labels: Tensor, blank: int) -> Tensor:
    """The labels (N, S) with a blank before, between and after them: (N, 2 S + 1)."""
    blanks = labels.full_like(blank)
    pairs = Tensor.stack([blanks, labels], dim=2).flatten(1)
    return Tensor.cat([pairs, pairs.new_full((labels.shape[0], 1), blank)], dim=1).cast("int64")


def _likelihood(
    scores: Tensor, states: Tensor, taken: Tensor, labelled: Tensor, blank: int
) -> Tensor:
    """The logarithm of the sum over all paths: scores (T, N, L) of states (N, L) -> (N,)."""
    steps, batch, width = scores.shape
    never = Tensor.full((batch, 1), _NEVER, dtype=scores.dtype, device=scores.device)
    first = Tensor.arange(width, device=scores.device) < 2
    # A path may leave out the blank between two labels that differ.
    before = states.pad((2, 0), value=blank)[:, :width]
    skips = (states != blank) & (states != before)
    paths = first.where(scores[0], _NEVER) if steps else never.expand(batch, width)
    found = paths
    for step in range(1, steps):
        one = Tensor.cat([never, paths[:, :-1]], dim=1)
        total = paths.logaddexp(one)
        if width > 2:
            two = Tensor.cat([never, never, paths[:, :-2]], dim=1)
            total = total.logaddexp(skips.where(two, _NEVER))
        paths = total + scores[step]
        found = (taken > step).unsqueeze(1).where(paths, found)
    last = (2 * labelled).unsqueeze(1)
    ends = found.take_along_dim(last, 1).squeeze(1)
    inner = found.take_along_dim((last - 1).clamp(min=0), 1).squeeze(1)
    whole = ends.logaddexp((labelled > 0).where(inner, _NEVER))
    # Of no steps at all: no labels are certain, and others cannot be.
    return (taken > 0).where(whole, (labelled > 0).where(_NEVER, whole.zeros_like()))
