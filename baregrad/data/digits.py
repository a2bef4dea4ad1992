"""The handwritten digits that scikit-learn ships: 1,797 real images of 8 x 8 grey levels.

Source: E. Alpaydin and C. Kaynak, "Optical recognition of handwritten digits", UCI machine
learning repository, 1998; the test part, as in `sklearn.datasets.load_digits`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from baregrad.base.errors import FileFormatError, MissingDependency, ShapeError
from baregrad.data.shuffle import splitmix64
from baregrad.tensor.array.arguments import explained

_COUNT = 1797
_CLASSES = 10
_SIDE = 8
_MAX_LEVEL = 16
_HELD_OUT = 5  # One image of this many.


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Images (N, 1, 8, 8) float32 with their labels (N,) int64, read-only.

    `positions` (N,) int64 says where each stands in scikit-learn's order.
    """

    images: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True, eq=False)
class Digits:
    """The digits, split for good: `train` (1,438 images) and `held_out` (359).

    Pixels are `(level / 16 - mean) / std`, with the mean and standard deviation of the training
    part's pixels.
    """

    train: Examples
    held_out: Examples
    mean: float
    std: float


def load_digits() -> Digits:
    """Return the digits, split and normalised; the same on every machine.

    Within each digit, the images are ordered by the SplitMix64 hash of their position in
    scikit-learn's order, and the first fifth of them (rounded to the nearest) is held out. Both
    parts keep scikit-learn's order. Raises MissingDependency without scikit-learn, and
    FileFormatError where it ships something else.
    """
    levels, labels = _raw_digits()
    held_out = held_out_mask(labels)
    scaled = levels.astype(np.float64) / _MAX_LEVEL
    mean = float(scaled[~held_out].mean())
    std = float(scaled[~held_out].std())
    images = ((scaled - mean) / std).astype(np.float32).reshape(-1, 1, _SIDE, _SIDE)
    return Digits(
        _examples(images, labels, ~held_out), _examples(images, labels, held_out), mean, std
    )


@explained
def held_out_mask(labels: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which examples are held out: of each label a fifth, chosen by hashes of positions.

    (N,) int64 to (N,) bool.
    """
    if labels.ndim != 1:
        raise ShapeError("labels are a vector", found=list(labels.shape))
    hashes = splitmix64(np.arange(len(labels), dtype=np.uint64))
    mask = np.zeros(len(labels), np.bool_)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        ordered = members[np.argsort(hashes[members], kind="stable")]
        count = (2 * len(members) + _HELD_OUT) // (2 * _HELD_OUT)
        mask[ordered[:count]] = True
    return mask


def _examples(
    images: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], mask: npt.NDArray[np.bool_]
) -> Examples:
    part = Examples(images[mask], labels[mask], np.flatnonzero(mask).astype(np.int64))
    for array in (part.images, part.labels, part.positions):
        array.setflags(write=False)
    return part


def _raw_digits() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return grey levels (1797, 8, 8), whole numbers from 0 to 16, and labels (1797,)."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise MissingDependency(package="scikit-learn", extra="demo") from error
    bunch = datasets.load_digits()
    levels = np.asarray(bunch.images, np.float64)
    labels = np.asarray(bunch.target, np.int64)
    sound = (
        levels.shape == (_COUNT, _SIDE, _SIDE)
        and labels.shape == (_COUNT,)
        and bool(np.all((levels >= 0) & (levels <= _MAX_LEVEL) & (levels == np.floor(levels))))
        and bool(np.all((labels >= 0) & (labels < _CLASSES)))
    )
    if not sound:
        raise FileFormatError(
            "scikit-learn's digits are not the known ones",
            found=f"images {levels.shape}, labels {labels.shape}",
            wanted=f"{_COUNT} images of 8 x 8 levels from 0 to 16, labels from 0 to 9",
            hint="install another release of scikit-learn",
        )
    return levels, labels
