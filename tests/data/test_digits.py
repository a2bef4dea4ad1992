"""The digits: what scikit-learn ships, split once and for all."""

from __future__ import annotations

import hashlib
import sys

import numpy as np
import pytest
from sklearn import datasets

from baregrad.base.errors import FileFormatError, MissingDependency
from baregrad.data.digits import held_out_mask, load_digits


@pytest.fixture(scope="module")
def digits():
    return load_digits()


def test_shapes_and_types(digits):
    assert (len(digits.train), len(digits.held_out)) == (1438, 359)
    for part in (digits.train, digits.held_out):
        assert part.images.shape == (len(part), 1, 8, 8)
        assert part.images.dtype == np.float32
        assert part.labels.dtype == np.int64
        assert part.images.flags.c_contiguous
        assert not part.images.flags.writeable


def test_parts_are_the_originals_split(digits):
    original = datasets.load_digits()
    together = np.concatenate([digits.train.positions, digits.held_out.positions])
    assert sorted(together) == list(range(1797))
    for part in (digits.train, digits.held_out):
        assert np.all(np.diff(part.positions) > 0)
        assert np.array_equal(part.labels, original.target[part.positions])
        pixels = (original.images[part.positions] / 16 - digits.mean) / digits.std
        np.testing.assert_allclose(part.images[:, 0], pixels, rtol=1e-6, atol=1e-6)


def test_normalised_by_the_training_part(digits):
    assert abs(digits.train.images.mean(dtype=np.float64)) < 1e-6
    assert abs(digits.train.images.std(dtype=np.float64) - 1) < 1e-6


def test_split_is_fixed_and_stratified(digits):
    part = digits.held_out.positions
    assert part[:8].tolist() == [2, 4, 31, 32, 33, 37, 41, 42]
    assert hashlib.sha256(part.astype("<i8").tobytes()).hexdigest()[:16] == "b487064bb620d9fb"
    for label in range(10):
        total = np.sum(datasets.load_digits().target == label)
        assert np.sum(digits.held_out.labels == label) == round(total / 5)


def test_no_image_is_in_both_parts(digits):
    train = {image.tobytes() for image in digits.train.images}
    assert not any(image.tobytes() in train for image in digits.held_out.images)


def test_mask_of_few_examples():
    assert held_out_mask(np.zeros(0, np.int64)).tolist() == []
    assert held_out_mask(np.zeros(10, np.int64)).sum() == 2
    assert held_out_mask(np.arange(10)).sum() == 0


def test_absent_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingDependency, match=r'scikit-learn.*pip install "baregrad\[demo\]"'):
        load_digits()


def test_other_data_is_refused(monkeypatch):
    bunch = datasets.load_digits()
    bunch.images = bunch.images[:100]
    monkeypatch.setattr(datasets, "load_digits", lambda: bunch)
    with pytest.raises(FileFormatError, match=r"images \(100, 8, 8\).*another release"):
        load_digits()
